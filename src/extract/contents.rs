//! Writes everything but directories with several threads, in the order of the archive.
//!
//! A large file is split into parts, so that it keeps all threads busy. Invariants: each part is
//! written by one thread. The threads read close to each other in the archive, so that a block that
//! files share is decoded once. The thread that finishes last with a file completes it.
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::slice::ChunkBy;
use std::thread;

use rustix::fs::{
    AtFlags, Dev, FileType, Mode, OFlags, ftruncate, linkat, makedev, mknodat, openat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;

use super::Existing;
use super::attributes::{Object, restore};
use super::listing::{Entry, Listing};
use super::target::{OpenDirectories, OpenDirectory, Target, Unusable};
use super::{Failure, Report};
use crate::progress::Progress;
use crate::sync::{Arc, AtomicBool, Condvar, Mutex, Ordering};
use crate::vfs::{
    Attr, ContentCheck, Counts, FileKind, PART, Scratch, SeekTarget, Tree, next_data, piece_of,
    read_some,
};

/// What the threads share.
#[derive(Clone, Copy)]
pub(super) struct Contents<'w> {
    pub(super) tree: &'w dyn Tree,
    pub(super) listing: &'w Listing,
    pub(super) target: &'w Target,
    /// The directories to leave out.
    pub(super) unusable: &'w Unusable,
    pub(super) existing: Existing,
    pub(super) report: &'w Report<'w>,
    pub(super) progress: &'w Progress,
}

impl Contents<'_> {
    pub(super) fn write(self, threads: usize) {
        let feed = Feed::new(&self.listing.entries);
        let run = || {
            let directories = OpenDirectories::new(self.target, self.listing);
            let scratch = Scratch::default();
            Writer { contents: self, feed: &feed, directories, scratch }.run();
        };
        thread::scope(|scope| {
            for _ in 1..threads.max(1) {
                // If a thread cannot be started, the others do its work.
                let _ = thread::Builder::new().name("extract".into()).spawn_scoped(scope, run);
            }
            run();
        });
    }
}

struct NewFile<'w> {
    file: File,
    directory: OpenDirectory<'w>,
    /// All its names. It is written under the first one.
    names: &'w [Entry],
    attr: Attr,
    check: ContentCheck,
    has_failed: AtomicBool,
}

/// One thread.
struct Writer<'w> {
    contents: Contents<'w>,
    feed: &'w Feed<'w>,
    directories: OpenDirectories<'w>,
    scratch: Scratch,
}

/// The result of creating an inode.
enum Created<'w> {
    /// A regular file, still empty.
    File(Box<NewFile<'w>>),
    /// Anything else, complete.
    Node,
    /// Nothing, and that was reported.
    LeftOut,
}

impl<'w> Writer<'w> {
    fn run(&mut self) {
        while let Some(work) = self.feed.next() {
            match work {
                Work::Inode(names) => match self.create(names) {
                    Created::File(new) if new.attr.size > PART => {
                        self.feed.settled(Some(*new));
                    }
                    created => {
                        self.feed.settled(None);
                        self.finish(created, names);
                    }
                },
                Work::Part(new, part) => {
                    self.write_part(&new, part, true);
                    if let Some(new) = Arc::into_inner(new) {
                        self.complete(new);
                    }
                }
            }
        }
    }

    /// Writes a file that was created, and the other names of an inode.
    fn finish(&mut self, created: Created<'w>, names: &'w [Entry]) {
        match created {
            Created::File(new) => {
                let new = Arc::new(*new);
                self.write_part(&new, 0..new.attr.size, false);
                if let Some(new) = Arc::into_inner(new) {
                    self.complete(new);
                }
            }
            Created::Node => self.link(names),
            Created::LeftOut => {}
        }
    }

