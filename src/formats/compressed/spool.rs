//! A file decoded forward, once, into a temporary file: for what can not be decoded in chunks.
//!
//! Owns the thread that decodes, the unlinked file it writes, and the waiting of readers who are
//! ahead of it; leaves decoding to `forward`.
//! Invariants: bytes below `written` never change; whoever waits is woken when there are more, when
//! there will be no more, and when that is an error, which every reader past it is told. An error
//! of the storage is not for ever: the next who reads past it has the file decoded anew.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::{self, JoinHandle};

use super::Container;
use super::forward::Forward;
pub(super) use super::spool_limit::SpoolLimit;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::storage::{Storage, unlinked};
use crate::sync::{Arc, AtomicBool, AtomicU64, Condvar, Mutex, OnceLock, Ordering};
use crate::vfs::SharedBytes;

/// What is handed out at once in the first pass, bytes.
const PIECE: u64 = 256 << 10;

/// A temporary file and the thread that fills it; dropping it ends the thread.
pub(super) struct Spool {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    file: File,
    /// Bytes of `limit` that this file may take.
    granted: AtomicU64,
    limit: Arc<SpoolLimit>,
    /// Guards how far the file is written; taken alone, never across a write or a decode.
    state: Mutex<State>,
    grown: Condvar,
    stopped: AtomicBool,
    position: AtomicU64,
    verified_len: AtomicU64,
    garbage: OnceLock<u64>,
}

#[derive(Default)]
struct State {
    written: u64,
    ended: bool,
    failure: Option<Failure>,
    /// How often the storage failed.
    faults: u64,
    /// Whether the thread waits, after such a fault, for somebody who wants it to try again.
    rests: bool,
}

/// A temporary file, the directory it is in, and how large all such files may become.
pub(super) struct TemporaryFile<'d> {
    pub(super) file: File,
    pub(super) directory: &'d Path,
    pub(super) limit: Arc<SpoolLimit>,
}

/// An error that every reader gets a copy of.
#[derive(Clone)]
struct Failure {
    kind: Kind,
    context: String,
    hint: Option<String>,
}

/// How much a file is granted at once, bytes.
const GRANT: u64 = 8 << 20;

impl Spool {
    /// Starts decoding `storage` into a file in the directory for temporary files, within `limit`.
    /// `expected` is how many bytes that will be, where it is known.
    pub(super) fn start(
        name: &str,
        storage: Arc<dyn Storage>,
        container: Container,
        limit: &Arc<SpoolLimit>,
        expected: Option<u64>,
    ) -> Result<Self> {
        let directory = std::env::temp_dir();
        let shown = directory.display();
        let failed = |error| {
            let context = format!("{name}: making a temporary file in {shown}");
            Error::io(context, error).with_hint("set TMPDIR to a directory with more room")
        };
        let file = unlinked(&directory).map_err(failed)?;
        limit.measure(&file).map_err(failed)?;
        let room = TemporaryFile { file, directory: &directory, limit: Arc::clone(limit) };
        if expected.is_some_and(|expected| expected > limit.left()) {
            return Err(exceeded(limit, &directory, container).into());
        }
        Self::within(name, storage, container, room)
    }

    /// The same with a file that is there.
    pub(super) fn within(
        name: &str,
        storage: Arc<dyn Storage>,
        container: Container,
        room: TemporaryFile<'_>,
    ) -> Result<Self> {
        let forward = Forward::new(name, Arc::clone(&storage), container)?;
        let TemporaryFile { file, directory, limit } = room;
        let (directory, exceeds) = (directory.to_owned(), Arc::clone(&limit));
        let over = move || exceeded(&exceeds, &directory, container);
        let shared = Arc::new(Shared {
            file,
            granted: AtomicU64::new(0),
            limit,
            state: Mutex::default(),
            grown: Condvar::new(),
            stopped: AtomicBool::new(false),
            position: AtomicU64::new(0),
            verified_len: AtomicU64::new(0),
            garbage: OnceLock::new(),
        });
        let filled = Arc::clone(&shared);
        let name = name.to_owned();
        let again = move || Forward::new(&name, Arc::clone(&storage), container);
        let work = move || filled.fill(forward, again, over);
        let thread = thread::Builder::new().name("archfs-spool".into()).spawn(work);
        let thread = thread.map_err(|error| Error::io("starting a decoding thread", error))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Compressed bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.shared.position.load(Ordering::Relaxed)
    }

    /// Where something begins that is not of the container, after the end.
    pub(super) fn garbage(&self) -> Option<u64> {
        self.shared.garbage.get().copied()
    }

    /// Decoded bytes that are right for all that is known, once there was an error.
    pub(super) fn verified_len(&self) -> u64 {
        self.shared.verified_len.load(Ordering::Relaxed)
    }

