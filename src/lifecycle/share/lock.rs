//! The record file of a mount point, which is also its lock.
//!
//! The daemon of a mount holds an exclusive flock(2) on the file until its mount or its process is
//! gone, so a mount is alive exactly while its file is locked. The lock belongs to the open file,
//! not to a process: `archfs mount` takes it before it starts the daemon and hands it over, and so
//! does the daemon with fusermount, which may outlive it. The kernel frees it with the last of
//! them, however they end. Invariant: the file that is locked is the one that has the name.

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

use super::peers::Peers;
use super::private_file;
use super::record::{self, Record};
use super::registry::Registry;
use crate::error::{Error, Kind, Result};
use crate::lifecycle::mount::{attach, owned_directory};

/// The ends of the names of record files and sockets.
pub(super) const RECORD: &str = ".mount";
pub(super) const SOCKET: &str = ".socket";

/// How often a lock that another process holds is tried again.
const RETRY: Duration = Duration::from_millis(2);

/// How long other processes may keep a private mount from locking a file that only it uses; they
/// look at it for microseconds.
const PRIVATE_PATIENCE: Duration = Duration::from_secs(5);

/// The largest record that is read, bytes: some 100,000 archives.
const RECORD_MAX: u64 = 32 << 20;

/// What the files of a mount point are called: a digest of its path, the mount namespace (the same
/// path is another directory in a container) and the boot of the node (/tmp may be shared between
/// nodes).
pub(super) fn key(mount_point: &Path) -> String {
    let mut digest = Xxh3::new();
    let namespace = fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
    for part in [mount_point.as_os_str(), namespace.as_os_str(), record::boot().as_ref()] {
        digest.update(part.as_encoded_bytes());
        digest.update(b"\0");
    }
    format!("{:032x}", digest.digest128())
}

/// How the names of the records of private mounts at `mount_point` begin.
fn private_prefix(mount_point: &Path) -> String {
    key(mount_point) + "-"
}

/// The lock of a mount point, free again when this and every duplicate of it is dropped.
#[derive(Debug)]
pub(in crate::lifecycle) struct MountLock {
    file: File,
    name: String,
    registry: Registry,
    /// Keeps cleaners of old files out of the directory.
    _guard: Option<File>,
}

impl MountLock {
    /// The lock of `record.mount_point`, unless another process holds it. A new file holds `record`
    /// already; one that a daemon has left still holds that daemon's.
    ///
    /// # Errors
    /// `Io` where no file can be created or locked.
    pub(in crate::lifecycle) fn try_acquire(record: &Record) -> Result<Option<Self>> {
        let name = key(&record.mount_point) + RECORD;
        loop {
            let attempt = match Registry::holding(&name) {
                Some(registry) => Self::open(&registry, &name, None)
                    .map_err(|error| unlockable(&registry.path(&name), error))?,
                None => Registry::create_in(|registry| Self::open(registry, &name, Some(record)))?,
            };
            match attempt {
                Attempt::Locked(lock) => return Ok(Some(lock)),
                Attempt::Taken => return Ok(None),
                Attempt::Gone => {}
            }
        }
    }

    /// The lock of a record for a private mount, which no other process can share: several may have
    /// one mount point.
    ///
    /// # Errors
    /// `Io` where no file can be created.
    pub(in crate::lifecycle) fn private(record: &Record) -> Result<Self> {
        clear_others(&record.mount_point);
        let name = format!("{}{}{RECORD}", private_prefix(&record.mount_point), record.process);
        let deadline = Instant::now() + PRIVATE_PATIENCE;
        loop {
            match Registry::create_in(|registry| Self::open(registry, &name, Some(record)))? {
                Attempt::Locked(lock) => return Ok(lock),
                // Another process looked at the file, or removed it, before it was locked.
                Attempt::Taken | Attempt::Gone if Instant::now() < deadline => thread::sleep(RETRY),
                Attempt::Taken | Attempt::Gone => {
                    return Err(Error::new(Kind::Io, "the record is in use"));
                }
            }
        }
    }

