//! Tar archives as a `Tree`: v7, ustar, GNU and pax, compressed or not.
//!
//! This file reads members with the help of an index. `open` gets the index: a saved one
//! (`saved_index`), or a new one from a scan. In a scan, `chain` reads a header and its extensions
//! (`header`, `extensions`), goes from one to the next, and `member` decodes the member (`sparse`).
//! `scan` says where. `formats/index` makes a tree of the members.
//!
//! Invariant: opening reads headers, but not the data of large members.

use std::ops::{ControlFlow, Range};

use crate::error::{Error, Result};
use crate::storage::{FilePart, FileRange, Storage};
use crate::sync::Arc;
use crate::vfs::{ReadBytes, Scratch};

mod chain;
mod extensions;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod header;
mod header_checks;
mod index_location;
mod info;
mod lone_file;
mod member;
mod open;
mod saved_index;
mod scan;
mod source;
mod sparse;

#[cfg(test)]
mod tests;

use super::bytes::{index, length};
use super::compressed::Compressed;
use super::index::{
    Content, IndexedTree, Map, MemberReader, NestedArchive, Node, NodeId, StoredReads, notes,
};
use super::info::SlowReads;
use header::{BLOCK, BLOCK_LEN, Block, BlockKind};
use header_checks::HeaderChecks;
use open::{OpenIndex, Opened};

pub(crate) use lone_file::LoneFile;
pub use open::IndexPolicy;
pub(crate) use open::{Bytes, CompressedTar, SavedIndexOptions, TarOptions};

/// Bytes of a file that show whether it is a tar or another format: two blocks.
pub(crate) const HEAD: usize = 2 * BLOCK;

/// The most bytes of headers and data that are read together: a buffer for more would be doubled.
const TOGETHER_MAX: usize = 1 << 20;

/// A tar archive.
pub(crate) type Tar = IndexedTree<TarMembers>;

/// Reads the members of a tar.
pub(crate) struct TarMembers {
    /// The chunks of a compressed archive.
    compressed: Option<Arc<Compressed>>,
    /// Whether its index is saved.
    is_saved: bool,
    /// `None` if the index is of this very file.
    checks: Option<HeaderChecks>,
}

/// Whether the first blocks of a file look like a tar: a header, or the end mark of an empty tar.
pub(crate) fn recognizes(head: &[u8]) -> bool {
    let (blocks, _) = head.as_chunks::<BLOCK>();
    let kind = |nth: usize| blocks.get(nth).map(|block: &Block| header::classify(block));
    kind(0) == Some(BlockKind::Header)
        || (kind(0), kind(1)) == (Some(BlockKind::Zeros), Some(BlockKind::Zeros))
}

impl Tar {
    /// Opens a tar. `name` is for errors and log messages.
    ///
    /// # Errors
    /// `Io` if it cannot be read. `UnknownFormat` if a compressed file contains no tar and is no
    /// `LoneFile`.
    /// `Unsupported` if it has too many names, or if archfs cannot read this form of compression.
    pub(crate) fn open(name: &str, bytes: Bytes, options: &TarOptions<'_>) -> Result<Self> {
        let Opened { storage, compressed, index } = open::open(name, bytes, options)?;
        let OpenIndex { index, checks, is_saved } = index;
        notes::report(name, &index, options.partial, options.logged)
            .map_err(|error| error.within(name))?;
        Ok(Self {
            name: name.to_owned(),
            stored: StoredReads::new(Arc::clone(&storage)),
            storage,
            index,
            acls: options.acls,
            members: TarMembers { compressed, is_saved, checks },
        })
    }

    /// The format for a message.
    pub(crate) fn describe(&self) -> String {
        match &self.members.compressed {
            Some(storage) => {
                let what = if lone_file::is_indexed_by(&self.index) { "one file" } else { "tar" };
                format!("{what}, {}", storage.container().name())
            }
            None => "tar, not compressed".to_owned(),
        }
    }

    /// Images, ZIP archives and compressed tars within the archive, each shown as a directory.
    pub(crate) fn nested_archives(&self) -> &[NestedArchive] {
        &self.index.nested_archives
    }

    /// The bytes of one of them.
    ///
    /// Fails with `Io`, also if the index is of another version of the archive; `Corrupt`.
    pub(crate) fn nested_bytes(&self, nested: &NestedArchive) -> Result<FileRange> {
        let &NestedArchive { offset, len, headers, .. } = nested;
        if let Some(checks) = &self.members.checks {
            let found = checks.read(self.storage.as_ref(), headers, offset);
            found.map_err(self.named())?;
        }
        FileRange::new(Arc::clone(&self.storage), offset)?.cut(len)
    }

