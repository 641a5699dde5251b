//! Where the blocks of files are in an image, and which of them a range of a file needs.
//!
//! A block list says how many bytes of the image each block of a file takes. A word is the length
//! of a block on disk. Bit 24 is set if the block is uncompressed. The word is 0 if the block is a
//! hole. Blocks follow each other on disk, so the offset of a block is the sum of the words before
//! it. The list itself is in a chain of metadata blocks. For a file of up to a few thousand blocks,
//! archfs adds up the words from the start each time, which takes a few microseconds. For a larger
//! file it does so once and saves a checkpoint every `STRIDE` words. Checkpoints are cached.
//!
//! The tail of a file may be in a fragment block, which the fragment table finds.

use std::ops::Range;

use super::inode::{InodeRef, RegularBody, Tail};
use super::metadata::{Cursor, Metadata, Position, Table};
use super::superblock::{self, Superblock};
use crate::cache::{Cache, Cached};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::SQUASHFS_FILE_BLOCKS_MAX;
use crate::storage::{FilePart, Storage};
use crate::sync::Arc;
use crate::vfs::SeekTarget;

/// Words between two checkpoints. A shorter list has none.
const STRIDE: u64 = 2048;

/// Set in a word if the block is uncompressed. The bits above are reserved.
const UNCOMPRESSED: u32 = 1 << 24;

/// Size of a record of the fragment table, bytes: start (8), word (4), unused (4).
const FRAGMENT: usize = 16;

/// A block of a file, or a fragment block, as the image stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum DataBlock {
    /// Zeros that are not stored in the image.
    Hole,
    /// `len` uncompressed bytes at `start` of the image.
    Uncompressed { start: u64, len: u32 },
    /// `len` compressed bytes at `start` of the image.
    Compressed { start: u64, len: u32 },
}

impl DataBlock {
    /// The part of a word that is the length.
    pub(super) const LEN: u32 = UNCOMPRESSED.wrapping_sub(1);

    /// Parses `word`, for a block at `start`.
    pub(super) fn parse(word: u32, start: u64) -> Self {
        match (word & UNCOMPRESSED != 0, word & Self::LEN) {
            (_, 0) => Self::Hole,
            (true, len) => Self::Uncompressed { start, len },
            (false, len) => Self::Compressed { start, len },
        }
    }

    /// Its bytes in the image; empty for a hole.
    pub(super) fn range(self) -> Range<u64> {
        match self {
            Self::Hole => 0..0,
            Self::Uncompressed { start, len } | Self::Compressed { start, len } => {
                start..start.saturating_add(u64::from(len))
            }
        }
    }

    /// Its word in a block list.
    pub(super) fn size_field(self) -> u32 {
        match self {
            Self::Hole => 0,
            Self::Uncompressed { len, .. } => len | UNCOMPRESSED,
            Self::Compressed { len, .. } => len,
        }
    }

    /// Its position as a detail of an error.
    pub(super) fn describe(self) -> String {
        format!("data block at {:#x}", self.range().start)
    }
}

/// The parts of an inode that reading a file needs.
#[derive(Clone)]
pub(super) struct FileRef<'m> {
    pub(super) inode: InodeRef,
    pub(super) body: RegularBody,
    /// A cursor at the first word of its block list.
    pub(super) list: Cursor<'m>,
}

/// The checkpoints of one file.
#[derive(Clone, Debug)]
pub(super) struct Checkpoints(Arc<[Checkpoint]>);

/// The position of word `n * STRIDE` of a list.
#[derive(Clone, Copy, Debug)]
struct Checkpoint {
    word: Position,
    /// Offset of its block in the image.
    start: u64,
}

impl Cached for Checkpoints {
    fn weight(&self) -> u64 {
        length(size_of_val(&*self.0))
    }
}

/// The blocks of all files of an image.
pub(super) struct Blocks {
    metadata: Arc<Metadata>,
    block_size: u32,
    /// Most words that the inode table can hold.
    words_max: u64,
    /// The checkpoints of large files.
    pub(super) checkpoints: Cache<InodeRef, Checkpoints>,
    fragments: Option<Table<FRAGMENT>>,
}

impl Blocks {
    /// The blocks of the image in `storage`. `capacity` bytes are for checkpoints.
    pub(super) fn read(
        metadata: &Arc<Metadata>,
        storage: &dyn Storage,
        superblock: &Superblock,
        capacity: u64,
    ) -> Result<Self> {
        let (count, end) = (superblock.fragment_count, superblock.bytes_used);
        let read = |start| Table::read(metadata, storage, "fragment", start, count, end);
        let fragments = superblock.fragment_table.map(read).transpose()?;
        let Superblock { block_size, .. } = *superblock;
        let words_max = superblock.words_max();
        Ok(Self { fragments, ..Self::new(Arc::clone(metadata), block_size, words_max, capacity) })
    }

