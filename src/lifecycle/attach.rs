//! Attaching a FUSE connection to a directory, and detaching it.
//!
//! Owns the two ways there are: mount(2) as root, fusermount as anybody else; and the check that
//! what is detached is what was attached. Leaves serving the connection to `session`.
//! Invariants: a mount that somebody made later at the same place is never touched; root follows no
//! link to the place (`pinned`).

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{getegid, geteuid};

use super::mountinfo::{self, MountEntry, TYPE};
use super::occupant::{self, Occupant};
use super::pinned::{self, Pinned};
use super::registry::PlaceLock;
use super::{Access, fusermount};
use crate::error::{Error, Kind, Result};

/// How hard to detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detach {
    /// Only if nobody uses it.
    IfIdle,
    /// From the tree of directories at once; files still open go on working.
    Lazily,
}

/// A mount of this process. Dropping it detaches it, lazily, which for a mount that is not in use
/// is the same, and takes one call of fusermount less.
#[derive(Debug)]
pub(super) struct Attached {
    place: PathBuf,
    entry: MountEntry,
}

impl Attached {
    /// Attaches a new connection to `place`, shown as `source` and locked by `lock`; returns the
    /// daemon's end of it.
    ///
    /// # Errors
    /// `CannotMount` where the node, the user or the place does not allow it; `Io`.
    pub(super) fn new(
        place: &Path,
        source: &Path,
        access: Access,
        lock: &PlaceLock,
    ) -> Result<(Self, OwnedFd)> {
        let (connection, directory) = if geteuid().is_root() {
            let (connection, directory) = mount_as_root(place, source, access)?;
            (connection, Some(directory))
        } else {
            (fusermount::mount(place, source, access, lock.duplicate()?)?, None)
        };
        match mountinfo::topmost(place)? {
            Some(entry) if occupant::is_own(&entry) => {
                Ok((Self { place: place.to_owned(), entry }, connection))
            }
            _ => {
                drop(connection);
                if let Some(directory) = directory {
                    detach_moved(&directory);
                }
                let context = format!("{}: mounted, but not to be seen there", place.display());
                Err(Error::new(Kind::CannotMount, context)
                    .with_hint("somebody renames the folders above it; choose another place"))
            }
        }
    }

    /// The line of mountinfo.
    pub(super) fn entry(&self) -> &MountEntry {
        &self.entry
    }

    /// Whether it is still there; somebody may have unmounted it.
    ///
    /// # Errors
    /// `Io` where /proc can not be read.
    pub(super) fn is_there(&self) -> Result<bool> {
        Ok(mountinfo::all()?.iter().any(|entry| self.is(entry)))
    }

    /// Whether something is mounted over it, which has to go first.
    ///
    /// # Errors
    /// `Io` where /proc can not be read.
    pub(super) fn is_covered(&self) -> Result<bool> {
        let topmost = mountinfo::topmost(&self.place)?;
        Ok(topmost.is_some_and(|entry| !self.is(&entry)) && self.is_there()?)
    }

    fn is(&self, entry: &MountEntry) -> bool {
        entry.id == self.entry.id && entry.device == self.entry.device
    }

