//! Where the bytes of an archive come from: files, copies, memory, and ranges of them.
//!
//! Invariant: a read fills the whole buffer or fails, and may run from any number of threads at
//! once.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::os::file_position::FilePosition;

mod archives;
mod changes;
mod download;
#[cfg(test)]
mod faulty;
mod file;
mod identity;
mod kept_copies;
#[cfg(any(test, fuzzing))]
mod mem;
mod near;
mod pool;
mod views;

pub use archives::{
    CopyTarget, Sharing, copied_len, near_copy, open_files, open_originals, phase, serve,
    through_copy,
};
pub use changes::Changes;
#[cfg(test)]
pub use faulty::{Faults, FaultyStorage};
pub use file::{ArchiveCache, FileStorage};
pub use identity::{Identity, Origin, Validator};
pub use kept_copies::{KeptCopies, KeptCopy, Removed};
#[cfg(any(test, fuzzing))]
pub use mem::MemStorage;
pub use near::{Fill, FillScope, NearCopy, Room, room_in_memory, unused_in_page_cache};
pub use views::{FileRange, Metered};

/// Announces a scan of storage until it is dropped.
pub struct Scanning<'s>(&'s dyn Storage);

impl<'s> Scanning<'s> {
    /// Announces that `storage` is read in order.
    pub fn of(storage: &'s dyn Storage) -> Self {
        storage.begin_scan();
        Self(storage)
    }
}

impl Drop for Scanning<'_> {
    fn drop(&mut self) {
        self.0.end_scan();
    }
}

/// Which part of a file bytes of the archive are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilePart {
    /// The bytes before them may be of another file.
    First,
    /// The bytes before them are of the same file.
    Later,
}

impl FilePart {
    /// The part at `offset` in a file.
    pub fn at(offset: u64) -> Self {
        if offset == 0 { Self::First } else { Self::Later }
    }
}

/// Bytes that can be read at any offset.
pub trait Storage: Send + Sync {
    /// Size in bytes.
    fn len(&self) -> u64;

    /// Fills `buffer` with the bytes at `offset`.
    ///
    /// Fails with `Corrupt` if the storage ends before the buffer is full; `Io` if the system
    /// reports an error.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()>;

    /// Like `read_exact_at`, for the contents of a file of the archive. The bytes around them
    /// belong to other files, so the storage should not read them as well.
    fn read_contents_at(&self, buffer: &mut [u8], offset: u64, part: FilePart) -> Result<()> {
        let _ = part;
        self.read_exact_at(buffer, offset)
    }

    /// Where the `len` bytes at `offset` are stored in an open file, as they are. `None` if they
    /// are not, or if that file may be closed at any time.
    fn position(&self, offset: u64, len: u64) -> Option<FilePosition> {
        let _ = (offset, len);
        None
    }

    /// Announces that this range will be read soon. Advice, which may be ignored.
    fn will_need(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Announces that about all of it is read, in order, until `end_scan`. Advice, which may be
    /// ignored.
    fn begin_scan(&self) {}

    /// Ends what the same number of calls of `begin_scan` began.
    fn end_scan(&self) {}

    /// Whether `drop_served` does anything now.
    fn drops_served(&self) -> bool {
        false
    }

    /// Announces that `range`, which is `part` of a file, was handed out, so that the page cache
    /// of the mount holds it. If it is a later part, the bytes before it were handed out as well.
    /// Advice, which may be ignored.
    fn drop_served(&self, range: Range<u64>, part: FilePart) {
        let _ = (range, part);
    }

    /// Frees memory that is kept only for speed. Does not affect the storage below.
    fn release(&self) {}

    /// Whether the storage has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Immutable bytes in memory.
#[derive(Debug)]
pub struct InMemory {
    bytes: Vec<u8>,
}

impl InMemory {
    /// Storage that holds `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }
}

impl Storage for InMemory {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let range = self.bytes.get(start..start.saturating_add(buffer.len()));
        buffer.copy_from_slice(range.ok_or_else(|| Error::corrupt("unexpected end of file"))?);
        Ok(())
    }
}
