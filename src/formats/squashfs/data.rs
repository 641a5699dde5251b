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
use super::blocks::{BlockRange, BlockRanges, DataBlock};
use crate::cache::{ArchiveOrder, Block, BlockPool, Cache, MemoryLimit, Permit};
use crate::codecs::Codec;
use crate::error::{Error, Result};
use crate::formats::bytes::{index, length};
use crate::storage::{FilePart, Storage};
use crate::sync::Arc;
use crate::vfs::{AfterReply, ReadBytes, Scratch};

/// Most bytes that one read of the archive fetches for the blocks of one request.
const RUN_MAX: u64 = 1 << 20;

thread_local! {
    /// A buffer for compressed blocks. It is taken out while in use: the storage may be a file in
    /// another image, which is read on the same thread.
    static READ_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The contents of all files of an image.
pub(super) struct Data {
    pub(super) storage: Arc<dyn Storage>,
    codec: Codec,
    /// Size of a block, decompressed bytes.
    block_size: u32,
    pool: Arc<BlockPool>,
    /// Limits the blocks in the cache, and those being decompressed or read, of all images
    /// together.
    limit: Arc<MemoryLimit>,
    pub(super) cache: Arc<Cache<DataBlock, Arc<Block>>>,
    /// Readers of many files in the order of their blocks.
    order: ArchiveOrder,
    /// Readers of many files in the order of the fragment blocks, which lie between the blocks of
    /// other files.
    fragment_order: ArchiveOrder,
}

impl Data {
    /// The contents of the image in `storage`; `capacity` bytes are for decompressed blocks.
    pub(super) fn new(
        storage: Arc<dyn Storage>,
        codec: Codec,
        block_size: u32,
        capacity: u64,
        shared: &Shared,
    ) -> Self {
        let cache = Arc::new(Cache::new(capacity, u64::from(block_size)));
        let evicted = Arc::downgrade(&cache);
        shared.limit.add(evicted);
        Self {
            storage,
            codec,
            block_size,
            pool: shared.pools.of(index(block_size)),
            limit: Arc::clone(&shared.limit),
            cache,
            order: ArchiveOrder::default(),
            fragment_order: ArchiveOrder::default(),
        }
    }

    /// Frees all cached contents.
    pub(super) fn release(&self) {
        self.cache.clear();
        self.pool.release();
    }

    /// The bytes of `ranges`, which are of one request.
    pub(super) fn read<'s>(
        &self,
        mut ranges: BlockRanges<'_>,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        let wanted = ranges.remaining();
        if wanted == 0 {
            return Ok(ReadBytes::Scratch(&[]));
        }
        let mut run = Run::new();
        let (answer, after_reply) = scratch.parts(index(wanted));
        let mut served = Served::new(&self.storage, after_reply, FilePart::at(ranges.offset()));
        let mut filled: usize = 0;
        while let Some(part) = ranges.next()? {
            let start = filled;
            filled = filled.saturating_add(part.range.len());
            if let Some(mut image_range) = part.uncompressed()? {
                filled = filled.saturating_add(ranges.skip_uncompressed(&mut image_range)?);
                self.read_ahead(&part, &ranges, image_range.clone());
                let target = answer.get_mut(start..filled).unwrap_or_default();
                let file_part = ranges.file_part(&part, image_range.start);
                self.storage.read_contents_at(target, image_range.start, file_part)?;
                served.add(image_range);
                continue;
            }
            let target = answer.get_mut(start..filled).unwrap_or_default();
            if part.block == DataBlock::Hole {
                target.fill(0);
                continue;
            }
            self.read_ahead(&part, &ranges, part.block.range());
            let (block, is_used_up) = self.block(&part, &mut run, &ranges)?;
            if is_used_up {
                served.add(part.block.range());
            }
            if target.len() == index(wanted) {
                return Ok(ReadBytes::Shared(block, part.range));
            }
            target.copy_from_slice(block.bytes().get(part.range).unwrap_or_default());
        }
        Ok(ReadBytes::Scratch(answer))
    }

    /// Announces what a reader of files in the order of the image will read next. `range` of the
    /// image is read now, for `part`; `later` are the later ranges of the same request.
    fn read_ahead(&self, part: &BlockRange, later: &BlockRanges<'_>, range: Range<u64>) {
        let ahead = if part.is_tail {
            // The files of a fragment block count as one.
            let Range { start, end } = part.block.range();
            self.fragment_order.observe(start, range, Some(end))
        } else {
            let end = later.is_past_blocks().then_some(range.end);
            self.order.observe(later.first_block(), range, end)
        };
        if let Some(Range { start, end }) = ahead {
            self.storage.will_need(start, end.saturating_sub(start));
        }
    }

    /// Announces `ranges` to the storage. Returns false at the first one that is compressed.
    pub(super) fn announce(&self, mut ranges: BlockRanges<'_>) -> Result<bool> {
        while let Some(part) = ranges.next()? {
            if let DataBlock::Compressed { .. } = part.block {
                return Ok(false);
            }
            self.announce_uncompressed(&part, &mut ranges)?;
        }
        Ok(true)
    }

    /// Announces `part`, if it is uncompressed, with the ranges after it that are contiguous.
    fn announce_uncompressed(&self, part: &BlockRange, later: &mut BlockRanges<'_>) -> Result<()> {
        if let Some(mut image_range) = part.uncompressed()? {
            later.skip_uncompressed(&mut image_range)?;
            let len = image_range.end.saturating_sub(image_range.start);
            self.storage.will_need(image_range.start, len);
        }
        Ok(())
    }

    /// Loads the blocks of `ranges` into the cache or page cache.
    pub(super) fn fetch(&self, mut ranges: BlockRanges<'_>) -> Result<()> {
        let mut run = Run::new();
        while let Some(part) = ranges.next()? {
            let DataBlock::Compressed { .. } = part.block else {
                self.announce_uncompressed(&part, &mut ranges)?;
                continue;
            };
            let mut was_loaded = false;
            self.cache.get_or_load(part.block, || {
                was_loaded = true;
                let permit = || self.limit.ahead(self.block_size.into());
                let block = self.load(&part, &mut run, &ranges, permit)?;
                Ok(Arc::new(block.fitted()))
            })?;
            if was_loaded {
                self.limit.entered();
            }
        }
        Ok(())
    }

    /// The decompressed block of a compressed part, which holds at least its bytes.
    /// Counts these as read, and returns whether all bytes of the block were read now. `later` are
    /// the later ranges of the same request.
    fn block(
        &self,
        part: &BlockRange,
        run: &mut Run,
        later: &BlockRanges<'_>,
    ) -> Result<(Arc<Block>, bool)> {
        let count = part.range.len();
        let (mut was_loaded, mut is_used_up) = (false, false);
        let block = self.cache.get_or_load(part.block, || {
            was_loaded = true;
            let permit = || Ok(self.limit.wait(self.block_size.into()));
            let block = self.load(part, run, later, permit)?;
            is_used_up = block.hand_out(count);
            Ok(Arc::new(if is_used_up { block } else { block.fitted() }))
        })?;
        part.check(block.bytes().len())?;
        if was_loaded {
            self.limit.entered();
        } else if block.hand_out(count) {
            is_used_up = true;
            self.cache.remove(&part.block);
        }
        Ok((block, is_used_up))
    }

    /// Reads and decompresses the compressed block of `part`. `permit` gets the permit for its
    /// memory.
    fn load(
        &self,
        part: &BlockRange,
        run: &mut Run,
        later: &BlockRanges<'_>,
        permit: impl FnOnce() -> Result<Permit>,
    ) -> Result<Block> {
        let stored = part.block;
        let Range { start, end } = stored.range();
        let len = end.saturating_sub(start);
        if len > u64::from(self.block_size) {
            let context =
                format!("damaged data block: claims {len} bytes, limit {}", self.block_size);
            return Err(Error::corrupt(context).with_detail(stored.describe()));
        }
        let len_max = RUN_MAX.saturating_sub(len);
        let file_part = later.file_part(part, start);
        let contiguous_end = || later.contiguous_end(end, len_max);
        let compressed = run.bytes(&*self.storage, start..end, file_part, contiguous_end)?;
        // The permit is taken only now, because reading an image within an image also takes
        // permits.
        let permit = permit()?;
        let block = self.pool.block(|buffer| {
            let decoded = self.codec.decode(compressed, buffer);
            decoded.map_err(|error| {
                error
                    .within("damaged data block")
                    .with_detail(stored.describe())
                    .with_brief(format!("damaged data block ({})", self.codec.name()))
            })
        })?;
        Ok(block.with(permit))
    }
}

