//! The command `gc`: clears what killed daemons left on this node.
//!
//! Invariant: what is alive is never touched, nor anything of another user, whatever records say.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use crate::error::{Error, Result};
use crate::lifecycle::mount::owned_directory;
use crate::lifecycle::share::{self, EXIT, MountLock, Record, RecordFile};
use crate::mountinfo::{self, MountEntry};

/// How often the lock of a daemon that is exiting is tried again.
const RETRY: Duration = Duration::from_millis(2);

/// What was cleared, and what could not be.
#[derive(Debug, Default)]
pub struct Cleared {
    /// Stale mounts.
    pub mounts: Vec<PathBuf>,
    /// Directories that were created for mounts.
    pub directories: Vec<PathBuf>,
    /// What went wrong.
    pub errors: Vec<Error>,
}

/// Clears stale mounts of this user, the directories created for them, and records of mounts that
/// are no more.
///
/// # Errors
/// `Io` where /proc cannot be read; what goes wrong with one mount is in the result.
pub fn gc() -> Result<Cleared> {
    let mut cleared = Cleared::default();
    // All are detached before any is waited for: a batch system may give this process little time.
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
            // Its daemon does not exit yet.
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

/// Removes what is left at `mount_point`, where nothing stale is mounted any more.
fn finish(mount_point: &Path, lock: Option<MountLock>) -> Result<()> {
    match lock {
        Some(lock) => share::discard(mount_point, lock),
        None => share::clear(mount_point, Instant::now()),
    }
}

/// Clears what the daemon of `file` has left, if it is gone; returns the directory that was
/// removed.
fn clear_record(file: &RecordFile, deadline: Instant) -> Result<Option<PathBuf>> {
    if file.record.as_ref().is_some_and(|record| !record.is_of_this_node()) {
        return Ok(None);
    }
    let is_killed = file.record.as_ref().is_some_and(|record| record.process.is_killed());
    let lock = loop {
        match file.try_lock() {
            Some(lock) => break lock,
            None if is_killed && Instant::now() < deadline => thread::sleep(RETRY),
            None => return Ok(None),
        }
    };
    let removed = match &file.record {
        Some(Record { mount_point, .. }) if mount_point.is_absolute() => {
            let is_removed = share::clear_locked(mount_point)?.is_none()
                && owned_directory::remove_unused(mount_point, lock.begun());
            is_removed.then(|| mount_point.clone())
        }
        _ => None,
    };
    lock.remove();
    Ok(removed)
}
