//! Plays the kernel's side of a FUSE connection, to test the INIT of any kernel.
//!
//! A pair of sockets replaces /dev/fuse; like it, SOCK_SEQPACKET passes one message per call.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use archfs::fuse::{ArchiveFilesystem, FailureLog};
use archfs::stats::Stats;
use archfs::vfs::Tree;
use fuser::{Config, Session, SessionACL};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// Opcodes of the protocol (include/uapi/linux/fuse.h).
pub const LOOKUP: u32 = 1;
pub const OPEN: u32 = 14;
pub const READ: u32 = 15;
pub const RELEASE: u32 = 18;
pub const FLUSH: u32 = 25;
pub const INIT: u32 = 26;
pub const OPENDIR: u32 = 27;
pub const READDIR: u32 = 28;
pub const RELEASEDIR: u32 = 29;
pub const ACCESS: u32 = 34;
pub const DESTROY: u32 = 38;

/// The root's inode number.
pub const ROOT: u64 = 1;

/// Bytes of fuse_out_header.
const OUT_HEADER: usize = 16;

/// A kernel with one mount, served by archfs.
pub struct Kernel {
    connection: OwnedFd,
    session: JoinHandle<std::io::Result<()>>,
    unique: u64,
    /// The INIT flags that archfs accepted.
    pub agreed: u32,
}

impl Kernel {
    /// Serves `tree` to a kernel with protocol 7.`minor` that offers `offered` in INIT.
    pub fn new(tree: Arc<dyn Tree>, minor: u32, offered: u32) -> Self {
        let (connection, served) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let session = thread::spawn(move || {
            let failure_log = FailureLog::new(Arc::clone(&tree), Vec::new());
            let stats = Arc::new(Stats::default());
            let filesystem = ArchiveFilesystem::new(tree, stats, failure_log, None);
            let config = Config::default();
            Session::from_fd(filesystem, served, SessionACL::All, config)?.run()
        });
        let mut kernel = Self { connection, session, unique: 0, agreed: 0 };
        // Before 7.36 fuse_init_in ends here.
        let reply = kernel.ask(INIT, 0, &words(&[7, minor, 128 << 10, offered])).unwrap();
        // Before 7.23 fuse_init_out ends after max_write; a longer reply fails with EINVAL.
        assert_eq!(reply.len(), if minor < 23 { 24 } else { 64 });
        assert_eq!(u32_at(&reply, 0), 7);
        kernel.agreed = u32_at(&reply, 12);
        kernel
    }

    /// Sends a request and returns the payload of its reply, or its error.
    pub fn ask(&mut self, operation: u32, ino: u64, body: &[u8]) -> Result<Vec<u8>, Errno> {
        self.unique += 2;
        let len = u32::try_from(40 + body.len()).unwrap();
        let mut request = words(&[len, operation]);
        request.extend([self.unique, ino].map(u64::to_ne_bytes).as_flattened());
        // uid, gid, pid, padding.
        request.extend(words(&[1000, 1000, 1, 0]));
        request.extend(body);
        assert_eq!(send(&self.connection, &request, SendFlags::empty()).unwrap(), request.len());
        let mut reply = vec![0; 128 << 10];
        let (len, _) = recv(&self.connection, &mut reply[..], RecvFlags::empty()).unwrap();
        reply.truncate(len);
        assert_eq!(u32_at(&reply, 0) as usize, len, "the reply to {operation} has its length");
        assert_eq!(u64_at(&reply, 8), self.unique, "the reply to {operation} is to that request");
        match i32::try_from(-i64::from(u32_at(&reply, 4).cast_signed())).unwrap() {
            0 => Ok(reply.split_off(OUT_HEADER)),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }

    /// Opens by `operation` and returns handle and flags.
    pub fn open(&mut self, operation: u32, ino: u64) -> Result<(u64, u32), Errno> {
        // O_RDONLY.
        let reply = self.ask(operation, ino, &words(&[0, 0]))?;
        assert_eq!(reply.len(), 16);
        Ok((u64_at(&reply, 0), u32_at(&reply, 8)))
    }

    /// Reads by `operation` from offset 0.
    pub fn read(&mut self, operation: u32, ino: u64, handle: u64) -> Vec<u8> {
        let mut body = [handle, 0].map(u64::to_ne_bytes).as_flattened().to_vec();
        // size, read_flags, lock_owner, flags, padding.
        body.extend(words(&[4096, 0, 0, 0, 0, 0]));
        self.ask(operation, ino, &body).unwrap()
    }

    /// The names in the directory `ino`, without `.` and `..`.
    pub fn names(&mut self, ino: u64, handle: u64) -> Vec<String> {
        let mut entries = &self.read(READDIR, ino, handle)[..];
        let mut names = Vec::new();
        // fuse_dirent: ino, off, namelen, type, name, padded to 8 bytes.
        while !entries.is_empty() {
            let len = u32_at(entries, 16) as usize;
            names.push(String::from_utf8(entries[24..24 + len].to_vec()).unwrap());
            entries = &entries[(24 + len).next_multiple_of(8)..];
        }
        names.retain(|name| name != "." && name != "..");
        names
    }

    /// The inode of `name` in the directory `parent`.
    pub fn lookup(&mut self, parent: u64, name: &str) -> u64 {
        let reply = self.ask(LOOKUP, parent, &[name.as_bytes(), b"\0"].concat()).unwrap();
        u64_at(&reply, 0)
    }

    /// Closes by `operation`.
    pub fn release(&mut self, operation: u32, ino: u64, handle: u64) -> Result<Vec<u8>, Errno> {
        let mut body = handle.to_ne_bytes().to_vec();
        // flags, release_flags, lock_owner.
        body.extend(words(&[0, 0, 0, 0]));
        self.ask(operation, ino, &body)
    }

    /// Unmounts; the session must end without an error.
    pub fn unmount(mut self) {
        self.ask(DESTROY, 0, &[]).unwrap();
        self.session.join().unwrap().unwrap();
    }
}

/// The bytes of `values` in a request.
pub fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(bytes[offset..offset + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(bytes[offset..offset + 8].try_into().unwrap())
}
