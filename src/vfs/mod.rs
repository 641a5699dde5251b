//! What a mounted archive is to everything above it: a read-only tree of inodes.
//!
//! Owns the vocabulary (inode numbers, attributes, names, directory cookies) and the trait `Tree`
//! that each format implements. Knows no format and no FUSE.
//! Invariant: an `Ino` handed out by a tree stays valid and means the same object for the life of
//! the tree, so callers need not count references.

use std::fmt;
use std::ops::{ControlFlow, Range};

use crate::error::Result;
use crate::sync::Arc;

mod attr;
mod dir;
mod finding;
mod folders;
mod name;
mod path;
mod union;
mod verify;
mod view;

pub use attr::{Attr, FileKind, Ino, Timestamp};
pub use dir::{Cookie, DirEntry, Dot, dots};
pub use finding::{Finding, Location, Severity};
pub use folders::Folders;
pub use name::Name;
pub use path::{joined, resolve, resolve_through};
pub use union::{Layer, Union};
pub use verify::{Counts, Verified, verify};
pub use view::{View, ViewOptions};

/// A read-only tree of files. All methods may be called from any number of threads at once.
pub trait Tree: Send + Sync {
    /// The attributes of `ino`.
    ///
    /// # Errors
    /// `Corrupt` or `Io` where the inode can not be read; `NotFound` where `ino` is none of ours.
    fn attr(&self, ino: Ino) -> Result<Attr>;

    /// The entry `name` of the directory `parent`, or `None` where it has no such entry.
    ///
    /// # Errors
    /// `NotADirectory`; `Corrupt` or `Io` where the directory can not be read.
    fn lookup(&self, parent: Ino, name: Name<'_>) -> Result<Option<Attr>>;

    /// Visits the entries of a directory after `cookie`, without `.` and `..`, until `visit`
    /// breaks.
    ///
    /// # Errors
    /// `NotADirectory`; `InvalidInput` for a cookie that was never handed out; `Corrupt` or `Io`.
    fn read_dir(
        &self,
        ino: Ino,
        cookie: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// The target of a symbolic link, as the bytes it was made with.
    ///
    /// # Errors
    /// `InvalidInput` where `ino` is no symbolic link; `Corrupt` or `Io`.
    fn read_link(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Up to `size` bytes of a regular file from `offset`: fewer only at the end of the file.
    /// `scratch` is memory for data that no cache holds; it is reused from call to call.
    ///
    /// # Errors
    /// `InvalidInput` or `IsADirectory` where `ino` is no regular file; `Corrupt` or `Io`.
    fn read<'s>(
        &self,
        ino: Ino,
        offset: u64,
        size: u32,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>>;

    /// The first data or hole at or after `offset`, as lseek(2) defines SEEK_DATA and SEEK_HOLE.
    ///
    /// # Errors
    /// `PastEnd` where there is none; `InvalidInput` where `ino` is no regular file.
    fn seek(&self, ino: Ino, offset: u64, target: SeekTarget) -> Result<u64>;

    /// Whether any object of the tree may have extended attributes.
    fn has_xattrs(&self) -> bool;

    /// The names of the extended attributes of `ino`, each followed by a NUL byte (listxattr(2)).
    ///
    /// # Errors
    /// `Corrupt` or `Io`.
    fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>>;

    /// The value of the extended attribute `name` of `ino`.
    ///
    /// # Errors
    /// `NoAttribute` where it has none of that name; `Corrupt` or `Io`.
    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;

    /// Sizes of the whole, for statfs(2).
    fn totals(&self) -> Totals;

    /// The directory that holds the directory `ino`; of the root, itself. `None` if the archive
    /// does not say. The kernel asks for it only to open a handle of a directory (`fuse`), so it
    /// may take as long as a look at all directories.
    ///
    /// # Errors
    /// `NotADirectory`; `Corrupt` or `Io`.
    fn parent(&self, ino: Ino) -> Result<Option<Ino>> {
        Ok((ino == Ino::ROOT).then_some(ino))
    }

    /// One more than the largest inode number of the tree. Inodes whose records contradict each
    /// other may have larger ones, and a tree that cannot tell may say the largest there is.
    fn numbers_end(&self) -> u64 {
        u64::MAX
    }

    /// Where in the archive the contents of the regular file `ino` begin. Only the order of such
    /// places means something: who reads files in it reads the archive from its start to its end.
    ///
    /// # Errors
    /// As `read`.
    fn data_offset(&self, ino: Ino) -> Result<u64> {
        let _ = ino;
        Ok(0)
    }

    /// Tells `found` what is wrong with the archive that nobody meets who reads all that has a
    /// name: tables that contradict each other, members that are not shown.
    fn audit(&self, found: &mut dyn FnMut(Finding)) {
        let _ = found;
    }

    /// Lets go of the memory that is kept only for speed. Answers stay what they were, and the next
    /// ones take longer.
    fn release(&self);
}

/// What `Tree::seek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// Bytes that the archive stores.
    Data,
    /// A range that reads as zeros and takes no space; the end of a file is one.
    Hole,
}

/// Sizes of a whole tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Bytes that the archive takes, decoded where it is compressed as a whole.
    pub bytes: u64,
    /// Number of inodes.
    pub inodes: u64,
    /// The format's unit of allocation, bytes.
    pub block_size: u32,
}

/// A block of decoded bytes that a cache and its readers share.
pub type SharedBytes = Arc<[u8]>;

/// Decoded bytes, whatever holds them.
pub trait Decoded: AsRef<[u8]> + fmt::Debug + Send + Sync {}

impl<T: AsRef<[u8]> + fmt::Debug + Send + Sync> Decoded for T {}

/// The answer to one read: bytes in the caller's scratch memory, or a part of a shared block.
#[derive(Debug)]
pub enum ReadBytes<'s> {
    /// Bytes assembled in the scratch memory of this read.
    Scratch(&'s [u8]),
    /// A range of a block that the cache holds too; nothing was copied.
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

/// Memory that a thread reuses for the reads it answers; grows to the largest read and stays.
#[derive(Debug, Default)]
pub struct Scratch {
    answer: Vec<u8>,
}

impl Scratch {
    /// `len` bytes of unspecified content.
    pub fn answer(&mut self, len: usize) -> &mut [u8] {
        if self.answer.len() < len {
            self.answer.resize(len, 0);
        }
        self.answer.get_mut(..len).unwrap_or_default()
    }
}
