//! The command `gc`: clears up after killed daemons on this node.
//!
//! Invariant: live mounts and anything of other users are never touched, whatever the records say.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use crate::error::{Error, Result};
use crate::extract;
use crate::lifecycle::mount::owned_directory;
use crate::lifecycle::registry::{
    self, EXIT_TIMEOUT, LOCK_RETRY_INTERVAL, LockWait, MountLock, Record, RecordSnapshot,
};
use crate::os::mountinfo::{self, MountEntry};
use crate::storage::{KeptCopies, Removed};
use crate::together;

/// What was cleared, and what could not be.
#[derive(Debug, Default)]
pub struct Cleared {
    /// Mount points of the stale mounts that were unmounted.
    pub mounts: Vec<PathBuf>,
    /// Directories that archfs had created as mount points.
    pub directories: Vec<PathBuf>,
    /// How many jobs have left records of their nodes (`--together`).
    pub jobs: usize,
    /// Directories of extracted files.
    pub extracted: Vec<PathBuf>,
    /// Errors; each concerns one mount or record.
    pub errors: Vec<Error>,
}

/// Removes the copies of this user that mounts have left in `directory` (--stage-keep).
pub fn remove_kept_copies(directory: &Path) -> Result<Removed> {
    KeptCopies::remove_all(directory)
}

/// Clears stale mounts of this user, the directories created for them, and records of mounts that
/// no longer exist.
///
/// # Errors
/// `Io` if /proc cannot be read. Errors with single mounts are in the result.
pub fn gc() -> Result<Cleared> {
    let mut cleared = Cleared { jobs: together::remove_old_records(None), ..Cleared::default() };
    // Detach all of them before waiting for any: a batch system may give this process little time.
    let mut detached = Vec::new();
    for entry in mountinfo::all()?.into_iter().filter(MountEntry::is_own) {
        if detached.contains(&entry.mount_point) {
            continue;
        }
        match registry::detach_stale_unlocked(&entry.mount_point) {
            Ok(true) => detached.push(entry.mount_point),
            Ok(false) => {}
            Err(error) => cleared.errors.push(error),
        }
    }
    let deadline = Instant::now() + EXIT_TIMEOUT;
    for mount_point in detached {
        let cleaned_up = match MountLock::wait_for(&mount_point, deadline) {
            LockWait::Locked(lock) => lock.clean_up(&mount_point),
            LockWait::NoFile => registry::clean_up_after_exit(&mount_point, Duration::ZERO),
            // Its daemon has not exited yet.
            LockWait::TimedOut => Ok(()),
        };
        match cleaned_up {
            Ok(()) => cleared.mounts.push(mount_point),
            Err(error) => cleared.errors.push(error),
        }
    }
    for snapshot in RecordSnapshot::all_of(geteuid().as_raw()) {
        match clear_record(&snapshot, deadline) {
            Ok(Some(directory)) => cleared.directories.push(directory),
            Ok(None) => {}
            Err(error) => cleared.errors.push(error),
        }
    }
    let (removed, errors) = extract::remove_ended();
    cleared.extracted = removed;
    cleared.errors.extend(errors);
    registry::remove_orphan_sockets();
    Ok(cleared)
}

/// Removes the stale mount and the record of the daemon in `snapshot`, if it has ended. Returns the
/// directory that was removed.
fn clear_record(snapshot: &RecordSnapshot, deadline: Instant) -> Result<Option<PathBuf>> {
    if snapshot.record.as_ref().is_some_and(|record| !record.is_of_this_node()) {
        return Ok(None);
    }
    let is_killed = snapshot.record.as_ref().is_some_and(|record| record.process.is_zombie());
    let lock = loop {
        match snapshot.try_lock() {
            Some(lock) => break lock,
            None if is_killed && Instant::now() < deadline => thread::sleep(LOCK_RETRY_INTERVAL),
            None => return Ok(None),
        }
    };
    let removed = match &snapshot.record {
        Some(Record { mount_point, .. }) if mount_point.is_absolute() => {
            let is_removed = lock.detach_stale(mount_point)?.is_none()
                && owned_directory::remove_unused(mount_point, lock.directory_creation_start());
            is_removed.then(|| mount_point.clone())
        }
        _ => None,
    };
    lock.remove();
    Ok(removed)
}
