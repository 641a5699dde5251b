//! Removes what daemons have left behind: stale mounts, directories, records and sockets.
//!
//! Invariants: a record is removed only under its lock, and a socket only if no process listens on
//! it. Only stale mounts are detached. `owned_directory` removes a directory only after its last
//! use.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;

use super::lock::{LockWait, MountLock};
use super::record::{RECORD_SUFFIX, is_named, private_prefix, record_name_of_socket};
use super::state::{MountState, RecordSnapshot, mount_state, mounted_at};
use crate::direct;
use crate::error::{Kind, Result};
use crate::lifecycle::mount::{Detach, PROBE_TIMEOUT, attach, owned_directory};
use crate::os::mountinfo::MountEntry;
use crate::os::record_directory::{RecordDirectory, SOCKET_SUFFIX};

/// The file whose flock(2) is held while a socket of another process is removed. It ends as sockets
/// do, so that one that was left behind is removed like them.
const STALE_LOCK: &str = "stale.socket";

/// Removes what a daemon that has ended or was killed has left at `mount_point`: stale mounts, the
/// directory that it created, and its record. Waits until the daemon has exited, at most `limit`.
/// Then only the stale mounts are detached, and the process that mounts next removes the rest.
pub(crate) fn clean_up_after_exit(mount_point: &Path, limit: Duration) -> Result<()> {
    detach_stale_unlocked(mount_point)?;
    match MountLock::wait_for(mount_point, Instant::now() + limit) {
        LockWait::Locked(lock) => lock.clean_up(mount_point),
        LockWait::NoFile => {
            // For example because /tmp was emptied.
            if matches!(mount_state(mount_point)?, MountState::Free) {
                owned_directory::remove_unused(mount_point, None);
            }
            Ok(())
        }
        LockWait::TimedOut => {
            log::debug!("{}: the daemon does not exit", mount_point.display());
            Ok(())
        }
    }
}

/// Detaches the stale mounts at `mount_point`, for a caller without its lock. Returns whether there
/// was one.
///
/// Takes the lock while it detaches, so that no other process mounts there after the check. If a
/// killed daemon that has not exited still holds the lock, detaches without it, because no other
/// process can mount there either.
pub(crate) fn detach_stale_unlocked(mount_point: &Path) -> Result<bool> {
    let mut was_mounted = false;
    while let MountState::Stale(entry) = mount_state(mount_point)? {
        match MountLock::try_acquire_existing(mount_point) {
            Some(lock) => {
                lock.detach_stale(mount_point)?;
            }
            None => detach_one(&entry, None)?,
        }
        was_mounted = true;
    }
    Ok(was_mounted)
}

impl MountLock {
    /// Detaches the stale mounts at `mount_point`, of which this is the lock, so no daemon serves
    /// them. Returns the first mount found there that is not stale.
    pub(crate) fn detach_stale(&self, mount_point: &Path) -> Result<Option<MountEntry>> {
        while let Some(entry) = mounted_at(mount_point)? {
            let is_stale = entry.may_unmount() && entry.is_stale(PROBE_TIMEOUT);
            match (mounted_at(mount_point)? == Some(entry.clone()), is_stale) {
                (true, true) => detach_one(&entry, Some(self.as_fd()))?,
                (true, false) => return Ok(Some(entry)),
                // Another process replaced the mount during the probe.
                (false, _) => {}
            }
        }
        Ok(None)
    }

    /// Removes everything that a daemon has left at `mount_point`, of which this is the lock: stale
    /// mounts, the directory that it created, and at last the record, which frees the lock. The
    /// directory stays if something else is mounted on it.
    pub(crate) fn clean_up(self, mount_point: &Path) -> Result<()> {
        if self.detach_stale(mount_point)?.is_none() {
            owned_directory::remove_unused(mount_point, self.directory_creation_start());
        }
        self.remove();
        Ok(())
    }
}

fn detach_one(entry: &MountEntry, lock: Option<BorrowedFd<'_>>) -> Result<()> {
    let mount_point = entry.mount_point.as_path();
    log::warn!("{}: clearing a stale mount of {}", mount_point.display(), entry.describe());
    // Lazily, because processes may still have files of it open. They get ENOTCONN.
    match attach::detach(entry, Detach::Lazily, lock) {
        // Another process has replaced the mount. The caller checks the new one.
        Err(error)
            if error.kind() == Kind::Busy && mounted_at(mount_point)?.as_ref() != Some(entry) =>
        {
            Ok(())
        }
        detached => detached,
    }
}

