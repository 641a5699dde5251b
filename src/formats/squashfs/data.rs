//! The contents of files: data blocks, fragment blocks, holes.
//!
//! Invariant: every byte returned is a zero of a hole or lies within the decompressed block that
//! the file names.
//!
//! A read within one compressed block returns a reference to the decompressed block, without a
//! copy. The block stays in the cache until every byte of it has been read once, for example while
//! other files in it are still unread. A block that is read whole at once is not cached (see
//! `cache::Block` for the reason). Uncompressed blocks are read directly into the reply, because
//! the page cache already holds them.

use std::cell::Cell;
use std::ops::Range;

use super::Shared;
use super::block_ranges::{Piece, Pieces};
use super::blocklist::{BlockLists, Extent};
use super::inode::{InodeRef, RegularBody, Tail};
use super::metadata::{Cursor, Metadata};
use super::table::Table;
use crate::cache::{Block, BlockPool, Cache, Part, Permit, Room};
use crate::codecs::Codec;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::stats::{CacheKind, Stats};
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::{ReadBytes, Scratch, SeekTarget};

/// Size of a record of the fragment table, bytes: start (8), word (4), unused (4).
const FRAGMENT_RECORD: usize = 16;

/// Most bytes that one read of the archive fetches for the blocks of one request.
const RUN_MAX: u64 = 1 << 20;

thread_local! {
    /// A buffer for compressed blocks. It is taken out while in use: the storage may be a file in
    /// another image, which is read on the same thread.
    static READ_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The contents of all files of an image.
pub(super) struct Data {
    storage: Arc<dyn Storage>,
    codec: Codec,
    block_size: u32,
    lists: BlockLists,
    fragments: Option<Table<FRAGMENT_RECORD>>,
    pool: Arc<BlockPool>,
    /// Limits the blocks in the cache, and those being decompressed or read, of all images
    /// together.
    room: Arc<Room>,
    cache: Arc<Cache<Extent, Arc<Block>>>,
}

/// The parts of an inode that reading a file needs.
pub(super) struct FileRef<'m> {
    pub(super) inode: InodeRef,
    pub(super) body: RegularBody,
    /// A cursor at the first word of its block list.
    pub(super) list: Cursor<'m>,
}

impl Data {
    /// The contents of the image in `storage`; `capacity` bytes are for decompressed blocks.
    pub(super) fn new(
        storage: Arc<dyn Storage>,
        codec: Codec,
        lists: BlockLists,
        fragments: Option<Table<FRAGMENT_RECORD>>,
        capacity: u64,
        shared: &Shared,
    ) -> Self {
        let block_size = lists.block_size();
        let cache = Arc::new(Cache::new(capacity, u64::from(block_size)));
        let evicted = Arc::downgrade(&cache);
        shared.room.add(evicted);
        Self {
            storage,
            codec,
            block_size,
            lists,
            fragments,
            pool: shared.pools.of(index(block_size)),
            room: Arc::clone(&shared.room),
            cache,
        }
    }

    /// Registers the counters of its caches with `stats`.
    pub(super) fn report_to(&self, stats: &Stats) {
        self.lists.report_to(stats);
        self.cache.report_to(stats, CacheKind::Data);
    }

    /// Limits its caches to `part` of their capacity.
    pub(super) fn resize(&self, part: Part) {
        self.lists.resize(part);
        self.cache.resize(part);
    }

    /// Frees all cached contents.
    pub(super) fn release(&self) {
        self.lists.release();
        self.cache.clear();
        self.pool.release();
    }

    /// The block lists of the files.
    pub(super) fn lists(&self) -> &BlockLists {
        &self.lists
    }

    /// Offset in the image of the first byte of a file's contents.
    ///
    /// # Errors
    /// As `fragment`.
    pub(super) fn start(&self, metadata: &Metadata, body: &RegularBody) -> Result<u64> {
        match body.tail {
            Some(tail) if body.size < self.block_size() => match self.fragment(metadata, tail)? {
                Extent::Uncompressed { start, .. } | Extent::Compressed { start, .. } => Ok(start),
                Extent::Hole => Ok(0),
            },
            _ => Ok(body.start),
        }
    }

    /// Size of a block, decompressed bytes.
    pub(super) fn block_size(&self) -> u64 {
        u64::from(self.block_size)
    }

