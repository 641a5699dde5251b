//! SquashFS 4.0, read in parallel: an image as a `Tree`.
//!
//! `superblock` holds the positions of the tables. `metadata` reads the compressed chains that they
//! are stored in, and `table` finds records in them. `inode` and `directory` form the tree.
//! `blocklist` and `data` read file contents. `tree` implements the operations of `vfs`.
//!
//! Invariant: opening reads the superblock and the position lists of tables, but no inode except
//! the root. A mount costs the same for ten files as for ten million. Nothing of the tree is in
//! memory except cached blocks.

use std::ops::Range;

use crate::cache::{BlockPools, Budget, Fetch, Part, Readahead, Request, Resize, Room, Workers};
use crate::error::{Error, Kind, Result};
use crate::stats::Stats;
use crate::storage::{Storage, Window};
use crate::sync::{Arc, Weak};
use crate::vfs::{Attr, FileKind, Ino, Timestamp};

mod audit;
mod block_ranges;
mod blocklist;
mod compressor;
mod data;
mod directory;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
#[cfg(test)]
mod image;
mod info;
mod inode;
mod inode_scan;
mod metadata;
mod numbers;
mod superblock;
mod table;
#[cfg(test)]
mod tests;
mod tree;
mod xattr;

use blocklist::BlockLists;
use data::{Data, FileRef};
use directory::Directory;
use inode::{Body, Inode, InodeRef};
use metadata::{Cursor, Metadata};
use numbers::Numbers;
use superblock::Superblock;
use table::Table;
use xattr::Xattrs;

/// Least value of st_blksize, bytes. Python uses it as its buffer size, so one read covers a
/// typical JPEG.
const PREFERRED_READ: u32 = 128 << 10;

/// Data is decoded ahead only if the cache has room for this many blocks.
const AHEAD_BLOCKS_MIN: u64 = 8;

/// Least bytes per readahead request to a thread: several blocks if blocks are small.
const AHEAD_PART: u64 = 128 << 10;

/// What all images of a mount share.
pub(crate) struct Shared {
    /// Threads that decode ahead.
    pub(crate) workers: Arc<Workers>,
    /// Memory for blocks.
    pub(crate) pools: BlockPools,
    /// Limits the memory for blocks.
    room: Arc<Room>,
}

impl Shared {
    pub(crate) fn new(room: Arc<Room>) -> Self {
        Self { workers: Arc::default(), pools: BlockPools::default(), room }
    }
}

#[cfg(any(test, fuzzing))]
impl Default for Shared {
    fn default() -> Self {
        Self::new(Room::new(u64::MAX))
    }
}

/// The readahead capacity for a cache of `capacity` bytes. 0 if the cache is so small that blocks
/// would be evicted before they are read.
fn ahead_capacity(capacity: u64, block_size: u32) -> u64 {
    if capacity / AHEAD_BLOCKS_MIN >= u64::from(block_size) { capacity } else { 0 }
}

/// An open image.
pub(crate) struct SquashFs {
    /// The archive's name, for errors.
    name: String,
    /// The storage of the image, including anything after its end.
    whole: Arc<dyn Storage>,
    superblock: Superblock,
    numbers: Numbers,
    metadata: Metadata,
    data: Data,
    /// The owners, which inodes name by index. At most 65,536, all kept in memory.
    ids: Box<[u32]>,
    xattrs: Option<Xattrs>,
    readahead: Readahead,
    /// Capacity for data blocks, bytes.
    data_capacity: u64,
    workers: Arc<Workers>,
    /// A reference to itself, for the threads that decode ahead.
    weak_self: Weak<SquashFs>,
}

impl Resize for SquashFs {
    fn resize(&self, part: Part) {
        let capacity = ahead_capacity(part.of(self.data_capacity), self.superblock.block_size);
        self.readahead.set_capacity(capacity);
        self.metadata.resize(part);
        self.data.resize(part);
    }
}

impl SquashFs {
    /// Whether a file that starts with `bytes` looks like an image.
    pub(crate) fn recognises(bytes: &[u8]) -> bool {
        Superblock::recognises(bytes)
    }

    /// Opens the image in `storage`. `name` is for errors; `capacity` bytes are for decompressed
    /// blocks.
    ///
    /// # Errors
    /// The errors of `Superblock::parse`; `Corrupt` if a table or the root cannot be read; `Io`.
    pub(crate) fn open(
        name: &str,
        storage: Arc<dyn Storage>,
        capacity: u64,
        shared: &Shared,
    ) -> Result<Arc<Self>> {
        let opened = Self::open_unnamed(name, storage, capacity, shared);
        opened.map_err(|error| error.within(name))
    }

