//! The block list of a file: which bytes of the image hold each block of it.
//!
//! Owns the words of the list and finding the n-th of them; leaves reading blocks to `data`.
//! Invariant: a list has as many words as the file's size demands, and no more are ever read.
//!
//! A word is the length of a block on disk: bit 24 set where it is stored plain, 0 where the block
//! is a hole. Blocks follow each other on disk, so the place of a block is the sum of the words
//! before it, and the list itself lies in a chain of metadata blocks. A file of a few thousand
//! blocks is walked from its start each time, which costs a few microseconds. For larger ones the
//! walk is made once and leaves a checkpoint every `STRIDE` words; the checkpoints are cached like
//! blocks are.

use super::inode::{InodeRef, RegularBody};
use super::metadata::{Cursor, Metadata, Position};
use crate::cache::{Cache, Cached, Part};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::formats::limits::SQUASHFS_FILE_BLOCKS_MAX;
use crate::stats::{CacheKind, Stats};
use crate::sync::Arc;

/// Words between two checkpoints, and the length of a list that needs none.
const STRIDE: u64 = 2048;

/// Set in a word where the block is stored plain; the bits above are reserved.
const PLAIN: u32 = 1 << 24;

/// What the list says of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Extent {
    /// Zeros that the image does not store.
    Hole,
    /// `len` bytes at `start` of the image, as they are.
    Uncompressed { start: u64, len: u32 },
    /// `len` bytes at `start` of the image, compressed.
    Compressed { start: u64, len: u32 },
}

impl Extent {
    /// What `word` says of the block at `start`.
    pub(super) fn parse(word: u32, start: u64) -> Self {
        match (word & PLAIN != 0, word & (PLAIN.wrapping_sub(1))) {
            (_, 0) => Self::Hole,
            (true, len) => Self::Uncompressed { start, len },
            (false, len) => Self::Compressed { start, len },
        }
    }
}

/// The checkpoints of one file.
#[derive(Clone, Debug)]
pub(super) struct Checkpoints(Arc<[Checkpoint]>);

/// The word number `n * STRIDE` of a list.
#[derive(Clone, Copy, Debug)]
struct Checkpoint {
    word: Position,
    /// Where its block starts, bytes into the image.
    start: u64,
}

impl Cached for Checkpoints {
    fn weight(&self) -> u64 {
        length(size_of_val(&*self.0))
    }
}

/// The block lists of an image.
pub(super) struct BlockLists {
    block_size: u32,
    /// Words that the inode table can hold at most.
    words_max: u64,
    checkpoints: Cache<InodeRef, Checkpoints>,
}

impl BlockLists {
    /// The lists of an image with blocks of `block_size` bytes whose inode table holds no more than
    /// `words_max` words; `capacity` bytes for checkpoints.
    pub(super) fn new(block_size: u32, words_max: u64, capacity: u64) -> Self {
        // A list of 2^30 words has 2^19 checkpoints; such files are rare, so few shards do.
        Self { block_size, words_max, checkpoints: Cache::new(capacity, capacity / 8) }
    }

    /// Bytes of a block.
    pub(super) fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Has `stats` ask what its cache did.
    pub(super) fn report_to(&self, stats: &Stats) {
        self.checkpoints.report_to(stats, CacheKind::Metadata);
    }

    /// Lets its cache use `part` of its capacity.
    pub(super) fn resize(&self, part: Part) {
        self.checkpoints.resize(part);
    }

    /// Frees the checkpoints.
    pub(super) fn release(&self) {
        self.checkpoints.clear();
    }

    /// Number of blocks of a file; its tail in a fragment is none of them.
    ///
    /// # Errors
    /// `Unsupported` for more than archfs takes; `Corrupt` for more than the image can list.
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

    /// Bytes of the list, which follows the inode of a file.
    ///
    /// # Errors
    /// As `count`.
    pub(super) fn len(&self, body: &RegularBody) -> Result<u64> {
        Ok(self.count(body)?.saturating_mul(4))
    }

