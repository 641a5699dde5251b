//! Which version of which file an archive is.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::fstatfs;

use crate::os::trust;

/// Identifies one version of a file, and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Size in bytes.
    pub len: u64,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// Device number and inode number.
    pub inode: (u64, u64),
    /// Owner (uid).
    pub owner: u32,
    /// Type and permissions (st_mode).
    pub mode: u32,
}

impl Identity {
    /// Whether it is a regular file.
    pub(super) fn is_regular(&self) -> bool {
        rustix::fs::FileType::from_raw_mode(self.mode).is_file()
    }

    /// Whether it may be another version of `other`: same inode, owner and mode.
    pub(super) fn is_file_of(&self, other: &Self) -> bool {
        (self.inode, self.owner, self.mode) == (other.inode, other.owner, other.mode)
    }
}

/// Distinguishes a file from a copy of it, together with inode and owner. Unlike `Identity` it
/// changes when the file is linked or renamed, because no user can set the change time (inode(7),
/// ctime).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The file system's type (statfs(2), f_type). The device number would not do: nodes that mount
    /// the same file system assign different ones.
    pub file_system: u64,
    /// Change time: seconds since 1970 and nanoseconds.
    pub changed: (i64, u32),
    /// Group (gid).
    pub group: u32,
}

impl Origin {
    /// Whether the file system is served by a user process, which then controls the owners of its
    /// files.
    pub fn is_served_by_process(&self) -> bool {
        self.file_system == trust::FUSE
    }
}

/// The identity of `file`, which has `len` bytes.
pub(super) fn identified(file: &File, len: u64) -> io::Result<(Identity, Origin)> {
    let metadata = file.metadata()?;
    let nanoseconds = |number: i64| u32::try_from(number).unwrap_or(0);
    let identity = Identity {
        len,
        modified: (metadata.mtime(), nanoseconds(metadata.mtime_nsec())),
        inode: (metadata.dev(), metadata.ino()),
        owner: metadata.uid(),
        mode: metadata.mode(),
    };
    let origin = Origin {
        // The width of this number depends on the architecture.
        file_system: fstatfs(file)?.f_type as u64,
        changed: (metadata.ctime(), nanoseconds(metadata.ctime_nsec())),
        group: metadata.gid(),
    };
    Ok((identity, origin))
}