    /// The checks of the headers of node `id`, if they are still to be done.
    fn unchecked(&self, id: NodeId) -> Option<&HeaderChecks> {
        self.members.checks.as_ref().filter(|checks| !checks.is_done(id))
    }

    /// Reads `range` of a file that is stored from `start` on.
    fn read_stored<'s>(
        &self,
        (id, node): (NodeId, &Node),
        start: u64,
        range: Range<u64>,
        scratch: &'s mut Scratch,
    ) -> Result<&'s [u8]> {
        let len = index(range.end.saturating_sub(range.start));
        let unchecked = self.unchecked(id).filter(|_| len > 0);
        let headers = node.headers();
        // The headers and the data with one read of the archive.
        let fits = headers.len().saturating_add(len) <= TOGETHER_MAX;
        let together =
            unchecked.filter(|_| range.start == 0 && length(headers.len()) <= start && fits);
        if let (Some(checks), None) = (unchecked, together) {
            checks.read(self.storage.as_ref(), headers, start)?;
            checks.done(id);
        }
        let before = together.map_or(0, |_| headers.len());
        let (answer, after_reply) = scratch.parts(before.saturating_add(len));
        match &self.members.compressed {
            _ if len == 0 => {}
            // The storage of a compressed archive reads ahead by itself.
            Some(storage) => {
                let offset = start.saturating_add(range.start).saturating_sub(length(before));
                storage.read_contents_at(answer, offset, FilePart::at(range.start))?;
            }
            None => {
                self.stored.read(id, (start, node.size), range, (&mut *answer, after_reply))?;
            }
        }
        let (found, answer) = answer.split_at_checked(before).unwrap_or_default();
        if let Some(checks) = together {
            checks.compare(headers, found)?;
            checks.done(id);
        }
        Ok(answer)
    }

    /// Reads `range` of the sparse file with `map`.
    fn read_sparse<'s>(
        &self,
        (id, node): (NodeId, &Node),
        map: &Map,
        range: Range<u64>,
        scratch: &'s mut Scratch,
    ) -> Result<&'s [u8]> {
        let answer = scratch.answer(index(range.end.saturating_sub(range.start)));
        if let Some(checks) = self.unchecked(id) {
            if let Some(start) = self.data_start(map)? {
                checks.read(self.storage.as_ref(), node.headers(), start)?;
            }
            checks.done(id);
        }
        answer.fill(0);
        self.segments(map, range.start, &mut |segment| {
            if segment.offset >= range.end {
                return Ok(ControlFlow::Break(()));
            }
            let part_start = segment.offset.max(range.start);
            let part_end = segment.end().min(range.end);
            let within = index(part_start.saturating_sub(range.start))
                ..index(part_end.saturating_sub(range.start));
            let skipped = part_start.saturating_sub(segment.offset);
            let archive_offset = segment.archive_offset.saturating_add(skipped);
            let part = answer.get_mut(within).unwrap_or_default();
            self.storage.read_contents_at(part, archive_offset, FilePart::at(part_start))?;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(answer)
    }

    /// Whether a read decompresses many files. `compressed::first_pass` warns of archives that are
    /// decompressed to a temporary file.
    pub(crate) fn slow_reads(&self) -> Option<SlowReads> {
        let chunks = length(self.members.compressed.as_ref()?.chunks()?);
        let mean = self.storage.len().checked_div(chunks)?;
        SlowReads::of_parts(mean, chunks, self.index.len().into())
    }
}

impl MemberReader for TarMembers {
    fn read<'s>(
        tar: &Tar,
        (id, node): (NodeId, &Node),
        range: Range<u64>,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        let answer = match node.content() {
            Content::Stored { start } => tar.read_stored((id, node), start, range, scratch),
            Content::Sparse { map } => {
                let map = tar.index.named(tar.index.map(id, node, map))?;
                tar.read_sparse((id, node), &map, range, scratch)
            }
            _ => tar.index.named(Err(Error::corrupt("a file of another format"))),
        };
        answer.map(ReadBytes::Scratch)
    }

    fn stored_start(_tar: &Tar, _id: NodeId, node: &Node) -> Option<u64> {
        match node.content() {
            Content::Stored { start } => Some(start),
            _ => None,
        }
    }

    fn allows_direct_reads(tar: &Tar) -> bool {
        if let Some(checks) = &tar.members.checks {
            // Nothing would check the headers.
            let what = format_args!("{}: no direct reads: {}", tar.name, checks.doubt());
            crate::log::warn(what, &checks.remedy(&tar.name));
        }
        tar.members.checks.is_none()
    }
}
