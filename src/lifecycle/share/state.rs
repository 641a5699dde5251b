//! What is at a mount point now: nothing, a live mount, a stale one, something else.
//!
//! Everything that mounts, shares, unmounts or clears starts from this judgement. A mount is alive
//! while its record file is locked. The mount itself, whose daemon may hang, is asked only where no
//! record file tells, and for a limited time.
//! Invariant: only mounts of type fuse.archfs of this user (or of any user, for root) are taken for
//! ours.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use super::lock::{MountLock, RecordFile};
use super::record::Record;
use crate::error::Result;
use crate::lifecycle::mount::attach;
use crate::lifecycle::mount::detach::Detach;
use crate::lifecycle::mount::owned_directory;
use crate::lifecycle::system::probe;
use crate::mountinfo::{self, MountEntry, MountId};

/// How long a mount without a record may take to show that it is not stale. A stale one answers at
/// once.
const ANSWER: Duration = Duration::from_secs(2);

/// What is at a mount point.
#[derive(Debug)]
pub(in crate::lifecycle) enum MountState {
    /// Nothing is mounted, and no process is about to mount.
    Free,
    /// A process is about to mount; its record, unless it is just being written.
    Starting(Box<RecordFile>),
    /// A mount of ours that a daemon serves.
    Alive(MountEntry, Box<RecordFile>, Record),
    /// A mount of ours whose daemon is gone, or was killed and is about to exit.
    Stale(MountEntry),
    /// A daemon is unmounting, or has unmounted and not cleared up yet.
    Ending,
    /// Something that is not ours, or a mount of ours without a record.
    Other(MountEntry),
}

/// What is at `mount_point`, an absolute path without symbolic links.
///
/// # Errors
/// `Io` where /proc cannot be read.
pub(in crate::lifecycle) fn look(mount_point: &Path) -> Result<MountState> {
    look_within(mount_point, ANSWER)
}

/// The same for a caller who looks again soon, and so need not wait long for what does not answer.
///
/// # Errors
/// As `look`.
pub(in crate::lifecycle) fn look_within(mount_point: &Path, limit: Duration) -> Result<MountState> {
    loop {
        let state = look_once(mount_point, limit)?;
        match &state {
            // It may have been unmounted, and its record removed, between the two looks.
            MountState::Stale(entry) | MountState::Other(entry)
                if mounted_at(mount_point)?.as_ref() != Some(entry) => {}
            _ => return Ok(state),
        }
    }
}

/// What is mounted at `mount_point`. An automount trigger is replaced when the directory is
/// entered; all else is in the way.
fn mounted_at(mount_point: &Path) -> Result<Option<MountEntry>> {
    Ok(mountinfo::topmost(mount_point)?.filter(|entry| entry.kind != "autofs"))
}

fn look_once(mount_point: &Path, limit: Duration) -> Result<MountState> {
    let entry = mounted_at(mount_point)?;
    let owner = entry.as_ref().filter(|entry| entry.is_ours()).and_then(MountEntry::owner);
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
    if !entry.may_be_touched() {
        return Ok(MountState::Other(entry));
    }
    let Some(file) = file else {
        let is_stale = probe::is_stale(mount_point, &entry, limit);
        return Ok(if is_stale { MountState::Stale(entry) } else { MountState::Other(entry) });
    };
    Ok(match file.record.clone() {
        // A killed process keeps its lock until its last thread has ended, which may wait for its
        // storage.
        Some(record) if record.process.is_killed() => MountState::Stale(entry),
        Some(record) if record.is_ending => MountState::Ending,
        Some(record) if record.mount == Some(MountId::of(&entry)) => {
            MountState::Alive(entry, Box::new(file), record)
        }
        // It has mounted and not written that yet, or clears a stale mount first.
        _ => MountState::Starting(Box::new(file)),
    })
}

/// Detaches the stale mounts at `mount_point`; returns whether there was one.
///
/// # Errors
/// `Io`.
pub(in crate::lifecycle) fn detach_stale(mount_point: &Path) -> Result<bool> {
    let mut was_mounted = false;
    while let MountState::Stale(entry) = look(mount_point)? {
        detach_one(mount_point, &entry)?;
        was_mounted = true;
    }
    Ok(was_mounted)
}

fn detach_one(mount_point: &Path, entry: &MountEntry) -> Result<()> {
    log::warn!("{}: clearing a stale mount of {}", mount_point.display(), entry.describe());
    // Processes may still have files of it open, which give them ENOTCONN; they are in no one's
    // way.
    attach::detach(mount_point, Detach::Lazily)
}

/// Clears what is left at `mount_point` of a daemon that is gone or was killed: stale mounts, the
/// directory that it created, and its record. Waits until such a daemon has exited, at most until
/// `deadline`. A process that mounts there now does all this itself.
///
/// # Errors
/// `Io`.
pub(in crate::lifecycle) fn clear(mount_point: &Path, deadline: Instant) -> Result<()> {
    detach_stale(mount_point)?;
    match MountLock::wait_for(mount_point, deadline) {
        Ok(Some(lock)) => discard(mount_point, lock),
        Ok(None) => {
            // Without a record, for example because /tmp was emptied.
            if matches!(look(mount_point)?, MountState::Free) {
                owned_directory::remove_unused(mount_point, None);
            }
            Ok(())
        }
        Err(()) => {
            log::debug!("{}: its daemon does not exit", mount_point.display());
            Ok(())
        }
    }
}

/// Clears stale mounts at `mount_point`, whose lock the caller holds, so that no daemon serves it;
/// returns what else is mounted there.
///
/// # Errors
/// `Io`.
pub(in crate::lifecycle) fn clear_locked(mount_point: &Path) -> Result<Option<MountEntry>> {
    while let Some(entry) = mounted_at(mount_point)? {
        let is_stale = entry.may_be_touched() && probe::is_stale(mount_point, &entry, ANSWER);
        match (mounted_at(mount_point)? == Some(entry.clone()), is_stale) {
            (true, true) => detach_one(mount_point, &entry)?,
            (true, false) => return Ok(Some(entry)),
            (false, _) => {}
        }
    }
    Ok(None)
}

/// Removes what is left at `mount_point`, and its lock with it. The directory stays where something
/// else is mounted on it.
///
/// # Errors
/// `Io`.
pub(in crate::lifecycle) fn discard(mount_point: &Path, lock: MountLock) -> Result<()> {
    if clear_locked(mount_point)?.is_none() {
        owned_directory::remove_unused(mount_point, lock.begun());
    }
    lock.remove();
    Ok(())
}
