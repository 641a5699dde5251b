//! Owner, permissions, extended attributes and times of an extracted file.
//!
//! Invariants: a set-uid or set-gid bit is set only if the owner and the group are those of the
//! archive; otherwise a program would run with the rights of whoever extracts it. Times are set
//! last.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags, chmod, chownat, fchmod,
    fsetxattr, fstat, futimens, setxattr, utimensat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::{Failure, Report};
use crate::vfs::{Attr, FileKind, Tree, is_linux_xattr};

const SET_ID: u16 = 0o6000;

/// A file that was extracted.
#[derive(Clone, Copy)]
pub(super) enum Object<'o> {
    /// A regular file or a directory, open.
    Open(BorrowedFd<'o>),
    /// Anything else: its location (O_PATH), and its directory and name.
    Location { location: BorrowedFd<'o>, directory: BorrowedFd<'o>, name: &'o [u8] },
}

impl Object<'_> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Open(opened) => *opened,
            Self::Location { location, .. } => *location,
        }
    }

    /// A path that leads to a location. Not every call takes its descriptor.
    fn path(location: BorrowedFd<'_>) -> PathBuf {
        format!("/proc/self/fd/{}", location.as_raw_fd()).into()
    }

    fn stat(&self) -> Result<Stat, Errno> {
        fstat(self.descriptor())
    }

    fn set_owner(&self, uid: u32, gid: u32) -> Result<(), Errno> {
        if [uid, gid].contains(&u32::MAX) {
            return Err(Errno::INVAL);
        }
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        chownat(self.descriptor(), "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
    }

    fn set_permissions(&self, permissions: u16) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(permissions.into());
        match self {
            Self::Open(opened) => fchmod(opened, mode),
            Self::Location { location, .. } => chmod(Self::path(*location), mode),
        }
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Open(opened) => fsetxattr(opened, name, value, XattrFlags::empty()),
            Self::Location { location, .. } => {
                setxattr(Self::path(*location), name, value, XattrFlags::empty())
            }
        }
    }

    fn set_times(&self, times: &Timestamps) -> Result<(), Errno> {
        match self {
            Self::Open(opened) => futimens(opened, times),
            Self::Location { directory, name, .. } => {
                utimensat(directory, *name, times, AtFlags::SYMLINK_NOFOLLOW)
            }
        }
    }
}

/// Sets everything that the tree says about `object`. What this user or this file system cannot
/// hold is only reported.
pub(super) fn restore(
    tree: &dyn Tree,
    attr: &Attr,
    object: Object<'_>,
    report: &Report<'_>,
    path: &dyn Fn() -> Vec<u8>,
) -> Result<(), Failure> {
    let failed = |what| move |errno| Failure::System(what, errno);
    let mut permissions = attr.permissions;
    let mut found = object.stat().map_err(failed("cannot get its attributes"))?;
    if (found.st_uid, found.st_gid) != (attr.uid, attr.gid) {
        match object.set_owner(attr.uid, attr.gid) {
            // This clears set-uid and set-gid.
            Ok(()) => found = object.stat().map_err(failed("cannot get its attributes"))?,
            // Not root, or an owner that does not exist in this user namespace.
            Err(errno @ (Errno::PERM | Errno::INVAL)) => {
                if permissions & SET_ID != 0 {
                    permissions &= !SET_ID;
                    report.left_out("set-uid or set-gid bit", path, errno);
                }
                // Only root can give files to others, so nobody else misses it.
                if geteuid().is_root() {
                    report.left_out("owner", path, errno);
                }
            }
            Err(errno) => return Err(Failure::System("cannot set the owner", errno)),
        }
    }
    if attr.kind != FileKind::Symlink && found.st_mode & 0o7777 != u32::from(permissions) {
        match object.set_permissions(permissions) {
            Ok(()) => {}
            Err(errno @ (Errno::PERM | Errno::OPNOTSUPP)) => {
                report.left_out("permissions", path, errno);
            }
            Err(errno) => return Err(Failure::System("cannot set the permissions", errno)),
        }
    }
    if tree.has_xattrs() {
        set_xattrs(tree, attr, object, report, path)?;
    }
    let modified =
        Timespec { tv_sec: attr.modified.seconds, tv_nsec: attr.modified.nanoseconds.into() };
    let times = Timestamps { last_access: modified, last_modification: modified };
    object.set_times(&times).map_err(failed("cannot set the time"))
}

fn set_xattrs(
    tree: &dyn Tree,
    attr: &Attr,
    object: Object<'_>,
    report: &Report<'_>,
    path: &dyn Fn() -> Vec<u8>,
) -> Result<(), Failure> {
    let names = tree.list_xattrs(attr.ino).map_err(Failure::Tree)?;
    let mut refused = None;
    for name in names.split(|&byte| byte == 0).filter(|name| is_linux_xattr(name)) {
        let value = tree.xattr(attr.ino, name).map_err(Failure::Tree)?;
        match object.set_xattr(name, &value) {
            Ok(()) => {}
            // Not allowed, not supported here, or too large: ext4 has room for a block and calls
            // more ENOSPC.
            Err(
                errno @ (Errno::PERM
                | Errno::ACCESS
                | Errno::OPNOTSUPP
                | Errno::INVAL
                | Errno::TOOBIG
                | Errno::RANGE
                | Errno::NOSPC),
            ) => refused = Some(errno),
            Err(errno) => return Err(Failure::System("cannot set an extended attribute", errno)),
        }
    }
    if let Some(errno) = refused {
        report.left_out("extended attributes", path, errno);
    }
    Ok(())
}
