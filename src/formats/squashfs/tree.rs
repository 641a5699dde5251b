//! Implements the operations of `Tree` for an image.
//!
//! Invariant: an error names the archive, and an error about damage also names the inode.

use std::ops::{ControlFlow, Range};

use super::blocks::FileRef;
use super::directory::{Directory, Entry, EntryTarget};
use super::inode::{Body, Inode, InodeRef, RegularBody};
use super::metadata::Cursor;
use super::superblock::Superblock;
use super::xattr::Xattrs;
use super::{SquashFs, audit};
use crate::cache::{Fetch, Request};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::index;
use crate::vfs::{
    Attr, Cookie, DirEntry, Finding, Ino, Name, ReadBytes, Scratch, SeekTarget, StoredFile,
    Timestamp, Totals, Tree, link_target,
};

/// Least value of st_blksize, bytes. Python uses it as its buffer size, so one read covers a
/// typical JPEG.
const PREFERRED_READ: u32 = 128 << 10;

/// Least bytes per readahead request to a thread: several blocks if blocks are small.
const AHEAD_PART: u64 = 128 << 10;

impl Tree for SquashFs {
    fn attr(&self, ino: Ino) -> Result<Attr> {
        let attr = self.numbers.reference(ino).and_then(|reference| self.attr_of(reference, ino));
        attr.map_err(self.with_location(ino))
    }

    fn lookup(&self, parent: Ino, name: Name<'_>) -> Result<Option<Attr>> {
        let found = self
            .numbers
            .reference(parent)
            .and_then(|reference| Ok((reference, self.directory(reference)?.find(name)?)));
        let (parent_ref, Some(found)) = found.map_err(self.with_location(parent))? else {
            return Ok(None);
        };
        let ino =
            self.numbers.ino(found.reference, found.number).map_err(self.with_location(parent))?;
        self.child(parent_ref, found, ino).map(Some).map_err(self.with_location(ino))
    }

    fn read_dir(
        &self,
        ino: Ino,
        cookie: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut checked = Ok(());
        self.numbers
            .reference(ino)
            .and_then(|parent_ref| {
                self.directory(parent_ref)?.visit(cookie, |entry| {
                    let Entry { reference, number, kind, name, next, .. } = entry;
                    let child = self.check_child(parent_ref, reference);
                    match child.and_then(|()| self.numbers.ino(reference, number)) {
                        Ok(ino) => visit(DirEntry { ino, kind, name, next }),
                        Err(error) => {
                            checked = Err(error);
                            ControlFlow::Break(())
                        }
                    }
                })
            })
            .and(checked)
            .map_err(self.with_location(ino))
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.target(ino).map_err(self.with_location(ino))
    }

    fn read<'s>(
        &self,
        ino: Ino,
        offset: u64,
        size: u32,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        let range = offset..offset.saturating_add(u64::from(size));
        self.file(ino)
            .and_then(|file| {
                self.read_ahead(&file, range.clone());
                self.data.read(self.blocks.ranges(file, range)?, scratch)
            })
            .map_err(self.with_location(ino))
    }

    fn seek(&self, ino: Ino, offset: u64, target: SeekTarget) -> Result<u64> {
        self.file(ino)
            .and_then(|file| self.blocks.seek(file, offset, target))
            .map_err(self.with_location(ino))
    }

    fn has_xattrs(&self) -> bool {
        self.xattrs.is_some()
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        let listed = self.xattrs_of(ino).and_then(|found| match found {
            Some((xattrs, id)) => xattrs.list(id),
            None => Ok(Vec::new()),
        });
        listed.map_err(self.with_location(ino))
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let value = self.xattrs_of(ino).and_then(|found| match found {
            Some((xattrs, id)) => xattrs.value(id, name),
            None => Err(Error::new(Kind::NoAttribute, "no such attribute")),
        });
        value.map_err(self.with_location(ino))
    }

    fn totals(&self) -> Totals {
        Totals {
            bytes: self.superblock.bytes_used,
            inodes: u64::from(self.superblock.inode_count),
            block_size: self.superblock.block_size,
        }
    }

    fn parent(&self, ino: Ino) -> Result<Option<Ino>> {
        let parent = self.numbers.reference(ino).and_then(|reference| {
            let (inode, _) = self.inode(reference)?;
            match inode.body {
                _ if reference == self.numbers.root() => Ok(Some(Ino::ROOT)),
                Body::Directory(body) => self.numbers.stored(body.parent),
                _ => Err(Error::new(Kind::NotADirectory, "not a directory")),
            }
        });
        parent.map_err(self.with_location(ino))
    }

    fn numbers_end(&self) -> u64 {
        let Superblock { inode_table, directory_table, .. } = self.superblock;
        self.numbers.end(directory_table.saturating_sub(inode_table))
    }

    fn data_offset(&self, ino: Ino) -> Result<u64> {
        let start = self.file(ino).and_then(|file| self.data_start(&file.body));
        start.map_err(self.with_location(ino))
    }

    fn stored_files(&self, visit: &mut dyn FnMut(Ino, StoredFile)) -> Result<()> {
        if self.data.storage.position(0, 0).is_none() {
            return Ok(());
        }
        let scanned = self.scan_inodes(|reference, inode, list| {
            let Body::Regular(body) = inode.body else { return Ok(()) };
            let file = FileRef { inode: reference, body, list: list.clone() };
            // A damaged file is reported when it is read.
            if let Ok(Some(stored)) = self.stored(file) {
                visit(self.numbers.ino(reference, inode.number)?, stored);
            }
            Ok(())
        });
        scanned.map(drop).map_err(|error| error.within(&self.name))
    }

    fn audit(&self, found: &mut dyn FnMut(Finding)) {
        audit::audit(self, found);
    }

    // The storage is not released here. If it is a file of another archive, that archive is another
    // tree of the mount and is released itself.
    fn release(&self) {
        self.blocks.checkpoints.clear();
        self.data.release();
        self.metadata.cache.clear();
    }
}

