//! The block list of a file: which bytes of the image hold each of its blocks.
//!
//! Invariant: a list has as many words as the size of the file requires, and no more are ever read.
//!
//! A word is the length of a block on disk. Bit 24 is set if the block is uncompressed. The word is
//! 0 if the block is a hole. Blocks follow each other on disk, so the offset of a block is the sum
//! of the words before it. The list itself is in a chain of metadata blocks. For a file of up to a
//! few thousand blocks, archfs adds up the words from the start each time, which takes a few
//! microseconds. For a larger file it does so once and saves a checkpoint every `STRIDE` words.
//! Checkpoints are cached like blocks.

use std::ops::Range;

use super::inode::{InodeRef, RegularBody};
use super::metadata::{Cursor, Metadata, Position};
use crate::cache::{Cache, Cached, Part};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::formats::limits::SQUASHFS_FILE_BLOCKS_MAX;
use crate::stats::{CacheKind, Stats};
use crate::sync::Arc;
use crate::vfs::SeekTarget;

/// Words between two checkpoints. A shorter list has none.
const STRIDE: u64 = 2048;

/// Set in a word if the block is uncompressed. The bits above are reserved.
const UNCOMPRESSED: u32 = 1 << 24;

/// Where one block of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Extent {
    /// Zeros that are not stored in the image.
    Hole,
    /// `len` uncompressed bytes at `start` of the image.
    Uncompressed { start: u64, len: u32 },
    /// `len` compressed bytes at `start` of the image.
    Compressed { start: u64, len: u32 },
}

impl Extent {
    /// Parses `word`, for a block at `start`.
    pub(super) fn parse(word: u32, start: u64) -> Self {
        match (word & UNCOMPRESSED != 0, word & (UNCOMPRESSED.wrapping_sub(1))) {
            (_, 0) => Self::Hole,
            (true, len) => Self::Uncompressed { start, len },
            (false, len) => Self::Compressed { start, len },
        }
    }