    /// The extents of a file from block `first` on; `list` is the cursor at its first word.
    ///
    /// # Errors
    /// `Corrupt` where the list is damaged; `Io`.
    pub(super) fn extents<'m>(
        &self,
        metadata: &'m Metadata,
        inode: InodeRef,
        body: &RegularBody,
        list: Cursor<'m>,
        first: u64,
    ) -> Result<Extents<'m>> {
        let count = self.count(body)?;
        let mut extents = Extents { words: list, start: body.start, left: count };
        if first >= STRIDE {
            let nth = first.checked_div(STRIDE).unwrap_or(0);
            let all = self.checkpoints.get_or_load(inode, || extents.clone().checkpoints())?;
            if let Some(checkpoint) = all.0.get(index(nth)) {
                let passed = nth.saturating_mul(STRIDE);
                extents.words = metadata.cursor(checkpoint.word)?;
                extents.start = checkpoint.start;
                extents.left = count.saturating_sub(passed);
            }
        }
        extents.pass(first.saturating_sub(count.saturating_sub(extents.left)))?;
        Ok(extents)
    }
}

/// Walks along a block list.
#[derive(Clone)]
pub(super) struct Extents<'m> {
    words: Cursor<'m>,
    /// Where the next block starts, bytes into the image.
    start: u64,
    /// Words not yet read.
    left: u64,
}

impl Extents<'_> {
    /// The next block, or `None` behind the last.
    ///
    /// # Errors
    /// `Corrupt` where the list ends early; `Io`.
    pub(super) fn next(&mut self) -> Result<Option<Extent>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left = self.left.saturating_sub(1);
        let word = u32::from_le_bytes(self.words.array()?);
        let extent = Extent::parse(word, self.start);
        self.start = self.start.saturating_add(stored_len(word));
        Ok(Some(extent))
    }

    /// Passes over `count` blocks.
    fn pass(&mut self, count: u64) -> Result<()> {
        let mut due = count.min(self.left);
        self.left = self.left.saturating_sub(due);
        while due > 0 {
            let rest = self.words.rest()?;
            let whole = length(rest.len() / 4).min(due);
            if whole == 0 {
                // A word that two metadata blocks share.
                let word = u32::from_le_bytes(self.words.array()?);
                self.start = self.start.saturating_add(stored_len(word));
                due = due.saturating_sub(1);
                continue;
            }
            let (words, _) = rest.as_chunks::<4>();
            let passed = words.get(..index(whole)).unwrap_or_default();
            let sum: u64 = passed.iter().map(|word| stored_len(u32::from_le_bytes(*word))).sum();
            self.start = self.start.saturating_add(sum);
            self.words.skip(whole.saturating_mul(4))?;
            due = due.saturating_sub(whole);
        }
        Ok(())
    }

    fn checkpoints(mut self) -> Result<Checkpoints> {
        let mut checkpoints = Vec::new();
        while self.left > 0 {
            checkpoints.push(Checkpoint { word: self.words.position(), start: self.start });
            self.pass(STRIDE)?;
        }
        Ok(Checkpoints(checkpoints.into()))
    }
}

