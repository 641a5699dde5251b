//! A writable layer over files that are mounted read-only: overlayfs of the kernel, in a mount
//! namespace of this process.
//!
//! What a process creates or changes goes to the upper directory of the layer, and a file that it
//! removes becomes a whiteout there. The format is that of overlayfs (the kernel's
//! Documentation/filesystems/overlayfs.rst), with the attributes `user.overlay.*`, so that another
//! job of the same user can use the layer again.
//!
//! Invariants: the kernel removes the overlay when the last process of the namespace ends, so none
//! is left behind. A directory of the user is opened once (`os::directory`), and as long as a
//! process has the lock that this one leaves open, no other overlay uses it.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, StatVfsMountFlags, flock, fstatvfs, openat};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, mount};
use rustix::process::geteuid;

use super::attach::directory_at;
use super::namespace;
use crate::error::{Error, Kind, Result, reason};
use crate::os::directory::{Directory, parent_of};
use crate::os::{memory, mountinfo, trust};

/// Where changes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layer {
    /// To memory. They are gone with the last process that sees them.
    Memory,
    /// To this directory, which keeps them.
    Directory(PathBuf),
}

/// Options with which overlayfs works in a user namespace: its attributes are ones of users.
const USER: &str = ",userxattr";

/// Those for root on kernels and file systems without them: Linux before 5.11, tmpfs before 6.6.
/// The features that are off would tie the layer to one mount.
const TRUSTED: &str = ",redirect_dir=nofollow,metacopy=off,index=off";

/// Moves this process into a mount namespace where `layer` is above the files at `path`, a path
/// without symbolic links. Call it before any thread is started.
///
/// # Errors
/// `CannotMount` if the node, the user or the layer does not allow it; `Busy` if another job uses
/// the layer.
pub(crate) fn enter(path: &Path, layer: &Layer) -> Result<()> {
    // Outside, where the owners of all directories are known.
    let kept = match layer {
        Layer::Memory => None,
        Layer::Directory(directory) => Some(owned(directory)?),
    };
    namespace::enter().map_err(|error| {
        error.with_hint(
            "--overlay needs user namespaces (sysctl user.max_user_namespaces), or root; without \
             them, let the program write elsewhere",
        )
    })?;
    let failed = |error| cannot(path, &error);
    let lower = directory_at(path).map_err(failed)?;
    let (upper, attempts): (_, &[&str]) = match (&kept, trust::is_root_of_node()) {
        (None, true) => (in_memory(&lower, path)?, &[TRUSTED]),
        (None, false) => (in_memory(&lower, path)?, &[USER]),
        (Some(kept), is_root) => {
            let upper = reopened(kept).map_err(|error| unusable(kept.location(), &error))?;
            (upper, if is_root { &[USER, TRUSTED] } else { &[USER] })
        }
    };
    prepare(&upper, &lower).map_err(|error| unusable(upper.location(), &error))?;
    let mount_with = |attributes: &str| {
        let (lower, layer) = (lower.path(), upper.path());
        let (lower_path, layer) = (lower.display(), layer.display());
        let options = format!(
            "lowerdir={lower_path},upperdir={layer}/{UPPER},workdir={layer}/{WORK}{attributes}\0"
        );
        let options = std::ffi::CStr::from_bytes_until_nul(options.as_bytes()).ok();
        mount("archfs-overlay", &lower, "overlay", MountFlags::NOSUID | MountFlags::NODEV, options)
    };
    let mut mounted = Err(Errno::INVAL);
    for attributes in attempts {
        mounted = mount_with(attributes);
        if mounted != Err(Errno::INVAL) {
            break;
        }
    }
    mounted.map_err(|errno| refused(path, layer, errno))?;
    // Overlayfs falls back to this where it cannot use the layer.
    let overlay = directory_at(path).map_err(failed)?;
    let is_read_only =
        fstatvfs(&overlay).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY));
    if is_read_only { Err(refused(path, layer, Errno::INVAL)) } else { Ok(()) }
}

const UPPER: &str = "upper";
/// Overlayfs prepares changes there.
const WORK: &str = "work";
const LOCK: &str = "lock";

/// A tmpfs, mounted over `lower` at `path`, where the overlay covers it. It takes at most half of
/// the memory that is left, so that a write fails before the job is killed.
fn in_memory(lower: &Directory, path: &Path) -> Result<Directory> {
    let size = memory::headroom().map_or(String::new(), |left| format!(",size={}", left.bytes / 2));
    let options = format!("mode=0700{size}\0");
    let options = std::ffi::CStr::from_bytes_until_nul(options.as_bytes()).ok();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("archfs-overlay", lower.path(), "tmpfs", flags, options)
        .map_err(|errno| cannot(path, &errno.into()))?;
    directory_at(path).map_err(|error| cannot(path, &error))
}