    /// The bytes from `offset` on, some of them, as soon as there are any; `None` at the end.
    pub(super) fn piece(&self, offset: u64) -> Result<Option<SharedBytes>> {
        let written = self.shared.wait(offset.saturating_add(1));
        let len = written.saturating_sub(offset).min(PIECE);
        if len == 0 {
            return self.shared.failure().map_or(Ok(None), Err);
        }
        let mut piece = vec![0; index(len)];
        self.read_exact_at(&mut piece, offset)?;
        Ok(Some(piece.into()))
    }

    /// Fills `buffer` with the bytes from `offset`, once they are there.
    pub(super) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let end = offset.saturating_add(length(buffer.len()));
        let written = self.shared.wait(end);
        if written < end {
            let early = || Error::corrupt(format!("the decoded data ends at {written:#x}"));
            return Err(self.shared.failure().unwrap_or_else(early));
        }
        self.shared
            .file
            .read_exact_at(buffer, offset)
            .map_err(|error| Error::io("reading back a temporary file", error))
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        {
            // CacheKind, so that a thread about to rest does not miss it.
            let _state = self.shared.state.lock();
            self.shared.stopped.store(true, Ordering::Relaxed);
        }
        self.shared.grown.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Decodes until the end, an error that stays, or being told to stop.
    fn fill(
        &self,
        mut forward: Forward,
        again: impl Fn() -> Result<Forward>,
        over: impl Fn() -> Failure,
    ) {
        let ending = Ending(self);
        loop {
            let failure = match self.decode(&mut forward, &over) {
                Ok(()) => return self.state.lock().failure = None,
                Err(Fault::Stays(failure)) => return ending.fail(failure),
                Err(Fault::MayPass(failure)) => failure,
            };
            if !self.rest(failure) {
                return;
            }
            forward = match again() {
                Ok(forward) => forward,
                Err(error) => return ending.fail(Failure::of(&error)),
            };
        }
    }

    /// Decodes from the start, and writes what is not written yet.
    fn decode(&self, forward: &mut Forward, over: &impl Fn() -> Failure) -> Fallible<()> {
        let mut written = self.state.lock().written;
        let mut at = 0_u64;
        while !self.stopped.load(Ordering::Relaxed) {
            let piece = match forward.next() {
                Ok(Some(piece)) => piece,
                Ok(None) => {
                    if let Some(at) = forward.garbage() {
                        // Nobody else sets it.
                        let _ = self.garbage.set(at);
                    }
                    break;
                }
                Err(error) => {
                    self.verified_len.store(forward.verified_len(error.kind()), Ordering::Relaxed);
                    let failure = Failure::of(&error);
                    return Err(match error.kind() {
                        Kind::Io => Fault::MayPass(failure),
                        _ => Fault::Stays(failure),
                    });
                }
            };
            let end = at.saturating_add(length(piece.len()));
            if !self.has_room_for(end) {
                return Err(Fault::Stays(over()));
            }
            let known = index(written.saturating_sub(at));
            if let Some(new) = piece.get(known..).filter(|new| !new.is_empty()) {
                if let Err(error) = self.file.write_all_at(new, written) {
                    let context = format!("writing a temporary file: {error}");
                    let hint = over().hint;
                    return Err(Fault::Stays(Failure { kind: Kind::Io, context, hint }));
                }
                written = end;
            }
            at = end;
            self.position.store(forward.position(), Ordering::Relaxed);
            self.state.lock().written = written;
            self.grown.notify_all();
        }
        Ok(())
    }

    /// Whether the file may have `end` bytes; takes more of the limit for it.
    fn has_room_for(&self, end: u64) -> bool {
        let granted = self.granted.load(Ordering::Relaxed);
        let Some(missing) = end.checked_sub(granted).filter(|&missing| missing > 0) else {
            return true;
        };
        let more = self.limit.take(missing, missing.max(GRANT));
        // One thread writes it.
        self.granted.store(granted.saturating_add(more.unwrap_or(0)), Ordering::Relaxed);
        more.is_some()
    }

    /// Tells all who wait of a fault of the storage, and waits until somebody reads past it again;
    /// `false` where nobody will.
    fn rest(&self, failure: Failure) -> bool {
        let mut state = self.state.lock();
        state.failure = Some(failure);
        state.faults = state.faults.wrapping_add(1);
        state.rests = true;
        self.grown.notify_all();
        while state.rests && !self.stopped.load(Ordering::Relaxed) {
            self.grown.wait(&mut state);
        }
        !self.stopped.load(Ordering::Relaxed)
    }

    /// Waits until `end` bytes are written or no more will be; tells how many are.
    fn wait(&self, end: u64) -> u64 {
        let mut state = self.state.lock();
        let before = state.faults;
        while state.written < end && !state.ended {
            if state.rests {
                if state.faults != before {
                    break;
                }
                // That fault was told to others, and may have passed.
                state.rests = false;
                self.grown.notify_all();
            }
            self.grown.wait(&mut state);
        }
        state.written
    }

    fn failure(&self) -> Option<Error> {
        self.state.lock().failure.clone().map(Error::from)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.limit.give_back(self.granted.load(Ordering::Relaxed));
    }
}