    /// The blocks of an image without fragments. Its blocks have `block_size` bytes, and its inode
    /// table holds at most `words_max` words.
    pub(super) fn new(
        metadata: Arc<Metadata>,
        block_size: u32,
        words_max: u64,
        capacity: u64,
    ) -> Self {
        // A list of 2^30 words has 2^19 checkpoints. Such files are rare, so a few shards are
        // enough.
        let checkpoints = Cache::new(capacity, capacity / 8);
        Self { metadata, block_size, words_max, checkpoints, fragments: None }
    }

    /// Number of blocks of a file, without a tail in a fragment.
    ///
    /// Fails with `Unsupported` for more blocks than archfs supports; `Corrupt` for more than the
    /// image can list.
    pub(super) fn count(&self, body: &RegularBody) -> Result<u64> {
        let block_size = u64::from(self.block_size);
        let count = match body.tail {
            Some(_) => body.size.checked_div(block_size).unwrap_or(0),
            None => body.size.div_ceil(block_size.max(1)),
        };
        if count > SQUASHFS_FILE_BLOCKS_MAX {
            return Err(Error::new(
                Kind::Unsupported,
                format!("file of {count} blocks, at most {SQUASHFS_FILE_BLOCKS_MAX} can be read"),
            ));
        }
        if count > self.words_max {
            return Err(Error::corrupt(format!(
                "file of {count} blocks, the inode table can list {} at most",
                self.words_max
            )));
        }
        Ok(count)
    }

    /// The block list of a file from block `first` on.
    pub(super) fn list<'m>(&'m self, file: FileRef<'m>, first: u64) -> Result<BlockList<'m>> {
        let FileRef { inode, body, list } = file;
        let count = self.count(&body)?;
        let mut blocks = BlockList { words: list, start: body.start, left: count };
        if first >= STRIDE {
            let nth = first.checked_div(STRIDE).unwrap_or(0);
            let all = self.checkpoints.get_or_load(inode, || blocks.clone().checkpoints())?;
            if let Some(checkpoint) = all.0.get(index(nth)) {
                let skipped = nth.saturating_mul(STRIDE);
                blocks.words = self.metadata.cursor(checkpoint.word)?;
                blocks.start = checkpoint.start;
                blocks.left = count.saturating_sub(skipped);
            }
        }
        blocks.skip(first.saturating_sub(count.saturating_sub(blocks.left)))?;
        Ok(blocks)
    }

    /// The offset of the first data or hole at or after `offset`.
    pub(super) fn seek(&self, file: FileRef<'_>, offset: u64, target: SeekTarget) -> Result<u64> {
        let size = file.body.size;
        let past_end = || Error::new(Kind::PastEnd, format!("nothing after byte {offset}"));
        if offset >= size {
            return Err(past_end());
        }
        let block_size = u64::from(self.block_size).max(1);
        let mut number = offset.checked_div(block_size).unwrap_or(0);
        let mut list = self.list(file, number)?;
        while let Some(block) = list.next()? {
            if (block == DataBlock::Hole) == (target == SeekTarget::Hole) {
                return Ok(offset.max(number.saturating_mul(block_size)));
            }
            number = number.saturating_add(1);
        }
        let tail = number.saturating_mul(block_size);
        match target {
            SeekTarget::Data if tail < size => Ok(offset.max(tail)),
            SeekTarget::Data => Err(past_end()),
            // The end of a file counts as a hole.
            SeekTarget::Hole => Ok(size),
        }
    }

    /// The ranges of `range` of a file, as far as it is within the file.
    pub(super) fn ranges<'m>(
        &'m self,
        file: FileRef<'m>,
        range: Range<u64>,
    ) -> Result<BlockRanges<'m>> {
        let body = file.body;
        let (offset, end) = (range.start, range.end.min(body.size));
        let block = offset.checked_div(u64::from(self.block_size)).unwrap_or(0);
        let list = if offset < end && block < self.count(&body)? {
            Some(self.list(file, block)?)
        } else {
            None
        };
        Ok(BlockRanges { blocks: self, body, list, block, offset, end })
    }

    /// The block that holds a tail.
    pub(super) fn fragment_of(&self, tail: Tail) -> Result<DataBlock> {
        match self.fragment(tail.fragment)? {
            DataBlock::Hole => {
                let fragment = tail.fragment;
                Err(Error::corrupt(format!("fragment {fragment} is a block of 0 bytes")))
            }
            block => Ok(block),
        }
    }

    /// An entry of the fragment table. The crate backhand writes one of 0 bytes to images without
    /// tails.
    pub(super) fn fragment(&self, fragment: u32) -> Result<DataBlock> {
        let Some(table) = &self.fragments else {
            return Err(Error::corrupt(format!(
                "fragment {fragment} referenced, but there are none"
            )));
        };
        let record = table.record(fragment)?;
        let mut reader = Reader::new("fragment", &record);
        let start = reader.u64()?;
        let word = reader.u32()?;
        Ok(DataBlock::parse(word, start))
    }
}

