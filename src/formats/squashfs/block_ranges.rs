//! The parts of blocks that a range of a file is made of.
//!
//! Owns walking them, and what the file says of each; leaves getting their bytes to `data`.
//! Invariant: the pieces of a range follow each other without a gap, each within one block.

use std::ops::Range;

use super::blocklist::{Extent, Extents};
use super::data::Data;
use super::inode::RegularBody;
use super::metadata::Metadata;
use super::superblock;
use crate::error::{Error, Result};
use crate::formats::bytes::{index, length};

/// A part of one block: what a read wants of it.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) extent: Extent,
    /// Bytes of the decoded block.
    pub(super) range: Range<usize>,
    /// What the block must decode to: just that, or for a fragment block at least that.
    least: usize,
    most: usize,
}

impl Piece {
    /// Checks that a block of `len` decoded bytes is what the file says it is.
    ///
    /// # Errors
    /// `Corrupt` where it is not.
    pub(super) fn check(&self, len: usize) -> Result<()> {
        let (Extent::Uncompressed { start, .. } | Extent::Compressed { start, .. }) = self.extent
        else {
            return Ok(());
        };
        if (self.least..=self.most).contains(&len) {
            return Ok(());
        }
        let least = self.least;
        Err(Error::corrupt(format!(
            "squashfs data block at {start:#x}: has {len} bytes, the file needs {least}"
        )))
    }

    /// Where its bytes lie in the image, if they do as they are.
    ///
    /// # Errors
    /// As `check`.
    pub(super) fn plain(&self) -> Result<Option<Range<u64>>> {
        let Extent::Uncompressed { start, len } = self.extent else {
            return Ok(None);
        };
        self.check(index(len))?;
        let at = |offset: usize| start.saturating_add(length(offset));
        Ok(Some(at(self.range.start)..at(self.range.end)))
    }
}

/// Walks the pieces of a range.
#[derive(Clone)]
pub(super) struct Pieces<'d, 'm> {
    pub(super) data: &'d Data,
    pub(super) metadata: &'m Metadata,
    pub(super) body: RegularBody,
    /// `None` where the range starts in the tail.
    pub(super) extents: Option<Extents<'m>>,
    /// The number of the next block.
    pub(super) block: u64,
    pub(super) offset: u64,
    pub(super) end: u64,
}

impl Pieces<'_, '_> {
    /// The next piece, or `None` behind the last.
    ///
    /// # Errors
    /// `Corrupt` where the file's blocks end before its size; as reading metadata.
    pub(super) fn next(&mut self) -> Result<Option<Piece>> {
        if self.offset >= self.end {
            return Ok(None);
        }
        let block_size = self.data.block_size();
        let block_start = self.block.saturating_mul(block_size);
        let block_len = self.body.size.saturating_sub(block_start).min(block_size);
        let from = self.offset.saturating_sub(block_start);
        let to = self.end.saturating_sub(block_start).min(block_len);
        let extent = match &mut self.extents {
            Some(extents) => extents.next()?,
            None => None,
        };
        let piece = match (extent, self.body.tail) {
            (Some(extent), _) => Piece {
                extent: behind_superblock(extent)?,
                range: index(from)..index(to),
                least: index(block_len),
                most: index(block_len),
            },
            (None, Some(tail)) => {
                let before = index(tail.offset);
                Piece {
                    extent: behind_superblock(self.data.fragment(self.metadata, tail)?)?,
                    range: before.saturating_add(index(from))..before.saturating_add(index(to)),
                    least: before.saturating_add(index(block_len)),
                    most: index(block_size),
                }
            }
            (None, None) => {
                return Err(Error::corrupt("squashfs file: its blocks end before its size"));
            }
        };
        self.offset = block_start.saturating_add(to);
        self.block = self.block.saturating_add(1);
        Ok(Some(piece))
    }

    /// Passes over the pieces that lie in the image as they are, one behind the other, from the end
    /// of `plain` on, which grows by them; tells by how many bytes.
    ///
    /// # Errors
    /// As `next`.
    pub(super) fn pass_plain(&mut self, plain: &mut Range<u64>) -> Result<usize> {
        let mut passed: usize = 0;
        loop {
            let mut ahead = self.clone();
            match ahead.next()? {
                Some(piece) => match piece.plain()? {
                    Some(behind) if behind.start == plain.end => plain.end = behind.end,
                    _ => return Ok(passed),
                },
                None => return Ok(passed),
            }
            passed = passed.saturating_add(index(ahead.offset.saturating_sub(self.offset)));
            *self = ahead;
        }
    }

    /// Where the stored bytes of the blocks that follow a block ending at `end` of the image end,
    /// as far as each starts where the one before it ends, and at most `most` bytes further.
    pub(super) fn neighbours(&self, end: u64, most: u64) -> u64 {
        let mut ahead = self.clone();
        let limit = end.saturating_add(most);
        let mut reached = end;
        // A damaged list is reported when it is read.
        while let Ok(Some(piece)) = ahead.next() {
            match piece.extent {
                Extent::Hole => {}
                Extent::Uncompressed { start, len } | Extent::Compressed { start, len }
                    if start == reached =>
                {
                    let behind = start.saturating_add(u64::from(len));
                    if behind > limit {
                        break;
                    }
                    reached = behind;
                }
                _ => break,
            }
        }
        reached
    }
}

/// Refuses a block that begins before any can: it would show the image itself.
fn behind_superblock(extent: Extent) -> Result<Extent> {
    match extent {
        Extent::Uncompressed { start, .. } | Extent::Compressed { start, .. }
            if start < length(superblock::SIZE) =>
        {
            Err(Error::corrupt(format!("squashfs data block at {start:#x}: in the superblock")))
        }
        extent => Ok(extent),
    }
}
