//! Attaches a FUSE connection to a directory and detaches it: with mount(2) as root or with the
//! capability for it; otherwise, or if the kernel refuses, with fusermount.
//!
//! A mount is identified by its mount id and device number, which are unique while it exists. Its
//! path may change: a rename of a directory above the mount point moves the mount.
//!
//! Invariants: archfs never detaches a mount that another process made later at the same mount
//! point. Root follows no symbolic link to the mount point (`os::directory`).

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Signal, getegid, geteuid, getpid, kill_process};

use crate::error::{Error, Kind, Result, reason};
use crate::lifecycle::Restrictions;
use crate::lifecycle::mount::owned_directory::is_on_autofs;
use crate::lifecycle::mount::{Detach, PROBE_TIMEOUT, busy, device, fusermount, namespace};
use crate::os::directory::Directory;
use crate::os::mountinfo::{self, MountEntry, MountId, TYPE};
use crate::os::trust;
use crate::sync::{AtomicBool, Ordering};
use crate::units::format_duration;

/// A mount of this process. Dropping it detaches it lazily. If the mount is not in use, that equals
/// a plain unmount; if it is, no second call of fusermount is needed.
#[derive(Debug)]
pub(crate) struct Attached {
    mount_point: PathBuf,
    covered: Covered,
    entry: MountEntry,
    is_detached: AtomicBool,
    /// The lock of the mount point, for the helper that unmounts.
    lock: OwnedFd,
}

/// The directory that a mount covers.
#[derive(Debug)]
enum Covered {
    Directory(Directory),
    /// On autofs, where it stays at its path, and must not be held open.
    OnAutofs,
    /// This user may not open it.
    Unknown,
}

impl From<Option<Directory>> for Covered {
    fn from(directory: Option<Directory>) -> Self {
        match directory {
            Some(directory) if is_on_autofs(&directory) => Self::OnAutofs,
            Some(directory) => Self::Directory(directory),
            None => Self::Unknown,
        }
    }
}

impl Attached {
    /// Attaches a new connection to `mount_point`, whose lock is `lock`, with `source` as its name
    /// in the mount table. Returns the daemon's end of the connection.
    ///
    /// Fails with `CannotMount` if the node, the user or the mount point does not allow it; `Io`.
    pub(crate) fn new(
        mount_point: &Path,
        source: &Path,
        restrictions: Restrictions,
        lock: &impl AsFd,
    ) -> Result<(Self, OwnedFd)> {
        let start = Instant::now();
        let duplicate = duplicate(lock)?;
        let (connection, directory, how) = connect(mount_point, source, restrictions, lock)?;
        match mountinfo::topmost(mount_point)? {
            Some(entry) if entry.is_own() => {
                log_mounted(mount_point, how, start);
                let mount_point = mount_point.to_owned();
                let (covered, is_detached) = (directory.into(), false.into());
                let lock = duplicate;
                Ok((Self { mount_point, covered, entry, is_detached, lock }, connection))
            }
            _ => {
                drop(connection);
                if let Some(directory) = directory.filter(|_| how == DIRECTLY) {
                    detach_moved(&directory);
                }
                let context =
                    format!("{}: mounted, but not visible at that path", mount_point.display());
                Err(Error::new(Kind::CannotMount, context).with_hint(
                    "another process renames a parent directory; choose another mount point",
                ))
            }
        }
    }

    /// Its entry in mountinfo when it was attached.
    pub(crate) fn entry(&self) -> &MountEntry {
        &self.entry
    }

    /// Notes that `lock` is the lock of the mount point now.
    pub(crate) fn note_lock(&mut self, lock: &impl AsFd) {
        if let Ok(lock) = duplicate(lock) {
            self.lock = lock;
        }
    }

    /// Whether it is still mounted; another process may have unmounted it.
    pub(crate) fn is_there(&self) -> Result<bool> {
        Ok(self.current_entry()?.is_some())
    }

