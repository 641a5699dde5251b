//! A file on a slow file system: each read takes a given time, and reads run concurrently.
//!
//! `scripts/bench/slow` uses it as the location of the archive. Nothing above it is cached, so
//! every read that archfs makes is delayed. When it is unmounted, it prints how much was read, and
//! how many reads were in flight: the maximum, and the average over all reads.
//!
//! Usage: slow FILE MOUNT_POINT MILLISECONDS
//!
//! MOUNT_POINT then contains FILE under its own name. The program exits when MOUNT_POINT is
//! unmounted.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen,
    Request,
};

/// Maximum number of reads in flight.
const THREADS: usize = 64;

const TTL: Duration = Duration::from_secs(3600);
const IMAGE: INodeNo = INodeNo(2);

struct Slow {
    file: File,
    name: OsString,
    attr: FileAttr,
    latency: Duration,
    reads: AtomicU64,
    bytes: AtomicU64,
    in_flight: AtomicU64,
    in_flight_max: AtomicU64,
    /// Sum over all reads of the number in flight when they began.
    in_flight_sum: AtomicU64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, mount_point, latency] = arguments.as_slice() else {
        panic!("usage: slow FILE MOUNT_POINT MILLISECONDS");
    };
    let slow = Slow::new(Path::new(file), latency.parse().unwrap());
    let mut config = fuser::Config::default();
    config.mount_options = vec![MountOption::RO, MountOption::FSName("slow".into())];
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    fuser::mount(slow, mount_point, &config).unwrap();
}

impl Slow {
    fn new(path: &Path, milliseconds: f64) -> Self {
        let file = File::open(path).unwrap();
        let found = file.metadata().unwrap();
        let modified = UNIX_EPOCH + Duration::from_secs(found.mtime().try_into().unwrap());
        let attr = FileAttr {
            ino: IMAGE,
            size: found.len(),
            blocks: found.blocks(),
            atime: modified,
            mtime: modified,
            ctime: modified,
            crtime: modified,
            kind: FileType::RegularFile,
            perm: 0o444,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        Self {
            file,
            name: path.file_name().unwrap().to_owned(),
            attr,
            latency: Duration::from_secs_f64(milliseconds / 1e3),
            reads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            in_flight_max: AtomicU64::new(0),
            in_flight_sum: AtomicU64::new(0),
        }
    }

    fn attr(&self, ino: INodeNo) -> FileAttr {
        match ino {
            IMAGE => self.attr,
            _ => FileAttr { ino, kind: FileType::Directory, perm: 0o555, nlink: 2, ..self.attr },
        }
    }

    fn begin(&self) {
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.in_flight_max.fetch_max(now, Ordering::Relaxed);
        self.in_flight_sum.fetch_add(now, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
    }
}

impl Filesystem for Slow {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // A 1 MiB read arrives as one request, as archfs made it.
        let _ = config.add_capabilities(InitFlags::FUSE_MAX_PAGES);
        let _ = config.set_max_write(1 << 20);
        // A loop device on this file reads concurrently as well.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_background(THREADS as u16);
        Ok(())
    }

    fn destroy(&mut self) {
        let [reads, bytes, in_flight_max, in_flight_sum] =
            [&self.reads, &self.bytes, &self.in_flight_max, &self.in_flight_sum]
                .map(|n| n.load(Ordering::Relaxed));
        println!(
            "{reads} {bytes} {in_flight_max} {:.2}",
            in_flight_sum as f64 / reads.max(1) as f64
        );
    }

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
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
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
        self.begin();
        thread::sleep(self.latency);
        let mut bytes = vec![0; size as usize];
        let outcome = self.file.read_at(&mut bytes, offset);
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        match outcome {
            Ok(len) => {
                self.bytes.fetch_add(len as u64, Ordering::Relaxed);
                reply.data(&bytes[..len]);
            }
            Err(_) => reply.error(Errno::EIO),
        }
    }
}
