//! The attributes of a file or directory as a FUSE file system of the tests shows them.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};

/// Those of `found`, which everybody may read and nobody may write.
pub(crate) fn read_only(ino: INodeNo, found: &Metadata) -> FileAttr {
    let modified = UNIX_EPOCH + Duration::from_secs(found.mtime().try_into().unwrap());
    let (kind, perm) = match found.is_dir() {
        true => (FileType::Directory, 0o555),
        false => (FileType::RegularFile, 0o444),
    };
    FileAttr {
        ino,
        size: found.len(),
        blocks: found.blocks(),
        atime: modified,
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
