//! SquashFS 4.0, read in parallel: an image as a `Tree`.
//!
//! `superblock` holds the positions of the tables. `metadata` reads the compressed chains that they
//! are stored in, and finds records in them. `inode` and `directory` form the tree. `blocks` splits
//! a read into blocks and finds them; `data` reads and decompresses them. `tree` implements the
//! operations of `vfs`, and `base` gives blocks to a new image.
//!
//! Invariant: opening reads the superblock and the position lists of tables, but no inode except
//! the root. A mount costs the same for ten files as for ten million. Nothing of the tree is in
//! memory except cached blocks.

use crate::cache::{BlockPools, Budget, Fraction, MemoryLimit, Readahead, Resize, Workers};
use crate::error::{Error, Result};
use crate::stats::{CacheKind, Stats};
use crate::storage::{FileRange, Storage};
use crate::sync::{Arc, Weak};
use crate::vfs::FileKind;

mod audit;
mod base;
mod blocks;
mod data;
mod directory;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod info;
mod inode;
mod metadata;
mod superblock;
#[cfg(test)]
mod tests;
mod tree;
mod xattr;

use blocks::Blocks;
use data::Data;
use inode::{Inode, InodeRef, Numbers};
use metadata::{Metadata, Table};
use superblock::Superblock;
use xattr::Xattrs;

pub use base::{BaseImage, StoredContents, StoredFragment, StoredTail};

/// Data is decoded ahead only if the cache has room for this many blocks.
const AHEAD_BLOCKS_MIN: u64 = 8;

/// What all images of a mount share.
pub(crate) struct Shared {
    /// Threads that decode ahead.
    pub(crate) workers: Arc<Workers>,
    /// Memory for blocks.
    pub(crate) pools: BlockPools,
    /// Limits the memory for blocks.
    limit: Arc<MemoryLimit>,
}

impl Shared {
    pub(crate) fn new(limit: Arc<MemoryLimit>) -> Self {
        Self { workers: Arc::default(), pools: BlockPools::default(), limit }
    }
}

#[cfg(any(test, fuzzing))]
impl Default for Shared {
    fn default() -> Self {
        Self::new(MemoryLimit::new(u64::MAX))
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
    metadata: Arc<Metadata>,
    blocks: Blocks,
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
    fn resize(&self, fraction: Fraction) {
        let capacity = ahead_capacity(fraction.of(self.data_capacity), self.superblock.block_size);
        self.readahead.set_capacity(capacity);
        self.metadata.cache.resize(fraction);
        self.blocks.checkpoints.resize(fraction);
        self.data.cache.resize(fraction);
    }
}

impl SquashFs {
    /// Whether a file that starts with `bytes` looks like an image.
    pub(crate) fn recognizes(bytes: &[u8]) -> bool {
        Superblock::recognizes(bytes)
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
        let storage: Arc<dyn Storage> = Arc::new(FileRange::new(Arc::clone(&whole), 0)?.cut(end)?);
        let root = InodeRef::parse(superblock.root).ok_or_else(|| {
            Error::corrupt("superblock: invalid position of the root inode")
                .with_detail(format_args!("{:#x}", superblock.root))
        })?;
        // Metadata gets a quarter. It is small, and a scan of file contents must not evict it.
        let metadata_capacity = capacity / 4;
        let rest = capacity.saturating_sub(metadata_capacity);
        let data_capacity = rest.saturating_sub(rest / 16);
        let Superblock { codec, block_size, .. } = superblock;
        let metadata = Arc::new(Metadata::new(Arc::clone(&storage), codec, metadata_capacity));
        let blocks = Blocks::read(&metadata, &*storage, &superblock, rest / 16)?;
        let id_count = u32::from(superblock.id_count);
        let ids = Table::<4>::read(&metadata, &*storage, "id", superblock.id_table, id_count, end)?;
        let ids = (0..id_count)
            .map(|number| ids.record(number).map(u32::from_le_bytes))
            .collect::<Result<_>>()?;
        let xattrs = match superblock.xattr_table {
            None => None,
            Some(table) => Some(Xattrs::read(&metadata, &*storage, table, end)?),
        };
        shared.limit.set_aside(capacity.saturating_sub(data_capacity));
        let data = Data::new(storage, codec, block_size, data_capacity, shared);
        let (inode, _) = Inode::read(&metadata, superblock.inode_table, root)
            .map_err(|error| error.with_detail(root.describe(superblock.inode_table)))
            .map_err(|error| error.within("root directory"))?;
        let kind = inode.kind();
        if kind != FileKind::Directory {
            return Err(Error::corrupt(format!("the root is not a directory but {kind}")));
        }
        let numbers = Numbers::read(&metadata, &*whole, &superblock, root, &inode)?;
        let readahead = Readahead::new(ahead_capacity(data_capacity, block_size));
        Ok(Arc::new_cyclic(|weak_self| Self {
            name: name.to_owned(),
            whole,
            superblock,
            numbers,
            metadata,
            blocks,
            data,
            ids,
            xattrs,
            readahead,
            data_capacity,
            workers: Arc::clone(&shared.workers),
            weak_self: Weak::clone(weak_self),
        }))
    }

    /// Registers the counters of its caches with `stats`.
    pub(crate) fn report_to(&self, stats: &Stats) {
        self.metadata.cache.report_to(stats, CacheKind::Metadata);
        self.blocks.checkpoints.report_to(stats, CacheKind::Metadata);
        self.data.cache.report_to(stats, CacheKind::Data);
    }

    /// Lets `budget` resize its caches.
    pub(crate) fn draw_on(&self, budget: &Budget) {
        budget.add(Weak::<Self>::clone(&self.weak_self));
    }
}