    /// Its current entry in mountinfo, with its current path.
    ///
    /// The kernel reuses the numbers of a detached mount for the next one, which may belong to
    /// another daemon. So this looks only at the current path of the covered directory, whose lock
    /// this process holds. Once the mount is detached, it returns `None`.
    fn current_entry(&self) -> Result<Option<MountEntry>> {
        if self.is_detached.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let covered = match &self.covered {
            Covered::Directory(directory) => std::fs::read_link(directory.path()).ok(),
            Covered::OnAutofs => Some(self.mount_point.clone()),
            Covered::Unknown => None,
        };
        let is_there = |entry: &MountEntry| {
            covered.as_ref().is_none_or(|covered| entry.mount_point == *covered)
        };
        mountinfo::find(|entry| self.is(entry) && is_there(entry))
    }

    /// Whether another mount covers it, which must be unmounted first.
    pub(crate) fn is_covered(&self) -> Result<bool> {
        let Some(current) = self.current_entry()? else {
            return Ok(false);
        };
        Ok(mountinfo::topmost(&current.mount_point)?.is_some_and(|entry| !self.is(&entry)))
    }

    fn is(&self, entry: &MountEntry) -> bool {
        MountId::of(entry) == MountId::of(&self.entry)
    }

    /// Detaches it, if it is still mounted, at its current path.
    pub(crate) fn detach(&self, how: Detach) -> Result<()> {
        let mut before = self.current_entry()?;
        for _ in 0..RENAMES_MAX {
            let Some(entry) = before else {
                return Ok(());
            };
            let detached = detach(&entry, how, Some(self.lock.as_fd()));
            before = self.current_entry()?;
            // If its path has changed, a directory above it was renamed: retry with the new path.
            let Some(current) = &before else {
                self.is_detached.store(true, Ordering::Relaxed);
                return Ok(());
            };
            if current.mount_point == entry.mount_point {
                return detached;
            }
        }
        let context = format!(
            "{}: cannot unmount: a parent directory keeps changing",
            self.mount_point.display()
        );
        Err(Error::new(Kind::Io, context))
    }

    /// Aborts the connection of a mount that cannot be detached. Processes that use the mount get
    /// errors, but none waits for this process, which can exit.
    fn end_connection(&self) {
        let number = self.entry.device.rsplit(':').next().unwrap_or_default();
        let abort = Path::new(CONNECTIONS).join(number).join("abort");
        let Err(error) = std::fs::write(&abort, "1") else {
            log::error!("{}: aborted the FUSE connection", self.mount_point.display());
            return;
        };
        log::debug!("{}: {error}", abort.display());
        // The connection also ends when its last descriptor is closed, that is, when this process
        // ends. SIGINT ends a daemon at once.
        let _ = kill_process(getpid(), Signal::INT);
    }
}

/// How often to retry detaching a mount whose path changes.
const RENAMES_MAX: usize = 100;

/// The directory of FUSE connections, each named by the minor number of its device. It exists only
/// if fusectl is mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

impl Drop for Attached {
    fn drop(&mut self) {
        if let Err(error) = self.detach(Detach::Lazily) {
            log::error!("{}: cannot unmount: {error}", self.mount_point.display());
            self.end_connection();
        }
    }
}

/// Detaches the mount `entry`, whichever process mounted it. Succeeds also if another process
/// unmounts it at the same time. Detaches nothing if another mount covers or has replaced it.
///
/// The kernel reuses the numbers of a detached mount. Unless the mount belongs to this process, the
/// caller locks its mount point, if the lock is free, so that no other process mounts there. A
/// helper that unmounts holds `lock` too, because it may outlive this process. Without the lock,
/// such a helper could unmount what another process mounts in the meantime.
///
/// Fails with `Busy` if `how` is `IfIdle` and the mount is in use, or if another mount covers it;
/// `Io`.
pub(crate) fn detach(entry: &MountEntry, how: Detach, lock: Option<BorrowedFd<'_>>) -> Result<()> {
    let mount_point = entry.mount_point.as_path();
    match mountinfo::topmost(mount_point)? {
        Some(topmost) if MountId::of(&topmost) == MountId::of(entry) => {}
        Some(other) => {
            let context = format!("{} is mounted over it", other.describe());
            return Err(Error::new(Kind::Busy, context).within(mount_point.display()));
        }
        None => return Ok(()),
    }
    let direct = may_mount_directly().then(|| detach_directly(entry, how));
    let detached = match direct {
        Some(Err(error)) if may_ask_helper_after(&error) => {
            let detached = fusermount::unmount(mount_point, how, lock);
            detached.map_err(|by_helper| match by_helper.kind() {
                Kind::Busy => by_helper,
                _ => refused_twice(mount_point, &error, &by_helper),
            })
        }
        Some(detached) => detached,
        None => fusermount::unmount(mount_point, how, lock),
    };
    match detached {
        Err(error) if error.kind() != Kind::Busy && mountinfo::topmost(mount_point)?.is_none() => {
            log::debug!("{error}: unmounted by another process");
            Ok(())
        }
        detached => detached,
    }
}