    /// Detaches it if it is still there.
    ///
    /// # Errors
    /// `Busy` where `how` is `IfIdle` and somebody uses it; `Io`.
    pub(super) fn detach(&self, how: Detach) -> Result<()> {
        match mountinfo::topmost(&self.place)? {
            Some(entry) if self.is(&entry) => detach(&self.place, how),
            Some(other) if self.is_there()? => {
                let context = format!("{} is mounted over it", other.describe());
                Err(Error::new(Kind::Busy, context).within(self.place.display()))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Err(error) = self.detach(Detach::Lazily) {
            log::error!("{}: can not unmount: {error}", self.place.display());
        }
    }
}

/// Detaches what is seen at `place`, whoever mounted it. That somebody else does so at the same
/// time is as good.
///
/// # Errors
/// `Busy` where `how` is `IfIdle` and somebody uses it; `Io`.
pub(super) fn detach(place: &Path, how: Detach) -> Result<()> {
    let detached = match geteuid().is_root() {
        true => detach_as_root(place, how),
        false => fusermount::unmount(place, how),
    };
    match detached {
        Err(error) if error.kind() != Kind::Busy && mountinfo::topmost(place)?.is_none() => {
            log::debug!("{error}: unmounted by somebody else");
            Ok(())
        }
        detached => detached,
    }
}

fn detach_as_root(place: &Path, how: Detach) -> Result<()> {
    let flags = match how {
        Detach::IfIdle => UnmountFlags::NOFOLLOW,
        Detach::Lazily => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    match unmount_pinned(place, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(busy(place)),
        Err(error) => Err(Error::io(format!("{}: can not unmount", place.display()), error.into())),
    }
}

/// Unmounts what is mounted at `place`, if it still is a mount of archfs.
fn unmount_pinned(place: &Path, flags: UnmountFlags) -> rustix::io::Result<()> {
    let pinned = Pinned::new(place)?;
    // A folder that is mounted on can not be renamed itself, and those above it do not matter now.
    match mountinfo::topmost(place) {
        Ok(Some(entry)) if entry.is_ours() => unmount(pinned.path(), flags),
        _ => Err(Errno::INVAL),
    }
}

/// Clears the dead mount on `directory`, which somebody moved while it was mounted on. Where that
/// fails, `gc` finds it.
fn detach_moved(directory: &OwnedFd) {
    let Ok(place) = std::fs::read_link(pinned::path_of(directory)) else {
        return;
    };
    if let Ok(Occupant::Dead(entry)) = occupant::look(&place)
        && occupant::is_own(&entry)
        && let Err(error) = detach_as_root(&place, Detach::Lazily)
    {
        log::warn!("{error}; archfs gc clears it");
    }
}

/// Mounts at `place` in the namespace of this process, where it has the right to; returns the
/// daemon's end of the connection.
///
/// # Errors
/// As `Attached::new`.
pub(super) fn mount_here(place: &Path, source: &Path, access: Access) -> Result<OwnedFd> {
    mount_as_root(place, source, access).map(|(connection, _)| connection)
}

/// Takes away, lazily, what `mount_here` mounted.
///
/// # Errors
/// `Io`.
pub(super) fn detach_here(place: &Path) -> Result<()> {
    unmount_pinned(place, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
        .map_err(|error| Error::io(format!("{}: can not unmount", place.display()), error.into()))
}

/// The error for a mount in use.
pub(super) fn busy(place: &Path) -> Error {
    Error::new(Kind::Busy, format!("{}: in use", place.display())).with_hint(
        "close the files and leave the folders below it (fuser -vm tells who), or use --lazy",
    )
}

/// The daemon's end of the connection, and the directory that is mounted on.
fn mount_as_root(place: &Path, source: &Path, access: Access) -> Result<(OwnedFd, OwnedFd)> {
    let device = open_device()?;
    let directory = Pinned::new(place).and_then(|pinned| pinned.directory()).map_err(|error| {
        Error::io(format!("{}: can not be the mount point", place.display()), error.into())
    })?;
    let mut options = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.as_raw_fd(),
        geteuid().as_raw(),
        getegid().as_raw()
    );
    if access == Access::Everybody {
        options.push_str(",allow_other,default_permissions");
    }
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    let options = std::ffi::CString::new(options).unwrap_or_default();
    let target = pinned::path_of(&directory);
    match mount(source, target, TYPE, flags, Some(options.as_c_str())) {
        Ok(()) => Ok((device, directory)),
        Err(error @ (Errno::PERM | Errno::NODEV)) => Err(Error::new(
            Kind::CannotMount,
            format!("{}: the kernel does not let this process mount: {error}", place.display()),
        )
        .with_hint("in a container it needs --device /dev/fuse and the capability SYS_ADMIN")),
        // The options are ours and sound, so it is the descriptor that the kernel does not like.
        Err(Errno::INVAL) => Err(Error::new(
            Kind::CannotMount,
            format!("{}: can not mount: /dev/fuse is not the FUSE device here", place.display()),
        )
        .with_hint("in a container, add --device /dev/fuse")),
        Err(error) => Err(Error::io(format!("{}: can not mount", place.display()), error.into())),
    }
}

/// A connection to FUSE that belongs to no mount yet.
///
/// # Errors
/// The system's.
pub(super) fn open_connection() -> std::io::Result<OwnedFd> {
    File::options().read(true).write(true).open("/dev/fuse").map(OwnedFd::from)
}

fn open_device() -> Result<OwnedFd> {
    open_connection().map_err(|error| no_device(Errno::from_io_error(&error).unwrap_or(Errno::IO)))
}

/// The error for a device of FUSE that this process can not have.
pub(super) fn no_device(error: Errno) -> Error {
    let hint = match error {
        Errno::ACCESS => {
            "its mode must be 0666, as distributions set it; ask the administrator of the node"
        }
        // A container may have the device and yet no right to it.
        Errno::PERM => "in a container, add --device /dev/fuse",
        _ => {
            "the kernel module must be loaded (modprobe fuse); in a container, add --device /dev/fuse"
        }
    };
    let context = format!("/dev/fuse can not be opened: {error}");
    Error::new(Kind::CannotMount, context).with_hint(hint)
}
