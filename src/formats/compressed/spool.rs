//! Decodes a file once into a temporary file, if it has a chunk that is too large for memory.
//!
//! A thread decodes from the start and appends to an unlinked file. A reader past the end of the
//! written part waits.
//!
//! Invariants: bytes below `written` never change. Waiting readers are woken when more bytes are
//! written, at the end of the data, and on an error. Damage is permanent. An error of the storage
//! is not: the next read past `written` starts the decoding again.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::{self, JoinHandle};

use super::format::{Output, PIECE_MAX, Pass, SpoolFormat};
use super::spool_limit::SpoolLimit;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::os::unlinked;
use crate::storage::Storage;
use crate::sync::{Arc, AtomicBool, AtomicU64, Condvar, Mutex, OnceLock, Ordering};
use crate::vfs::SharedBytes;

/// A temporary file and the thread that fills it. Dropping it stops the thread.
pub(crate) struct Spool {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    file: File,
    /// Bytes of `limit` that are reserved for this file.
    granted: AtomicU64,
    limit: Arc<SpoolLimit>,
    /// Guards the progress of the thread. Never held together with another lock, or across a write
    /// or decoding.
    state: Mutex<State>,
    changed: Condvar,
    stopped: AtomicBool,
    position: AtomicU64,
    usable_len: AtomicU64,
    garbage: OnceLock<u64>,
}

#[derive(Default)]
struct State {
    written: u64,
    ended: bool,
    failure: Option<Error>,
    /// Number of storage errors so far.
    faults: u64,
    /// The thread waits after a storage error, until a reader needs a retry.
    waits_for_retry: bool,
}

/// A temporary file, its directory, and the size limit of all such files.
pub(super) struct TemporaryFile<'d> {
    pub(super) file: File,
    pub(super) directory: &'d Path,
    pub(super) limit: Arc<SpoolLimit>,
}

/// Bytes reserved for a file at a time.
const GRANT: u64 = 8 << 20;

impl Spool {
    /// Starts to decode `storage` into a file in the directory for temporary files, within `limit`.
    /// `expected` is the length of the decoded data, if it is known.
    pub(super) fn start(
        name: &str,
        storage: Arc<dyn Storage>,
        format: &'static SpoolFormat,
        limit: &Arc<SpoolLimit>,
        expected: Option<u64>,
    ) -> Result<Self> {
        let directory = std::env::temp_dir();
        let shown = directory.display();
        let failed = |error| {
            let context = format!("{name}: cannot make a temporary file in {shown}");
            Error::io(context, error).with_hint("set TMPDIR to a directory with more free space")
        };
        let file = unlinked::create(&directory).map_err(failed)?;
        limit.measure(&file).map_err(failed)?;
        let target = TemporaryFile { file, directory: &directory, limit: Arc::clone(limit) };
        if expected.is_some_and(|expected| expected > limit.left()) {
            return Err(exceeded(limit, &directory, format.advice));
        }
        Self::within(name, storage, format, target)
    }

    /// The same with a given temporary file.
    pub(super) fn within(
        name: &str,
        storage: Arc<dyn Storage>,
        format: &'static SpoolFormat,
        target: TemporaryFile<'_>,
    ) -> Result<Self> {
        let pass = (format.open)(name, Arc::clone(&storage))?;
        let TemporaryFile { file, directory, limit } = target;
        let (directory, exceeds) = (directory.to_owned(), Arc::clone(&limit));
        let limit_error = move || exceeded(&exceeds, &directory, format.advice);
        let shared = Arc::new(Shared {
            file,
            granted: AtomicU64::new(0),
            limit,
            state: Mutex::default(),
            changed: Condvar::new(),
            stopped: AtomicBool::new(false),
            position: AtomicU64::new(0),
            usable_len: AtomicU64::new(0),
            garbage: OnceLock::new(),
        });
        let filled = Arc::clone(&shared);
        let name = name.to_owned();
        let reopen = move || (format.open)(&name, Arc::clone(&storage));
        let work = move || filled.fill(pass, reopen, limit_error);
        let thread = thread::Builder::new().name("archfs-spool".into()).spawn(work);
        let thread = thread.map_err(|error| Error::io("cannot start a decoding thread", error))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Compressed bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.shared.position.load(Ordering::Relaxed)
    }

    /// Offset in the file of other data after the end of the container.
    pub(super) fn trailing_garbage_at(&self) -> Option<u64> {
        self.shared.garbage.get().copied()
    }

    /// Decoded bytes that readers may get after an error.
    pub(super) fn usable_len(&self) -> u64 {
        self.shared.usable_len.load(Ordering::Relaxed)
    }

    /// Waits for bytes at `offset` and returns some of them; `None` at the end.
    pub(super) fn piece(&self, offset: u64) -> Result<Option<SharedBytes>> {
        let written = self.shared.wait(offset.saturating_add(1));
        let len = written.saturating_sub(offset).min(length(PIECE_MAX));
        if len == 0 {
            return self.shared.failure().map_or(Ok(None), Err);
        }
        let mut piece = vec![0; index(len)];
        self.read_exact_at(&mut piece, offset)?;
        Ok(Some(piece.into()))
    }