/// The parts of the image that one request hands out. Those that are adjacent are dropped together.
struct Served<'s> {
    /// `None` if nothing is dropped.
    storage: Option<&'s Arc<dyn Storage>>,
    after_reply: &'s mut AfterReply,
    range: Range<u64>,
    part: FilePart,
}

impl<'s> Served<'s> {
    fn new(storage: &'s Arc<dyn Storage>, after_reply: &'s mut AfterReply, part: FilePart) -> Self {
        let storage = storage.drops_served().then_some(storage);
        Self { storage, after_reply, range: 0..0, part }
    }

    fn add(&mut self, range: Range<u64>) {
        if self.storage.is_none() {
            return;
        }
        if range.start != self.range.end {
            self.drop_after_reply();
            self.range = range;
        } else {
            self.range.end = range.end;
        }
    }

    /// Drops `range` once the reply is sent.
    fn drop_after_reply(&mut self) {
        if let Some(storage) = self.storage
            && !self.range.is_empty()
        {
            let (storage, range) = (Arc::clone(storage), self.range.clone());
            let part = std::mem::replace(&mut self.part, FilePart::First);
            let work = move || storage.drop_served(range, part);
            self.after_reply.push(Box::new(work));
        }
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.drop_after_reply();
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
        part: FilePart,
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
            storage.read_contents_at(target, range.start, part)?;
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