/// `CannotMount` if the kernel does not permit it to this process.
fn detach_directly(entry: &MountEntry, how: Detach) -> Result<()> {
    let mount_point = entry.mount_point.as_path();
    let flags = match how {
        Detach::IfIdle => UnmountFlags::NOFOLLOW,
        Detach::Lazily => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    match unmount_in_parent(mount_point, flags, |found| MountId::of(found) == MountId::of(entry)) {
        Ok(()) => Ok(()),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::BUSY) => Err(busy(mount_point)),
            Some(refusal @ (Errno::PERM | Errno::ACCESS)) => {
                let context =
                    format!("{}: cannot unmount: {}", mount_point.display(), reason(refusal));
                Err(Error::new(Kind::CannotMount, context))
            }
            _ => Err(cannot_unmount(mount_point, error)),
        },
    }
}

/// Unmounts the topmost mount at `mount_point`, if it is one of archfs that `is_meant` accepts.
fn unmount_in_parent(
    mount_point: &Path,
    flags: UnmountFlags,
    is_meant: impl Fn(&MountEntry) -> bool,
) -> io::Result<()> {
    let (parent, name) = Directory::open_parent(mount_point)?;
    // A mount point cannot be renamed, and `parent` does not depend on the directories above it.
    match mountinfo::topmost(mount_point) {
        Ok(Some(entry)) if entry.is_archfs() && is_meant(&entry) => {
            Ok(unmount(parent.path().join(name), flags)?)
        }
        _ => Err(Errno::INVAL.into()),
    }
}

/// Detaches the stale mount on `directory`, which was renamed during the mount. If that fails,
/// `archfs gc` finds it.
fn detach_moved(directory: &Directory) {
    let Ok(mount_point) = std::fs::read_link(directory.path()) else {
        return;
    };
    if let Ok(Some(entry)) = mountinfo::topmost(&mount_point)
        && entry.is_own()
        && entry.is_stale(PROBE_TIMEOUT)
        && let Err(error) = detach_directly(&entry, Detach::Lazily)
    {
        log::warn!("{error}; run `archfs gc`");
    }
}

/// Mounts at `mount_point` in the mount namespace of this process, which must have the right to.
/// Returns the daemon's end of the connection.
pub(crate) fn mount_here(
    mount_point: &Path,
    source: &Path,
    restrictions: Restrictions,
) -> Result<OwnedFd> {
    let start = Instant::now();
    let (connection, _) = mount_directly(mount_point, source, restrictions)?;
    log_mounted(mount_point, "in a namespace", start);
    Ok(connection)
}

fn log_mounted(mount_point: &Path, how: &str, start: Instant) {
    let time = format_duration(start.elapsed());
    log::info!("{}: mounted {how} in {time}", mount_point.display());
}

/// Detaches lazily what `mount_here` mounted.
pub(crate) fn detach_here(mount_point: &Path) -> Result<()> {
    let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
    unmount_in_parent(mount_point, flags, |_| true)
        .map_err(|error| cannot_unmount(mount_point, error))
}

fn cannot_unmount(mount_point: &Path, error: io::Error) -> Error {
    Error::io(format!("{}: cannot unmount", mount_point.display()), error)
}

/// Opens the directory at `mount_point` or, if something is mounted there, the root of that.
pub(super) fn directory_at(mount_point: &Path) -> io::Result<Directory> {
    let (parent, name) = Directory::open_parent(mount_point)?;
    parent.below(name)
}