    /// The lock of the existing file `name` in `registry`; `None` where another process holds it or
    /// there is none.
    pub(in crate::lifecycle) fn try_existing(registry: &Registry, name: &str) -> Option<Self> {
        match Self::open(registry, name, None) {
            Ok(Attempt::Locked(lock)) => Some(lock),
            _ => None,
        }
    }

    /// The lock of `mount_point` where a file for it exists, as soon as no other process holds it,
    /// at most until `deadline`. `Err(())` where another still holds it then.
    pub(in crate::lifecycle) fn wait_for(
        mount_point: &Path,
        deadline: Instant,
    ) -> std::result::Result<Option<Self>, ()> {
        let name = key(mount_point) + RECORD;
        loop {
            let Some(registry) = Registry::holding(&name) else {
                return Ok(None);
            };
            match Self::open(&registry, &name, None) {
                Ok(Attempt::Locked(lock)) => return Ok(Some(lock)),
                Ok(Attempt::Gone) => {}
                Ok(Attempt::Taken) | Err(_) if Instant::now() >= deadline => return Err(()),
                Ok(Attempt::Taken) | Err(_) => thread::sleep(RETRY),
            }
        }
    }

    fn open(registry: &Registry, name: &str, create: Option<&Record>) -> io::Result<Attempt> {
        let path = registry.path(name);
        let mut options = File::options();
        let opened =
            private_file::open(&path, options.read(true).write(true).create(create.is_some()));
        let file = match opened {
            Err(error) if error.kind() == ErrorKind::NotFound && create.is_none() => {
                return Ok(Attempt::Gone);
            }
            opened => opened?,
        };
        match retry(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Err(Errno::WOULDBLOCK) => return Ok(Attempt::Taken),
            locked => locked?,
        }
        if !is_named(&file, &path) {
            return Ok(Attempt::Gone);
        }
        let (name, registry) = (name.to_owned(), registry.clone());
        let lock = Self { file, name, _guard: registry.guard(), registry };
        if let Some(record) = create
            && lock.file.metadata()?.len() == 0
            && let Err(error) = lock.store(record)
        {
            lock.remove();
            return Err(error);
        }
        Ok(Attempt::Locked(lock))
    }

    /// The lock of `mount_point` that the process which started this one handed over as
    /// `descriptor`.
    ///
    /// # Errors
    /// `Usage` where it is no such lock.
    pub(in crate::lifecycle) fn adopt(descriptor: OwnedFd, mount_point: &Path) -> Result<Self> {
        let (file, name) = (File::from(descriptor), key(mount_point) + RECORD);
        for registry in Registry::all() {
            if is_named(&file, &registry.path(&name)) {
                return Ok(Self { file, name, _guard: registry.guard(), registry });
            }
        }
        Err(Error::new(Kind::Usage, "standard input is not the lock of the mount point"))
    }

    /// The lock again, for another process.
    ///
    /// # Errors
    /// `Io` where there are no more descriptors.
    pub(in crate::lifecycle) fn duplicate(&self) -> Result<OwnedFd> {
        attach::duplicate(self)
    }

    /// What the file says; `None` where its last writer was killed while writing.
    pub(in crate::lifecycle) fn record(&self) -> Option<Record> {
        load(&self.file)
    }

    /// When the last daemon was about to create the directory at the mount point, if it was.
    pub(in crate::lifecycle) fn begun(&self) -> Option<SystemTime> {
        self.record().filter(|record| record.creates)?;
        self.file.metadata().and_then(|found| found.modified()).ok()
    }

