//! Adapts FUSE requests to a `Tree`: each handler decodes, calls the tree once, replies.
//!
//! `reply` translates to the protocol; `config` says what is negotiated with the kernel;
//! `event_loops` says which threads receive requests. Invariant: no handler panics, and every
//! request gets exactly one reply.
//!
//! Because an archive never changes, the kernel may cache names, attributes, pages, listings and
//! links without limit. After the first ENOSYS it never sends OPEN, OPENDIR or FLUSH again, and it
//! sends no RELEASE. So a warm epoch makes no request.
//!
//! Kernels before 5.1 do not accept ENOSYS for OPENDIR, and kernels before 3.15 do not for OPEN.
//! There a warm epoch sends requests to open and release each directory (or file), but it reads
//! nothing: pages and listings stay cached. Kernels before 4.20 cache no listings. INIT says what
//! the kernel supports (`config::Opening`). FLUSH accepts ENOSYS since Linux 2.6.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType,
    Filesystem, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};

use crate::error::{Error, Kind};
use crate::failpoint;
use crate::stats::{Operation, Pending, Stats};
use crate::sync::Arc;
use crate::vfs::{
    Attr, Cookie, Dot, FileKind, Ino, Name, Scratch, SeekTarget, Tree, dots, is_linux_xattr,
};

mod config;
mod event_loops;
mod failure_log;
mod reply;

pub use config::{SessionShape, session_shape};
pub use failure_log::FailureLog;

use config::{Agreement, ttl};
use event_loops::EventLoops;
use reply::{GENERATION, NO_PARENT, file_attr, file_type, negative_attr, unknown_attr};

/// The longest symbolic link target that the kernel accepts, in bytes, including the NUL that it
/// adds (PATH_MAX).
const PATH_MAX: usize = 4096;