    fn open_unnamed(
        name: &str,
        storage: Arc<dyn Storage>,
        capacity: u64,
        shared: &Shared,
    ) -> Result<Arc<Self>> {
        let mut bytes = [0; superblock::SIZE];
        superblock::check_length(storage.len())?;
        storage.read_exact_at(&mut bytes, 0)?;
        let superblock = Superblock::parse(&bytes, storage.len())?;
        let end = superblock.bytes_used;
        // Padding or unrelated data may follow the image.
        let whole = storage;
        let storage: Arc<dyn Storage> = Arc::new(Window::new(Arc::clone(&whole), 0)?.cut(end)?);
        let root = InodeRef::parse(superblock.root).ok_or_else(|| {
            Error::corrupt(format!("superblock: root inode at {:#x}", superblock.root))
        })?;
        // Metadata gets a quarter. It is small, and a scan of file contents must not evict it.
        let metadata_share = capacity / 4;
        let codec = superblock.codec;
        let metadata = Metadata::new(Arc::clone(&storage), codec, metadata_share);
        let fragments = match superblock.fragment_table {
            None => None,
            Some(start) => {
                let count = superblock.fragment_count;
                Some(Table::read(&*storage, "fragment", start, count, end)?)
            }
        };
        let id_count = u32::from(superblock.id_count);
        let ids = Table::<4>::read(&*storage, "id", superblock.id_table, id_count, end)?;
        let ids = (0..id_count)
            .map(|number| ids.record(&metadata, number).map(u32::from_le_bytes))
            .collect::<Result<_>>()?;
        let xattrs = match superblock.xattr_table {
            None => None,
            Some(table) => Some(Xattrs::read(&*storage, table, end)?),
        };
        let data_share = capacity.saturating_sub(metadata_share);
        let block_size = superblock.block_size;
        let lists = BlockLists::new(block_size, superblock.words_max(), data_share / 16);
        let data_share = data_share.saturating_sub(data_share / 16);
        shared.room.set_aside(capacity.saturating_sub(data_share));
        let data = Data::new(storage, codec, lists, fragments, data_share, shared);
        let (inode, _) = Inode::read(&metadata, superblock.inode_table, root)
            .map_err(|error| error.within(root.describe(superblock.inode_table)))?;
        let kind = inode.kind();
        if kind != FileKind::Directory {
            return Err(Error::corrupt(format!("the root is no directory but {kind:?}")));
        }
        let numbers = Numbers::read(&*whole, &metadata, &superblock, root, &inode)?;
        let readahead = Readahead::new(ahead_capacity(data_share, block_size));
        Ok(Arc::new_cyclic(|weak_self| Self {
            name: name.to_owned(),
            whole,
            superblock,
            numbers,
            metadata,
            data,
            ids,
            xattrs,
            readahead,
            data_capacity: data_share,
            workers: Arc::clone(&shared.workers),
            weak_self: Weak::clone(weak_self),
        }))
    }

    /// Registers the counters of its caches with `stats`.
    pub(crate) fn report_to(&self, stats: &Stats) {
        self.metadata.report_to(stats);
        self.data.report_to(stats);
    }

    /// Lets `budget` resize its caches.
    pub(crate) fn draw_on(&self, budget: &Budget) {
        let weak_self = Weak::clone(&self.weak_self);
        budget.add(weak_self);
    }

    fn reference(&self, ino: Ino) -> Result<InodeRef> {
        self.numbers.reference(&self.metadata, ino)
    }

    /// The inode number of the inode at `reference`. `stored` is its number in a record or entry.
    fn ino(&self, reference: InodeRef, stored: u32) -> Result<Ino> {
        self.numbers.ino(&self.metadata, reference, stored)
    }

    fn inode(&self, reference: InodeRef) -> Result<(Inode, Cursor<'_>)> {
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
            Error::corrupt(format!("squashfs id {number} was referred to, there are {count}"))
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

    fn file(&self, ino: Ino) -> Result<FileRef<'_>> {
        self.file_at(self.reference(ino)?)
    }

    fn file_at(&self, reference: InodeRef) -> Result<FileRef<'_>> {
        let (inode, list) = self.inode(reference)?;
        match inode.body {
            Body::Regular(body) => Ok(FileRef { inode: reference, body, list }),
            Body::Directory(_) => Err(Error::new(Kind::IsADirectory, "is a directory")),
            _ => Err(Error::new(Kind::InvalidInput, "not a regular file")),
        }
    }

    /// Requests the blocks after a read of `range`, if the file is read in order.
    fn read_ahead(&self, file: &FileRef<'_>, range: Range<u64>) {
        let (number, len) = (file.inode.bits(), file.body.size);
        let Some(Range { mut start, end }) = self.readahead.observe(number, range, len) else {
            return;
        };
        // A block that starts before `start` was requested earlier or is being read.
        let block_size = self.data.block_size();
        start = start.checked_next_multiple_of(block_size).unwrap_or(end);
        // Split into parts for several threads, at block boundaries.
        let part = block_size.max(AHEAD_PART);
        while start < end {
            let cut = start.saturating_add(1).checked_next_multiple_of(part).unwrap_or(end);
            let range = start..cut.min(end);
            start = range.end;
            if !self.workers.submit(Request { by: self.weak_self.clone(), file: number, range }) {
                break;
            }
        }
    }

    /// The target of a symbolic link.
    fn target(&self, ino: Ino) -> Result<Vec<u8>> {
        let (inode, mut cursor) = self.inode(self.reference(ino)?)?;
        let Body::Symlink { len } = inode.body else {
            return Err(Error::new(Kind::InvalidInput, "not a symbolic link"));
        };
        let mut target = vec![0; super::bytes::index(len)];
        cursor.fill(&mut target)?;
        Ok(target)
    }

    /// The table of attributes and the index of `ino` in it, if it has any.
    fn xattrs_of(&self, ino: Ino) -> Result<Option<(&Xattrs, u32)>> {
        let Some(xattrs) = &self.xattrs else {
            return Ok(None);
        };
        let (inode, _) = self.inode(self.reference(ino)?)?;
        Ok(inode.xattr.map(|id| (xattrs, id)))
    }
}

impl Fetch for SquashFs {
    fn fetch(&self, file: u64, range: Range<u64>) {
        let Some(range) = self.readahead.wanted(file, range) else {
            return;
        };
        let outcome = InodeRef::parse(file).map(|reference| {
            let file = self.file_at(reference)?;
            self.data.fetch(&self.metadata, file, range.start, range.end)
        });
        if let Some(Err(error)) = outcome {
            // A read of the block fails with the same error and reports it.
            log::debug!("{}: decoding ahead: {error}", self.name);
        }
    }
}
