//! The lock of a mount point: a lock on its record file.
//!
//! The daemon holds an exclusive flock(2) on the file until it has unmounted or has ended. So a
//! mount is alive exactly while its file is locked. The lock belongs to the open file, not to a
//! process. `archfs mount` takes it before it starts the daemon, and passes it on. The daemon
//! passes it on to fusermount, which may outlive it. The kernel frees the lock when the last of
//! them has ended, for whatever reason.
//!
//! Until the daemon watches for signals itself, a signal removes the file and ends the process that
//! mounts (`os::unfinished`): the launcher from before it creates the file until it has started the
//! daemon, and the daemon from its start.
//!
//! Invariant: a locked file is the one that its path names.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Timespec, Timestamps, UTIME_NOW, flock, futimens, utimensat,
};
use rustix::io::{Errno, retry_on_intr};

use super::record::{
    RECORD_SUFFIX, Record, is_named, private_record_name, read_record, record_name, socket_name,
};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::mount::attach;
use crate::os::record_directory::{RecordDirectory, chmod_0600, open_0600};
use crate::os::unfinished::Unfinished;

/// How often to retry a lock that another process holds.
pub(crate) const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// How long readers may keep a private mount from locking its new record file. Each locks it only
/// for microseconds.
const PRIVATE_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The lock of a mount point. It is free again when this and every duplicate is dropped.
#[derive(Debug)]
pub(crate) struct MountLock {
    file: File,
    name: String,
    record_directory: RecordDirectory,
    /// `Some` while a signal, or dropping this, removes the files.
    unfinished: Option<Unfinished>,
    /// Keeps systemd-tmpfiles from removing the file for its age.
    _tmpfiles_lock: Option<File>,
}

impl MountLock {
    /// Locks `record.mount_point`, unless another process holds the lock. A new file gets the
    /// content `record`; a file that a daemon has left behind keeps the record of that daemon.
    pub(crate) fn try_acquire(record: &Record) -> Result<Option<Self>> {
        let name = record_name(&record.mount_point);
        loop {
            let attempt = match RecordDirectory::containing(&name) {
                Some(record_directory) => Self::try_lock_file(&record_directory, &name, None)
                    .map_err(|error| unlockable(&record_directory.join(&name), error))?,
                None => RecordDirectory::try_each_parent(|record_directory| {
                    Self::try_lock_file(record_directory, &name, Some(record))
                })?,
            };
            match attempt {
                LockAttempt::Locked(lock) => return Ok(Some(lock)),
                LockAttempt::Held => return Ok(None),
                LockAttempt::Gone => {}
            }
        }
    }

    /// Locks a new record file for a private mount, or for one that is unmounted but still served.
    /// No other process shares that mount, so several may have the same mount point.
    pub(crate) fn acquire_private(record: &Record) -> Result<Self> {
        let name = private_record_name(record);
        let deadline = Instant::now() + PRIVATE_LOCK_TIMEOUT;
        loop {
            match RecordDirectory::try_each_parent(|record_directory| {
                Self::try_lock_file(record_directory, &name, Some(record))
            })? {
                LockAttempt::Locked(lock) => return Ok(lock),
                // Another process is reading the file, or removed it before it was locked.
                LockAttempt::Held | LockAttempt::Gone if Instant::now() < deadline => {
                    thread::sleep(LOCK_RETRY_INTERVAL);
                }
                LockAttempt::Held | LockAttempt::Gone => {
                    return Err(Error::new(Kind::Io, "the record is in use"));
                }
            }
        }
    }

    /// Locks the existing file `name` in `record_directory`; `None` if another process holds the
    /// lock or there is no such file.
    pub(super) fn try_acquire_named(
        record_directory: &RecordDirectory,
        name: &str,
    ) -> Option<Self> {
        match Self::try_lock_file(record_directory, name, None) {
            Ok(LockAttempt::Locked(lock)) => Some(lock),
            _ => None,
        }
    }