    /// Creates the inode under the first of `names`.
    fn create(&mut self, names: &'w [Entry]) -> Created<'w> {
        let Contents { unusable, report, listing, .. } = self.contents;
        let Some((entry, others)) = names.split_first() else { return Created::LeftOut };
        if report.is_stopped() {
            return Created::LeftOut;
        }
        if unusable.contains(entry.directory) {
            return self.create(others);
        }
        self.try_create(entry, names).unwrap_or_else(|failure| {
            for entry in names {
                report.failed(listing.path(entry), &failure);
            }
            Created::LeftOut
        })
    }

    fn try_create(&mut self, entry: &'w Entry, names: &'w [Entry]) -> Result<Created<'w>, Failure> {
        let Contents { tree, listing, report, .. } = self.contents;
        let failed = |what| move |errno| Failure::System(what, errno);
        let attr = tree.attr(entry.ino).map_err(Failure::Tree)?;
        let directory = self.directories.open(entry.directory);
        let directory = directory.map_err(failed("cannot open its directory"))?;
        let name = listing.name(entry);
        let path = || listing.path(entry);
        if attr.kind == FileKind::Regular {
            let checksum = tree.stored_crc32(attr.ino).map_err(Failure::Tree)?;
            let check = ContentCheck::new(checksum, attr.size);
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            // Extended attributes may be access control lists that allow less than the permissions.
            let permissions = if tree.has_xattrs() { 0o600 } else { attr.permissions & 0o777 };
            let mode = Mode::from_raw_mode(permissions.into());
            let opened =
                self.replacing(&directory, name, &|| openat(&directory, name, flags, mode));
            let file = opened.map_err(cannot_create)?.into();
            let has_failed = AtomicBool::new(false);
            let new = NewFile { file, directory, names, attr, check, has_failed };
            return Ok(Created::File(Box::new(new)));
        }
        let target = match attr.kind {
            FileKind::Symlink => tree.read_link(attr.ino).map_err(Failure::Tree)?,
            _ => Vec::new(),
        };
        let make = || create_node(&directory, name, &attr, &target);
        match self.replacing(&directory, name, &make) {
            Err(errno @ Errno::PERM) if is_device(&attr) => {
                report.left_out("device", &path, errno);
                return Ok(Created::LeftOut);
            }
            made => made.map_err(cannot_create)?,
        }
        let location = openat(&directory, name, LOCATION, Mode::empty());
        let location = location.map_err(failed("cannot open"))?;
        let object =
            Object::Location { location: location.as_fd(), directory: directory.as_fd(), name };
        restore(tree, &attr, object, report, &path)?;
        report.written(counts(&attr));
        Ok(Created::Node)
    }

    /// Creates a name with `make`. If it is taken, the file there is removed first, if that is
    /// wanted.
    fn replacing<T>(
        &self,
        directory: &OpenDirectory<'_>,
        name: &[u8],
        make: &dyn Fn() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match make() {
            Err(Errno::EXIST) if self.contents.existing == Existing::Replace => {
                unlinkat(directory, name, AtFlags::empty())?;
                make()
            }
            made => made,
        }
    }

    /// Writes a part of a file. With `is_shared`, other threads write other parts of it.
    fn write_part(&mut self, new: &Arc<NewFile<'w>>, part: Range<u64>, is_shared: bool) {
        let Contents { report, listing, .. } = self.contents;
        if new.has_failed.load(Ordering::Relaxed) {
            return;
        }
        let written = self.try_write_part(new, part, is_shared);
        let has_failed = match written {
            Ok(()) => report.is_stopped(),
            Err(failure) => {
                if !new.has_failed.swap(true, Ordering::Relaxed) {
                    for entry in new.names {
                        report.failed(listing.path(entry), &failure);
                    }
                }
                true
            }
        };
        if has_failed {
            new.has_failed.store(true, Ordering::Relaxed);
        }
    }

