//! The record file of a mount point, which is also its lock.
//!
//! The daemon holds an exclusive flock(2) on the file until it has unmounted or has ended. So a
//! mount is alive exactly while its file is locked. The lock belongs to the open file, not to a
//! process. `archfs mount` takes it before it starts the daemon, and passes it on. The daemon
//! passes it on to fusermount, which may outlive it. The kernel frees the lock when the last of
//! them has ended, for whatever reason.
//!
//! Invariant: a locked file is the one that its path names.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Timespec, Timestamps, UTIME_NOW, flock, futimens, utimensat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use xxhash_rust::xxh3::Xxh3;

use super::owner_only_file;
use super::record::{self, Record};
use super::record_directory::RecordDirectory;
use crate::error::{Error, Kind, Result};
use crate::lifecycle::mount::{attach, owned_directory};

/// The suffixes of the names of record files and sockets.
pub(super) const RECORD: &str = ".mount";
pub(super) const SOCKET: &str = ".socket";

/// How often to retry a lock that another process holds.
const RETRY: Duration = Duration::from_millis(2);

/// How long other processes may keep a private mount from locking its record file. Only the mount
/// uses that file; others lock it for microseconds to read it.
const PRIVATE_LIMIT: Duration = Duration::from_secs(5);

/// The maximum size of a record in bytes, enough for some 100,000 archives.
const RECORD_MAX: u64 = 32 << 20;

/// The stem of the names of a mount point's files: a digest of its path, the mount namespace and
/// the boot of the node. The same path is another directory in a container, and nodes may share
/// /tmp.
pub(super) fn key(mount_point: &Path) -> String {
    let mut digest = Xxh3::new();
    let namespace = fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
    for part in [mount_point.as_os_str(), namespace.as_os_str(), record::boot().as_ref()] {
        digest.update(part.as_encoded_bytes());
        digest.update(b"\0");
    }
    format!("{:032x}", digest.digest128())
}

/// The prefix of the names of records of private mounts at `mount_point`.
fn private_prefix(mount_point: &Path) -> String {
    key(mount_point) + "-"
}

/// The lock of a mount point. It is free again when this and every duplicate is dropped.
#[derive(Debug)]
pub(in crate::lifecycle) struct MountLock {
    file: File,
    name: String,
    record_directory: RecordDirectory,
    /// Keeps programs that delete old files, such as systemd-tmpfiles, out of the directory.
    _tmpfiles_lock: Option<File>,
}

impl MountLock {
    /// Locks `record.mount_point`, unless another process holds the lock. A new file contains
    /// `record`; one that a daemon has left behind still contains the record of that daemon.
    ///
    /// # Errors
    /// `Io` if no file can be created or locked.
    pub(in crate::lifecycle) fn try_acquire(record: &Record) -> Result<Option<Self>> {
        let name = key(&record.mount_point) + RECORD;
        loop {
            let attempt = match RecordDirectory::containing(&name) {
                Some(record_directory) => Self::open(&record_directory, &name, None)
                    .map_err(|error| unlockable(&record_directory.join(&name), error))?,
                None => RecordDirectory::try_each_parent(|record_directory| {
                    Self::open(record_directory, &name, Some(record))
                })?,
            };
            match attempt {
                Attempt::Locked(lock) => return Ok(Some(lock)),
                Attempt::Held => return Ok(None),
                Attempt::Gone => {}
            }
        }
    }

    /// Locks a new record for a private mount. No other process shares that mount, so several may
    /// have the same mount point.
    ///
    /// # Errors
    /// `Io` if no file can be created.
    pub(in crate::lifecycle) fn private(record: &Record) -> Result<Self> {
        clear_others(&record.mount_point);
        let name = format!("{}{}{RECORD}", private_prefix(&record.mount_point), record.process);
        let deadline = Instant::now() + PRIVATE_LIMIT;
        loop {
            match RecordDirectory::try_each_parent(|record_directory| {
                Self::open(record_directory, &name, Some(record))
            })? {
                Attempt::Locked(lock) => return Ok(lock),
                // Another process read the file, or removed it, before it was locked.
                Attempt::Held | Attempt::Gone if Instant::now() < deadline => thread::sleep(RETRY),
                Attempt::Held | Attempt::Gone => {
                    return Err(Error::new(Kind::Io, "the record is in use"));
                }
            }
        }
    }