/// Removes the records of ended daemons at `mount_point` that its lock does not cover: those of
/// private mounts, and of mounts in another namespace. Marks a directory that such a daemon was
/// about to create as created by archfs. A daemon that was killed before it wrote anything leaves
/// an empty record; for a private mount, the file name still identifies the mount point.
pub(crate) fn remove_ended_records(mount_point: &Path) {
    let prefix = private_prefix(mount_point);
    for snapshot in RecordSnapshot::all_of(geteuid().as_raw()) {
        let is_of_the_mount_point = match &snapshot.record {
            Some(record) => record.mount_point == mount_point && record.is_of_this_node(),
            None => snapshot.name().starts_with(&prefix),
        };
        if is_of_the_mount_point
            && !snapshot.was_locked
            && let Some(lock) = snapshot.try_lock()
        {
            if let Some(creation_start) = lock.directory_creation_start() {
                owned_directory::adopt(mount_point, creation_start);
            }
            lock.remove();
        }
    }
}

/// Removes the sockets of this user that have no record and no listener, the libraries of `run
/// --direct` if this user has no records, and then the record directories that are empty.
pub(crate) fn remove_orphan_sockets() {
    let all = RecordDirectory::all();
    let has_records = |directory: &RecordDirectory| !directory.names(RECORD_SUFFIX).is_empty();
    // A library may be in another directory than the records, if that one is mounted noexec.
    let has_mounts = all.iter().any(has_records);
    for record_directory in all {
        for name in record_directory.names(SOCKET_SUFFIX) {
            // A cleaner of /tmp may remove the record of a live mount but not its socket.
            let socket = record_directory.join(&name);
            if !record_directory.join(&record_name_of_socket(&name)).exists()
                && is_without_listener(&socket)
            {
                let _ = remove_stale_socket(&socket);
            }
        }
        // Processes of a mount that ended may still start others, so its end does not remove them.
        if !has_mounts {
            for name in record_directory.names(".so").iter().filter(|name| direct::is_library(name))
            {
                let _ = fs::remove_file(record_directory.join(name));
            }
        }
        record_directory.remove_if_empty();
    }
}

/// Removes `socket` if no process listens at it, and not one that takes its name in between: all
/// that remove sockets of others do so under one lock of the directory.
///
/// # Errors
/// `NotFound` if the directory is gone; others if the lock cannot be made.
pub fn remove_stale_socket(socket: &Path) -> io::Result<()> {
    let lock_path = socket.with_file_name(STALE_LOCK);
    let lock = loop {
        let lock = File::options().create(true).append(true).open(&lock_path)?;
        retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive))?;
        // Else the process that had it has removed it.
        if is_named(&lock, &lock_path) {
            break lock;
        }
    };
    let removed = match is_without_listener(socket) {
        true => fs::remove_file(socket),
        false => Ok(()),
    };
    if socket != lock_path {
        let _ = fs::remove_file(&lock_path);
    }
    drop(lock);
    removed
}

/// Whether `socket` is there, but no process listens at it.
fn is_without_listener(socket: &Path) -> bool {
    try_connect(socket) == Err(Errno::CONNREFUSED)
}

/// Connects to the socket at `path`, without waiting for room in its queue.
///
/// # Errors
/// `AGAIN` if the queue is full; those of connect(2).
pub fn try_connect(path: &Path) -> rustix::io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::super::record::Record;
    use super::*;

    #[test]
    fn a_socket_that_is_replaced_while_the_lock_is_awaited_stays() {
        let work = tempfile::tempdir().unwrap();
        let (socket, lock_path) = (work.path().join("read.socket"), work.path().join(STALE_LOCK));
        drop(UnixListener::bind(&socket).unwrap());
        let lock = File::create(&lock_path).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let path = socket.clone();
        let other = std::thread::spawn(move || remove_stale_socket(&path));
        // Whether or not the thread waits already: it may not remove this one.
        fs::remove_file(&socket).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        fs::remove_file(&lock_path).unwrap();
        drop(lock);
        other.join().unwrap().unwrap();
        try_connect(&socket).unwrap();
        drop(listener);
        // A killed process may leave the lock behind, which looks like a socket.
        File::create(&lock_path).unwrap();
        remove_stale_socket(&lock_path).unwrap();
        remove_stale_socket(&socket).unwrap();
        assert_eq!(fs::read_dir(work.path()).unwrap().count(), 0);
    }

    #[test]
    fn removes_records_of_ended_daemons_at_the_same_mount_point_only() {
        // A daemon that is killed before it has written its record leaves an empty one.
        for is_empty in [false, true] {
            let work = tempfile::tempdir().unwrap();
            let (mount_point, other) = (work.path().join("mount"), work.path().join("other"));
            let private = MountLock::acquire_private(&Record::for_tests(&mount_point)).unwrap();
            let path = private.path();
            if is_empty {
                File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
            }
            remove_ended_records(&mount_point);
            assert!(path.exists(), "it is in use");
            drop(private);
            remove_ended_records(&other);
            assert!(path.exists(), "of another mount point");
            remove_ended_records(&mount_point);
            assert!(!path.exists(), "empty: {is_empty}");
        }
    }
}
