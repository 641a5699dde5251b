//! A mounted archive as all other layers see it: a read-only tree of inodes.
//!
//! Defines the trait `Tree`, which each format implements, and its types. Knows neither formats nor
//! FUSE. Invariant: an `Ino` returned by a tree stays valid and refers to the same object for the
//! life of the tree, so callers need not count references.

use std::fmt;
use std::ops::{ControlFlow, Range};

use crate::error::Result;
use crate::os::heap::PageAligned;
use crate::sync::Arc;

mod attr;
mod dir;
mod file_data;
mod finding;
mod path;
mod union;
mod verify;
mod view;

pub use attr::{Attr, FileKind, Ino, Timestamp, is_linux_xattr};
pub use dir::{Cookie, DirEntry, DirectoryWalk, Dot, Entry, Name, dots, entries, list_root};
pub use file_data::{
    ContentCheck, Coverage, PART, PartSum, StoredFile, next_data, piece_of, read_some,
};
pub use finding::{Finding, Location, Severity};
pub use path::{joined, link_target, paths, resolve, resolve_file, resolve_through};
pub use union::{Hidden, Layer, Union};
pub use verify::{Counts, Verified, verify};
pub use view::{View, ViewOptions};

/// A read-only tree of files. All methods may be called concurrently.
pub trait Tree: Send + Sync {
    /// The attributes of `ino`.
    ///
    /// Fails with `Corrupt` or `Io` if the inode cannot be read; `NotFound` if the tree has no such
    /// inode.
    fn attr(&self, ino: Ino) -> Result<Attr>;