/// Bytes on disk of the block that `word` describes.
fn stored_len(word: u32) -> u64 {
    u64::from(word & PLAIN.wrapping_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codecs::Codec;
    use crate::storage::MemStorage;

    const BLOCK: u32 = 4096;

    /// A chain of metadata blocks that holds `words` from byte `lead` on.
    fn list(words: &[u32], lead: usize) -> Metadata {
        let mut bytes = vec![0; lead];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let mut image = Vec::new();
        for block in bytes.chunks(8192) {
            image.extend((u16::try_from(block.len()).unwrap() | 0x8000).to_le_bytes());
            image.extend(block);
        }
        Metadata::new(Arc::new(MemStorage::new(image)), Codec::Zstd, 1 << 20)
    }

    fn body(blocks: usize) -> RegularBody {
        let size = length(blocks) * u64::from(BLOCK);
        RegularBody { start: 1000, size, sparse: 0, tail: None }
    }

    #[test]
    fn finds_any_block_as_a_plain_walk_does() {
        let words: Vec<u32> = (0..10_000_u32)
            .map(|n| match n % 7 {
                0 => 0,
                1 => PLAIN | BLOCK,
                _ => 1 + n % 4000,
            })
            .collect();
        let mut expected = Vec::new();
        let mut start = 1000;
        for &word in &words {
            expected.push(Extent::parse(word, start));
            start += stored_len(word);
        }
        // An odd lead makes words straddle metadata blocks.
        for lead in [0, 2, 17] {
            let metadata = list(&words, lead);
            let lists = BlockLists::new(BLOCK, u64::MAX, 1 << 20);
            let at = Position { block: 0, offset: u16::try_from(lead).unwrap() };
            let open = |first| {
                let cursor = metadata.cursor(at).unwrap();
                let inode = InodeRef::new(0, 0);
                lists.extents(&metadata, inode, &body(words.len()), cursor, first).unwrap()
            };
            for first in [0, 1, 2046, 2047, 2048, 2049, 4096, 6000, 8191, 8192, 9998, 9999] {
                let mut extents = open(first);
                assert_eq!(extents.next().unwrap(), Some(expected[index(first)]), "{first}");
                assert_eq!(extents.next().unwrap(), expected.get(index(first) + 1).copied());
            }
            assert_eq!(open(10_000).next().unwrap(), None);
            let mut whole = open(0);
            for extent in &expected {
                assert_eq!(whole.next().unwrap(), Some(*extent));
            }
        }
    }

    #[test]
    fn counts_the_tail_only_where_it_is_no_fragment() {
        let lists = BlockLists::new(BLOCK, u64::MAX, 1 << 20);
        let tail = Some(super::super::inode::Tail { fragment: 0, offset: 0 });
        for (size, alone, shared) in [(0, 0, 0), (1, 1, 0), (4096, 1, 1), (4097, 2, 1)] {
            let body = RegularBody { start: 0, size, sparse: 0, tail: None };
            assert_eq!(lists.count(&body).unwrap(), alone);
            assert_eq!(lists.count(&RegularBody { tail, ..body }).unwrap(), shared);
        }
    }

    #[test]
    fn refuses_one_block_more_than_the_limit() {
        let lists = BlockLists::new(BLOCK, u64::MAX, 1 << 20);
        let size = SQUASHFS_FILE_BLOCKS_MAX * u64::from(BLOCK);
        let body = RegularBody { start: 0, size, sparse: 0, tail: None };
        assert!(lists.count(&body).is_ok());
        assert!(lists.count(&RegularBody { size: size + 1, ..body }).is_err());
    }

    #[test]
    fn refuses_one_block_more_than_the_inode_table_can_list() {
        let lists = BlockLists::new(BLOCK, 10, 1 << 20);
        assert_eq!(lists.count(&body(10)).unwrap(), 10);
        let error = lists.count(&body(11)).unwrap_err();
        assert_eq!(error.to_string(), "file of 11 blocks, the inode table can list 10 at most");
    }

    #[test]
    fn reports_a_list_that_ends_before_the_file_does() {
        let metadata = list(&[5; 10], 0);
        let lists = BlockLists::new(BLOCK, u64::MAX, 1 << 20);
        for (blocks, first) in [(11, 10), (5000, 4000)] {
            let cursor = metadata.cursor(Position { block: 0, offset: 0 }).unwrap();
            let opened =
                lists.extents(&metadata, InodeRef::new(0, 0), &body(blocks), cursor, first);
            assert!(opened.and_then(|mut extents| extents.next()).is_err());
        }
    }
}
