//! Splits a range of a file into ranges, each within one block.
//!
//! Invariant: the ranges of a range follow each other without a gap.

use std::ops::Range;

use super::blocklist::{BlockLists, Extent, Extents, FileRef};
use super::fragment::FragmentTable;
use super::inode::RegularBody;
use super::superblock;
use crate::error::{Error, Result};
use crate::formats::bytes::{index, length};

/// The part of one block that a read needs.
#[derive(Clone, Debug)]
pub(super) struct BlockRange {
    pub(super) extent: Extent,
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
        let (Extent::Uncompressed { start, .. } | Extent::Compressed { start, .. }) = self.extent
        else {
            return Ok(());
        };
        if (self.least..=self.most).contains(&len) {
            return Ok(());
        }
        let least = self.least;
        let context = format!("damaged data block: has {len} bytes, the file needs {least}");
        Err(Error::corrupt(context).with_detail(format_args!("data block at {start:#x}")))
    }

    /// Where its bytes are in the image, if the block is uncompressed.
    pub(super) fn uncompressed(&self) -> Result<Option<Range<u64>>> {
        let Extent::Uncompressed { start, len } = self.extent else {
            return Ok(None);
        };
        self.check(index(len))?;
        let at = |offset: usize| start.saturating_add(length(offset));
        Ok(Some(at(self.range.start)..at(self.range.end)))
    }
}

/// An iterator over the ranges of a range.
#[derive(Clone)]
pub(super) struct BlockRanges<'m> {
    fragments: &'m FragmentTable,
    block_size: u64,
    body: RegularBody,
    /// `None` if the range starts in the tail.
    extents: Option<Extents<'m>>,
    /// The number of the next block.
    block: u64,
    offset: u64,
    end: u64,
}

impl<'m> BlockRanges<'m> {
    /// The ranges of `range` of a file, as far as it is within the file.
    pub(super) fn new(
        lists: &'m BlockLists,
        fragments: &'m FragmentTable,
        file: FileRef<'m>,
        range: Range<u64>,
    ) -> Result<Self> {
        let (body, block_size) = (file.body, u64::from(lists.block_size()));
        let (offset, end) = (range.start, range.end.min(body.size));
        let block = offset.checked_div(block_size).unwrap_or(0);
        let extents = match offset < end && block < lists.count(&body)? {
            true => Some(lists.extents(file, block)?),
            false => None,
        };
        Ok(Self { fragments, block_size, body, extents, block, offset, end })
    }

    /// Whether the next range is at the start of the file.
    pub(super) fn is_at_start(&self) -> bool {
        self.offset == 0
    }

    /// Offset in the image of the file's first block.
    pub(super) fn first_block(&self) -> u64 {
        self.body.start
    }

    /// Whether the next range is after all blocks of the file except its tail in a fragment.
    pub(super) fn is_past_blocks(&self) -> bool {
        let tail = match self.body.tail {
            Some(_) => self.body.size.checked_rem(self.block_size).unwrap_or(0),
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
        let block_start = self.block.saturating_mul(self.block_size);
        let block_len = self.body.size.saturating_sub(block_start).min(self.block_size);
        let from = self.offset.saturating_sub(block_start);
        let to = self.end.saturating_sub(block_start).min(block_len);
        let extent = match &mut self.extents {
            Some(extents) => extents.next()?,
            None => None,
        };
        let range = match (extent, self.body.tail) {
            (Some(extent), _) => BlockRange {
                extent: check_after_superblock(extent)?,
                range: index(from)..index(to),
                is_tail: false,
                least: index(block_len),
                most: index(block_len),
            },
            (None, Some(tail)) => {
                let before = index(tail.offset);
                BlockRange {
                    extent: check_after_superblock(self.fragments.block(tail)?)?,
                    range: before.saturating_add(index(from))..before.saturating_add(index(to)),
                    is_tail: true,
                    least: before.saturating_add(index(block_len)),
                    most: index(self.block_size),
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
        let Some(mut image_range) = (match ahead.next()? {
            Some(next) => next.uncompressed()?,
            None => None,
        }) else {
            return Ok(None);
        };
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
            match ahead.next()? {
                Some(next) => match next.uncompressed()? {
                    Some(following) if following.start == image_range.end => {
                        image_range.end = following.end;
                    }
                    _ => return Ok(skipped),
                },
                None => return Ok(skipped),
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
        while let Ok(Some(range)) = ahead.next() {
            match range.extent {
                Extent::Hole => {}
                Extent::Uncompressed { start, len } | Extent::Compressed { start, len }
                    if start == reached =>
                {
                    let block_end = start.saturating_add(u64::from(len));
                    if block_end > limit {
                        break;
                    }
                    reached = block_end;
                }
                _ => break,
            }
        }
        reached
    }
}

/// Rejects a block that overlaps the superblock.
fn check_after_superblock(extent: Extent) -> Result<Extent> {
    match extent {
        Extent::Uncompressed { start, .. } | Extent::Compressed { start, .. }
            if start < length(superblock::SIZE) =>
        {
            Err(Error::corrupt("damaged file: a data block is in the superblock")
                .with_detail(format_args!("data block at {start:#x}")))
        }
        extent => Ok(extent),
    }
}
