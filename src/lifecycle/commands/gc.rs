//! The command `gc`: clears up after killed daemons on this node.
//!
//! Invariant: live mounts and anything of other users are never touched, whatever the records say.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use crate::error::{Error, Result};
use crate::lifecycle::mount::owned_directory;
use crate::lifecycle::share::{self, EXIT, MountLock, Record, RecordFile};
use crate::os::mountinfo::{self, MountEntry};

/// How often to retry the lock of a daemon that is exiting.
const RETRY: Duration = Duration::from_millis(2);

/// What was cleared, and what could not be.
#[derive(Debug, Default)]
pub struct Cleared {
    /// Mount points of the stale mounts that were unmounted.
    pub mounts: Vec<PathBuf>,
    /// Directories that archfs had created as mount points.
    pub directories: Vec<PathBuf>,
    /// Errors; each concerns one mount or record.
    pub errors: Vec<Error>,
}

/// Clears stale mounts of this user, the directories created for them, and records of mounts that
/// no longer exist.
///
/// # Errors
/// `Io` if /proc cannot be read. Errors with single mounts are in the result.
pub fn gc() -> Result<Cleared> {
    let mut cleared = Cleared::default();
    // Detach all of them before waiting for any: a batch system may give this process little time.
    let mut detached = Vec::new();
    for entry in mountinfo::all()?.into_iter().filter(MountEntry::is_own) {
        if detached.contains(&entry.mount_point) {
            continue;
        }
        match share::detach_stale(&entry.mount_point) {
            Ok(true) => detached.push(entry.mount_point),
            Ok(false) => {}
            Err(error) => cleared.errors.push(error),
        }
    }
    let deadline = Instant::now() + EXIT;
    for mount_point in detached {
        match MountLock::wait_for(&mount_point, deadline) {
            Ok(lock) => match finish(&mount_point, lock) {
                Ok(_) => cleared.mounts.push(mount_point),
                Err(error) => cleared.errors.push(error),
            },
            // Its daemon has not exited yet.
            Err(()) => cleared.mounts.push(mount_point),
        }
    }
    for file in RecordFile::all_of(geteuid().as_raw()) {
        match clear_record(&file, deadline) {
            Ok(Some(directory)) => cleared.directories.push(directory),
            Ok(None) => {}
            Err(error) => cleared.errors.push(error),
        }
    }
    share::clear_sockets();
    Ok(cleared)
}

/// Clears up at `mount_point` after its stale mount was detached.
fn finish(mount_point: &Path, lock: Option<MountLock>) -> Result<()> {
    match lock {
        Some(lock) => share::discard(mount_point, lock),
        None => share::clear(mount_point, Instant::now()),
    }
}

/// Removes the stale mount and the record of the daemon of `file`, if it has ended. Returns the
/// directory that was removed.
fn clear_record(file: &RecordFile, deadline: Instant) -> Result<Option<PathBuf>> {
    if file.record.as_ref().is_some_and(|record| !record.is_of_this_node()) {
        return Ok(None);
    }
    let is_killed = file.record.as_ref().is_some_and(|record| record.process.is_zombie());
    let lock = loop {
        match file.try_lock() {
            Some(lock) => break lock,
            None if is_killed && Instant::now() < deadline => thread::sleep(RETRY),
            None => return Ok(None),
        }
    };
    let removed = match &file.record {
        Some(Record { mount_point, .. }) if mount_point.is_absolute() => {
            let is_removed = share::detach_stale_locked(mount_point)?.is_none()
                && owned_directory::remove_unused(mount_point, lock.begun());
            is_removed.then(|| mount_point.clone())
        }
        _ => None,
    };
    lock.remove();
    Ok(removed)
}
