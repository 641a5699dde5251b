//! A slow file system: each read takes a given time longer, and requests run concurrently.
//!
//! The benchmarks use it as the location of archives. When it is unmounted, it prints how much was
//! read, and how many reads were in flight: the maximum, and the average over all reads.
//!
//! Usage: slow FILE MOUNT_POINT MILLISECONDS [MEGABYTES_PER_SECOND]
//!            MOUNT_POINT contains FILE under its own name. Nothing is cached, so every read that
//!            archfs makes is delayed.
//!        slow DIRECTORY MOUNT_POINT MILLISECONDS [MEGABYTES_PER_SECOND]
//!            MOUNT_POINT contains what DIRECTORY has now, like the client of a network file
//!            system: the first use of a name is delayed as well, and names, attributes and pages are
//!            cached.
//!
//! Concurrent reads share the bandwidth, if there is a limit.
//!
//! The program exits when MOUNT_POINT is unmounted.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fuser::{
    Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEntry, ReplyOpen, Request,
};

#[path = "../tests/support/file_attr.rs"]
mod file_attr;
#[path = "../tests/support/slow_link.rs"]
mod slow_link;

use slow_link::SlowLink;

/// Maximum number of requests in flight.
const THREADS: usize = 64;

const TTL: Duration = Duration::from_secs(3600);

/// A file or directory. The root is the first node, with inode number 1.
struct Node {
    path: PathBuf,
    attr: FileAttr,
    /// Opened at the first read.
    file: OnceLock<File>,
    /// Inode numbers of what a directory has.
    entries: BTreeMap<OsString, u64>,
}

struct Slow {
    nodes: Vec<Node>,
    is_cached: bool,
    link: SlowLink,
    reads: AtomicU64,
    bytes: AtomicU64,
    in_flight: AtomicU64,
    in_flight_max: AtomicU64,
    /// Sum over all reads of the number in flight when they began.
    in_flight_sum: AtomicU64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, mount_point, latency, rate @ ..] = arguments.as_slice() else {
        panic!("usage: slow FILE|DIRECTORY MOUNT_POINT MILLISECONDS [MEGABYTES_PER_SECOND]");
    };
    let rate = rate.first().map(|rate| rate.parse().unwrap());
    let slow = Slow::new(Path::new(path), latency.parse().unwrap(), rate);
    let mut config = fuser::Config::default();
    config.mount_options = vec![MountOption::RO, MountOption::FSName("slow".into())];
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    fuser::mount(slow, mount_point, &config).unwrap();
}

impl Slow {
    fn new(path: &Path, milliseconds: f64, megabytes_per_second: Option<f64>) -> Self {
        let is_directory = path.is_dir();
        let mut nodes = Vec::new();
        if is_directory {
            add(&mut nodes, path);
        } else {
            let parent =
                path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
            nodes.push(Node::new(1, parent.to_owned()));
            let file = add(&mut nodes, path);
            nodes[0].entries.insert(path.file_name().unwrap().to_owned(), file);
        }
        Self {
            nodes,
            is_cached: is_directory,
            link: SlowLink::new(milliseconds, megabytes_per_second),
            reads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            in_flight_max: AtomicU64::new(0),
            in_flight_sum: AtomicU64::new(0),
        }
    }

    fn node(&self, number: INodeNo) -> &Node {
        &self.nodes[usize::try_from(number.0).unwrap() - 1]
    }

    fn begin(&self) {
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.in_flight_max.fetch_max(now, Ordering::Relaxed);
        self.in_flight_sum.fetch_add(now, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
    }
}

impl Node {
    fn new(number: u64, path: PathBuf) -> Self {
        let attr = file_attr::read_only(INodeNo(number), &fs::metadata(&path).unwrap());
        Self { path, attr, file: OnceLock::new(), entries: BTreeMap::new() }
    }
}

/// Adds `path` and everything below it. Returns its inode number.
fn add(nodes: &mut Vec<Node>, path: &Path) -> u64 {
    let number = nodes.len() as u64 + 1;
    nodes.push(Node::new(number, path.to_owned()));
    if path.is_dir() {
        let found: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap()).collect();
        for entry in found {
            let child = add(nodes, &entry.path());
            nodes[number as usize - 1].entries.insert(entry.file_name(), child);
        }
    }
    number
}

impl Filesystem for Slow {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // A 1 MiB read arrives as one request, as archfs made it.
        let _ = config.add_capabilities(InitFlags::FUSE_MAX_PAGES);
        let _ = config.set_max_write(1 << 20);
        // A loop device on a file reads concurrently as well.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_READ);
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
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

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if self.is_cached {
            self.link.request();
        }
        match self.node(parent).entries.get(name) {
            Some(&number) => {
                reply.entry(&TTL, &self.node(INodeNo(number)).attr, Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.node(ino).attr);
    }

    // Not delayed: a network file system opens a file in the request for its name.
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = match self.is_cached {
            true => FopenFlags::FOPEN_KEEP_CACHE,
            false => FopenFlags::FOPEN_DIRECT_IO,
        };
        reply.opened(FileHandle(0), flags);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.link.request();
        let entries = self.node(ino).entries.iter().enumerate();
        for (index, (name, &number)) in entries.skip(usize::try_from(offset).unwrap()) {
            let kind = self.node(INodeNo(number)).attr.kind;
            if reply.add(INodeNo(number), index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.begin();
        self.link.request();
        let mut bytes = vec![0; size as usize];
        let node = self.node(ino);
        let file = node.file.get_or_init(|| File::open(&node.path).unwrap());
        let outcome = file.read_at(&mut bytes, offset);
        self.link.transfer(*outcome.as_ref().unwrap_or(&0));
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