    /// Locks the existing file of `mount_point`; `None` if another process holds the lock or there
    /// is no such file.
    pub(super) fn try_acquire_existing(mount_point: &Path) -> Option<Self> {
        let name = record_name(mount_point);
        Self::try_acquire_named(&RecordDirectory::containing(&name)?, &name)
    }

    /// Waits, at most until `deadline`, for the lock of `mount_point`. Returns at once if there is
    /// no file.
    pub(crate) fn wait_for(mount_point: &Path, deadline: Instant) -> LockWait {
        let name = record_name(mount_point);
        loop {
            let Some(record_directory) = RecordDirectory::containing(&name) else {
                return LockWait::NoFile;
            };
            match Self::try_lock_file(&record_directory, &name, None) {
                Ok(LockAttempt::Locked(lock)) => return LockWait::Locked(lock),
                Ok(LockAttempt::Gone) => {}
                Ok(LockAttempt::Held) | Err(_) if Instant::now() >= deadline => {
                    return LockWait::TimedOut;
                }
                Ok(LockAttempt::Held) | Err(_) => thread::sleep(LOCK_RETRY_INTERVAL),
            }
        }
    }

    /// Opens the file `name` and tries once to lock it. With `first_record`, creates a missing
    /// file, and writes that record to an empty one.
    fn try_lock_file(
        record_directory: &RecordDirectory,
        name: &str,
        first_record: Option<&Record>,
    ) -> io::Result<LockAttempt> {
        let path = record_directory.join(name);
        let mut options = File::options();
        options.read(true).write(true).create(first_record.is_some());
        let file = match open_0600(&path, &mut options) {
            Err(error) if error.kind() == ErrorKind::NotFound && first_record.is_none() => {
                return Ok(LockAttempt::Gone);
            }
            opened => opened?,
        };
        match retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Err(Errno::WOULDBLOCK) => return Ok(LockAttempt::Held),
            locked => locked?,
        }
        if !is_named(&file, &path) {
            return Ok(LockAttempt::Gone);
        }
        let lock = Self::of_locked(file, name.to_owned(), record_directory.clone());
        if let Some(record) = first_record
            && lock.file.metadata()?.len() == 0
            && let Err(error) = lock.store(record)
        {
            lock.remove();
            return Err(error);
        }
        Ok(LockAttempt::Locked(lock))
    }

    fn of_locked(file: File, name: String, record_directory: RecordDirectory) -> Self {
        let _tmpfiles_lock = record_directory.lock_against_tmpfiles();
        Self { file, name, record_directory, unfinished: None, _tmpfiles_lock }
    }

    /// The lock of `mount_point`, which the parent process passed on as `descriptor`.
    pub(crate) fn adopt(descriptor: OwnedFd, mount_point: &Path) -> Result<Self> {
        let (file, name) = (File::from(descriptor), record_name(mount_point));
        for record_directory in RecordDirectory::all() {
            if is_named(&file, &record_directory.join(&name)) {
                return Ok(Self::of_locked(file, name, record_directory));
            }
        }
        Err(Error::new(Kind::Usage, "standard input is not the lock of the mount point"))
    }

    /// Removes the files of the lock that a parent process passed on as `descriptor` before it
    /// ended.
    pub(crate) fn remove_inherited(descriptor: OwnedFd) {
        let file = File::from(descriptor);
        for record_directory in RecordDirectory::all() {
            let mut names = record_directory.names(RECORD_SUFFIX).into_iter();
            if let Some(name) = names.find(|name| is_named(&file, &record_directory.join(name))) {
                return Self::of_locked(file, name, record_directory).remove();
            }
        }
    }

    /// From now on a signal that `unfinished` holds removes the files and ends the process.
    pub(crate) fn remove_on_signal(&mut self, unfinished: Option<Unfinished>) {
        self.unfinished = unfinished;
        self.arm();
    }

    fn arm(&self) {
        if let Some(unfinished) = &self.unfinished {
            unfinished.remove_on_signal([&self.socket(), &self.path()], self.record_directory());
        }
    }

    /// From now on this process does not remove the files on a signal or an error. A signal that
    /// was held ends it here.
    pub(crate) fn keep_files(&mut self) {
        self.unfinished = None;
    }

    pub(crate) fn duplicate(&self) -> Result<OwnedFd> {
        attach::duplicate(self)
    }

    /// The record in the file; `None` if a process was killed while it wrote the record.
    pub(crate) fn record(&self) -> Option<Record> {
        read_record(&self.file)
    }

    /// When the last daemon was about to create the directory at the mount point; `None` if it
    /// found one there.
    pub(crate) fn directory_creation_start(&self) -> Option<SystemTime> {
        // The daemon writes the record just before it creates the directory, and not again until it
        // has marked the directory as created by archfs.
        self.record().filter(|record| record.creates_directory)?;
        self.file.metadata().and_then(|found| found.modified()).ok()
    }

    pub(crate) fn write(&self, record: &Record) -> Result<()> {
        self.store(record)
            .map_err(|error| Error::io(format!("{}: cannot write", self.path().display()), error))
    }

    fn store(&self, record: &Record) -> io::Result<()> {
        let text = record.encode();
        self.file.write_all_at(&text, 0)?;
        self.file.set_len(text.len().try_into().unwrap_or(u64::MAX))
    }

    pub(crate) fn record_directory(&self) -> &Path {
        self.record_directory.path()
    }

    /// Listens on the socket of the mount point; replaces a socket that an earlier daemon has left.
    pub(crate) fn listen(&self) -> Result<UnixListener> {
        // A thread that handles a signal must not remove the files before all are there.
        self.unfinished.iter().for_each(Unfinished::hold);
        let socket = self.socket();
        let _ = fs::remove_file(&socket);
        let listening = UnixListener::bind(&socket).and_then(|listener| {
            chmod_0600(&socket)?;
            Ok(listener)
        });
        self.arm();
        listening.map_err(|error| Error::io(format!("{}: cannot listen", socket.display()), error))
    }

    /// Updates the times of the files, so that no cleaner of /tmp removes them for their age. If
    /// the record file was removed, creates it again with `record`. Returns whether the socket was
    /// removed and the caller has to create it again.
    pub(crate) fn keep_fresh(&mut self, record: &Record) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let now = Timestamps { last_access: now, last_modification: now };
        let _ = futimens(&self.file, &now);
        if !is_named(&self.file, &self.path()) {
            let name = self.name.clone();
            match RecordDirectory::try_each_parent(|record_directory| {
                Self::try_lock_file(record_directory, &name, Some(record))
            }) {
                Ok(LockAttempt::Locked(again)) => *self = again,
                Ok(LockAttempt::Held | LockAttempt::Gone) => {}
                Err(error) => log::warn!("the record of the mount was removed: {error}"),
            }
        }
        utimensat(CWD, self.socket(), &now, AtFlags::SYMLINK_NOFOLLOW).is_err()
    }

    /// Removes the files and frees the lock.
    pub(crate) fn remove(mut self) {
        self.remove_files();
        self.keep_files();
    }

    fn remove_files(&self) {
        // Once the files are removed, other processes may create some of the same names.
        self.unfinished.iter().for_each(Unfinished::hold);
        // The record goes last: until then no other process can listen on the socket.
        let _ = fs::remove_file(self.socket());
        let _ = fs::remove_file(self.path());
        self.record_directory.remove_if_empty();
    }

    pub(super) fn path(&self) -> PathBuf {
        self.record_directory.join(&self.name)
    }

    fn socket(&self) -> PathBuf {
        self.record_directory.join(&socket_name(&self.name))
    }
}