    /// The entry `name` of the directory `parent`, or `None` if there is no such entry.
    ///
    /// Fails with `NotADirectory`; `Corrupt` or `Io` if the directory cannot be read.
    fn lookup(&self, parent: Ino, name: Name<'_>) -> Result<Option<Attr>>;

    /// Visits the entries of a directory after `cookie`, without `.` and `..`, until `visit`
    /// breaks.
    ///
    /// Fails with `NotADirectory`; `InvalidInput` for a cookie that was never returned; `Corrupt`
    /// or `Io`.
    fn read_dir(
        &self,
        ino: Ino,
        cookie: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// The target of a symbolic link, byte for byte.
    ///
    /// Fails with `InvalidInput` if `ino` is not a symbolic link; `Corrupt` (`link_target`) or
    /// `Io`.
    fn read_link(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Reads up to `size` bytes of a regular file from `offset`; fewer only at the end of the file.
    /// `scratch` holds data that no cache holds; it is reused from call to call.
    ///
    /// Fails with `InvalidInput` or `IsADirectory` if `ino` is not a regular file; `Corrupt` or
    /// `Io`.
    fn read<'s>(
        &self,
        ino: Ino,
        offset: u64,
        size: u32,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>>;

    /// The first data or hole at or after `offset`, as lseek(2) defines SEEK_DATA and SEEK_HOLE.
    ///
    /// Fails with `PastEnd` if there is none; `InvalidInput` if `ino` is not a regular file.
    fn seek(&self, ino: Ino, offset: u64, target: SeekTarget) -> Result<u64>;

    /// Whether any object of the tree may have extended attributes.
    fn has_xattrs(&self) -> bool;

    /// The names of the extended attributes of `ino`, each followed by a NUL byte (listxattr(2)).
    fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>>;

    /// The value of the extended attribute `name` of `ino`.
    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;

    /// Sizes of the whole tree, for statfs(2).
    fn totals(&self) -> Totals;

    /// The parent directory of the directory `ino`; for the root, itself. `None` if the archive
    /// does not say. The kernel asks only to open a file handle of a directory (`fuse`), so this
    /// may be as slow as a scan of all directories.
    fn parent(&self, ino: Ino) -> Result<Option<Ino>> {
        Ok((ino == Ino::ROOT).then_some(ino))
    }

    /// One more than the largest inode number. Inodes with contradictory records may have larger
    /// ones. A tree that does not know returns the largest possible number.
    fn numbers_end(&self) -> u64 {
        u64::MAX
    }

    /// Offset in the archive at which the contents of the regular file `ino` begin. Only the order
    /// is significant: reading files in this order reads the archive sequentially.
    fn data_offset(&self, ino: Ino) -> Result<u64> {
        let _ = ino;
        Ok(0)
    }

    /// Visits regular files whose bytes the archive stores as they are, in an open file. It may
    /// leave out any of them. Reads all inodes, so call it from a thread of its own.
    fn stored_files(&self, visit: &mut dyn FnMut(Ino, StoredFile)) -> Result<()> {
        let _ = visit;
        Ok(())
    }

    /// The CRC-32 of the contents of the regular file `ino`, if the archive records one that `read`
    /// does not check. Readers of whole files do (`ContentCheck`).
    fn stored_crc32(&self, ino: Ino) -> Result<Option<u32>> {
        let _ = ino;
        Ok(None)
    }

    /// Reports problems of the archive that reading every file would not reveal: tables that
    /// contradict each other, members that are not shown.
    fn audit(&self, found: &mut dyn FnMut(Finding)) {
        let _ = found;
    }

    /// Frees memory that is kept only for speed. Results stay the same, and the next calls are
    /// slower.
    fn release(&self);
}

/// What `Tree::seek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// Bytes that the archive stores.
    Data,
    /// A range that reads as zeros and takes no space. The end of a file counts as a hole.
    Hole,
}

/// Sizes of a whole tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Size of the archive in bytes; uncompressed if it is compressed as a whole.
    pub bytes: u64,
    /// Number of inodes.
    pub inodes: u64,
    /// The format's allocation unit, in bytes.
    pub block_size: u32,
}

/// A block of decoded bytes that a cache and its readers share.
pub type SharedBytes = Arc<[u8]>;

/// Decoded bytes in any container.
pub trait Decoded: AsRef<[u8]> + fmt::Debug + Send + Sync {}

impl<T: AsRef<[u8]> + fmt::Debug + Send + Sync> Decoded for T {}

/// The result of a read: bytes in the caller's scratch memory, or part of a shared block.
#[derive(Debug)]
pub enum ReadBytes<'s> {
    /// Bytes assembled in the scratch memory of this read.
    Scratch(&'s [u8]),
    /// A range of a block that the cache also holds. Nothing was copied.
    Shared(Arc<dyn Decoded>, Range<usize>),
}

impl ReadBytes<'_> {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Scratch(bytes) => bytes,
            Self::Shared(block, range) => (**block).as_ref().get(range.clone()).unwrap_or_default(),
        }
    }
}

/// Memory that a thread reuses for its reads, and what is left to do for the last one.
#[derive(Default)]
pub struct Scratch {
    /// Grows to the largest read and stays allocated.
    answer: PageAligned,
    after_reply: AfterReply,
}

/// Work that a read leaves until its reply is sent, because the reader need not wait for it.
pub type AfterReply = Vec<Box<dyn FnOnce()>>;

impl Scratch {
    /// `len` bytes of unspecified content.
    pub fn answer(&mut self, len: usize) -> &mut [u8] {
        self.parts(len).0
    }

    /// `len` bytes of unspecified content, and the list of work to do after the reply. Only a mount
    /// replies, so there must be no work for other readers.
    pub fn parts(&mut self, len: usize) -> (&mut [u8], &mut AfterReply) {
        if self.answer.len() < len {
            self.answer = PageAligned::zeroed(len.next_power_of_two());
        }
        (self.answer.get_mut(..len).unwrap_or_default(), &mut self.after_reply)
    }

    /// Does what the last read left, or forgets it if that read failed.
    pub fn finish(&mut self, is_answered: bool) {
        for work in self.after_reply.drain(..) {
            if is_answered {
                work();
            }
        }
    }
}