/// An iterator over a block list.
#[derive(Clone)]
pub(super) struct BlockList<'m> {
    words: Cursor<'m>,
    /// Offset of the next block in the image.
    start: u64,
    /// Words not read yet.
    left: u64,
}

impl BlockList<'_> {
    /// The next block, or `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<DataBlock>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left = self.left.saturating_sub(1);
        let word = u32::from_le_bytes(self.words.array()?);
        let block = DataBlock::parse(word, self.start);
        self.start = self.start.saturating_add(stored_len(word));
        Ok(Some(block))
    }

    /// Skips `count` blocks.
    fn skip(&mut self, count: u64) -> Result<()> {
        let mut remaining = count.min(self.left);
        self.left = self.left.saturating_sub(remaining);
        while remaining > 0 {
            let rest = self.words.rest()?;
            let whole_words = length(rest.len() / 4).min(remaining);
            if whole_words == 0 {
                // A word that spans two metadata blocks.
                let word = u32::from_le_bytes(self.words.array()?);
                self.start = self.start.saturating_add(stored_len(word));
                remaining = remaining.saturating_sub(1);
                continue;
            }
            let (words, _) = rest.as_chunks::<4>();
            let skipped = words.get(..index(whole_words)).unwrap_or_default();
            let sum: u64 = skipped.iter().map(|word| stored_len(u32::from_le_bytes(*word))).sum();
            self.start = self.start.saturating_add(sum);
            self.words.skip(whole_words.saturating_mul(4))?;
            remaining = remaining.saturating_sub(whole_words);
        }
        Ok(())
    }

    fn checkpoints(mut self) -> Result<Checkpoints> {
        let mut checkpoints = Vec::new();
        while self.left > 0 {
            checkpoints.push(Checkpoint { word: self.words.position(), start: self.start });
            self.skip(STRIDE)?;
        }
        Ok(Checkpoints(checkpoints.into()))
    }
}

/// Bytes on disk of the block that `word` describes.
fn stored_len(word: u32) -> u64 {
    u64::from(word & DataBlock::LEN)
}

/// The part of one block that a read needs.
#[derive(Clone, Debug)]
pub(super) struct BlockRange {
    pub(super) block: DataBlock,
    /// Range in the decoded block, bytes.
    pub(super) range: Range<usize>,
    /// Whether the block is a fragment block.
    pub(super) is_tail: bool,
    /// Bounds of the decoded size: both are the block's size in the file, but a fragment block may
    /// be larger.
    least: usize,
    most: usize,
}

impl BlockRange {
    /// Checks that `len`, the decoded size of the block, matches the file.
    pub(super) fn check(&self, len: usize) -> Result<()> {
        if self.block == DataBlock::Hole || (self.least..=self.most).contains(&len) {
            return Ok(());
        }
        let least = self.least;
        let context = format!("damaged data block: has {len} bytes, the file needs {least}");
        Err(Error::corrupt(context).with_detail(self.block.describe()))
    }

    /// Where its bytes are in the image, if the block is uncompressed.
    pub(super) fn uncompressed(&self) -> Result<Option<Range<u64>>> {
        let DataBlock::Uncompressed { start, len } = self.block else {
            return Ok(None);
        };
        self.check(index(len))?;
        let at = |offset: usize| start.saturating_add(length(offset));
        Ok(Some(at(self.range.start)..at(self.range.end)))
    }
}

/// An iterator over the ranges of a range, which follow each other without a gap.
#[derive(Clone)]
pub(super) struct BlockRanges<'m> {
    blocks: &'m Blocks,
    body: RegularBody,
    /// `None` if the range starts in the tail.
    list: Option<BlockList<'m>>,
    /// The number of the next block.
    block: u64,
    offset: u64,
    end: u64,
}