/// Whether to try mount(2) and umount(2) first. Root always does: if it lacks the capability, as in
/// a container, the error says so. Another user has the capability in a user namespace that a
/// container runtime made.
pub(crate) fn may_mount_directly() -> bool {
    geteuid().is_root() || namespace::has_capability()
}

/// Whether the helper may try what the kernel refused with `error`: a container may have one that
/// mounts in another way. It gets the mount point as a path, which it follows for root without a
/// check. So real root does not use it.
fn may_ask_helper_after(error: &Error) -> bool {
    error.kind() == Kind::CannotMount && !trust::is_root_of_node()
}

/// How `connect` mounts with mount(2).
const DIRECTLY: &str = "directly";

/// Mounts in the first way that works. Returns the daemon's end of the connection, the directory
/// that the mount covers if it could be opened, and the way.
fn connect(
    mount_point: &Path,
    source: &Path,
    restrictions: Restrictions,
    lock: &impl AsFd,
) -> Result<(OwnedFd, Option<Directory>, &'static str)> {
    let mut refusal = None;
    if may_mount_directly() {
        match mount_directly(mount_point, source, restrictions) {
            Ok((connection, directory)) => return Ok((connection, Some(directory), DIRECTLY)),
            // It needs the device as well.
            Err(error) if may_ask_helper_after(&error) && device::check().is_ok() => {
                refusal = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    let directory = directory_at(mount_point);
    match fusermount::mount(mount_point, source, restrictions, duplicate(lock)?) {
        Ok(connection) => Ok((connection, directory.ok(), "with fusermount")),
        Err(error) => Err(match refusal {
            Some(refusal) => refused_twice(mount_point, &refusal, &error),
            None => error,
        }),
    }
}

/// The error for `mount_point` if both the kernel and the helper refuse. For root, the helper is
/// rarely the remedy.
fn refused_twice(mount_point: &Path, by_kernel: &Error, by_helper: &Error) -> Error {
    let said = by_helper.to_string();
    let said = said.strip_prefix(&format!("{}: ", mount_point.display())).unwrap_or(&said);
    let context = format!("{by_kernel}; fusermount cannot either: {said}");
    let error = Error::new(by_helper.kind(), context);
    let hint = if geteuid().is_root() { by_kernel.hint() } else { by_helper.hint() };
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

/// Returns the daemon's end of the connection, and the directory that the mount covers.
fn mount_directly(
    mount_point: &Path,
    source: &Path,
    restrictions: Restrictions,
) -> Result<(OwnedFd, Directory)> {
    let device = device::open()?;
    let directory = directory_at(mount_point).map_err(|error| {
        Error::io(format!("{}: cannot be the mount point", mount_point.display()), error)
    })?;
    let mut options = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.as_raw_fd(),
        geteuid().as_raw(),
        getegid().as_raw()
    );
    options.extend(restrictions.options());
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::RDONLY, !restrictions.allows_changes);
    flags.set(MountFlags::NOEXEC, restrictions.no_exec);
    let options = std::ffi::CString::new(options).unwrap_or_default();
    let target = directory.path();
    match mount(source, target, TYPE, flags, Some(options.as_c_str())) {
        Ok(()) => Ok((device, directory)),
        Err(error @ (Errno::PERM | Errno::ACCESS | Errno::NODEV)) => Err(Error::new(
            Kind::CannotMount,
            format!(
                "{}: the kernel does not permit the mount: {}",
                mount_point.display(),
                reason(error)
            ),
        )
        .with_hint("in a container, add --device /dev/fuse and the capability SYS_ADMIN")),
        // The options are known to be valid, so the kernel rejects the descriptor.
        Err(Errno::INVAL) => Err(Error::new(
            Kind::CannotMount,
            format!("{}: cannot mount: /dev/fuse is not the FUSE device", mount_point.display()),
        )
        .with_hint("in a container, add --device /dev/fuse")),
        Err(error) => {
            Err(Error::io(format!("{}: cannot mount", mount_point.display()), error.into()))
        }
    }
}

/// A duplicate of `lock`, for another process.
pub(crate) fn duplicate(lock: &impl AsFd) -> Result<OwnedFd> {
    let duplicate = lock.as_fd().try_clone_to_owned();
    duplicate.map_err(|error| Error::io("cannot duplicate a lock", error))
}