impl Fetch for SquashFs {
    fn fetch(&self, file: u64, range: Range<u64>) {
        let Some(range) = self.readahead.wanted(file, range) else {
            return;
        };
        let outcome = InodeRef::parse(file).map(|reference| {
            let file = self.file_at(reference)?;
            self.data.fetch(self.blocks.ranges(file, range)?)
        });
        if let Some(Err(error)) = outcome {
            // A read of the block fails with the same error and reports it.
            log::debug!("{}: decoding ahead: {error}", self.name);
        }
    }
}

impl SquashFs {
    /// The inode at `reference`, and a cursor after the fixed part of its record.
    pub(super) fn inode(&self, reference: InodeRef) -> Result<(Inode, Cursor<'_>)> {
        Inode::read(&self.metadata, self.superblock.inode_table, reference)
    }

    /// The attributes of the inode at `reference`, whose number is `ino`.
    fn attr_of(&self, reference: InodeRef, ino: Ino) -> Result<Attr> {
        let (inode, _) = self.inode(reference)?;
        let (size, allocated, device) = match inode.body {
            Body::Regular(body) => (body.size, body.size.saturating_sub(body.sparse), 0),
            Body::Directory(body) => (u64::from(body.size), u64::from(body.size), 0),
            Body::Symlink { len } => (u64::from(len), 0, 0),
            Body::Device { number, .. } => (0, 0, number),
            Body::Fifo | Body::Socket => (0, 0, 0),
        };
        Ok(Attr {
            ino,
            kind: inode.kind(),
            permissions: inode.permissions,
            nlink: inode.nlink,
            uid: self.owner(inode.uid)?,
            gid: self.owner(inode.gid)?,
            size,
            allocated,
            device,
            modified: Timestamp { seconds: i64::from(inode.modified), nanoseconds: 0 },
            block_size: self.superblock.block_size.max(PREFERRED_READ),
        })
    }

    fn owner(&self, number: u16) -> Result<u32> {
        self.ids.get(usize::from(number)).copied().ok_or_else(|| {
            let count = self.ids.len();
            Error::corrupt(format!("id {number} referenced, but there are {count}"))
        })
    }