    /// Replaces what the file says.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn write(&self, record: &Record) -> Result<()> {
        self.store(record).map_err(|error| {
            Error::io(format!("{}: cannot write", self.registry.path(&self.name).display()), error)
        })
    }

    fn store(&self, record: &Record) -> io::Result<()> {
        let text = record.encode();
        self.file.write_all_at(&text, 0)?;
        self.file.set_len(text.len().try_into().unwrap_or(u64::MAX))
    }

    /// The daemons that share a cache budget with the one that holds this lock; `None` where it has
    /// its own.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn peers(&self) -> Result<Option<Peers>> {
        let job = self.record().and_then(|record| record.job);
        job.map(|job| Peers::of(&job, &self.registry)).transpose()
    }

    /// Listens at the socket of the mount point, whatever was left of another.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn listen(&self) -> Result<UnixListener> {
        let socket = self.socket();
        let _ = fs::remove_file(&socket);
        let listening = UnixListener::bind(&socket).and_then(|listener| {
            private_file::open_to_owner(&socket)?;
            Ok(listener)
        });
        listening.map_err(|error| Error::io(format!("{}: cannot listen", socket.display()), error))
    }

    /// Makes the files look new, so that nothing removes them for their age. Creates a record that
    /// was removed again, with `record` in it; returns whether the socket has to be created again
    /// as well.
    pub(in crate::lifecycle) fn keep_fresh(&mut self, record: &Record) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let now = Timestamps { last_access: now, last_modification: now };
        let _ = futimens(&self.file, &now);
        if !is_named(&self.file, &self.registry.path(&self.name)) {
            let name = self.name.clone();
            match Registry::create_in(|registry| Self::open(registry, &name, Some(record))) {
                Ok(Attempt::Locked(again)) => *self = again,
                Ok(Attempt::Taken | Attempt::Gone) => {}
                Err(error) => log::warn!("the record of the mount was removed: {error}"),
            }
        }
        utimensat(CWD, self.socket(), &now, AtFlags::SYMLINK_NOFOLLOW).is_err()
    }

    /// Removes the files and frees the lock.
    pub(in crate::lifecycle) fn remove(self) {
        // The record last: until then no other process listens at the socket.
        let _ = fs::remove_file(self.socket());
        let _ = fs::remove_file(self.registry.path(&self.name));
        self.registry.tidy();
    }

    fn socket(&self) -> PathBuf {
        self.registry.path(&socket_of(&self.name))
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
    Taken,
    /// The file was removed in the meantime.
    Gone,
}

/// A record file as another process sees it.
#[derive(Debug)]
pub(in crate::lifecycle) struct RecordFile {
    registry: Registry,
    name: String,
    /// `None` while it is being written.
    pub(in crate::lifecycle) record: Option<Record>,
    /// Whether its daemon, or the process that starts it, is alive.
    pub(in crate::lifecycle) is_locked: bool,
}

impl RecordFile {
    /// The file of the user `uid` for `mount_point`, if there is one.
    pub(in crate::lifecycle) fn of(mount_point: &Path, uid: u32) -> Option<Self> {
        let name = key(mount_point) + RECORD;
        let all = Registry::all_of(uid).into_iter();
        all.filter_map(|registry| Self::read(registry, &name)).next()
    }

    /// All files of the user `uid`.
    pub(in crate::lifecycle) fn all_of(uid: u32) -> Vec<Self> {
        let all = Registry::all_of(uid).into_iter();
        all.flat_map(|registry| {
            let names = registry.names(RECORD).into_iter();
            let read = names.filter_map(|name| Self::read(registry.clone(), &name));
            read.collect::<Vec<_>>()
        })
        .collect()
    }

    fn read(registry: Registry, name: &str) -> Option<Self> {
        let file = File::open(registry.path(name)).ok()?;
        // Taken for a moment only; a process that wants it then tries again.
        let tried = retry(|| flock(&file, FlockOperation::NonBlockingLockShared));
        let is_locked = tried == Err(Errno::WOULDBLOCK);
        let _ = flock(&file, FlockOperation::Unlock);
        Some(Self { record: load(&file), name: name.to_owned(), registry, is_locked })
    }

