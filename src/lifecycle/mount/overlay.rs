//! A writable layer over files that are mounted read-only: overlayfs of the kernel, in a mount
//! namespace of this process.
//!
//! What a process creates or changes goes to the upper directory of the layer, and a file that it
//! removes becomes a whiteout there. The format is that of overlayfs (the kernel's
//! Documentation/filesystems/overlayfs.rst), with the attributes `user.overlay.*`, so that another
//! job of the same user can use the layer again.
//!
//! Invariants: the kernel removes the overlay when the last process of the namespace ends, so none
//! is left behind. `run` takes the directory of a layer outside of the namespace. Both `run` and
//! the command have its lock, so that no other overlay uses it.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    FlockOperation, OFlags, StatVfsMountFlags, XattrFlags, flock, fremovexattr, fsetxattr, fstatvfs,
};
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
    /// To this directory, which keeps them: a new or an empty one, or one that a layer was in.
    Directory(PathBuf),
}

/// Options with which overlayfs works in a user namespace: its attributes are ones of users.
const USER: &str = ",userxattr";

/// Those for root on kernels and file systems without them: Linux before 5.11, tmpfs before 6.6.
/// The features that are off would tie the layer to one mount.
const TRUSTED: &str = ",redirect_dir=nofollow,metacopy=off,index=off";

/// What archfs makes in the directory of a layer. The file is locked while the layer is used. It
/// also tells that the directory is one, and nothing else in it is lost: overlayfs empties its work
/// directory.
const LOCK: &str = "archfs-layer";
const UPPER: &str = "upper";
const WORK: &str = "work";

/// A layer that no other `run` uses as long as this is there.
#[derive(Debug)]
pub(crate) enum HeldLayer {
    Memory,
    /// The directory, and its lock.
    Directory(Directory, File),
}

impl HeldLayer {
    /// Takes `layer`, whose directory is created if it is missing. Call this before the process may
    /// enter a user namespace, where the owners of directories are unknown.
    ///
    /// Fails with `CannotMount` if the directory cannot be used; `Busy` if another job uses it.
    pub(crate) fn take(layer: &Layer) -> Result<Self> {
        let Layer::Directory(path) = layer else { return Ok(Self::Memory) };
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
        refuse_foreign(path, &directory)?;
        // Only a layer, or an empty directory that becomes one.
        directory.close_to_others().map_err(failed)?;
        let flags = OFlags::RDWR | OFlags::CREATE;
        let lock = directory.open_with(LOCK.as_ref(), flags).map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self::Directory(directory, lock)),
            Err(Errno::WOULDBLOCK) => {
                let context =
                    format!("--overlay {}: in use by another job or task", path.display());
                Err(Error::new(Kind::Busy, context)
                    .with_hint("name a directory for each, or use --overlay tmp"))
            }
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// The words by which `EnteredLayer::parse` finds it again in another program. From now on, all
    /// programs that this process executes inherit the lock, as those of flock(1) do.
    pub(crate) fn pass_on(&self) -> io::Result<[OsString; 2]> {
        Ok(match self {
            Self::Memory => [OsString::new(), "-".into()],
            Self::Directory(directory, lock) => {
                fcntl_setfd(lock, FdFlags::empty())?;
                [directory.location().into(), lock.as_raw_fd().to_string().into()]
            }
        })
    }

    /// Lets the user remove the directory with all that is in it, when no overlay uses it any more:
    /// overlayfs leaves a directory that its owner may not enter.
    pub(crate) fn make_removable(&self) {
        let Self::Directory(directory, _) = self else { return };
        let Ok(work) = directory.below(WORK.as_ref()) else { return };
        for name in work.names().unwrap_or_default() {
            let _ = work.below(&name).and_then(|left| left.open_to_owner());
        }
    }
}

/// Fails unless `directory`, which the user named as `path`, is a layer of this user or may become
/// one.
fn refuse_foreign(path: &Path, directory: &Directory) -> Result<()> {
    let failed = |error: io::Error| unusable(path, &error);
    let found = directory.metadata(".".as_ref()).map_err(failed)?;
    let names = directory.names().map_err(failed)?;
    let is_layer = directory.metadata(LOCK.as_ref()).is_ok_and(|lock| lock.is_file());
    let own = "name a directory of your own on this node, for example in $TMPDIR";
    let (why, hint) = match directory.first_untrusted() {
        _ if found.uid() != geteuid().as_raw() => ("belongs to another user".to_owned(), own),
        Some(_) if trust::is_in_user_namespace() => (
            "in a user namespace, archfs cannot tell who owns the directories above".to_owned(),
            "use --overlay tmp",
        ),
        Some(part) => (format!("other users can replace {}", part.display()), own),
        None if !(is_layer || names.is_empty() && found.mode() & 0o1022 == 0) => (
            "neither empty nor a layer of archfs".to_owned(),
            "name a new or an empty directory; --overlay tmp is a layer in memory",
        ),
        None => return Ok(()),
    };
    let context = format!("--overlay {}: {why}", path.display());
    Err(Error::new(Kind::CannotMount, context).with_hint(hint))
}