    /// Up to `size` bytes of a file from `offset`, fewer only at its end.
    pub(super) fn read<'s>(
        &self,
        metadata: &Metadata,
        file: FileRef<'_>,
        offset: u64,
        size: u32,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        let end = offset.saturating_add(u64::from(size)).min(file.body.size);
        let wanted = end.saturating_sub(offset);
        if wanted == 0 {
            return Ok(ReadBytes::Scratch(&[]));
        }
        let mut pieces = self.pieces(metadata, file, offset, end)?;
        let mut run = Run::new();
        let answer = scratch.answer(index(wanted));
        let mut filled: usize = 0;
        while let Some(piece) = pieces.next()? {
            let start = filled;
            filled = filled.saturating_add(piece.range.len());
            if let Some(mut image_range) = piece.uncompressed()? {
                filled = filled.saturating_add(pieces.skip_uncompressed(&mut image_range)?);
                let target = answer.get_mut(start..filled).unwrap_or_default();
                self.storage.read_exact_at(target, image_range.start)?;
                continue;
            }
            let target = answer.get_mut(start..filled).unwrap_or_default();
            if piece.extent == Extent::Hole {
                target.fill(0);
                continue;
            }
            let block = self.block(&piece, &mut run, &pieces)?;
            if target.len() == index(wanted) {
                return Ok(ReadBytes::Shared(block, piece.range));
            }
            target.copy_from_slice(block.bytes().get(piece.range).unwrap_or_default());
        }
        Ok(ReadBytes::Scratch(answer))
    }

    /// Loads the blocks of a file from `offset` to `end` into the cache or page cache.
    ///
    /// # Errors
    /// As `read`, which reports them again to the reader.
    pub(super) fn fetch(
        &self,
        metadata: &Metadata,
        file: FileRef<'_>,
        offset: u64,
        end: u64,
    ) -> Result<()> {
        let end = end.min(file.body.size);
        if offset >= end {
            return Ok(());
        }
        let mut pieces = self.pieces(metadata, file, offset, end)?;
        let mut run = Run::new();
        while let Some(piece) = pieces.next()? {
            match piece.extent {
                Extent::Hole => {}
                Extent::Uncompressed { .. } => {
                    if let Some(mut image_range) = piece.uncompressed()? {
                        pieces.skip_uncompressed(&mut image_range)?;
                        let len = image_range.end.saturating_sub(image_range.start);
                        self.storage.will_need(image_range.start, len);
                    }
                }
                Extent::Compressed { .. } => {
                    let mut was_loaded = false;
                    self.cache.get_or_load(piece.extent, || {
                        was_loaded = true;
                        let permit = || self.room.ahead(self.block_size());
                        let block = self.load(piece.extent, &mut run, &pieces, permit)?;
                        Ok(Arc::new(block.fitted()))
                    })?;
                    if was_loaded {
                        self.room.entered();
                    }
                }
            }
        }
        Ok(())
    }

    /// The offset of the first data or hole at or after `offset`.
    pub(super) fn seek(
        &self,
        metadata: &Metadata,
        file: FileRef<'_>,
        offset: u64,
        target: SeekTarget,
    ) -> Result<u64> {
        let size = file.body.size;
        let past_end = || Error::new(Kind::PastEnd, format!("nothing behind byte {offset}"));
        if offset >= size {
            return Err(past_end());
        }
        let block_size = self.block_size().max(1);
        let mut block = offset.checked_div(block_size).unwrap_or(0);
        let FileRef { inode, body, list } = file;
        let mut extents = self.lists.extents(metadata, inode, &body, list, block)?;
        while let Some(extent) = extents.next()? {
            if (extent == Extent::Hole) == (target == SeekTarget::Hole) {
                return Ok(offset.max(block.saturating_mul(block_size)));
            }
            block = block.saturating_add(1);
        }
        let tail = block.saturating_mul(block_size);
        match target {
            SeekTarget::Data if tail < size => Ok(offset.max(tail)),
            SeekTarget::Data => Err(past_end()),
            // The end of a file counts as a hole.
            SeekTarget::Hole => Ok(size),
        }
    }

    /// The pieces of a file from `offset` to `end`, which must be within the file.
    fn pieces<'m>(
        &self,
        metadata: &'m Metadata,
        file: FileRef<'m>,
        offset: u64,
        end: u64,
    ) -> Result<Pieces<'_, 'm>> {
        let first = offset.checked_div(self.block_size()).unwrap_or(0);
        let FileRef { inode, body, list } = file;
        let extents = match first < self.lists.count(&body)? {
            true => Some(self.lists.extents(metadata, inode, &body, list, first)?),
            false => None,
        };
        Ok(Pieces { data: self, metadata, body, extents, block: first, offset, end })
    }

    /// The decompressed block of a compressed piece, which holds at least the bytes of the piece.
    /// Counts these as read. `later` are the later pieces of the same request.
    fn block(&self, piece: &Piece, run: &mut Run, later: &Pieces<'_, '_>) -> Result<Arc<Block>> {
        let count = piece.range.len();
        let mut was_loaded = false;
        let block = self.cache.get_or_load(piece.extent, || {
            was_loaded = true;
            let permit = || Ok(self.room.wait(self.block_size()));
            let block = self.load(piece.extent, run, later, permit)?;
            let is_used_up = block.hand_out(count);
            Ok(Arc::new(if is_used_up { block } else { block.fitted() }))
        })?;
        piece.check(block.bytes().len())?;
        if was_loaded {
            self.room.entered();
        } else if block.hand_out(count) {
            self.cache.remove(&piece.extent);
        }
        Ok(block)
    }

    /// Reads and decompresses a compressed block. `permit` gets the permit for its memory.
    fn load(
        &self,
        extent: Extent,
        run: &mut Run,
        later: &Pieces<'_, '_>,
        permit: impl FnOnce() -> Result<Permit>,
    ) -> Result<Block> {
        let (start, len) = match extent {
            Extent::Compressed { start, len } | Extent::Uncompressed { start, len } => (start, len),
            Extent::Hole => (0, 0),
        };
        if len > self.block_size {
            return Err(Error::corrupt(format!(
                "squashfs data block at {start:#x}: claims {len} bytes, at most {} can be",
                self.block_size
            )));
        }
        let end = start.saturating_add(u64::from(len));
        let len_max = RUN_MAX.saturating_sub(u64::from(len));
        let compressed =
            run.bytes(&*self.storage, start..end, || later.contiguous_end(end, len_max))?;
        // The permit is taken only now, because reading an image within an image also takes
        // permits.
        let permit = permit()?;
        let block = self.pool.block(|buffer| {
            let decoded = self.codec.decode(compressed, buffer);
            decoded.map_err(|error| error.within(format_args!("squashfs data block at {start:#x}")))
        })?;
        Ok(block.with(permit))
    }

    /// Where the fragment block of a tail is.
    ///
    /// # Errors
    /// `Corrupt` if there is none; the errors of reading metadata.
    pub(super) fn fragment(&self, metadata: &Metadata, tail: Tail) -> Result<Extent> {
        let Some(fragments) = &self.fragments else {
            let number = tail.fragment;
            return Err(Error::corrupt(format!(
                "squashfs fragment {number} was referred to, there are none"
            )));
        };
        let record = fragments.record(metadata, tail.fragment)?;
        let mut reader = Reader::new("fragment", &record);
        let start = reader.u64()?;
        let word = reader.u32()?;
        match Extent::parse(word, start) {
            Extent::Hole => Err(Error::corrupt(format!(
                "squashfs fragment {} is a block of 0 bytes",
                tail.fragment
            ))),
            extent => Ok(extent),
        }
    }
}