    fn try_write_part(
        &mut self,
        new: &Arc<NewFile<'w>>,
        part: Range<u64>,
        is_shared: bool,
    ) -> Result<(), Failure> {
        let Contents { tree, report, progress, .. } = self.contents;
        let (ino, size) = (new.attr.ino, new.attr.size);
        let mut offset = part.start;
        let mut sum = new.check.part(offset);
        // Where the data at `offset` ends, and a hole begins.
        let mut data_end = if new.has_holes() { offset } else { part.end };
        while offset < part.end && !report.is_stopped() {
            if offset >= data_end {
                let data = next_data(tree, ino, offset, size).map_err(Failure::Tree)?;
                if data > offset {
                    // A hole may be as large as the largest file, so it is not split into parts.
                    if is_shared && data > part.end {
                        self.feed.skip(new, data);
                    }
                    offset = data;
                    continue;
                }
                let hole = tree.seek(ino, offset, SeekTarget::Hole).map_err(Failure::Tree)?;
                data_end = hole.max(offset + 1).min(part.end);
            }
            let piece = piece_of(data_end - offset);
            let bytes = read_some(tree, ino, offset, piece, &mut self.scratch);
            let bytes = bytes
                .map_err(|error| Failure::Tree(error.within(format!("from byte {offset}"))))?;
            let bytes = bytes.as_slice();
            sum.update(bytes);
            new.file.write_all_at(bytes, offset).map_err(cannot_write)?;
            offset += bytes.len() as u64;
            progress.advance(bytes.len() as u64);
        }
        new.check.add(sum).map(drop).map_err(Failure::Tree)
    }

    /// Sets the attributes of a file that was written, and creates its other names. Removes it if
    /// it is not complete.
    fn complete(&mut self, new: NewFile<'w>) {
        let Contents { tree, listing, report, .. } = self.contents;
        let Some(entry) = new.names.first() else { return };
        if new.has_failed.load(Ordering::Relaxed) {
            let _ = unlinkat(&new.directory, listing.name(entry), AtFlags::empty());
            return;
        }
        let path = || listing.path(entry);
        let restored = match new.has_holes() {
            true => ftruncate(&new.file, new.attr.size)
                .map_err(|errno| Failure::System("cannot extend", errno)),
            false => Ok(()),
        };
        let restored = restored
            .and_then(|()| restore(tree, &new.attr, Object::Open(new.file.as_fd()), report, &path));
        if let Err(failure) = restored {
            report.failed(path(), &failure);
        }
        report.written(Counts { files: 1, bytes: new.attr.size, ..Counts::default() });
        let NewFile { names, file, .. } = new;
        drop(file);
        self.link(names);
    }

    /// Creates all names of an inode but the first, which exists.
    fn link(&mut self, names: &'w [Entry]) {
        let Contents { unusable, listing, report, .. } = self.contents;
        let Some((first, others)) = names.split_first() else { return };
        for (nth, entry) in others.iter().enumerate() {
            if report.is_stopped() {
                return;
            }
            if unusable.contains(entry.directory) {
                continue;
            }
            match self.link_one(first, entry) {
                Ok(()) if entry.is_regular => {
                    report.written(Counts { files: 1, ..Counts::default() });
                }
                Ok(()) => {}
                // Too many links, or the file system has none: a copy has the same contents.
                Err(Errno::MLINK | Errno::PERM | Errno::XDEV | Errno::OPNOTSUPP) => {
                    let names = &others[nth..];
                    let created = self.create(names);
                    return self.finish(created, names);
                }
                Err(errno) => report.failed(listing.path(entry), &cannot_create(errno)),
            }
        }
    }

    fn link_one(&mut self, first: &Entry, entry: &Entry) -> Result<(), Errno> {
        let listing = self.contents.listing;
        let from = self.directories.open(first.directory)?;
        let to = self.directories.open(entry.directory)?;
        let (old, new) = (listing.name(first), listing.name(entry));
        self.replacing(&to, new, &|| linkat(&from, old, &to, new, AtFlags::empty()))
    }
}

enum Work<'w> {
    /// Create the inode that has these names.
    Inode(&'w [Entry]),
    /// Write this part of a large file.
    Part(Arc<NewFile<'w>>, Range<u64>),
}

/// The queue of files to write, and of parts of large files. A thread gets nothing only if no other
/// thread can still add a part.
struct Feed<'w> {
    /// Guards only the queue; no other lock is held with it.
    state: Mutex<FeedState<'w>>,
    changed: Condvar,
}

type SameInode = fn(&Entry, &Entry) -> bool;

struct FeedState<'w> {
    rest: ChunkBy<'w, Entry, SameInode>,
    large: VecDeque<Large<'w>>,
    /// Inodes that were handed out and may turn out to be large files.
    pending: usize,
}

struct Large<'w> {
    new: Arc<NewFile<'w>>,
    /// Offset of the first part that was not handed out.
    next: u64,
}

