//! A FUSE file system with one file, whose reads fail on demand or take long.
//!
//! The test itself serves it. Unless it is made for it, nothing is cached, so every read arrives here.
//! Dropping it unmounts it lazily.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use archfs::sync::Mutex;
use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen,
    Request,
};

use super::file_attr;

const TTL: Duration = Duration::from_secs(3600);
const ARCHIVE: INodeNo = INodeNo(2);

/// What happens to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// One in `n` reads gives EIO; 1 for all.
    Failing(u64),
    /// Every read gives this error.
    Refused(i32),
    /// The file ends there, although its size says more.
    EndsAt(u64),
    /// Half of the bytes, as read(2) may return.
    Halves,
    /// Every second read is interrupted (EINTR).
    Interrupted,
    /// Every byte is wrong.
    Wrong,
    /// The read hangs until the fault changes.
    Hanging,
}

/// The mount. Its file has the name of the source file.
pub struct Faulty {
    mount_point: PathBuf,
    file: PathBuf,
    state: Arc<State>,
    session: Option<BackgroundSession>,
}

struct State {
    fault: Mutex<Fault>,
    reads: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    in_flight: AtomicU64,
    most_in_flight: AtomicU64,
}

struct Served {
    file: File,
    name: OsString,
    attr: FileAttr,
    state: Arc<State>,
    latency: Duration,
    open_flags: FopenFlags,
}

impl Faulty {
    /// Shows `file` below `mount_point`, which is created.
    pub fn new(file: &Path, mount_point: &Path) -> Self {
        Self::distant(file, mount_point, Duration::ZERO, FopenFlags::FOPEN_DIRECT_IO)
    }

    /// The same, where each read takes `latency`.
    pub fn distant(
        file: &Path,
        mount_point: &Path,
        latency: Duration,
        open_flags: FopenFlags,
    ) -> Self {
        fs::create_dir_all(mount_point).unwrap();
        let state = Arc::new(State {
            fault: Mutex::new(Fault::None),
            reads: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            most_in_flight: AtomicU64::new(0),
        });
        let mut config = fuser::Config::default();
        config.mount_options = vec![MountOption::RO, MountOption::FSName("faulty".into())];
        config.n_threads = Some(16);
        let served = Served { latency, open_flags, ..Served::new(file, Arc::clone(&state)) };
        let session = fuser::Session::new(served, mount_point, &config).unwrap().spawn().unwrap();
        let shown = mount_point.join(file.file_name().unwrap());
        Self { mount_point: mount_point.to_owned(), file: shown, state, session: Some(session) }
    }

    /// The path of the file on the mount.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Sets the fault for reads from now on.
    pub fn set(&self, fault: Fault) {
        *self.state.fault.lock() = fault;
    }

    /// Number of reads so far.
    pub fn reads(&self) -> u64 {
        self.state.reads.load(Ordering::Relaxed)
    }

    /// Number of bytes that were read so far.
    pub fn bytes(&self) -> u64 {
        self.state.bytes.load(Ordering::Relaxed)
    }

    /// Largest number of reads that were served at once.
    pub fn most_in_flight(&self) -> u64 {
        self.state.most_in_flight.load(Ordering::Relaxed)
    }

    /// Number of reads that did not get the right bytes.
    pub fn failed(&self) -> u64 {
        self.state.failed.load(Ordering::Relaxed)
    }

    /// Aborts the connection like the death of its daemon: every read gives ENOTCONN.
    pub fn abort(&self) {
        let number = rustix::fs::minor(fs::metadata(&self.mount_point).unwrap().dev());
        let connections = Path::new("/sys/fs/fuse/connections");
        if fs::read_dir(connections).is_ok_and(|mut it| it.next().is_none()) {
            let mut mount = Command::new("mount");
            super::run(mount.args(["-t", "fusectl", "none"]).arg(connections));
        }
        fs::write(connections.join(number.to_string()).join("abort"), "1").unwrap();
    }

    /// Unmounts lazily; open files stay open.
    pub fn unmount_lazily(&self) {
        super::run(Command::new("umount").arg("-l").arg(&self.mount_point));
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.set(Fault::None);
        let _ = Command::new("umount").arg("-lq").arg(&self.mount_point).output();
        // Not joined: a daemon that a failing test left may still have the file open.
        std::mem::forget(self.session.take());
    }
}

impl Served {
    fn new(path: &Path, state: Arc<State>) -> Self {
        let file = File::open(path).unwrap();
        let found = file.metadata().unwrap();
        let attr = file_attr::read_only(ARCHIVE, &found);
        let name = path.file_name().unwrap().to_owned();
        let (latency, open_flags) = (Duration::ZERO, FopenFlags::empty());
        Self { file, name, attr, state, latency, open_flags }
    }

    fn attr(&self, ino: INodeNo) -> FileAttr {
        match ino {
            ARCHIVE => self.attr,
            _ => FileAttr { ino, kind: FileType::Directory, perm: 0o555, nlink: 2, ..self.attr },
        }
    }

    /// Decides the outcome of this read; waits while the fault is Hang.
    fn fault(&self) -> Fault {
        loop {
            let fault = *self.state.fault.lock();
            if fault != Fault::Hanging {
                return fault;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == self.name {
            reply.entry(&TTL, &self.attr, Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), self.open_flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let number = self.state.reads.fetch_add(1, Ordering::Relaxed);
        self.state.bytes.fetch_add(size.into(), Ordering::Relaxed);
        let in_flight = self.state.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.state.most_in_flight.fetch_max(in_flight, Ordering::Relaxed);
        thread::sleep(self.latency);
        self.state.in_flight.fetch_sub(1, Ordering::Relaxed);
        let fault = self.fault();
        let mut bytes = vec![0; size as usize];
        let mut len = self.file.read_at(&mut bytes, offset).unwrap();
        if fault != Fault::None {
            self.state.failed.fetch_add(1, Ordering::Relaxed);
        }
        match fault {
            Fault::Failing(one_in) if number.is_multiple_of(one_in) => {
                return reply.error(Errno::EIO);
            }
            Fault::Refused(error) => return reply.error(Errno::from_i32(error)),
            Fault::Interrupted if number.is_multiple_of(2) => return reply.error(Errno::EINTR),
            Fault::EndsAt(end) => len = len.min(end.saturating_sub(offset) as usize),
            Fault::Halves => len = len.div_ceil(2),
            Fault::Wrong => bytes.iter_mut().for_each(|byte| *byte = !*byte),
            _ => {}
        }
        reply.data(&bytes[..len]);
    }
}