    /// Its lock, where that is free.
    pub(in crate::lifecycle) fn try_lock(&self) -> Option<MountLock> {
        MountLock::try_existing(&self.registry, &self.name)
    }

    /// Where its daemon listens.
    pub(in crate::lifecycle) fn socket(&self) -> PathBuf {
        self.registry.path(&socket_of(&self.name))
    }
}

/// Removes other records of `mount_point` whose daemons are gone: those of private mounts, and of
/// mounts in another namespace. A directory that such a daemon was about to create is marked as
/// created by archfs. The record of a private mount is known by its name as well: a daemon that was
/// killed before it had written anything leaves an empty one.
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

/// Removes the sockets of this user that no record belongs to and at which no process listens, and
/// the directories that are empty then.
pub(in crate::lifecycle) fn clear_sockets() {
    for registry in Registry::all() {
        for name in registry.names(SOCKET) {
            let record = name.strip_suffix(SOCKET).unwrap_or(&name).to_owned() + RECORD;
            // Cleaners of /tmp may remove the record of a live mount and pass over its socket.
            let socket = registry.path(&name);
            if !registry.path(&record).exists()
                && UnixStream::connect(&socket)
                    .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            {
                let _ = fs::remove_file(socket);
            }
        }
        registry.tidy();
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

/// Whether `path` still is the name of `file`.
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
    fn one_process_has_it_at_a_time_and_removing_it_frees_it() {
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
    fn is_held_until_the_last_duplicate_is_closed_and_says_what_a_killed_daemon_wrote() {
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
    fn what_a_cleaner_removed_is_created_again() {
        let work = tempfile::tempdir().unwrap();
        let mount_point = work.path().join("mount");
        let mut lock = acquire(&mount_point).unwrap();
        let _listener = lock.listen().unwrap();
        assert!(!lock.keep_fresh(&record(&mount_point)), "both are there");
        let path = lock.registry.path(&lock.name);
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
    fn records_of_dead_daemons_at_the_mount_point_go_with_the_next_use() {
        let work = tempfile::tempdir().unwrap();
        let (mount_point, other) = (work.path().join("mount"), work.path().join("other"));
        let private = MountLock::private(&record(&mount_point)).unwrap();
        let path = private.registry.path(&private.name);
        clear_others(&mount_point);
        assert!(path.exists(), "it is in use");
        drop(private);
        clear_others(&other);
        assert!(path.exists(), "of another mount point");
        clear_others(&mount_point);
        assert!(!path.exists());
    }

    #[test]
    fn an_empty_record_of_a_private_mount_goes_with_the_next_use() {
        let work = tempfile::tempdir().unwrap();
        let (mount_point, other) = (work.path().join("mount"), work.path().join("other"));
        let private = MountLock::private(&record(&mount_point)).unwrap();
        let path = private.registry.path(&private.name);
        private.file.set_len(0).unwrap();
        clear_others(&mount_point);
        assert!(path.exists(), "it is in use");
        drop(private);
        clear_others(&other);
        assert!(path.exists(), "of another mount point");
        clear_others(&mount_point);
        assert!(!path.exists());
    }

    #[test]
    fn a_private_mount_waits_for_those_who_look_at_its_record() {
        let work = tempfile::tempdir().unwrap();
        let mount_point = work.path().join("mount");
        let path = {
            let private = MountLock::private(&record(&mount_point)).unwrap();
            private.registry.path(&private.name)
        };
        let looking = File::open(&path).unwrap();
        flock(&looking, FlockOperation::LockShared).unwrap();
        thread::scope(|scope| {
            let locking = scope.spawn(|| MountLock::private(&record(&mount_point)).unwrap());
            thread::sleep(10 * RETRY);
            assert!(!locking.is_finished());
            drop(looking);
            locking.join().unwrap().remove();
        });
    }
}