impl<'w> Feed<'w> {
    /// A queue of `entries`, in which the names of one inode are adjacent.
    fn new(entries: &'w [Entry]) -> Self {
        let same: SameInode = |a, b| a.ino == b.ino;
        let (rest, large) = (entries.chunk_by(same), VecDeque::new());
        Self { state: Mutex::new(FeedState { rest, large, pending: 0 }), changed: Condvar::new() }
    }

    /// The next work. `settled` must follow an `Inode`.
    fn next(&self) -> Option<Work<'w>> {
        let mut state = self.state.lock();
        loop {
            if let Some(mut large) = state.large.pop_front() {
                let part = large.next..large.next.saturating_add(PART).min(large.new.attr.size);
                large.next = part.end;
                if large.next >= large.new.attr.size {
                    // With this reference, whichever thread finishes last completes the file.
                    return Some(Work::Part(large.new, part));
                }
                let new = Arc::clone(&large.new);
                state.large.push_front(large);
                return Some(Work::Part(new, part));
            }
            if let Some(names) = state.rest.next() {
                state.pending += 1;
                return Some(Work::Inode(names));
            }
            if state.pending == 0 {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// An `Inode` is complete, or is the large file `large`.
    fn settled(&self, large: Option<NewFile<'w>>) {
        let mut state = self.state.lock();
        state.pending -= 1;
        if let Some(new) = large {
            state.large.push_back(Large { new: Arc::new(new), next: 0 });
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Leaves out the part of `new` before `offset`, if it was not handed out. The caller still has
    /// a part of it.
    fn skip(&self, new: &Arc<NewFile<'w>>, offset: u64) {
        let mut state = self.state.lock();
        let Some(nth) = state.large.iter().position(|large| Arc::ptr_eq(&large.new, new)) else {
            return;
        };
        let large = &mut state.large[nth];
        large.next = large.next.max(offset);
        if large.next >= large.new.attr.size {
            state.large.remove(nth);
        }
    }
}

impl NewFile<'_> {
    fn has_holes(&self) -> bool {
        self.attr.allocated < self.attr.size
    }
}

fn cannot_create(errno: Errno) -> Failure {
    match errno {
        Errno::EXIST => Failure::Exists,
        errno => Failure::System("cannot create", errno),
    }
}

fn cannot_write(error: io::Error) -> Failure {
    Failure::System("cannot write", Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Opens the location of a file and nothing behind it.
const LOCATION: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Creates anything but a regular file or a directory. `target` is that of a symbolic link.
///
/// Fails with the error of the system; `EPERM` for a device if the user may not create devices.
fn create_node(
    directory: &OpenDirectory<'_>,
    name: &[u8],
    attr: &Attr,
    target: &[u8],
) -> Result<(), Errno> {
    let kind = match attr.kind {
        FileKind::Symlink => return symlinkat(target, directory, name),
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        // An entry of the directory says otherwise.
        FileKind::Regular | FileKind::Directory => return Err(Errno::INVAL),
    };
    let device = if is_device(attr) { device(attr.device) } else { 0 };
    mknodat(directory, name, kind, Mode::RUSR | Mode::WUSR, device)
}

fn is_device(attr: &Attr) -> bool {
    matches!(attr.kind, FileKind::BlockDevice | FileKind::CharDevice)
}

fn counts(attr: &Attr) -> Counts {
    match attr.kind {
        FileKind::Symlink => Counts { links: 1, ..Counts::default() },
        _ => Counts { others: 1, ..Counts::default() },
    }
}

/// A device number from the kernel's 32-bit encoding (new_decode_dev in linux/kdev_t.h).
fn device(encoded: u32) -> Dev {
    makedev((encoded & 0x000f_ff00) >> 8, (encoded & 0xff) | ((encoded >> 12) & 0x000f_ff00))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_those_of_the_kernel() {
        for (encoded, major, minor) in
            [(0x0103, 1, 3), (0x0811, 8, 17), (0xabc1_03de, 259, 0x000a_bcde)]
        {
            assert_eq!(device(encoded), makedev(major, minor), "{encoded:#x}");
        }
    }
}