    fn directory(&self, reference: InodeRef) -> Result<Directory<'_>> {
        let (inode, index) = self.inode(reference)?;
        match inode.body {
            Body::Directory(body) => {
                let table = self.superblock.directory_table;
                Ok(Directory::new(&self.metadata, table, body, index))
            }
            _ => Err(Error::new(Kind::NotADirectory, "not a directory")),
        }
    }

    pub(super) fn file(&self, ino: Ino) -> Result<FileRef<'_>> {
        self.file_at(self.numbers.reference(ino)?)
    }

    fn file_at(&self, reference: InodeRef) -> Result<FileRef<'_>> {
        let (inode, list) = self.inode(reference)?;
        match inode.body {
            Body::Regular(body) => Ok(FileRef { inode: reference, body, list }),
            Body::Directory(_) => Err(Error::new(Kind::IsADirectory, "is a directory")),
            _ => Err(Error::new(Kind::InvalidInput, "not a regular file")),
        }
    }

    /// Where the bytes of `file` are in the storage, if its blocks are uncompressed and follow each
    /// other there. The tail may be elsewhere, in a fragment block.
    fn stored(&self, file: FileRef<'_>) -> Result<Option<StoredFile>> {
        let size = file.body.size;
        let mut ranges = self.blocks.ranges(file, 0..size)?;
        let Some(head) = ranges.next_uncompressed()? else { return Ok(None) };
        let tail = ranges.next_uncompressed()?;
        if ranges.remaining() > 0 {
            return Ok(None);
        }
        let position = |range: &Range<u64>| {
            self.data.storage.position(range.start, range.end.saturating_sub(range.start))
        };
        let head_len = head.end.saturating_sub(head.start);
        let Some(start) = position(&head) else { return Ok(None) };
        let tail = match tail {
            None => None,
            Some(range) => match position(&range) {
                None => return Ok(None),
                Some(rest) => Some((head_len, rest)),
            },
        };
        Ok(Some(StoredFile { size, head: start, tail }))
    }

    /// Offset in the image of the first byte of a file's contents.
    fn data_start(&self, body: &RegularBody) -> Result<u64> {
        match body.tail {
            Some(tail) if body.size < u64::from(self.superblock.block_size) => {
                Ok(self.blocks.fragment_of(tail)?.range().start)
            }
            _ => Ok(body.start),
        }
    }

    /// Requests the blocks after a read of `range`, if the file is read in order.
    fn read_ahead(&self, file: &FileRef<'_>, range: Range<u64>) {
        let (number, len) = (file.inode.bits(), file.body.size);
        let Some(Range { mut start, end }) = self.readahead.observe(number, range, len) else {
            return;
        };
        // A block that starts before `start` was requested earlier or is being read.
        let block_size = u64::from(self.superblock.block_size);
        start = start.checked_next_multiple_of(block_size).unwrap_or(end);
        // Split into parts for several threads, at block boundaries.
        let part = block_size.max(AHEAD_PART);
        while start < end {
            let cut = start.saturating_add(1).checked_next_multiple_of(part).unwrap_or(end);
            let range = start..cut.min(end);
            start = range.end;
            // The storage reads uncompressed blocks by itself. A thread might ask for them only
            // when they have been served and dropped.
            let ranges = self.blocks.ranges(file.clone(), range.clone());
            if matches!(ranges.and_then(|ranges| self.data.announce(ranges)), Ok(true)) {
                continue;
            }
            if !self.workers.submit(Request { by: self.weak_self.clone(), file: number, range }) {
                break;
            }
        }
    }

    /// The target of a symbolic link.
    fn target(&self, ino: Ino) -> Result<Vec<u8>> {
        let (inode, mut cursor) = self.inode(self.numbers.reference(ino)?)?;
        let Body::Symlink { len } = inode.body else {
            return Err(Error::new(Kind::InvalidInput, "not a symbolic link"));
        };
        let mut target = vec![0; index(len)];
        cursor.fill(&mut target)?;
        link_target(target)
    }

    /// The table of attributes and the index of `ino` in it, if it has any.
    fn xattrs_of(&self, ino: Ino) -> Result<Option<(&Xattrs, u32)>> {
        let Some(xattrs) = &self.xattrs else {
            return Ok(None);
        };
        let (inode, _) = self.inode(self.numbers.reference(ino)?)?;
        Ok(inode.xattr.map(|id| (xattrs, id)))
    }

    /// The attributes of inode `ino`, which the entry `found` of the directory `parent_ref` names.
    /// Checks that it has the kind of the entry, and that no directory contains the root or itself.
    fn child(&self, parent_ref: InodeRef, found: EntryTarget, ino: Ino) -> Result<Attr> {
        self.check_child(parent_ref, found.reference)?;
        let (attr, kind) = (self.attr_of(found.reference, ino)?, found.kind);
        if attr.kind != kind {
            let context = format!("{}, its entry says {kind}", attr.kind);
            return Err(Error::corrupt(context));
        }
        Ok(attr)
    }

    /// Rejects an entry that makes a directory its own parent, or the root a child.
    fn check_child(&self, parent_ref: InodeRef, child: InodeRef) -> Result<()> {
        match child {
            child if child == self.numbers.root() => Err(Error::corrupt("contains the root")),
            child if child == parent_ref => Err(Error::corrupt("contains itself")),
            _ => Ok(()),
        }
    }

    /// Returns a function that adds the archive's name to an error. For damage, it also adds the
    /// position of the inode.
    fn with_location(&self, ino: Ino) -> impl Fn(Error) -> Error + '_ {
        move |error| {
            let reference = error.is_damage().then(|| self.numbers.reference(ino));
            let error = match reference {
                Some(Ok(reference)) => {
                    error.with_detail(reference.describe(self.superblock.inode_table))
                }
                _ => error,
            };
            error.within(&self.name)
        }
    }
}
