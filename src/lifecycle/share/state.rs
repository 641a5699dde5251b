//! The state of a mount point: free, or with a live mount, a stale one, or something else.
//!
//! Every command that mounts, shares, unmounts or clears starts from this state. A mount is alive
//! while its record file is locked. Its daemon may hang, so archfs probes the mount itself only if
//! there is no record file, and only for a limited time.
//!
//! Invariant: only a mount of type fuse.archfs of this user counts as ours; for root, one of any
//! user.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use super::lock::{MountLock, RecordFile};
use super::record::Record;
use crate::error::{Kind, Result};
use crate::lifecycle::mount::attach;
use crate::lifecycle::mount::detach::Detach;
use crate::lifecycle::mount::owned_directory;
use crate::os::mountinfo::{self, MountEntry, MountId};
use crate::os::probe;

/// How long to probe a mount without a record before it counts as not stale. The kernel answers
/// at once for a stale one.
const ANSWER: Duration = Duration::from_secs(2);

/// The state of a mount point.
#[derive(Debug)]
pub(in crate::lifecycle) enum MountState {
    /// Nothing is mounted and no process is about to mount.
    Free,
    /// A process is about to mount. The file has no record yet if that is being written.
    Starting(Box<RecordFile>),
    /// A mount of ours with a running daemon.
    Alive(MountEntry, Box<RecordFile>, Record),
    /// A mount of ours whose daemon has ended, or was killed and is about to exit.
    Stale(MountEntry),
    /// A daemon is unmounting, or has unmounted but not cleaned up.
    Ending,
    /// A mount that is not ours, or one of ours without a record.
    Other(MountEntry),
}

/// The state of `mount_point`, an absolute path without symbolic links.
///
/// # Errors
/// `Io` if /proc cannot be read.
pub(in crate::lifecycle) fn look(mount_point: &Path) -> Result<MountState> {
    look_within(mount_point, ANSWER)
}

/// Like `look`, but probes a mount without a record for at most `limit`: for callers that retry.
///
/// # Errors
/// As `look`.
pub(in crate::lifecycle) fn look_within(mount_point: &Path, limit: Duration) -> Result<MountState> {
    loop {
        let state = look_once(mount_point, limit)?;
        match &state {
            // It may have been unmounted after mountinfo was read and before the record was looked
            // up. If so, start over.
            MountState::Stale(entry) | MountState::Other(entry)
                if mounted_at(mount_point)?.as_ref() != Some(entry) => {}
            _ => return Ok(state),
        }
    }
}

/// The mount at `mount_point`. An automount trigger does not count, because the kernel replaces it
/// when the directory is entered.
fn mounted_at(mount_point: &Path) -> Result<Option<MountEntry>> {
    Ok(mountinfo::topmost(mount_point)?.filter(|entry| entry.kind != "autofs"))
}

fn look_once(mount_point: &Path, limit: Duration) -> Result<MountState> {
    let entry = mounted_at(mount_point)?;
    let owner = entry.as_ref().filter(|entry| entry.is_archfs()).and_then(MountEntry::owner);
    let owner = owner.unwrap_or_else(|| geteuid().as_raw());
    let file = RecordFile::of(mount_point, owner).filter(|file| file.is_locked);
    let Some(entry) = entry else {
        return Ok(match file {
            None => MountState::Free,
            Some(file) if file.record.as_ref().is_some_and(|record| record.mount.is_some()) => {
                MountState::Ending
            }
            Some(file) => MountState::Starting(Box::new(file)),
        });
    };
    if !entry.may_unmount() {
        return Ok(MountState::Other(entry));
    }
    let Some(file) = file else {
        let is_stale = probe::is_stale(mount_point, &entry, limit);
        return Ok(if is_stale { MountState::Stale(entry) } else { MountState::Other(entry) });
    };
    Ok(match file.record.clone() {
        // A killed process keeps its lock until its last thread has ended, which may be blocked in
        // a read.
        Some(record) if record.process.is_zombie() => MountState::Stale(entry),
        Some(record) if record.is_ending => MountState::Ending,
        Some(record) if record.mount == Some(MountId::of(&entry)) => {
            MountState::Alive(entry, Box::new(file), record)
        }
        // The process has mounted but not yet updated the record, or is clearing a stale mount.
        _ => MountState::Starting(Box::new(file)),
    })
}

/// Detaches the stale mounts at `mount_point`; returns whether there was one.
///
/// Locks the record while it detaches, so that no other process mounts there after the check. A
/// killed daemon that has not exited keeps its lock, and then no other process can mount either.
///
/// # Errors
/// `Io`.
pub(in crate::lifecycle) fn detach_stale(mount_point: &Path) -> Result<bool> {
    let mut was_mounted = false;
    while let MountState::Stale(entry) = look(mount_point)? {
        match MountLock::try_existing_of(mount_point) {
            Some(_lock) => {
                detach_stale_locked(mount_point)?;
            }
            None => detach_one(&entry)?,
        }
        was_mounted = true;
    }
    Ok(was_mounted)
}

fn detach_one(entry: &MountEntry) -> Result<()> {
    let mount_point = entry.mount_point.as_path();
    log::warn!("{}: clearing a stale mount of {}", mount_point.display(), entry.describe());
    // Lazily, because processes may still have files of it open. They get ENOTCONN.
    match attach::detach(entry, Detach::Lazily) {
        // Another process has replaced the mount. The caller checks the new one.
        Err(error)
            if error.kind() == Kind::Busy && mounted_at(mount_point)?.as_ref() != Some(entry) =>
        {
            Ok(())
        }
        detached => detached,
    }
}

/// Removes what a daemon that has ended or was killed has left at `mount_point`: stale mounts, the
/// directory that it created, and its record. Waits until the daemon has exited, at most until
/// `deadline`. A process that is about to mount there does the same itself.
///
/// # Errors
/// `Io`.
pub(in crate::lifecycle) fn clear(mount_point: &Path, deadline: Instant) -> Result<()> {
    detach_stale(mount_point)?;
    match MountLock::wait_for(mount_point, deadline) {
        Ok(Some(lock)) => discard(mount_point, lock),
        Ok(None) => {
            // There is no record, for example because /tmp was emptied.
            if matches!(look(mount_point)?, MountState::Free) {
                owned_directory::remove_unused(mount_point, None);
            }
            Ok(())
        }
        Err(()) => {
            log::debug!("{}: the daemon does not exit", mount_point.display());
            Ok(())
        }
    }
}

/// Detaches stale mounts at `mount_point`. The caller holds its lock, so no daemon serves it.
/// Returns the first mount found there that is not stale.
///
/// # Errors
/// `Io`.
pub(in crate::lifecycle) fn detach_stale_locked(mount_point: &Path) -> Result<Option<MountEntry>> {
    while let Some(entry) = mounted_at(mount_point)? {
        let is_stale = entry.may_unmount() && probe::is_stale(mount_point, &entry, ANSWER);
        match (mounted_at(mount_point)? == Some(entry.clone()), is_stale) {
            (true, true) => detach_one(&entry)?,
            (true, false) => return Ok(Some(entry)),
            (false, _) => {}
        }
    }
    Ok(None)
}

/// Removes what a daemon has left at `mount_point`, and then the record file. The directory stays
/// if something else is mounted on it.
///
/// # Errors
/// `Io`.
pub(in crate::lifecycle) fn discard(mount_point: &Path, lock: MountLock) -> Result<()> {
    if detach_stale_locked(mount_point)?.is_none() {
        owned_directory::remove_unused(mount_point, lock.begun());
    }
    lock.remove();
    Ok(())
}