/// What ended a decoding.
enum Fault {
    /// Of the storage: to be tried again.
    MayPass(Failure),
    /// Of the bytes or the temporary file.
    Stays(Failure),
}

type Fallible<T> = std::result::Result<T, Fault>;

impl Failure {
    fn of(error: &Error) -> Self {
        let hint = error.hint().map(str::to_owned);
        Self { kind: error.kind(), context: error.to_string(), hint }
    }
}

/// What to say where a file in `directory` needs more than `limit`.
fn exceeded(limit: &SpoolLimit, directory: &Path, container: Container) -> Failure {
    let hint = format!("set TMPDIR to a directory with more room, or {}", advice(container));
    let context = limit.exceeded(directory);
    Failure { kind: Kind::Unsupported, context, hint: Some(hint) }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let error = Self::new(failure.kind, failure.context);
        match failure.hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}

/// Tells the readers that there will be no more, also where the thread unwinds.
struct Ending<'s>(&'s Shared);

impl Ending<'_> {
    fn fail(self, failure: Failure) {
        self.0.state.lock().failure = Some(failure);
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let context = "the decoding thread has ended".to_owned();
            let failure = Failure { kind: Kind::Io, context, hint: None };
            self.0.state.lock().failure = Some(failure);
        }
        self.0.state.lock().ended = true;
        self.0.grown.notify_all();
    }
}

/// What the owner of a file that must be spooled could do.
pub(super) fn advice(container: Container) -> &'static str {
    match container {
        Container::Gzip => "re-pack it: gzip -dc FILE | gzip > NEW",
        Container::Bzip2 => "re-pack it with bzip2",
        Container::Xz => "re-pack it for random access: xz -dc FILE | xz -T0 > NEW",
        Container::Zstd => "re-pack it for random access: zstd -dc FILE | pzstd > NEW",
        Container::Lz4 => "re-pack it for random access: lz4 -dc FILE | lz4 -BI > NEW",
    }
}

/// What it is that can not be decoded in chunks.
pub(super) fn unit(container: Container) -> &'static str {
    match container {
        Container::Gzip => "a deflate block of more than 64 MiB",
        Container::Bzip2 => "a bzip2 block",
        Container::Xz => "an xz block of more than 64 MiB",
        Container::Zstd => "a zstd frame of more than 64 MiB",
        Container::Lz4 => "an lz4 frame of linked blocks of more than 64 MiB",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{Faults, FaultyStorage, MemStorage};

    /// > An error is returned to the reader and not cached: the next read tries again, also for
    /// > data that is decompressed into a temporary file.
    #[test]
    fn a_fault_of_the_storage_is_told_to_all_who_wait_and_to_nobody_later() {
        let plain: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
        let packed = zstd::bulk::compress(&plain, 1).unwrap();
        let half = packed.len() as u64 / 2;
        let storage = Arc::new(FaultyStorage::new(Arc::new(MemStorage::new(packed)), 1));
        let directory = std::env::temp_dir();
        let file = unlinked(&directory).unwrap();
        let room = TemporaryFile { file, directory: &directory, limit: SpoolLimit::of(u64::MAX) };
        storage.set(Faults { failing: 1, from: half, ..Faults::default() });
        let spool =
            Spool::within("x", Arc::<FaultyStorage>::clone(&storage), Container::Zstd, room);
        let spool = spool.unwrap();
        let last = plain.len() as u64 - 4;
        for _ in 0..2 {
            let errors: Vec<_> = thread::scope(|scope| {
                let read = || spool.read_exact_at(&mut [0; 4], last);
                let readers: Vec<_> = (0..8).map(|_| scope.spawn(read)).collect();
                readers.into_iter().map(|reader| reader.join().unwrap()).collect()
            });
            for error in errors {
                let error = error.unwrap_err();
                assert_eq!(error.kind(), Kind::Io, "{error}");
                assert!(error.to_string().contains("injected fault"), "{error}");
            }
            // What comes before is there.
            let mut first = [0; 4];
            spool.read_exact_at(&mut first, 400).unwrap();
            assert_eq!(first, 100_u32.to_le_bytes());
        }
        storage.set(Faults::default());
        let mut found = vec![0; plain.len()];
        spool.read_exact_at(&mut found, 0).unwrap();
        assert!(found == plain);
        assert!(spool.piece(plain.len() as u64).unwrap().is_none(), "the end is no error");
    }

    #[test]
    fn a_thread_that_rests_after_a_fault_ends_with_its_spool() {
        let storage = Arc::new(FaultyStorage::new(Arc::new(MemStorage::new(vec![0; 100])), 1));
        storage.set(Faults { failing: 1, ..Faults::default() });
        let directory = std::env::temp_dir();
        let file = unlinked(&directory).unwrap();
        let room = TemporaryFile { file, directory: &directory, limit: SpoolLimit::of(u64::MAX) };
        let spool = Spool::within("x", storage, Container::Zstd, room).unwrap();
        assert_eq!(spool.piece(0).unwrap_err().kind(), Kind::Io);
        drop(spool);
    }
}