    /// Its bytes in the image.
    pub(super) fn range(self) -> Range<u64> {
        match self {
            Self::Hole => 0..0,
            Self::Uncompressed { start, len } | Self::Compressed { start, len } => {
                start..start.saturating_add(u64::from(len))
            }
        }
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

/// The block lists of an image.
pub(super) struct BlockLists {
    metadata: Arc<Metadata>,
    block_size: u32,
    /// Most words that the inode table can hold.
    words_max: u64,
    checkpoints: Cache<InodeRef, Checkpoints>,
}

impl BlockLists {
    /// The block lists of an image with blocks of `block_size` bytes, whose inode table holds at
    /// most `words_max` words. `capacity` bytes are for checkpoints.
    pub(super) fn new(
        metadata: Arc<Metadata>,
        block_size: u32,
        words_max: u64,
        capacity: u64,
    ) -> Self {
        // A list of 2^30 words has 2^19 checkpoints. Such files are rare, so a few shards are
        // enough.
        let checkpoints = Cache::new(capacity, capacity / 8);
        Self { metadata, block_size, words_max, checkpoints }
    }

    /// Size of a block, bytes.
    pub(super) fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Registers the counters of its cache with `stats`.
    pub(super) fn report_to(&self, stats: &Stats) {
        self.checkpoints.report_to(stats, CacheKind::Metadata);
    }

    /// Limits its cache to `part` of its capacity.
    pub(super) fn resize(&self, part: Part) {
        self.checkpoints.resize(part);
    }

    /// Frees the checkpoints.
    pub(super) fn release(&self) {
        self.checkpoints.clear();
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

    /// Length of the block list, bytes. It follows the inode of the file.
    pub(super) fn len(&self, body: &RegularBody) -> Result<u64> {
        Ok(self.count(body)?.saturating_mul(4))
    }

    /// The extents of a file from block `first` on.
    pub(super) fn extents<'m>(&'m self, file: FileRef<'m>, first: u64) -> Result<Extents<'m>> {
        let FileRef { inode, body, list } = file;
        let count = self.count(&body)?;
        let mut extents = Extents { words: list, start: body.start, left: count };
        if first >= STRIDE {
            let nth = first.checked_div(STRIDE).unwrap_or(0);
            let all = self.checkpoints.get_or_load(inode, || extents.clone().checkpoints())?;
            if let Some(checkpoint) = all.0.get(index(nth)) {
                let skipped = nth.saturating_mul(STRIDE);
                extents.words = self.metadata.cursor(checkpoint.word)?;
                extents.start = checkpoint.start;
                extents.left = count.saturating_sub(skipped);
            }
        }
        extents.skip(first.saturating_sub(count.saturating_sub(extents.left)))?;
        Ok(extents)
    }

    /// The offset of the first data or hole at or after `offset`.
    pub(super) fn seek(&self, file: FileRef<'_>, offset: u64, target: SeekTarget) -> Result<u64> {
        let size = file.body.size;
        let past_end = || Error::new(Kind::PastEnd, format!("nothing after byte {offset}"));
        if offset >= size {
            return Err(past_end());
        }
        let block_size = u64::from(self.block_size).max(1);
        let mut block = offset.checked_div(block_size).unwrap_or(0);
        let mut extents = self.extents(file, block)?;
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
}

/// An iterator over a block list.
#[derive(Clone)]
pub(super) struct Extents<'m> {
    words: Cursor<'m>,
    /// Offset of the next block in the image.
    start: u64,
    /// Words not read yet.
    left: u64,
}

impl Extents<'_> {
    /// The next block, or `None` after the last.
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
    u64::from(word & UNCOMPRESSED.wrapping_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codecs::Codec;
    use crate::storage::MemStorage;

    const BLOCK: u32 = 4096;

    /// A chain of metadata blocks that holds `words` from byte `lead` on.
    fn list(words: &[u32], lead: usize) -> Arc<Metadata> {
        let mut bytes = vec![0; lead];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let mut image = Vec::new();
        for block in bytes.chunks(8192) {
            image.extend((u16::try_from(block.len()).unwrap() | 0x8000).to_le_bytes());
            image.extend(block);
        }
        Arc::new(Metadata::new(Arc::new(MemStorage::new(image)), Codec::Zstd, 1 << 20))
    }

    /// Lists of at most `words_max` words in `metadata`.
    fn lists(metadata: &Arc<Metadata>, words_max: u64) -> BlockLists {
        BlockLists::new(Arc::clone(metadata), BLOCK, words_max, 1 << 20)
    }

    fn body(blocks: usize) -> RegularBody {
        let size = length(blocks) * u64::from(BLOCK);
        RegularBody { start: 1000, size, sparse: 0, tail: None }
    }

    #[test]
    fn finds_any_block_like_a_linear_walk() {
        let words: Vec<u32> = (0..10_000_u32)
            .map(|n| match n % 7 {
                0 => 0,
                1 => UNCOMPRESSED | BLOCK,
                _ => 1 + n % 4000,
            })
            .collect();
        let mut expected = Vec::new();
        let mut start = 1000;
        for &word in &words {
            expected.push(Extent::parse(word, start));
            start += stored_len(word);
        }
        // With an odd lead, words span metadata blocks.
        for lead in [0, 2, 17] {
            let metadata = list(&words, lead);
            let lists = lists(&metadata, u64::MAX);
            let position = Position { block: 0, offset: u16::try_from(lead).unwrap() };
            let open = |first| {
                let list = metadata.cursor(position).unwrap();
                let file = FileRef { inode: InodeRef::new(0, 0), body: body(words.len()), list };
                lists.extents(file, first).unwrap()
            };
            for first in [0, 1, 2046, 2047, 2048, 2049, 4096, 6000, 8191, 8192, 9998, 9999] {
                let mut extents = open(first);
                assert_eq!(extents.next().unwrap(), Some(expected[index(first)]), "{first}");
                assert_eq!(extents.next().unwrap(), expected.get(index(first) + 1).copied());
            }
            assert_eq!(open(10_000).next().unwrap(), None);
            let mut all = open(0);
            for extent in &expected {
                assert_eq!(all.next().unwrap(), Some(*extent));
            }
        }
    }

    #[test]
    fn counts_the_tail_unless_it_is_in_a_fragment() {
        let lists = lists(&list(&[], 0), u64::MAX);
        let tail = Some(super::super::inode::Tail { fragment: 0, offset: 0 });
        for (size, alone, shared) in [(0, 0, 0), (1, 1, 0), (4096, 1, 1), (4097, 2, 1)] {
            let body = RegularBody { start: 0, size, sparse: 0, tail: None };
            assert_eq!(lists.count(&body).unwrap(), alone);
            assert_eq!(lists.count(&RegularBody { tail, ..body }).unwrap(), shared);
        }
    }

    #[test]
    fn rejects_one_block_more_than_the_limit() {
        let lists = lists(&list(&[], 0), u64::MAX);
        let size = SQUASHFS_FILE_BLOCKS_MAX * u64::from(BLOCK);
        let body = RegularBody { start: 0, size, sparse: 0, tail: None };
        assert!(lists.count(&body).is_ok());
        assert!(lists.count(&RegularBody { size: size + 1, ..body }).is_err());
    }

    #[test]
    fn rejects_one_block_more_than_the_inode_table_can_list() {
        let lists = lists(&list(&[], 0), 10);
        assert_eq!(lists.count(&body(10)).unwrap(), 10);
        let error = lists.count(&body(11)).unwrap_err();
        assert_eq!(error.to_string(), "file of 11 blocks, the inode table can list 10 at most");
    }

    #[test]
    fn reports_a_list_shorter_than_its_file() {
        let metadata = list(&[5; 10], 0);
        let lists = lists(&metadata, u64::MAX);
        for (blocks, first) in [(11, 10), (5000, 4000)] {
            let list = metadata.cursor(Position { block: 0, offset: 0 }).unwrap();
            let file = FileRef { inode: InodeRef::new(0, 0), body: body(blocks), list };
            let opened = lists.extents(file, first);
            assert!(opened.and_then(|mut extents| extents.next()).is_err());
        }
    }
}
