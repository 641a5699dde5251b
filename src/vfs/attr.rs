//! Inode numbers and attributes.
//!
//! Invariant: `Ino` is never 0, and the root of a tree is always `Ino::ROOT`.

use std::fmt;
use std::num::NonZeroU64;

/// Longest name of an extended attribute, bytes (linux/limits.h).
const XATTR_NAME_MAX: usize = 255;

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

/// Whether files on Linux can have an extended attribute of this name (xattr(7)). Tars of other
/// systems have more, such as `com.apple.quarantine`, on which cp -a and rsync -X fail: those are
/// neither shown in a mount nor extracted.
pub fn is_linux_xattr(name: &[u8]) -> bool {
    const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
    let has_prefix = |prefix: &&[u8]| name.strip_prefix(*prefix).is_some_and(|rest| rest != b"");
    name.len() <= XATTR_NAME_MAX && (ACLS.contains(&name) || PREFIXES.iter().any(has_prefix))
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

impl Attr {
    /// The attributes of an inode of which nothing but its number and its kind is known.
    pub fn unknown(ino: Ino, kind: FileKind) -> Self {
        Self {
            ino,
            kind,
            permissions: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 0,
            allocated: 0,
            device: 0,
            modified: Timestamp { seconds: 0, nanoseconds: 0 },
            block_size: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_attributes_that_linux_knows_are_shown() {
        let longest = format!("user.{}", "a".repeat(250));
        for name in ["user.a", "trusted.b.c", "security.capability", &longest] {
            assert!(is_linux_xattr(name.as_bytes()), "{name}");
        }
        for name in ["access", "default"] {
            assert!(is_linux_xattr(format!("system.posix_acl_{name}").as_bytes()), "{name}");
        }
        let too_long = format!("user.{}", "a".repeat(251));
        for name in [
            "com.apple.quarantine",
            "system.nfs4_acl",
            "system.posix_acl_accessible",
            "lustre.lov",
            "User.a",
            "user.",
            "user",
            "",
            &too_long,
        ] {
            assert!(!is_linux_xattr(name.as_bytes()), "{name}");
        }
    }
}