impl BlockRanges<'_> {
    /// Offset in the file of the next range.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Offset in the image of the file's first block.
    pub(super) fn first_block(&self) -> u64 {
        self.body.start
    }

    /// Which part of the file the bytes at `start` are, in the block of `part`.
    pub(super) fn file_part(&self, part: &BlockRange, start: u64) -> FilePart {
        let first = match self.body.tail {
            // A compressed fragment block is read from its start.
            Some(tail) if part.is_tail => {
                part.block.range().start.saturating_add(tail.offset.into())
            }
            _ => self.body.start,
        };
        FilePart::at(start.saturating_sub(first))
    }

    /// Whether the next range is after all blocks of the file except its tail in a fragment.
    pub(super) fn is_past_blocks(&self) -> bool {
        let tail = match self.body.tail {
            Some(_) => self.body.size.checked_rem(u64::from(self.blocks.block_size)).unwrap_or(0),
            None => 0,
        };
        self.offset >= self.body.size.saturating_sub(tail)
    }

    /// Bytes of the range that `next` has not returned yet.
    pub(super) fn remaining(&self) -> u64 {
        self.end.saturating_sub(self.offset)
    }

    /// The next range, or `None` after the last.
    ///
    /// Fails with `Corrupt` if the blocks of the file end before its size; the errors of reading
    /// metadata.
    pub(super) fn next(&mut self) -> Result<Option<BlockRange>> {
        if self.offset >= self.end {
            return Ok(None);
        }
        let block_size = u64::from(self.blocks.block_size);
        let block_start = self.block.saturating_mul(block_size);
        let block_len = self.body.size.saturating_sub(block_start).min(block_size);
        let from = self.offset.saturating_sub(block_start);
        let to = self.end.saturating_sub(block_start).min(block_len);
        let block = match &mut self.list {
            Some(list) => list.next()?,
            None => None,
        };
        let range = match (block, self.body.tail) {
            (Some(block), _) => BlockRange {
                block: check_after_superblock(block)?,
                range: index(from)..index(to),
                is_tail: false,
                least: index(block_len),
                most: index(block_len),
            },
            (None, Some(tail)) => {
                let before = index(tail.offset);
                BlockRange {
                    block: check_after_superblock(self.blocks.fragment_of(tail)?)?,
                    range: before.saturating_add(index(from))..before.saturating_add(index(to)),
                    is_tail: true,
                    least: before.saturating_add(index(block_len)),
                    most: index(block_size),
                }
            }
            (None, None) => {
                return Err(Error::corrupt("damaged file: its blocks end before its size"));
            }
        };
        self.offset = block_start.saturating_add(to);
        self.block = self.block.saturating_add(1);
        Ok(Some(range))
    }

    /// Where the next ranges are in the image, as far as they are uncompressed and contiguous
    /// there. `None` at the end, and if the next range is compressed or a hole.
    pub(super) fn next_uncompressed(&mut self) -> Result<Option<Range<u64>>> {
        let mut ahead = self.clone();
        let Some(next) = ahead.next()? else { return Ok(None) };
        let Some(mut image_range) = next.uncompressed()? else { return Ok(None) };
        *self = ahead;
        self.skip_uncompressed(&mut image_range)?;
        Ok(Some(image_range))
    }

    /// Advances over uncompressed ranges that are contiguous in the image, starting at the end of
    /// `image_range`. Extends `image_range` by them and returns their length in the file, bytes.
    pub(super) fn skip_uncompressed(&mut self, image_range: &mut Range<u64>) -> Result<usize> {
        let mut skipped: usize = 0;
        loop {
            let mut ahead = self.clone();
            let Some(next) = ahead.next()? else { return Ok(skipped) };
            match next.uncompressed()? {
                Some(following) if following.start == image_range.end => {
                    image_range.end = following.end;
                }
                _ => return Ok(skipped),
            }
            skipped = skipped.saturating_add(index(ahead.offset.saturating_sub(self.offset)));
            *self = ahead;
        }
    }

    /// Where the contiguous blocks after position `end` of the image end, at most `len_max` bytes
    /// further.
    pub(super) fn contiguous_end(&self, end: u64, len_max: u64) -> u64 {
        let mut ahead = self.clone();
        let limit = end.saturating_add(len_max);
        let mut reached = end;
        // A damaged block list is reported when it is read.
        while let Ok(Some(BlockRange { block, .. })) = ahead.next() {
            if block == DataBlock::Hole {
                continue;
            }
            let Range { start, end } = block.range();
            if start != reached || end > limit {
                break;
            }
            reached = end;
        }
        reached
    }
}

/// Rejects a block that overlaps the superblock.
fn check_after_superblock(block: DataBlock) -> Result<DataBlock> {
    if block != DataBlock::Hole && block.range().start < length(superblock::SIZE) {
        return Err(Error::corrupt("damaged file: a data block is in the superblock")
            .with_detail(block.describe()));
    }
    Ok(block)
}

#[cfg(test)]
mod tests;
