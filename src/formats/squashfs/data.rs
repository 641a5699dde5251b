//! The contents of files: data blocks, fragment blocks, holes.
//!
//! Owns how a range of a file becomes bytes, and which blocks enter the cache; leaves where the
//! blocks lie to `blocklist`. Invariant: every byte handed out was decoded from the block the file
//! names and lies within what that block decoded to, or is a zero of a hole.
//!
//! Compressed blocks are cached, whether a file has them alone or shares them (fragments). Blocks
//! stored plain are read straight into the answer: the page cache of the archive holds them
//! already. A read within one compressed block is answered from the cached block with no copy at
//! all.

use std::cell::RefCell;
use std::ops::Range;

use super::blocklist::{BlockLists, Extent};
use super::inode::{InodeRef, RegularBody, Tail};
use super::metadata::{Cursor, Metadata};
use super::table::Table;
use crate::cache::Cache;
use crate::codecs::Codec;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::stats::{Held, Stats};
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::{ReadBytes, Scratch, SeekTarget, SharedBytes};

/// A record of the fragment table: start (8 bytes), word (4), unused (4).
const FRAGMENT_RECORD: usize = 16;

thread_local! {
    /// A block as stored and as decoded, before it is copied to its exact size: decoding into
    /// memory that stays warm costs less than fresh memory for each block.
    static BUFFERS: RefCell<(Vec<u8>, Vec<u8>)> = RefCell::default();
}

/// The contents of all files of an image.
pub(super) struct Data {
    storage: Arc<dyn Storage>,
    codec: Codec,
    block_size: u32,
    lists: BlockLists,
    fragments: Option<Table<FRAGMENT_RECORD>>,
    cache: Cache<Extent, SharedBytes>,
}

/// A file, as `Data` needs it.
pub(super) struct FileRef<'m> {
    pub(super) inode: InodeRef,
    pub(super) body: RegularBody,
    /// At the first word of its block list.
    pub(super) list: Cursor<'m>,
}

impl Data {
    /// Contents of the image in `storage`; `cache` bytes for decoded blocks.
    pub(super) fn new(
        storage: Arc<dyn Storage>,
        codec: Codec,
        block_size: u32,
        fragments: Option<Table<FRAGMENT_RECORD>>,
        capacity: u64,
    ) -> Self {
        let lists_share = capacity / 16;
        Self {
            storage,
            codec,
            block_size,
            lists: BlockLists::new(block_size, lists_share),
            fragments,
            cache: Cache::new(capacity.saturating_sub(lists_share), u64::from(block_size)),
        }
    }

    /// Has `stats` ask what its caches did.
    pub(super) fn report_to(&self, stats: &Stats) {
        self.lists.report_to(stats);
        self.cache.report_to(stats, Held::Data);
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
        let answer = scratch.answer(index(wanted));
        let mut filled: usize = 0;
        while let Some(piece) = pieces.next()? {
            let len = piece.range.len();
            let behind = filled.saturating_add(len);
            if len == answer.len()
                && let Some(block) = self.shared(&piece)?
            {
                return Ok(ReadBytes::Shared(block, piece.range));
            }
            self.copy(&piece, answer.get_mut(filled..behind).unwrap_or_default())?;
            filled = behind;
        }
        Ok(ReadBytes::Scratch(answer))
    }

    /// The first data or hole at or after `offset`.
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
        let block_size = u64::from(self.block_size).max(1);
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

    /// The pieces of a file from `offset` to `end`, which lie within it.
    fn pieces<'m>(
        &self,
        metadata: &'m Metadata,
        file: FileRef<'m>,
        offset: u64,
        end: u64,
    ) -> Result<Pieces<'_, 'm>> {
        let first = offset.checked_div(u64::from(self.block_size)).unwrap_or(0);
        let FileRef { inode, body, list } = file;
        let extents = match first < self.lists.count(&body)? {
            true => Some(self.lists.extents(metadata, inode, &body, list, first)?),
            false => None,
        };
        Ok(Pieces { data: self, metadata, body, extents, block: first, offset, end })
    }

    /// The block of a piece, if it is one that is shared through the cache.
    fn shared(&self, piece: &Piece) -> Result<Option<SharedBytes>> {
        match piece.extent {
            Extent::Compressed { .. } => self.block(piece).map(Some),
            Extent::Hole | Extent::Plain { .. } => Ok(None),
        }
    }

    /// Writes the bytes of a piece into `target`, which is just as long.
    fn copy(&self, piece: &Piece, target: &mut [u8]) -> Result<()> {
        match piece.extent {
            Extent::Hole => target.fill(0),
            Extent::Plain { start, len } => {
                piece.check(index(len))?;
                let start = start.saturating_add(length(piece.range.start));
                self.storage.read_exact_at(target, start)?;
            }
            Extent::Compressed { .. } => {
                let block = self.block(piece)?;
                let bytes = block.get(piece.range.clone()).unwrap_or_default();
                target.copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// The decoded block of a compressed piece, which holds at least the bytes of the piece.
    fn block(&self, piece: &Piece) -> Result<SharedBytes> {
        let block = self.cache.get_or_load(piece.extent, || self.load(piece.extent))?;
        piece.check(block.len())?;
        Ok(block)
    }

    fn load(&self, extent: Extent) -> Result<SharedBytes> {
        let (Extent::Compressed { start, len } | Extent::Plain { start, len }) = extent else {
            return Ok(Vec::new().into());
        };
        if len > self.block_size {
            return Err(Error::corrupt(format!(
                "squashfs data block at {start:#x}: claims {len} bytes, at most {} can be",
                self.block_size
            )));
        }
        BUFFERS.with_borrow_mut(|(stored, decoded)| {
            stored.resize(index(self.block_size), 0);
            decoded.resize(index(self.block_size), 0);
            let stored = stored.get_mut(..index(len)).unwrap_or_default();
            self.storage.read_exact_at(stored, start)?;
            let count = self
                .codec
                .decode(stored, decoded)
                .map_err(|error| error.within(format_args!("squashfs data block at {start:#x}")))?;
            Ok(decoded.get(..count).unwrap_or_default().into())
        })
    }

    /// Where the fragment block of a tail lies.
    fn fragment(&self, metadata: &Metadata, tail: Tail) -> Result<Extent> {
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

/// A part of one block: what a read wants of it.
#[derive(Debug)]
struct Piece {
    extent: Extent,
    /// Bytes of the decoded block.
    range: Range<usize>,
    /// What the block must decode to: just that, or for a fragment block at least that.
    least: usize,
    most: usize,
}

impl Piece {
    /// Checks that a block of `len` decoded bytes is what the file says it is.
    fn check(&self, len: usize) -> Result<()> {
        let (Extent::Plain { start, .. } | Extent::Compressed { start, .. }) = self.extent else {
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
}

/// Walks the pieces of a range.
struct Pieces<'d, 'm> {
    data: &'d Data,
    metadata: &'m Metadata,
    body: RegularBody,
    /// `None` where the range starts in the tail.
    extents: Option<super::blocklist::Extents<'m>>,
    block: u64,
    offset: u64,
    end: u64,
}

impl Pieces<'_, '_> {
    fn next(&mut self) -> Result<Option<Piece>> {
        if self.offset >= self.end {
            return Ok(None);
        }
        let block_size = u64::from(self.data.block_size);
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
                extent,
                range: index(from)..index(to),
                least: index(block_len),
                most: index(block_len),
            },
            (None, Some(tail)) => {
                let before = index(tail.offset);
                Piece {
                    extent: self.data.fragment(self.metadata, tail)?,
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
}