    /// Locks the existing file `name` in `record_directory`; `None` if another process holds the
    /// lock or there is no such file.
    pub(in crate::lifecycle) fn try_existing(
        record_directory: &RecordDirectory,
        name: &str,
    ) -> Option<Self> {
        match Self::open(record_directory, name, None) {
            Ok(Attempt::Locked(lock)) => Some(lock),
            _ => None,
        }
    }

    /// Locks the existing file of `mount_point`; `None` if another process holds the lock or there
    /// is no such file.
    pub(super) fn try_existing_of(mount_point: &Path) -> Option<Self> {
        let name = key(mount_point) + RECORD;
        Self::try_existing(&RecordDirectory::containing(&name)?, &name)
    }

    /// Locks the file of `mount_point`, if there is one, as soon as no other process holds the
    /// lock. `Err(())` if another process still holds it at `deadline`.
    pub(in crate::lifecycle) fn wait_for(
        mount_point: &Path,
        deadline: Instant,
    ) -> std::result::Result<Option<Self>, ()> {
        let name = key(mount_point) + RECORD;
        loop {
            let Some(record_directory) = RecordDirectory::containing(&name) else {
                return Ok(None);
            };
            match Self::open(&record_directory, &name, None) {
                Ok(Attempt::Locked(lock)) => return Ok(Some(lock)),
                Ok(Attempt::Gone) => {}
                Ok(Attempt::Held) | Err(_) if Instant::now() >= deadline => return Err(()),
                Ok(Attempt::Held) | Err(_) => thread::sleep(RETRY),
            }
        }
    }

    fn open(
        record_directory: &RecordDirectory,
        name: &str,
        create: Option<&Record>,
    ) -> io::Result<Attempt> {
        let path = record_directory.join(name);
        let mut options = File::options();
        let opened = owner_only_file::open_0600(
            &path,
            options.read(true).write(true).create(create.is_some()),
        );
        let file = match opened {
            Err(error) if error.kind() == ErrorKind::NotFound && create.is_none() => {
                return Ok(Attempt::Gone);
            }
            opened => opened?,
        };
        match retry(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Err(Errno::WOULDBLOCK) => return Ok(Attempt::Held),
            locked => locked?,
        }
        if !is_named(&file, &path) {
            return Ok(Attempt::Gone);
        }
        let (name, record_directory) = (name.to_owned(), record_directory.clone());
        let lock = Self {
            file,
            name,
            _tmpfiles_lock: record_directory.lock_against_tmpfiles(),
            record_directory,
        };
        if let Some(record) = create
            && lock.file.metadata()?.len() == 0
            && let Err(error) = lock.store(record)
        {
            lock.remove();
            return Err(error);
        }
        Ok(Attempt::Locked(lock))
    }

    /// The lock of `mount_point`, which the parent process passed on as `descriptor`.
    ///
    /// # Errors
    /// `Usage` if it is not the lock of `mount_point`.
    pub(in crate::lifecycle) fn adopt(descriptor: OwnedFd, mount_point: &Path) -> Result<Self> {
        let (file, name) = (File::from(descriptor), key(mount_point) + RECORD);
        for record_directory in RecordDirectory::all() {
            if is_named(&file, &record_directory.join(&name)) {
                return Ok(Self {
                    file,
                    name,
                    _tmpfiles_lock: record_directory.lock_against_tmpfiles(),
                    record_directory,
                });
            }
        }
        Err(Error::new(Kind::Usage, "standard input is not the lock of the mount point"))
    }

    /// A duplicate of the lock, for another process.
    ///
    /// # Errors
    /// `Io` if there are no more descriptors.
    pub(in crate::lifecycle) fn duplicate(&self) -> Result<OwnedFd> {
        attach::duplicate(self)
    }