/// Contiguous compressed blocks fetched with one read.
struct Run {
    bytes: Vec<u8>,
    /// Their offset in the image, and how many of `bytes` are valid.
    start: u64,
    len: usize,
}

impl Run {
    fn new() -> Self {
        Self { bytes: READ_BUFFER.take(), start: 0, len: 0 }
    }

    /// The bytes of the image at `range`. If they were not fetched yet, fetches all up to `end`.
    fn bytes(
        &mut self,
        storage: &dyn Storage,
        range: Range<u64>,
        end: impl FnOnce() -> u64,
    ) -> Result<&[u8]> {
        let fetched = self.start..self.start.saturating_add(length(self.len));
        if !(fetched.start <= range.start && range.end <= fetched.end) {
            // Never fetch past the end of the image, whatever the block list claims.
            let end = end().min(storage.len()).max(range.end);
            self.len = 0;
            let len = index(end.saturating_sub(range.start));
            if self.bytes.len() < len {
                self.bytes.resize(len, 0);
            }
            let target = self.bytes.get_mut(..len).unwrap_or_default();
            storage.read_exact_at(target, range.start)?;
            (self.start, self.len) = (range.start, len);
        }
        let from = index(range.start.saturating_sub(self.start));
        let to = index(range.end.saturating_sub(self.start));
        Ok(self.bytes.get(from..to).unwrap_or_default())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        READ_BUFFER.set(std::mem::take(&mut self.bytes));
    }
}