/// Moves this process into a mount namespace where the layer that `HeldLayer::pass_on` described is
/// above the files at `path`, a path without symbolic links. Call it before any thread is started.
///
/// # Errors
/// `CannotMount` if the node, the user or the layer does not allow it.
pub(crate) fn enter(path: &Path, layer: &Path, lock: &OsStr) -> Result<()> {
    namespace::enter().map_err(|error| {
        error.with_hint(
            "--overlay needs user namespaces (sysctl user.max_user_namespaces), or root; without \
             them, let the program write elsewhere",
        )
    })?;
    let failed = |error| cannot(path, &error);
    // In the namespace: what was opened before belongs to the mounts outside.
    let lower = directory_at(path).map_err(failed)?;
    let is_in_memory = layer.as_os_str().is_empty();
    let layer = match is_in_memory {
        true => in_memory(&lower, path)?,
        false => reopened(layer, lock).map_err(|error| unusable(layer, &error))?,
    };
    let upper = prepare(&layer, &lower).map_err(|error| unusable(layer.location(), &error))?;
    let flags = fstatvfs(&lower).map_err(|errno| failed(errno.into()))?.f_flag;
    let mut mount_flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount_flags.set(MountFlags::NOEXEC, flags.contains(StatVfsMountFlags::NOEXEC));
    let mount_with = |attributes: &str| {
        let (lower_path, layer) = (lower.path(), layer.path());
        let (lower_path, layer) = (lower_path.display(), layer.display());
        let options = format!(
            "lowerdir={lower_path},upperdir={layer}/{UPPER},workdir={layer}/{WORK}{attributes}\0"
        );
        let options = CStr::from_bytes_until_nul(options.as_bytes()).ok();
        mount(SOURCE, lower.path(), "overlay", mount_flags, options)
    };
    // Without the attributes, overlayfs could not remove a directory of the archive.
    let has = |name: &str| has_attributes(&upper, name);
    let mut mounted = Err(Errno::OPNOTSUPP);
    for (attribute, options) in [("user.overlay.archfs", USER), ("trusted.overlay.archfs", TRUSTED)]
    {
        if matches!(mounted, Err(Errno::OPNOTSUPP | Errno::INVAL)) && has(attribute) {
            mounted = mount_with(options);
        }
    }
    mounted.map_err(|errno| refused(path, &layer, is_in_memory, errno))?;
    // Overlayfs falls back to this where it cannot use the layer.
    let overlay = directory_at(path).map_err(failed)?;
    let is_read_only =
        fstatvfs(&overlay).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY));
    match is_read_only {
        true => Err(refused(path, &layer, is_in_memory, Errno::INVAL)),
        false => Ok(()),
    }
}

/// The source of the mounts in the mount table.
const SOURCE: &str = "archfs-overlay";

/// A tmpfs, mounted over `lower` at `path`, where the overlay covers it. It takes at most half of
/// the memory that is left, so that a write fails before the job is killed.
fn in_memory(lower: &Directory, path: &Path) -> Result<Directory> {
    let size = memory::headroom().map_or(String::new(), |left| format!(",size={}", left.bytes / 2));
    let options = format!("mode=0700{size}\0");
    let options = CStr::from_bytes_until_nul(options.as_bytes()).ok();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount(SOURCE, lower.path(), "tmpfs", flags, options)
        .map_err(|errno| cannot(path, &errno.into()))?;
    directory_at(path).map_err(|error| cannot(path, &error))
}

/// The layer at `path` as this mount namespace has it. Its lock is the descriptor `lock`.
fn reopened(path: &Path, lock: &OsStr) -> io::Result<Directory> {
    let layer = Directory::open(path)?;
    let held = fs::metadata(Path::new("/proc/self/fd").join(lock))?;
    let found = layer.metadata(LOCK.as_ref())?;
    match (held.dev(), held.ino()) == (found.dev(), found.ino()) {
        true => Ok(layer),
        false => Err(Errno::STALE.into()),
    }
}

/// Creates what overlayfs needs in `layer`. Returns the upper directory, which has the mode of
/// `lower`.
fn prepare(layer: &Directory, lower: &Directory) -> io::Result<File> {
    layer.create(WORK.as_ref())?;
    let is_new = layer.create(UPPER.as_ref())?;
    let upper = layer.open_with(UPPER.as_ref(), OFlags::RDONLY | OFlags::DIRECTORY)?;
    if is_new {
        let mode = lower.metadata(".".as_ref())?.mode() & 0o7777;
        upper.set_permissions(Permissions::from_mode(mode | 0o700))?;
    }
    Ok(upper)
}

/// Whether this process can give `file` attributes such as `name`.
fn has_attributes(file: &File, name: &str) -> bool {
    fsetxattr(file, name, b"", XattrFlags::empty()).is_ok() && fremovexattr(file, name).is_ok()
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
fn refused(path: &Path, layer: &Directory, is_in_memory: bool, errno: Errno) -> Error {
    let error = cannot(path, &errno.into());
    match errno {
        Errno::NODEV => error.with_hint("this kernel has no overlayfs (module overlay)"),
        Errno::PERM => {
            error.with_hint("without root, overlayfs needs Linux 5.11 and user namespaces")
        }
        Errno::OPNOTSUPP if is_in_memory => error.with_hint(
            "without root, a layer in memory needs Linux 6.6; name a directory on a local disk",
        ),
        Errno::OPNOTSUPP | Errno::INVAL if !is_in_memory => {
            let layer = layer.location();
            let kind = kind_of(layer).unwrap_or_else(|| "its file system".to_owned());
            let context =
                format!("--overlay {}: overlayfs cannot write to {kind}", layer.display());
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