    /// The record in the file; `None` if a process was killed while it wrote the record.
    pub(in crate::lifecycle) fn record(&self) -> Option<Record> {
        load(&self.file)
    }

    /// The time at which the last daemon was about to create the directory at the mount point, if
    /// it was.
    pub(in crate::lifecycle) fn begun(&self) -> Option<SystemTime> {
        self.record().filter(|record| record.creates)?;
        self.file.metadata().and_then(|found| found.modified()).ok()
    }

    /// Replaces the record in the file.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn write(&self, record: &Record) -> Result<()> {
        self.store(record).map_err(|error| {
            Error::io(
                format!("{}: cannot write", self.record_directory.join(&self.name).display()),
                error,
            )
        })
    }

    fn store(&self, record: &Record) -> io::Result<()> {
        let text = record.encode();
        self.file.write_all_at(&text, 0)?;
        self.file.set_len(text.len().try_into().unwrap_or(u64::MAX))
    }

    /// The directory of the record file.
    pub(in crate::lifecycle) fn record_directory(&self) -> &Path {
        self.record_directory.path()
    }

    /// Listens on the socket of the mount point; replaces a socket that an earlier daemon has left.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn listen(&self) -> Result<UnixListener> {
        let socket = self.socket();
        let _ = fs::remove_file(&socket);
        let listening = UnixListener::bind(&socket).and_then(|listener| {
            owner_only_file::chmod_0600(&socket)?;
            Ok(listener)
        });
        listening.map_err(|error| Error::io(format!("{}: cannot listen", socket.display()), error))
    }

    /// Updates the times of the files, so that no cleaner of /tmp removes them for their age. If
    /// the record file was removed, creates it again with `record`. Returns whether the socket was
    /// removed and the caller has to create it again.
    pub(in crate::lifecycle) fn keep_fresh(&mut self, record: &Record) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let now = Timestamps { last_access: now, last_modification: now };
        let _ = futimens(&self.file, &now);
        if !is_named(&self.file, &self.record_directory.join(&self.name)) {
            let name = self.name.clone();
            match RecordDirectory::try_each_parent(|record_directory| {
                Self::open(record_directory, &name, Some(record))
            }) {
                Ok(Attempt::Locked(again)) => *self = again,
                Ok(Attempt::Held | Attempt::Gone) => {}
                Err(error) => log::warn!("the record of the mount was removed: {error}"),
            }
        }
        utimensat(CWD, self.socket(), &now, AtFlags::SYMLINK_NOFOLLOW).is_err()
    }

    /// Removes the files and frees the lock.
    pub(in crate::lifecycle) fn remove(self) {
        // The record goes last: until then no other process can listen on the socket.
        let _ = fs::remove_file(self.socket());
        let _ = fs::remove_file(self.record_directory.join(&self.name));
        self.record_directory.remove_if_empty();
    }

    fn socket(&self) -> PathBuf {
        self.record_directory.join(&socket_of(&self.name))
    }
}

impl AsFd for MountLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

enum Attempt {
    Locked(MountLock),
    /// Another process holds the lock.
    Held,
    /// The file was removed, or replaced, before it was locked.
    Gone,
}

/// A record file, read without its lock.
#[derive(Debug)]
pub(in crate::lifecycle) struct RecordFile {
    record_directory: RecordDirectory,
    name: String,
    /// `None` if it is being written.
    pub(in crate::lifecycle) record: Option<Record>,
    /// Whether the daemon, or the process that is starting it, is alive.
    pub(in crate::lifecycle) is_locked: bool,
}

impl RecordFile {
    /// The record file of user `uid` for `mount_point`, if there is one.
    pub(in crate::lifecycle) fn of(mount_point: &Path, uid: u32) -> Option<Self> {
        let name = key(mount_point) + RECORD;
        Self::read(RecordDirectory::containing_of(uid, &name)?, &name, &|_| true)
    }

    /// All record files of user `uid`.
    pub(in crate::lifecycle) fn all_of(uid: u32) -> Vec<Self> {
        Self::all_where(uid, |_| true)
    }