thread_local! {
    /// Reply buffer of this event loop, so that a read allocates nothing.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// A tree as a fuser file system.
pub struct ArchiveFilesystem {
    tree: Arc<dyn Tree>,
    stats: Arc<Stats>,
    failure_log: Arc<FailureLog>,
    /// How long the kernel may cache replies.
    ttl: Duration,
    /// Added to the inode numbers of the tree, apart from that of the root.
    first_number: u64,
    /// What INIT negotiated. Before INIT, answers that every kernel accepts.
    agreement: Agreement,
    loops: EventLoops,
}

impl ArchiveFilesystem {
    /// Serves `tree`, counts requests in `stats`, and logs failures in `failure_log`, which has the
    /// same tree. If `idle` is set, kernel caches expire early
    /// enough that no use goes unnoticed for that long.
    pub fn new(
        tree: Arc<dyn Tree>,
        stats: Arc<Stats>,
        failure_log: Arc<FailureLog>,
        idle: Option<Duration>,
    ) -> Self {
        let (agreement, loops) = (Agreement::with(InitFlags::empty()), EventLoops::new());
        Self { tree, stats, failure_log, ttl: ttl(idle), first_number: 0, agreement, loops }
    }

    /// The same with inode numbers that other file systems do not have. fuse-overlayfs shows the
    /// inode numbers of several file systems as those of one, in which a number that a directory
    /// shares with one above it is a loop.
    pub fn with_distant_numbers(self) -> Self {
        Self { first_number: 1 << 56, ..self }
    }

    /// The number of `ino` for the kernel.
    fn number(&self, ino: Ino) -> INodeNo {
        match ino {
            Ino::ROOT => INodeNo(ino.number()),
            _ => INodeNo(ino.number().wrapping_add(self.first_number)),
        }
    }

    /// The inode that the kernel names by `number`.
    fn ino(&self, number: INodeNo) -> Option<Ino> {
        Ino::new(number.0.checked_sub(self.first_number).unwrap_or(number.0))
    }

    fn attr(&self, attr: &Attr) -> FileAttr {
        FileAttr { ino: self.number(attr.ino), ..file_attr(attr) }
    }

    /// The inode number listed for `.` or `..` of the directory `ino`.
    fn dot_number(&self, ino: Ino, dot: &Dot) -> INodeNo {
        match dot.next {
            Cookie::START if ino != Ino::ROOT => NO_PARENT,
            _ => self.number(ino),
        }
    }

    /// The errno for `error`, which occurred in `request` on `ino`. A fault of the archive or its
    /// storage is counted and logged. Errors that a caller can provoke, such as a missing name, are
    /// not.
    fn errno(&self, request: &Pending<'_>, ino: Ino, error: &Error) -> Errno {
        let (errno, is_fault) = reply::errno(error.kind());
        if is_fault {
            request.meet_fault();
            // The storage has already logged that the archive was rewritten.
            if error.kind() != Kind::Changed {
                self.failure_log.report(ino, request.operation().name(), error);
            }
        }
        errno
    }
}

/// The inode of a request. The kernel never sends 0; if it did, ESTALE would be the right reply.
macro_rules! ino_or_reply {
    ($self:expr, $number:expr, $reply:expr) => {
        match $self.ino($number) {
            Some(ino) => ino,
            None => return $reply.error(Errno::ESTALE),
        }
    };
}

/// Operations that all get the same error without a call to the tree.
macro_rules! answer_all {
    ($errno:ident: $($operation:ident($($argument:ty),*) -> $reply:ty;)*) => {
        $(fn $operation(&self, _: &Request $(, _: $argument)*, reply: $reply) {
            self.stats.count(Operation::Other);
            reply.error(Errno::$errno);
        })*
    };
}

impl Filesystem for ArchiveFilesystem {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.agreement = config::negotiate(config);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _turn = self.loops.begin();
        let request = self.stats.begin(Operation::Lookup);
        let parent = ino_or_reply!(self, parent, reply);
        let found = match name.as_bytes() {
            // Sent for open_by_handle_at(2) if the kernel has forgotten the inode: "." asks for the
            // inode itself, ".." for the parent of a directory.
            b"." => self.tree.attr(parent).map(Some),
            b".." => match self.tree.parent(parent) {
                Ok(Some(above)) => self.tree.attr(above).map(Some),
                Ok(None) => return reply.error(Errno::ESTALE),
                Err(error) => Err(error),
            },
            name => match Name::parse(name) {
                Some(name) => self.tree.lookup(parent, name),
                None => return reply.error(Errno::ENAMETOOLONG),
            },
        };
        match found {
            Ok(Some(attr)) => {
                reply.entry(&self.ttl, &self.attr(&attr), GENERATION);
                self.stats.lookup_alarm.on_event();
            }
            Ok(None) => reply.entry(&self.ttl, &negative_attr(), GENERATION),
            Err(error) => reply.error(self.errno(&request, parent, &error)),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        failpoint::panic_at("getattr");
        let request = self.stats.begin(Operation::Getattr);
        let ino = ino_or_reply!(self, ino, reply);
        match self.tree.attr(ino) {
            Ok(attr) => reply.attr(&self.ttl, &self.attr(&attr)),
            Err(error) => reply.error(self.errno(&request, ino, &error)),
        }
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        let request = self.stats.begin(Operation::Readlink);
        let ino = ino_or_reply!(self, ino, reply);
        match self.tree.read_link(ino) {
            // The kernel accepts at most a page, and its own error for longer targets is
            // misleading.
            Ok(target) if target.len() >= PATH_MAX => reply.error(Errno::ENAMETOOLONG),
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(self.errno(&request, ino, &error)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock: Option<LockOwner>,
        reply: ReplyData,
    ) {
        failpoint::panic_at("read");
        let _turn = self.loops.begin();
        let request = self.stats.begin(Operation::Read);
        let ino = ino_or_reply!(self, ino, reply);
        SCRATCH.with_borrow_mut(|scratch| {
            let outcome = self.tree.read(ino, offset, size, scratch);
            let is_answered = outcome.is_ok();
            match outcome {
                Ok(bytes) => {
                    request.hand_out(offset, bytes.as_slice().len());
                    reply.data(bytes.as_slice());
                }
                Err(error) => reply.error(self.errno(&request, ino, &error)),
            }
            scratch.finish(is_answered);
        });
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let request = self.stats.begin(Operation::Readdir);
        let ino = ino_or_reply!(self, ino, reply);
        let (dots, cookie) = dots(Cookie(offset));
        for dot in dots {
            let name = OsStr::from_bytes(dot.name);
            if reply.add(self.dot_number(ino, dot), dot.next.0, FileType::Directory, name) {
                return reply.ok();
            }
        }
        let outcome = self.tree.read_dir(ino, cookie, &mut |entry| {
            let number = self.number(entry.ino);
            let name = OsStr::from_bytes(entry.name.as_bytes());
            full(reply.add(number, entry.next.0, file_type(entry.kind), name))
        });
        match outcome {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.errno(&request, ino, &error)),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let request = self.stats.begin(Operation::Readdirplus);
        let ino = ino_or_reply!(self, ino, reply);
        let (dots, cookie) = dots(Cookie(offset));
        for dot in dots {
            // For these two the kernel uses only the name, number and kind.
            let number = self.dot_number(ino, dot);
            let attr = FileAttr { ino: number, ..unknown_attr(ino, FileKind::Directory) };
            let name = OsStr::from_bytes(dot.name);
            if reply.add(number, dot.next.0, name, &self.ttl, &attr, GENERATION) {
                return reply.ok();
            }
        }
        let outcome = self.tree.read_dir(ino, cookie, &mut |entry| {
            // One bad inode must not hide its neighbors. It is listed with a zero time-out, so
            // that a later lookup gets the error.
            let (attr, ttl) = match self.tree.attr(entry.ino) {
                Ok(attr) => (self.attr(&attr), self.ttl),
                Err(error) => {
                    self.errno(&request, entry.ino, &error);
                    (self.attr(&Attr::unknown(entry.ino, entry.kind)), Duration::ZERO)
                }
            };
            let name = OsStr::from_bytes(entry.name.as_bytes());
            full(reply.add(attr.ino, entry.next.0, name, &ttl, &attr, GENERATION))
        });
        match outcome {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.errno(&request, ino, &error)),
        }
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let request = self.stats.begin(Operation::Lseek);
        let ino = ino_or_reply!(self, ino, reply);
        let target = match whence {
            libc::SEEK_DATA => SeekTarget::Data,
            libc::SEEK_HOLE => SeekTarget::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        match self.tree.seek(ino, offset, target) {
            Ok(found) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
            Err(error) => reply.error(self.errno(&request, ino, &error)),
        }
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let request = self.stats.begin(Operation::Getxattr);
        let ino = ino_or_reply!(self, ino, reply);
        if !self.tree.has_xattrs() {
            // The kernel remembers this reply and stops asking.
            return reply.error(Errno::ENOSYS);
        }
        if !is_linux_xattr(name.as_bytes()) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        match self.tree.xattr(ino, name.as_bytes()) {
            Ok(value) => reply::xattr(reply, size, &value),
            Err(error) => reply.error(self.errno(&request, ino, &error)),
        }
    }

    fn listxattr(&self, caller: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let request = self.stats.begin(Operation::Listxattr);
        let ino = ino_or_reply!(self, ino, reply);
        if !self.tree.has_xattrs() {
            return reply.error(Errno::ENOSYS);
        }
        match self.tree.list_xattrs(ino) {
            Ok(names) => reply::xattr(reply, size, &reply::visible_xattrs(names, caller)),
            Err(error) => reply.error(self.errno(&request, ino, &error)),
        }
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.stats.count(Operation::Other);
        let totals = self.tree.totals();
        let unit = totals.block_size.max(1);
        let blocks = totals.bytes.div_ceil(u64::from(unit));
        let longest = u32::try_from(Name::MAX).unwrap_or(u32::MAX);
        reply.statfs(blocks, 0, 0, totals.inodes, 0, unit, longest, unit);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.stats.count(Operation::Other);
        self.agreement.files.answer(reply);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.stats.count(Operation::Other);
        self.agreement.directories.answer(reply);
    }

    // An open file or directory has no state here, so there is nothing to release. That matters:
    // some kernels send no RELEASEDIR after ENOSYS for OPEN.
    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _lock: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.stats.count(Operation::Other);
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, _: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.stats.count(Operation::Other);
        reply.ok();
    }

    // ENOSYS means "not needed" on every kernel: the call succeeds, and the kernel never asks
    // again.
    answer_all! {
        ENOSYS:
        flush(INodeNo, FileHandle, LockOwner) -> ReplyEmpty;
    }

    // Sent for access(2) and chdir(2) if the mount has no `-o allow_other`; with it the kernel
    // checks. The user may read and enter everything, but execute only files with an x bit.
    fn access(&self, _: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let request = self.stats.begin(Operation::Other);
        let ino = ino_or_reply!(self, ino, reply);
        if !mask.contains(AccessFlags::X_OK) {
            return reply.ok();
        }
        match self.tree.attr(ino) {
            Ok(attr) if attr.kind == FileKind::Regular && attr.permissions & 0o111 == 0 => {
                reply.error(Errno::EACCES);
            }
            Ok(_) => reply.ok(),
            Err(error) => reply.error(self.errno(&request, ino, &error)),
        }
    }

    // There is nothing to write back. ENOSYS makes fsync(2) on a read-only file succeed.
    answer_all! {
        ENOSYS:
        fsync(INodeNo, FileHandle, bool) -> ReplyEmpty;
        fsyncdir(INodeNo, FileHandle, bool) -> ReplyEmpty;
    }

    // Python before 3.14 checks whether each file it opens is a terminal. The kernel does not
    // remember ENOSYS here, so the reply is the cheapest possible.
    answer_all! {
        ENOTTY:
        ioctl(INodeNo, FileHandle, IoctlFlags, u32, &[u8], u32) -> ReplyIoctl;
    }

    // The mount is read-only, so the kernel rejects these itself. If one arrives anyway (a mount
    // that was remounted writable), the reply is the same.
    answer_all! {
        EROFS:
        setattr(
            INodeNo, Option<u32>, Option<u32>, Option<u32>, Option<u64>, Option<TimeOrNow>,
            Option<TimeOrNow>, Option<SystemTime>, Option<FileHandle>, Option<SystemTime>,
            Option<SystemTime>, Option<SystemTime>, Option<BsdFileFlags>
        ) -> ReplyAttr;
        mknod(INodeNo, &OsStr, u32, u32, u32) -> ReplyEntry;
        mkdir(INodeNo, &OsStr, u32, u32) -> ReplyEntry;
        symlink(INodeNo, &OsStr, &Path) -> ReplyEntry;
        link(INodeNo, INodeNo, &OsStr) -> ReplyEntry;
        create(INodeNo, &OsStr, u32, u32, i32) -> ReplyCreate;
        unlink(INodeNo, &OsStr) -> ReplyEmpty;
        rmdir(INodeNo, &OsStr) -> ReplyEmpty;
        rename(INodeNo, &OsStr, INodeNo, &OsStr, RenameFlags) -> ReplyEmpty;
        write(
            INodeNo, FileHandle, u64, &[u8], WriteFlags, OpenFlags, Option<LockOwner>
        ) -> ReplyWrite;
        fallocate(INodeNo, FileHandle, u64, u64, i32) -> ReplyEmpty;
        copy_file_range(
            INodeNo, FileHandle, u64, INodeNo, FileHandle, u64, u64, CopyFileRangeFlags
        ) -> ReplyWrite;
        setxattr(INodeNo, &OsStr, &[u8], i32, u32) -> ReplyEmpty;
        removexattr(INodeNo, &OsStr) -> ReplyEmpty;
    }
}

fn full(buffer_full: bool) -> ControlFlow<()> {
    if buffer_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
