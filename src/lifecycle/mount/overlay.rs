//! A writable layer over files that are mounted read-only: overlayfs of the kernel, in a mount
//! namespace of this process.
//!
//! What a process creates or changes goes to the upper directory of the layer, and a file that it
//! removes becomes a whiteout there. The format is that of overlayfs (the kernel's
//! Documentation/filesystems/overlayfs.rst). It keeps its attributes in `user.overlay.*`, or for
//! root on older kernels in `trusted.overlay.*`.
//!
//! Invariants: the kernel removes the overlay when the last process of the namespace ends, so none
//! is left behind. `run` takes the directory of a layer outside of the namespace. Both `run` and
//! the command have its lock, so that no other overlay uses it.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    FlockOperation, OFlags, StatVfsMountFlags, XattrFlags, flock, fremovexattr, fsetxattr, fstatvfs,
};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, mount};
use rustix::process::geteuid;

use super::attach::directory_at;
use super::namespace;
use crate::error::{Error, Kind, Result, reason};
use crate::lifecycle::plan::Layer;
use crate::os::directory::{Directory, parent_of};
use crate::os::{memory, mountinfo, trust};
use crate::units::quoted;

/// The program that writes a layer. They mark some of what is removed in different ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerWriter {
    Kernel,
    FuseOverlayfs,
}

impl LayerWriter {
    /// Prefix of the identity of the archives in the lock file of a layer.
    fn mark(self) -> &'static str {
        match self {
            Self::Kernel => "",
            Self::FuseOverlayfs => "fuse-overlayfs ",
        }
    }

    /// The command that uses it.
    fn command(self) -> &'static str {
        match self {
            Self::Kernel => "archfs run --overlay",
            Self::FuseOverlayfs => "archfs mount --overlay",
        }
    }
}

/// Keeps the attributes of overlayfs in `user.overlay.*`, which a user namespace allows.
const USER: &str = ",userxattr";

/// Those for root on kernels and file systems without them: Linux before 5.11, tmpfs before 6.6.
/// The features that are off would tie the layer to one mount.
const TRUSTED: &str = ",redirect_dir=nofollow,metacopy=off,index=off";

/// Marks a directory as a layer, and is locked while the layer is in use. archfs refuses other
/// directories with files, because overlayfs empties `work`.
const LOCK: &str = "archfs-layer";
/// How long a layer may be in use by processes that are exiting: the next job finds it so.
const PATIENCE: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// It contains the identity of the archives, which is shorter than this, bytes.
const IDENTITY_MAX: u64 = 4096;
pub(super) const UPPER: &str = "upper";
pub(super) const WORK: &str = "work";

/// A layer that this process has locked.
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
                let parent = parent_of(path);
                let parent = Directory::open(parent).map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => {
                        let (layer, parent) = (path.display(), parent.display());
                        let context = format!("--overlay {layer}: no such directory: {parent}");
                        Error::new(Kind::CannotMount, context)
                            .with_hint(format!("mkdir -p {}", quoted(parent)))
                    }
                    _ => failed(error),
                })?;
                parent.create(name).map_err(failed)?;
                parent.below(name)
            }
            opened => opened,
        }
        .map_err(failed)?;
        refuse_foreign(path, &directory)?;
        // Now it is a layer, or an empty directory.
        directory.close_to_others().map_err(failed)?;
        let flags = OFlags::RDWR | OFlags::CREATE;
        let lock = directory.open_with(LOCK.as_ref(), flags).map_err(failed)?;
        let deadline = Instant::now() + PATIENCE;
        let locked = loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    thread::sleep(RETRY_INTERVAL);
                }
                locked => break locked,
            }
        };
        match locked {
            Ok(()) => Ok(Self::Directory(directory, lock)),
            Err(Errno::WOULDBLOCK) => {
                let context =
                    format!("--overlay {}: in use by another job or task", path.display());
                Err(Error::new(Kind::Busy, context)
                    .with_hint("name one directory for each task, or use --overlay tmp"))
            }
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Warns if the layer was made over other files than `identity` names. Notes that and `writer`
    /// in a new layer.
    ///
    /// Fails with `CannotMount` if another program wrote the layer; `Io`.
    pub(crate) fn check(&self, identity: &str, writer: LayerWriter) -> Result<()> {
        let Self::Directory(directory, lock) = self else { return Ok(()) };
        let path = directory.location().display();
        let failed = |error| Error::io(format!("--overlay {path}: cannot be used"), error);
        let mut before = String::new();
        lock.take(IDENTITY_MAX).read_to_string(&mut before).map_err(failed)?;
        let by_fuse = before.strip_prefix(LayerWriter::FuseOverlayfs.mark());
        let made_by = by_fuse.map_or(LayerWriter::Kernel, |_| LayerWriter::FuseOverlayfs);
        let changes = directory.below(UPPER.as_ref()).and_then(|upper| upper.names());
        if before.is_empty() || (made_by != writer && changes.is_ok_and(|names| names.is_empty())) {
            let note = format!("{}{identity}", writer.mark());
            return lock
                .set_len(0)
                .and_then(|()| lock.write_all_at(note.as_bytes(), 0))
                .map_err(failed);
        }
        if made_by != writer {
            let context = format!("--overlay {path}: made by `{}`", made_by.command());
            return Err(Error::new(Kind::CannotMount, context)
                .with_hint("use that command, or name another directory"));
        }
        if by_fuse.unwrap_or(&before) != identity {
            let what = format_args!(
                "--overlay {path}: made with other archives or options, or they have changed since"
            );
            crate::log::warn(
                what,
                "files that were changed or removed in it hide those of the archives",
            );
        }
        Ok(())
    }

    /// The arguments with which `enter` finds this layer in the program that runs the command. From
    /// this call on, every program that this process executes inherits the lock, as with flock(1).
    pub(crate) fn pass_on(&self) -> io::Result<[OsString; 2]> {
        Ok(match self {
            Self::Memory => [OsString::new(), "-".into()],
            Self::Directory(directory, lock) => {
                fcntl_setfd(lock, FdFlags::empty())?;
                [directory.location().into(), lock.as_raw_fd().to_string().into()]
            }
        })
    }

    /// From this call on, no program that this process executes inherits the lock.
    pub(crate) fn close_on_exec(&self) -> io::Result<()> {
        match self {
            Self::Memory => Ok(()),
            Self::Directory(_, lock) => Ok(fcntl_setfd(lock, FdFlags::CLOEXEC)?),
        }
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
            "archfs cannot check who owns the directories above it in this user namespace"
                .to_owned(),
            "use --overlay tmp",
        ),
        Some(part) => (format!("other users can replace {}", part.display()), own),
        None if !is_layer && found.mode() & 0o1000 != 0 => (
            "other programs may use it: it has the sticky bit".to_owned(),
            "name a new directory in it; --overlay tmp is a layer in memory",
        ),
        None if !is_layer && !names.is_empty() => (
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
    namespace::enter().map_err(|error| error.with_hint(NAMESPACE_HINT))?;
    let failed = |error| cannot(path, &error);
    // In the namespace: a descriptor opened before refers to the mounts outside.
    let lower = directory_at(path).map_err(failed)?;
    let is_in_memory = layer.as_os_str().is_empty();
    let layer = match is_in_memory {
        true => in_memory(&lower, path)?,
        false => reopened(layer, lock).map_err(|error| unusable(layer, &error))?,
    };
    let upper = Upper::create(&layer)
        .and_then(|upper| upper.show_like(&lower).map(|()| upper.directory))
        .map_err(|error| unusable(layer.location(), &error))?;
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
    // If overlayfs cannot write to the layer, it mounts read-only.
    let overlay = directory_at(path).map_err(failed)?;
    let is_read_only =
        fstatvfs(&overlay).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY));
    match is_read_only {
        true => Err(refused(path, &layer, is_in_memory, Errno::INVAL)),
        false => Ok(()),
    }
}