    /// The record files of user `uid` whose record is wanted. The locks of the others are not
    /// touched.
    pub(in crate::lifecycle) fn all_where(
        uid: u32,
        is_wanted: impl Fn(Option<&Record>) -> bool,
    ) -> Vec<Self> {
        let all = RecordDirectory::all_of(uid).into_iter();
        all.flat_map(|record_directory| {
            let names = record_directory.names(RECORD).into_iter();
            let read =
                names.filter_map(|name| Self::read(record_directory.clone(), &name, &is_wanted));
            read.collect::<Vec<_>>()
        })
        .collect()
    }

    fn read(
        record_directory: RecordDirectory,
        name: &str,
        is_wanted: &impl Fn(Option<&Record>) -> bool,
    ) -> Option<Self> {
        let file = File::open(record_directory.join(name)).ok()?;
        if !is_wanted(load(&file).as_ref()) {
            return None;
        }
        // The lock is held only briefly; a process that finds it taken retries.
        let tried = retry(|| flock(&file, FlockOperation::NonBlockingLockShared));
        let is_locked = tried == Err(Errno::WOULDBLOCK);
        let _ = flock(&file, FlockOperation::Unlock);
        Some(Self { record: load(&file), name: name.to_owned(), record_directory, is_locked })
    }

    /// The record that the file contains now; `None` if it is being written or was removed.
    pub(super) fn read_again(&self) -> Option<Record> {
        load(&File::open(self.record_directory.join(&self.name)).ok()?)
    }

    /// Locks the file, if no other process holds the lock.
    pub(in crate::lifecycle) fn try_lock(&self) -> Option<MountLock> {
        MountLock::try_existing(&self.record_directory, &self.name)
    }

    /// The path of the daemon's socket.
    pub(in crate::lifecycle) fn socket(&self) -> PathBuf {
        self.record_directory.join(&socket_of(&self.name))
    }
}

/// Removes other records of `mount_point` whose daemons have ended: those of private mounts, and of
/// mounts in another namespace. Marks a directory that such a daemon was about to create as created
/// by archfs. A daemon that was killed before it wrote anything leaves an empty record; for a
/// private mount, the file name still identifies the mount point.
pub(in crate::lifecycle) fn clear_others(mount_point: &Path) {
    let prefix = private_prefix(mount_point);
    for file in RecordFile::all_of(geteuid().as_raw()) {
        let is_of_the_mount_point = match &file.record {
            Some(record) => record.mount_point == mount_point && record.is_of_this_node(),
            None => file.name.starts_with(&prefix),
        };
        if is_of_the_mount_point
            && !file.is_locked
            && let Some(lock) = file.try_lock()
        {
            if let Some(begun) = lock.begun() {
                owned_directory::adopt(mount_point, begun);
            }
            lock.remove();
        }
    }
}

/// Removes the sockets of this user that have no record and no listener, and then the directories
/// that are empty.
pub(in crate::lifecycle) fn clear_sockets() {
    for record_directory in RecordDirectory::all() {
        for name in record_directory.names(SOCKET) {
            let record = name.strip_suffix(SOCKET).unwrap_or(&name).to_owned() + RECORD;
            // A cleaner of /tmp may remove the record of a live mount but not its socket.
            let socket = record_directory.join(&name);
            if !record_directory.join(&record).exists()
                && UnixStream::connect(&socket)
                    .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            {
                let _ = fs::remove_file(socket);
            }
        }
        record_directory.remove_if_empty();
    }
}

fn socket_of(name: &str) -> String {
    name.strip_suffix(RECORD).unwrap_or(name).to_owned() + SOCKET
}

fn load(file: &File) -> Option<Record> {
    let len = file.metadata().ok()?.len();
    let mut text = vec![0; usize::try_from(len.min(RECORD_MAX)).ok()?];
    file.read_exact_at(&mut text, 0).ok()?;
    Record::decode(&text)
}

fn retry(mut call: impl FnMut() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}

