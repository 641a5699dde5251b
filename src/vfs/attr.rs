//! Inode numbers and attributes.
//!
//! Invariant: `Ino` is never 0, and the root of a tree is always `Ino::ROOT`.

use std::fmt;
use std::num::NonZeroU64;

/// An inode number in a tree: stable for the life of the tree, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(NonZeroU64);

impl Ino {
    /// The root directory (FUSE fixes it to 1).
    pub const ROOT: Self = Self(NonZeroU64::MIN);

    /// The inode with that number, or `None` for 0.
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// The number.
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

/// The seven kinds of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Regular => "a regular file",
            Self::Directory => "a directory",
            Self::Symlink => "a symbolic link",
            Self::BlockDevice => "a block device",
            Self::CharDevice => "a character device",
            Self::Fifo => "a named pipe",
            Self::Socket => "a socket",
        })
    }
}

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 UTC.
    pub seconds: i64,
    /// Nanoseconds after that second, below 10^9.
    pub nanoseconds: u32,
}

/// The attributes that stat(2) shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Its inode number.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits (mode & 07777).
    pub permissions: u16,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size of a regular file in bytes; length of a symbolic link's target; for a directory, the
    /// size that the format records.
    pub size: u64,
    /// Bytes that are not holes.
    pub allocated: u64,
    /// Device number of a device, in the kernel's 32-bit encoding (`new_encode_dev`), else 0.
    pub device: u32,
    /// Modification time. Archives rarely store the other times, so it is shown for them too.
    pub modified: Timestamp,
    /// Preferred I/O size in bytes; Python uses it as its buffer size.
    pub block_size: u32,
}