pub(super) const NAMESPACE_HINT: &str = "--overlay needs user namespaces (sysctl \
     user.max_user_namespaces), or root; or let the program write to another directory";

/// The source of the mounts in the mount table.
const SOURCE: &str = "archfs-overlay";

/// A tmpfs, mounted over `lower` at `path`, where the overlay covers it. It takes at most half of
/// the memory that is left, so that a write fails before the job is killed.
pub(super) fn in_memory(lower: &Directory, path: &Path) -> Result<Directory> {
    let size = memory::headroom().map_or(String::new(), |left| format!(",size={}", left.bytes / 2));
    let options = format!("mode=0700{size}\0");
    let options = CStr::from_bytes_until_nul(options.as_bytes()).ok();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount(SOURCE, lower.path(), "tmpfs", flags, options)
        .map_err(|errno| cannot(path, &errno.into()))?;
    directory_at(path).map_err(|error| cannot(path, &error))
}

/// The layer at `path` as this mount namespace has it. Its lock is the descriptor `lock`.
pub(super) fn reopened(path: &Path, lock: &OsStr) -> io::Result<Directory> {
    let layer = Directory::open(path)?;
    let held = fs::metadata(Path::new("/proc/self/fd").join(lock))?;
    let found = layer.metadata(LOCK.as_ref())?;
    match (held.dev(), held.ino()) == (found.dev(), found.ino()) {
        true => Ok(layer),
        false => Err(io::Error::other("no longer the directory that archfs locked")),
    }
}

/// The upper directory of a layer.
pub(super) struct Upper {
    directory: File,
    is_new: bool,
}

impl Upper {
    /// Creates the directories of overlayfs in `layer`.
    pub(super) fn create(layer: &Directory) -> io::Result<Self> {
        layer.create(WORK.as_ref())?;
        let is_new = layer.create(UPPER.as_ref())?;
        let directory = layer.open_with(UPPER.as_ref(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Self { directory, is_new })
    }

    /// Gives a new one the mode of `lower`, and all rights for its owner.
    pub(super) fn show_like(&self, lower: &Directory) -> io::Result<()> {
        if !self.is_new {
            return Ok(());
        }
        let mode = lower.metadata(".".as_ref())?.mode() & 0o7777;
        self.directory.set_permissions(Permissions::from_mode(mode | 0o700))
    }
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
            let kind = file_system_type(layer).unwrap_or_else(|| "its file system".to_owned());
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
fn file_system_type(path: &Path) -> Option<String> {
    let device = fs::metadata(path).ok()?.dev();
    let is_it = |entry: &mountinfo::MountEntry| entry.device_number() == Some(device);
    Some(mountinfo::find(is_it).ok()??.kind)
}
