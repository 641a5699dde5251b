//! A relay between /dev/fuse and archfs that clears the features the kernel offers in INIT.
//!
//! It passes requests on through a pair of sockets and counts them.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use archfs::fuse::{ArchiveFilesystem, FailureLog};
use archfs::stats::Stats;
use archfs::sync::Mutex;
use archfs::vfs::Tree;
use fuser::{Config, Session, SessionACL};
use rustix::io::{read, write};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};

use super::kernel::INIT;

/// Size of the largest request: archfs allows writes of 1 MiB, though none arrive.
const LARGEST: usize = (1 << 20) + 4096;

/// A mount of the running kernel whose INIT offers nothing. Dropping it unmounts it.
pub struct Relay {
    mount_point: PathBuf,
    requests: Arc<Mutex<BTreeMap<u32, u64>>>,
}

impl Relay {
    pub fn new(tree: Arc<dyn Tree>, mount_point: &Path) -> Self {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
        let device = Arc::new(device);
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options).unwrap();
        fs::create_dir(mount_point).unwrap();
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        mount("relay", mount_point, "fuse", flags, options.as_c_str()).unwrap();
        let requests = Arc::new(Mutex::new(BTreeMap::new()));
        let relay = Self { mount_point: mount_point.to_owned(), requests: Arc::clone(&requests) };

        let (kernel, served) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let kernel = Arc::new(kernel);
        let (to_kernel, replies) = (Arc::clone(&device), Arc::clone(&kernel));
        thread::spawn(move || {
            let mut message = vec![0; LARGEST];
            while let Ok(len) = read(&device, &mut message[..]) {
                let operation = u32::from_ne_bytes(message[4..8].try_into().unwrap());
                if operation == INIT {
                    // flags, and flags2 with the fields after it, of fuse_init_in.
                    message[40 + 12..len].fill(0);
                }
                *requests.lock().entry(operation).or_default() += 1;
                send(&kernel, &message[..len], SendFlags::empty()).unwrap();
            }
            // Unmounted: archfs reads the end of the connection.
            shutdown(&kernel, Shutdown::Both).unwrap();
        });
        thread::spawn(move || {
            let mut message = vec![0; LARGEST];
            while let Ok((len @ 1.., _)) = recv(&replies, &mut message[..], RecvFlags::empty()) {
                // ENOENT if the request was interrupted.
                let _ = write(&to_kernel, &message[..len]);
            }
        });
        let failure_log = FailureLog::new(Arc::clone(&tree), Vec::new());
        let stats = Arc::new(Stats::default());
        let filesystem = ArchiveFilesystem::new(tree, stats, failure_log, None);
        let session = Session::from_fd(filesystem, served, SessionACL::All, Config::default());
        let session = session.unwrap();
        thread::spawn(move || session.run());
        relay
    }

    /// Requests so far, by opcode.
    pub fn requests(&self) -> BTreeMap<u32, u64> {
        self.requests.lock().clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = unmount(&self.mount_point, UnmountFlags::DETACH);
    }
}
