//! Translates `vfs` types and errors to the FUSE protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, Generation, INodeNo, ReplyXattr};

use crate::error::Kind;
use crate::vfs::{Attr, FileKind, Ino, Timestamp};

/// Inode numbers are never reused during a mount, so one generation is enough.
pub(super) const GENERATION: Generation = Generation(0);

/// The inode number listed for `..`: formats do not store it, and the kernel finds the parent by
/// itself. libfuse uses the same value (FUSE_UNKNOWN_INO).
pub(super) const NO_PARENT: INodeNo = INodeNo(0xffff_ffff);

/// The errno for an error of `kind`, and whether the archive or its storage is at fault.
pub(super) fn errno(kind: Kind) -> (Errno, bool) {
    let errno = kind.errno();
    (Errno::from_i32(errno), matches!(errno, libc::EIO | libc::EBUSY | libc::ETIMEDOUT))
}

/// The attributes as sent to the kernel.
pub(super) fn file_attr(attr: &Attr) -> FileAttr {
    let modified = system_time(attr.modified);
    FileAttr {
        ino: INodeNo(attr.ino.number()),
        size: attr.size,
        blocks: attr.allocated.div_ceil(512),
        atime: modified,
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind: file_type(attr.kind),
        perm: attr.permissions,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.device,
        blksize: attr.block_size,
        flags: 0,
    }
}

/// The attributes of a missing file: with inode number 0 the kernel caches that the name does not
/// exist.
pub(super) fn negative_attr() -> FileAttr {
    FileAttr { ino: INodeNo(0), ..unknown_attr(Ino::ROOT, FileKind::Regular) }
}

/// The attributes of an inode that cannot be read: only its number and the kind in its directory.
pub(super) fn unknown_attr(ino: Ino, kind: FileKind) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino.number()),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: file_type(kind),
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// Answers getxattr(2) and listxattr(2): size 0 asks for the size, a buffer that is too small gets
/// ERANGE.
pub(super) fn xattr(reply: ReplyXattr, size: u32, bytes: &[u8]) {
    match (size, u32::try_from(bytes.len())) {
        (0, Ok(needed)) => reply.size(needed),
        (_, Ok(needed)) if needed <= size => reply.data(bytes),
        _ => reply.error(Errno::ERANGE),
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let fraction = Duration::from_nanos(u64::from(time.nanoseconds));
    let start = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    start.and_then(|start| start.checked_add(fraction)).unwrap_or(UNIX_EPOCH)
}