impl Drop for MountLock {
    fn drop(&mut self) {
        if self.unfinished.is_some() {
            self.remove_files();
        }
    }
}

impl AsFd for MountLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[derive(Debug)]
pub(crate) enum LockWait {
    Locked(MountLock),
    /// There is no record file, so no process holds the lock.
    NoFile,
    /// Another process still held the lock at the deadline.
    TimedOut,
}

enum LockAttempt {
    Locked(MountLock),
    Held,
    /// The file was removed, or replaced, before it was locked.
    Gone,
}

fn unlockable(path: &Path, error: io::Error) -> Error {
    Error::io(format!("{}: cannot lock", path.display()), error)
}

#[cfg(test)]
mod tests {
    use rustix::process::geteuid;

    use super::super::state::RecordSnapshot;
    use super::*;

    fn acquire(mount_point: &Path) -> Option<MountLock> {
        MountLock::try_acquire(&Record::for_tests(mount_point)).unwrap()
    }

    #[test]
    fn one_process_holds_the_lock_and_removing_the_file_frees_it() {
        let work = tempfile::tempdir().unwrap();
        let mount_point = work.path().join("mount");
        let lock = acquire(&mount_point).unwrap();
        assert!(acquire(&mount_point).is_none());
        let uid = geteuid().as_raw();
        let file = RecordSnapshot::of(&mount_point, uid).unwrap();
        assert!(file.was_locked && file.record == Some(Record::for_tests(&mount_point)));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let deadline = Instant::now() + Duration::from_secs(30);
                match MountLock::wait_for(&mount_point, deadline) {
                    LockWait::Locked(lock) => lock.remove(),
                    LockWait::NoFile => {}
                    LockWait::TimedOut => panic!("the lock was freed"),
                }
            });
            lock.remove();
            waiting.join().unwrap();
        });
        assert!(RecordSnapshot::of(&mount_point, uid).is_none());
    }

    #[test]
    fn lock_lasts_until_the_last_duplicate_is_closed_and_record_outlasts_its_daemon() {
        let work = tempfile::tempdir().unwrap();
        let mount_point = work.path().join("mount");
        let lock = acquire(&mount_point).unwrap();
        let written = Record { creates_directory: true, ..Record::for_tests(&mount_point) };
        lock.write(&written).unwrap();
        let duplicate = lock.duplicate().unwrap();
        drop(lock);
        assert!(acquire(&mount_point).is_none());
        let waited = MountLock::wait_for(&mount_point, Instant::now());
        assert!(matches!(waited, LockWait::TimedOut));
        drop(MountLock::adopt(duplicate, &mount_point).unwrap());
        let left = acquire(&mount_point).unwrap();
        assert_eq!(left.record(), Some(written));
        left.remove();
        let other = File::open("/dev/null").unwrap().into();
        assert_eq!(MountLock::adopt(other, &mount_point).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn creates_files_again_that_a_cleaner_removed() {
        let work = tempfile::tempdir().unwrap();
        let mount_point = work.path().join("mount");
        let mut lock = acquire(&mount_point).unwrap();
        let _listener = lock.listen().unwrap();
        assert!(!lock.keep_fresh(&Record::for_tests(&mount_point)), "both are there");
        let path = lock.path();
        let old = SystemTime::UNIX_EPOCH;
        lock.file.set_modified(old).unwrap();
        assert!(!lock.keep_fresh(&Record::for_tests(&mount_point)));
        assert!(fs::metadata(&path).unwrap().modified().unwrap() > old);
        for removed in [&path, &lock.socket()] {
            fs::remove_file(removed).unwrap();
        }
        assert!(
            lock.keep_fresh(&Record::for_tests(&mount_point)),
            "the socket has to be created again"
        );
        assert!(acquire(&mount_point).is_none(), "the new file is locked");
        assert_eq!(lock.record(), Some(Record::for_tests(&mount_point)));
        lock.remove();
    }

    #[test]
    fn a_private_mount_waits_for_readers_of_its_record() {
        let work = tempfile::tempdir().unwrap();
        let mount_point = work.path().join("mount");
        let path = {
            let private = MountLock::acquire_private(&Record::for_tests(&mount_point)).unwrap();
            private.path()
        };
        let reader = File::open(&path).unwrap();
        flock(&reader, FlockOperation::LockShared).unwrap();
        thread::scope(|scope| {
            let locking = scope
                .spawn(|| MountLock::acquire_private(&Record::for_tests(&mount_point)).unwrap());
            thread::sleep(10 * LOCK_RETRY_INTERVAL);
            assert!(!locking.is_finished());
            drop(reader);
            locking.join().unwrap().remove();
        });
    }
}