/// The directory at `path`, closed to others and with its lock taken. Created if it is missing.
fn owned(path: &Path) -> Result<Directory> {
    let failed = |error: io::Error| unusable(path, &error);
    let directory = match Directory::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().unwrap_or_default();
            let parent = Directory::open(parent_of(path)).map_err(failed)?;
            parent.create(name).map_err(failed)?;
            parent.below(name)
        }
        opened => opened,
    }
    .map_err(failed)?;
    let found = directory.metadata(".".as_ref()).map_err(failed)?;
    if let Some(why) = match (found.uid() == geteuid().as_raw(), directory.first_untrusted()) {
        (false, _) => Some("belongs to another user".to_owned()),
        (true, None) => None,
        (true, Some(part)) => Some(format!("other users can replace {}", part.display())),
    } {
        let context = format!("--overlay {}: {why}", path.display());
        return Err(Error::new(Kind::CannotMount, context)
            .with_hint("name a directory of your own on this node, for example in $TMPDIR"));
    }
    directory.close_to_others().map_err(failed)?;
    let lock = directory.open_with(LOCK.as_ref(), OFlags::RDWR | OFlags::CREATE).map_err(failed)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let context = format!("--overlay {}: in use by another job or task", path.display());
            return Err(Error::new(Kind::Busy, context)
                .with_hint("name a directory for each, or use --overlay tmp"));
        }
        Err(errno) => return Err(failed(errno.into())),
    }
    keep_in_command(lock).map_err(failed)?;
    Ok(directory)
}

/// `directory` as this mount namespace has it: what was opened before belongs to the mounts
/// outside.
fn reopened(directory: &Directory) -> io::Result<Directory> {
    let again = Directory::open(directory.location())?;
    let inode = |directory: &Directory| {
        directory.metadata(".".as_ref()).map(|found| (found.dev(), found.ino()))
    };
    if inode(&again)? == inode(directory)? { Ok(again) } else { Err(Errno::STALE.into()) }
}

/// Leaves `lock` open in the program that this process executes, as flock(1) does: all processes
/// that it starts have it as well.
fn keep_in_command(lock: File) -> io::Result<()> {
    fcntl_setfd(&lock, FdFlags::empty())?;
    std::mem::forget(lock);
    Ok(())
}

/// Creates what overlayfs needs in `layer`. The upper directory shows its mode as that of `lower`.
fn prepare(layer: &Directory, lower: &Directory) -> io::Result<()> {
    layer.create(WORK.as_ref())?;
    if layer.create(UPPER.as_ref())? {
        let mode = lower.metadata(".".as_ref())?.mode() & 0o7777;
        let upper: File = openat(
            layer,
            UPPER,
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?
        .into();
        upper.set_permissions(Permissions::from_mode(mode | 0o700))?;
    }
    Ok(())
}

/// Lets the user remove `layer`, which no overlay uses any more, with all that is in it: overlayfs
/// leaves a directory that its owner may not enter.
pub(crate) fn make_removable(layer: &Layer) {
    let Layer::Directory(path) = layer else { return };
    let Ok(work) = Directory::open(path).and_then(|layer| layer.below(WORK.as_ref())) else {
        return;
    };
    for name in work.names().unwrap_or_default() {
        let _ = work.below(&name).and_then(|left| left.open_to_owner());
    }
}

fn cannot(path: &Path, error: &io::Error) -> Error {
    let context = format!("{}: cannot mount an overlay: {}", path.display(), reason(error));
    Error::new(Kind::CannotMount, context)
}

fn unusable(layer: &Path, error: &io::Error) -> Error {
    let context = format!("--overlay {}: {}", layer.display(), reason(error));
    Error::new(Kind::CannotMount, context)
}

/// Explains why the kernel refused to mount with `errno`.
fn refused(path: &Path, layer: &Layer, errno: Errno) -> Error {
    let error = cannot(path, &errno.into());
    match (errno, layer) {
        (Errno::NODEV, _) => error.with_hint("this kernel has no overlayfs (module overlay)"),
        (Errno::PERM, _) => {
            error.with_hint("without root, overlayfs needs Linux 5.11 and user namespaces")
        }
        (Errno::INVAL, Layer::Directory(directory)) => {
            let kind = kind_of(directory).unwrap_or_else(|| "its file system".to_owned());
            let context =
                format!("--overlay {}: overlayfs cannot write to {kind}", directory.display());
            Error::new(Kind::CannotMount, context).with_hint(
                "name a directory on a local file system, such as ext4, xfs or tmpfs, or use \
                 --overlay tmp",
            )
        }
        _ => error,
    }
}

/// The type of the file system of `path`, as /proc/self/mountinfo names it.
fn kind_of(path: &Path) -> Option<String> {
    let device = fs::metadata(path).ok()?.dev();
    let is_it = |entry: &mountinfo::MountEntry| entry.device_number() == Some(device);
    Some(mountinfo::find(is_it).ok()??.kind)
}