    /// Waits for the bytes from `offset` on and fills `buffer` with them.
    pub(super) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let end = offset.saturating_add(length(buffer.len()));
        let written = self.shared.wait(end);
        if written < end {
            let early = || {
                Error::corrupt("the decompressed data is shorter than recorded")
                    .with_detail(format_args!("it ends at {written:#x}"))
            };
            return Err(self.shared.failure().unwrap_or_else(early));
        }
        self.shared
            .file
            .read_exact_at(buffer, offset)
            .map_err(|error| Error::io("cannot read a temporary file", error))
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        {
            // The lock makes sure that a thread about to wait does not miss the wakeup.
            let _state = self.shared.state.lock();
            self.shared.stopped.store(true, Ordering::Relaxed);
        }
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Decodes until the end, a permanent error, or `stopped`.
    fn fill(
        &self,
        mut pass: Box<dyn Pass>,
        reopen: impl Fn() -> Result<Box<dyn Pass>>,
        limit_error: impl Fn() -> Error,
    ) {
        let ending = Ending(self);
        loop {
            let failure = match self.decode(&mut *pass, &limit_error) {
                Ok(()) => return self.state.lock().failure = None,
                Err(Fault::Permanent(failure)) => return ending.fail(failure),
                Err(Fault::Transient(failure)) => failure,
            };
            if !self.wait_for_retry(failure) {
                return;
            }
            pass = match reopen() {
                Ok(pass) => pass,
                Err(error) => return ending.fail(error),
            };
        }
    }

    /// Decodes from the start. Writes only what is not written yet.
    fn decode(&self, pass: &mut dyn Pass, limit_error: &impl Fn() -> Error) -> Fallible<()> {
        let mut written = self.state.lock().written;
        let mut offset = 0_u64;
        while !self.stopped.load(Ordering::Relaxed) {
            let piece = match pass.next() {
                Ok(Output::Piece(piece)) => piece,
                // This pass finds no chunks, so none should be too large.
                Ok(Output::ChunkTooLarge) => {
                    let context = "a part of it is too large to be decompressed at once";
                    return Err(Fault::Permanent(Error::new(Kind::Unsupported, context)));
                }
                Ok(Output::End) => {
                    if let Some(offset) = pass.trailing_garbage_at() {
                        // Only this thread sets it.
                        let _ = self.garbage.set(offset);
                    }
                    break;
                }
                Err(error) => {
                    self.usable_len.store(pass.usable_len(error.kind()), Ordering::Relaxed);
                    return Err(match error.kind() {
                        Kind::Io | Kind::Unreachable => Fault::Transient(error),
                        _ => Fault::Permanent(error),
                    });
                }
            };
            let end = offset.saturating_add(length(piece.len()));
            if !self.has_room_for(end) {
                return Err(Fault::Permanent(limit_error()));
            }
            let skip = index(written.saturating_sub(offset));
            if let Some(new) = piece.get(skip..).filter(|new| !new.is_empty()) {
                if let Err(error) = self.file.write_all_at(new, written) {
                    let failed = Error::io("cannot write a temporary file", error);
                    let hint = limit_error().hint().unwrap_or_default().to_owned();
                    return Err(Fault::Permanent(failed.with_hint(hint)));
                }
                written = end;
            }
            offset = end;
            self.position.store(pass.position(), Ordering::Relaxed);
            self.state.lock().written = written;
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Whether the file may grow to `end` bytes. Reserves more of the limit if needed.
    fn has_room_for(&self, end: u64) -> bool {
        let granted = self.granted.load(Ordering::Relaxed);
        let Some(missing) = end.checked_sub(granted).filter(|&missing| missing > 0) else {
            return true;
        };
        let more = self.limit.grant(missing, missing.max(GRANT));
        // Only this thread changes it.
        self.granted.store(granted.saturating_add(more.unwrap_or(0)), Ordering::Relaxed);
        more.is_some()
    }

    /// Wakes the waiting readers with a storage error. Waits until another read needs a retry;
    /// returns `false` if the spool is stopped.
    fn wait_for_retry(&self, failure: Error) -> bool {
        let mut state = self.state.lock();
        state.failure = Some(failure);
        state.faults = state.faults.wrapping_add(1);
        state.waits_for_retry = true;
        self.changed.notify_all();
        while state.waits_for_retry && !self.stopped.load(Ordering::Relaxed) {
            self.changed.wait(&mut state);
        }
        !self.stopped.load(Ordering::Relaxed)
    }

    /// Waits until `end` bytes are written or there will be no more. Returns how many are written.
    fn wait(&self, end: u64) -> u64 {
        let mut state = self.state.lock();
        let before = state.faults;
        while state.written < end && !state.ended {
            if state.waits_for_retry {
                if state.faults != before {
                    break;
                }
                // The error is from before this read, and may be gone.
                state.waits_for_retry = false;
                self.changed.notify_all();
            }
            self.changed.wait(&mut state);
        }
        state.written
    }

    fn failure(&self) -> Option<Error> {
        self.state.lock().failure.as_ref().map(Error::copy)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.limit.give_back(self.granted.load(Ordering::Relaxed));
    }
}

/// Why decoding failed.
enum Fault {
    /// A storage error; decoding is retried.
    Transient(Error),
    /// Damage, or an error of the temporary file; permanent.
    Permanent(Error),
}

type Fallible<T> = std::result::Result<T, Fault>;

/// The error for a file in `directory` that needs more than `limit`; `advice` avoids that.
fn exceeded(limit: &SpoolLimit, directory: &Path, advice: &str) -> Error {
    let hint = format!("set TMPDIR to a directory with more room, or {advice}");
    Error::new(Kind::Unsupported, limit.exceeded(directory)).with_hint(hint)
}

/// Wakes the readers at the end, also if the thread panics.
struct Ending<'s>(&'s Shared);

impl Ending<'_> {
    fn fail(self, failure: Error) {
        self.0.state.lock().failure = Some(failure);
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let failure = Error::new(Kind::Io, "the decoding thread has ended");
            self.0.state.lock().failure = Some(failure);
        }
        self.0.state.lock().ended = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Container;
    use super::*;
    use crate::storage::{Faults, FaultyStorage, MemStorage};

