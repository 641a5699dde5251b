//! Translates `vfs` types and errors to the FUSE protocol, and filters the extended attributes that
//! a process may see.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, Generation, INodeNo, ReplyXattr, Request};

use crate::error::Kind;
use crate::os::kernel_file;
use crate::vfs::{Attr, FileKind, Ino, Timestamp, is_linux_xattr};

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
    file_attr(&Attr::unknown(ino, kind))
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

const TRUSTED: &[u8] = b"trusted.";

/// The bit of CAP_SYS_ADMIN (linux/capability.h).
const SYS_ADMIN: u32 = 21;

/// The NUL-terminated names in `names` that Linux knows and `caller` may see.
///
/// Other file systems hide `trusted.*` attributes from processes without CAP_SYS_ADMIN in the
/// initial user namespace (xattr(7)), and such processes cannot read them. On FUSE the kernel also
/// checks reads, but leaves listing to the daemon. Programs such as rsync -X and overlayfs with
/// userxattr fail on names that are listed but cannot be read.
pub(super) fn visible_xattrs(mut names: Vec<u8>, caller: &Request) -> Vec<u8> {
    retain(&mut names, is_linux_xattr);
    let mut each = names.split(|&byte| byte == 0);
    let sees_all = !each.any(|name| name.starts_with(TRUSTED))
        || (caller.uid() == 0 && is_administrator(caller.pid()));
    if !sees_all {
        retain(&mut names, |name| !name.starts_with(TRUSTED));
    }
    names
}

/// Keeps the NUL-terminated names in `names` that are `wanted`.
fn retain(names: &mut Vec<u8>, wanted: impl Fn(&[u8]) -> bool) {
    let is_wanted = |name: &&[u8]| wanted(name.strip_suffix(b"\0").unwrap_or(name));
    let mut each = names.split_inclusive(|&byte| byte == 0);
    if !each.all(|name| is_wanted(&name)) {
        *names =
            names.split_inclusive(|&byte| byte == 0).filter(is_wanted).flatten().copied().collect();
    }
}

/// Whether process `pid` has CAP_SYS_ADMIN in a namespace that maps all users of the initial one;
/// `false` if /proc does not say.
fn is_administrator(pid: u32) -> bool {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let effective = kernel_file::status(&process, "CapEff");
    let effective = effective.and_then(|bits| u64::from_str_radix(&bits, 16).ok()).unwrap_or(0);
    effective >> SYS_ADMIN & 1 == 1
        && kernel_file::read_text(process.join("uid_map")).is_ok_and(|map| maps_all(&map))
}

/// Whether `map` is that of the initial user namespace. Its lines are "first uid inside, first uid
/// outside, count".
fn maps_all(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_linux_does_not_know_are_left_out() {
        let mut names = b"com.apple.a\0user.a\0access\0security.b\0".to_vec();
        retain(&mut names, is_linux_xattr);
        assert_eq!(names, b"user.a\0security.b\0");
        retain(&mut names, is_linux_xattr);
        assert_eq!(names, b"user.a\0security.b\0");
        let mut names = b"com.apple.a\0".to_vec();
        retain(&mut names, is_linux_xattr);
        assert_eq!(names, b"");
    }

    #[test]
    fn recognizes_the_initial_user_namespace_and_this_process() {
        assert!(maps_all("         0          0 4294967295\n"));
        for other in ["", "0 1000 1\n", "0 0 1\n", "0 0 65536\n65536 65536 10\n"] {
            assert!(!maps_all(other), "{other}");
        }
        assert!(!is_administrator(0));
    }
}