/// Whether `path` still names `file`.
fn is_named(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(held), Ok(named)) => (held.dev(), held.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

fn unlockable(path: &Path, error: io::Error) -> Error {
    Error::io(format!("{}: cannot lock", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(mount_point: &Path) -> Record {
        Record {
            process: "1:1".parse().unwrap(),
            mount: None,
            creates: false,
            is_ending: false,
            node: record::node(),
            job: None,
            identity: "x".to_owned(),
            archives: vec![],
            mount_point: mount_point.to_owned(),
        }
    }

    fn acquire(mount_point: &Path) -> Option<MountLock> {
        MountLock::try_acquire(&record(mount_point)).unwrap()
    }

    #[test]
    fn one_process_holds_the_lock_and_removing_the_file_frees_it() {
        let work = tempfile::tempdir().unwrap();
        let mount_point = work.path().join("mount");
        let lock = acquire(&mount_point).unwrap();
        assert!(acquire(&mount_point).is_none());
        let uid = geteuid().as_raw();
        let file = RecordFile::of(&mount_point, uid).unwrap();
        assert!(file.is_locked && file.record == Some(record(&mount_point)));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let deadline = Instant::now() + Duration::from_secs(30);
                MountLock::wait_for(&mount_point, deadline).unwrap().map(MountLock::remove)
            });
            lock.remove();
            waiting.join().unwrap();
        });
        assert!(RecordFile::of(&mount_point, uid).is_none());
    }

    #[test]
    fn lock_lasts_until_the_last_duplicate_is_closed_and_record_outlasts_its_daemon() {
        let work = tempfile::tempdir().unwrap();
        let mount_point = work.path().join("mount");
        let lock = acquire(&mount_point).unwrap();
        let written = Record { creates: true, ..record(&mount_point) };
        lock.write(&written).unwrap();
        let duplicate = lock.duplicate().unwrap();
        drop(lock);
        assert!(acquire(&mount_point).is_none());
        assert!(MountLock::wait_for(&mount_point, Instant::now()).is_err());
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
        assert!(!lock.keep_fresh(&record(&mount_point)), "both are there");
        let path = lock.record_directory.join(&lock.name);
        let old = SystemTime::UNIX_EPOCH;
        lock.file.set_modified(old).unwrap();
        assert!(!lock.keep_fresh(&record(&mount_point)));
        assert!(fs::metadata(&path).unwrap().modified().unwrap() > old);
        for removed in [&path, &lock.socket()] {
            fs::remove_file(removed).unwrap();
        }
        assert!(lock.keep_fresh(&record(&mount_point)), "the socket has to be created again");
        assert!(acquire(&mount_point).is_none(), "the new file is locked");
        assert_eq!(lock.record(), Some(record(&mount_point)));
        lock.remove();
    }

    #[test]
    fn removes_records_of_ended_daemons_at_the_same_mount_point_only() {
        // A daemon that is killed before it has written its record leaves an empty one.
        for is_empty in [false, true] {
            let work = tempfile::tempdir().unwrap();
            let (mount_point, other) = (work.path().join("mount"), work.path().join("other"));
            let private = MountLock::private(&record(&mount_point)).unwrap();
            let path = private.record_directory.join(&private.name);
            if is_empty {
                private.file.set_len(0).unwrap();
            }
            clear_others(&mount_point);
            assert!(path.exists(), "it is in use");
            drop(private);
            clear_others(&other);
            assert!(path.exists(), "of another mount point");
            clear_others(&mount_point);
            assert!(!path.exists(), "empty: {is_empty}");
        }
    }

    #[test]
    fn a_private_mount_waits_for_readers_of_its_record() {
        let work = tempfile::tempdir().unwrap();
        let mount_point = work.path().join("mount");
        let path = {
            let private = MountLock::private(&record(&mount_point)).unwrap();
            private.record_directory.join(&private.name)
        };
        let reader = File::open(&path).unwrap();
        flock(&reader, FlockOperation::LockShared).unwrap();
        thread::scope(|scope| {
            let locking = scope.spawn(|| MountLock::private(&record(&mount_point)).unwrap());
            thread::sleep(10 * RETRY);
            assert!(!locking.is_finished());
            drop(reader);
            locking.join().unwrap().remove();
        });
    }
}