    fn zstd() -> &'static SpoolFormat {
        Container::Zstd.spool_format().unwrap()
    }

    /// > An error is returned to the reader and not cached: the next read tries again, also for
    /// > data that is decompressed into a temporary file.
    #[test]
    fn a_storage_error_reaches_all_waiting_readers_and_is_retried_later() {
        let data: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
        let compressed = zstd::bulk::compress(&data, 1).unwrap();
        let half = compressed.len() as u64 / 2;
        let storage = Arc::new(FaultyStorage::new(Arc::new(MemStorage::new(compressed)), 1));
        let directory = std::env::temp_dir();
        let file = unlinked::create(&directory).unwrap();
        let target =
            TemporaryFile { file, directory: &directory, limit: SpoolLimit::fixed(u64::MAX) };
        storage.set(Faults { failing: 1, from: half, ..Faults::default() });
        let spool = Spool::within("x", Arc::<FaultyStorage>::clone(&storage), zstd(), target);
        let spool = spool.unwrap();
        let last = data.len() as u64 - 4;
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
            // The bytes before the error can be read.
            let mut first = [0; 4];
            spool.read_exact_at(&mut first, 400).unwrap();
            assert_eq!(first, 100_u32.to_le_bytes());
        }
        storage.set(Faults::default());
        let mut found = vec![0; data.len()];
        spool.read_exact_at(&mut found, 0).unwrap();
        assert!(found == data);
        assert!(spool.piece(data.len() as u64).unwrap().is_none(), "the end is no error");
    }

    /// A pass that gives up after its first bytes.
    struct GivesUp(bool);

    impl Pass for GivesUp {
        fn next(&mut self) -> Result<Output> {
            match std::mem::replace(&mut self.0, true) {
                true => Ok(Output::ChunkTooLarge),
                false => Ok(Output::Piece(b"data"[..].into())),
            }
        }

        fn position(&self) -> u64 {
            0
        }

        fn trailing_garbage_at(&self) -> Option<u64> {
            None
        }

        fn usable_len(&self, _: Kind) -> u64 {
            0
        }
    }

    #[test]
    fn a_pass_that_gives_up_is_an_error_and_not_the_end() {
        static FORMAT: SpoolFormat =
            SpoolFormat { reason: "", advice: "", open: |_, _| Ok(Box::new(GivesUp(false))) };
        let directory = std::env::temp_dir();
        let file = unlinked::create(&directory).unwrap();
        let target =
            TemporaryFile { file, directory: &directory, limit: SpoolLimit::fixed(u64::MAX) };
        let spool = Spool::within("x", Arc::new(MemStorage::new(Vec::new())), &FORMAT, target);
        let spool = spool.unwrap();
        assert_eq!(*spool.piece(0).unwrap().unwrap(), *b"data");
        assert_eq!(spool.piece(4).unwrap_err().kind(), Kind::Unsupported);
    }

    #[test]
    fn dropping_a_spool_stops_a_thread_that_waits_for_a_retry() {
        let storage = Arc::new(FaultyStorage::new(Arc::new(MemStorage::new(vec![0; 100])), 1));
        storage.set(Faults { failing: 1, ..Faults::default() });
        let directory = std::env::temp_dir();
        let file = unlinked::create(&directory).unwrap();
        let target =
            TemporaryFile { file, directory: &directory, limit: SpoolLimit::fixed(u64::MAX) };
        let spool = Spool::within("x", storage, zstd(), target).unwrap();
        assert_eq!(spool.piece(0).unwrap_err().kind(), Kind::Io);
        drop(spool);
    }
}
