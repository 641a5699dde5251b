//! A file decoded forward, once, into a temporary file: for what can not be decoded in chunks.
//!
//! Owns the thread that decodes, the unlinked file it writes, and the waiting of readers who are
//! ahead of it; leaves decoding to `forward`.
//! Invariants: bytes below `written` never change; whoever waits is woken when there are more, when
//! there will be no more, and when that is an error, which every reader past it is told.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::{self, JoinHandle};

use super::Container;
use super::forward::Forward;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::storage::{Storage, free_bytes, unlinked};
use crate::sync::{Arc, AtomicBool, AtomicU64, Condvar, Mutex, OnceLock, Ordering};
use crate::vfs::SharedBytes;

/// What is handed out at once in the first pass, bytes.
const PIECE: u64 = 1 << 20;

/// A temporary file and the thread that fills it; dropping it ends the thread.
pub(super) struct Spool {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    file: File,
    /// Guards how far the file is written; taken alone, never across a write or a decode.
    state: Mutex<State>,
    grown: Condvar,
    stopped: AtomicBool,
    position: AtomicU64,
    sure: AtomicU64,
    garbage: OnceLock<u64>,
}

#[derive(Default)]
struct State {
    written: u64,
    ended: bool,
    failure: Option<Failure>,
}

/// A temporary file, the directory it is in, and how large it may become, bytes.
pub(super) struct Room<'d> {
    pub(super) file: File,
    pub(super) directory: &'d Path,
    pub(super) limit: u64,
}

/// An error that every reader gets a copy of.
#[derive(Clone)]
struct Failure {
    kind: Kind,
    context: String,
    hint: Option<String>,
}

impl Spool {
    /// Starts decoding `storage` into a file in the directory for temporary files, of which it may
    /// take half of what is free. `expected` is how many bytes that will be, where it is known.
    pub(super) fn start(
        name: &str,
        storage: Arc<dyn Storage>,
        container: Container,
        expected: Option<u64>,
    ) -> Result<Self> {
        let directory = std::env::temp_dir();
        let shown = directory.display();
        let failed = |error| {
            let context = format!("{name}: making a temporary file in {shown}");
            Error::io(context, error).with_hint("set TMPDIR to a directory with more room")
        };
        let file = unlinked(&directory).map_err(failed)?;
        let limit = free_bytes(&file).map_err(failed)?.unwrap_or(u64::MAX) / 2;
        let room = Room { file, directory: &directory, limit };
        if expected.is_some_and(|expected| expected > limit) {
            return Err(room.exceeded(container).into());
        }
        Self::within(name, storage, container, room)
    }

    /// The same with a file that is there.
    pub(super) fn within(
        name: &str,
        storage: Arc<dyn Storage>,
        container: Container,
        room: Room<'_>,
    ) -> Result<Self> {
        let forward = Forward::new(name, storage, container)?;
        let over = room.exceeded(container);
        let Room { file, limit, .. } = room;
        let shared = Arc::new(Shared {
            file,
            state: Mutex::default(),
            grown: Condvar::new(),
            stopped: AtomicBool::new(false),
            position: AtomicU64::new(0),
            sure: AtomicU64::new(0),
            garbage: OnceLock::new(),
        });
        let filled = Arc::clone(&shared);
        let work = move || filled.fill(forward, limit, over);
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
    pub(super) fn sure(&self) -> u64 {
        self.shared.sure.load(Ordering::Relaxed)
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
        self.shared.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Decodes until the end, an error, or being told to stop.
    fn fill(&self, mut forward: Forward, limit: u64, over: Failure) {
        let ending = Ending(self);
        let mut written = 0_u64;
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
                    self.sure.store(forward.sure(error.kind()), Ordering::Relaxed);
                    let hint = error.hint().map(str::to_owned);
                    let context = error.to_string();
                    return ending.fail(Failure { kind: error.kind(), context, hint });
                }
            };
            let end = written.saturating_add(length(piece.len()));
            if end > limit {
                return ending.fail(over);
            }
            if let Err(error) = self.file.write_all_at(&piece, written) {
                let context = format!("writing a temporary file: {error}");
                return ending.fail(Failure { kind: Kind::Io, context, hint: over.hint });
            }
            written = end;
            self.position.store(forward.position(), Ordering::Relaxed);
            self.state.lock().written = written;
            self.grown.notify_all();
        }
    }

    /// Waits until `end` bytes are written or no more will be; tells how many are.
    fn wait(&self, end: u64) -> u64 {
        let mut state = self.state.lock();
        while state.written < end && !state.ended {
            self.grown.wait(&mut state);
        }
        state.written
    }

    fn failure(&self) -> Option<Error> {
        self.state.lock().failure.clone().map(Error::from)
    }
}

impl Room<'_> {
    /// What to say where it is too small.
    fn exceeded(&self, container: Container) -> Failure {
        let (limit, directory) = (self.limit, self.directory.display());
        Failure {
            kind: Kind::Unsupported,
            context: format!(
                "decoded it takes more than {limit} bytes, half of what was free in {directory}"
            ),
            hint: Some(format!(
                "set TMPDIR to a directory with more room, or {}",
                advice(container)
            )),
        }
    }
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
