//! Tar archives as a `Tree`: v7, ustar, GNU and pax, compressed or not.
//!
//! This file answers requests from an index. `open` and `compressed_tar` get the index: a saved
//! one, or a new one from a scan (`index_source`, `saved_index`). In a scan, `chain` reads a header
//! and its extensions (`header`, `pax`, `extensions`), and `member` decodes the member (`sparse`).
//! `walk` goes from one to the next. `scan` and `segments` say where, for a stream `unpack`.
//! `formats/index` makes a tree of the members.
//!
//! Invariants: opening reads headers, but not the data of large members. A read goes straight from
//! the archive into the answer, with no lock and no copy in between.

use std::ops::{ControlFlow, Range};

use crate::error::{Error, Kind, Result};
use crate::storage::{FileRange, Storage};
use crate::sync::Arc;
use crate::vfs::{
    Attr, Cookie, DirEntry, FileKind, Finding, Ino, Name, ReadBytes, Scratch, SeekTarget,
    StoredFile, Totals, Tree, link_target,
};

mod acl;
mod chain;
mod compressed_tar;
mod empty;
mod extensions;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod header;
mod header_checks;
mod index_location;
mod index_source;
mod info;
mod member;
mod open;
mod options;
mod pax;
mod saved_index;
mod scan;
mod segments;
mod source;
mod sparse;
mod sparse_records;
mod step;
mod unpack;
mod walk;

#[cfg(test)]
mod tests;

use super::bytes::{index, length};
use super::compressed::Compressed;
use super::index::members::Segment;
use super::index::{Content, Index, Map, NestedArchive, Node, NodeId, ino_of, notes};
use super::stored_reads::StoredReads;
use header::{BLOCK, Block, BlockKind};
use header_checks::HeaderChecks;
use open::Opened;

pub use acl::Acls;
pub(in crate::formats) use compressed_tar::CompressedTar;
pub(in crate::formats) use open::Bytes;
pub use options::IndexPolicy;
pub(in crate::formats) use options::{SavedIndexOptions, TarOptions};

/// Bytes of a file that show whether it is a tar or another format: two blocks.
pub(in crate::formats) const HEAD: usize = 2 * BLOCK;

/// The most bytes of headers and data that are read together: a buffer for more would be doubled.
const TOGETHER_MAX: usize = 1 << 20;

/// A tar archive.
pub(crate) struct Tar {
    /// Its name, for errors.
    name: String,
    storage: Arc<dyn Storage>,
    /// The chunks of a compressed archive.
    compressed: Option<Arc<Compressed>>,
    index: Index,
    /// Whether its index is saved.
    is_saved: bool,
    acls: Acls,
    stored: StoredReads,
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
    /// `Io` if it cannot be read. `UnknownFormat` if a compressed file does not contain a tar.
    /// `Unsupported` if it has too many names, or if archfs cannot read this form of compression.
    pub(crate) fn open(name: &str, bytes: Bytes, options: &TarOptions<'_>) -> Result<Self> {
        let Opened { storage, compressed, index, checks, is_saved } =
            open::open(name, bytes, options)?;
        notes::report(name, &index.notes, options.partial, options.logs_notes)
            .map_err(|error| error.within(name))?;
        let (name, acls) = (name.to_owned(), options.acls);
        let stored = StoredReads::new(Arc::clone(&storage));
        Ok(Self { name, storage, compressed, index, is_saved, acls, stored, checks })
    }

    /// The format for a message.
    pub(crate) fn describe(&self) -> String {
        match &self.compressed {
            Some(storage) => format!("tar, {}", storage.container().name()),
            None => "tar, not compressed".to_owned(),
        }
    }

    /// Images and ZIP archives within the archive, each to be shown as a directory.
    pub(crate) fn nested_archives(&self) -> &[NestedArchive] {
        &self.index.nested_archives
    }

    /// The bytes of one of them.
    ///
    /// Fails with `Io`, also if the index is of another version of the archive; `Corrupt`.
    pub(in crate::formats) fn nested_bytes(&self, nested: &NestedArchive) -> Result<FileRange> {
        let &NestedArchive { offset, len, headers, .. } = nested;
        if let Some(checks) = &self.checks {
            let found = checks.read(self.storage.as_ref(), headers, offset);
            found.map_err(self.named())?;
        }
        FileRange::new(Arc::clone(&self.storage), offset)?.cut(len)
    }

    fn attr_of(&self, id: NodeId, node: &Node) -> Result<Attr> {
        let permissions = self.permissions(id, node)?;
        Ok(Attr { permissions, ..self.index.attr(id, node)? })
    }

    /// The mode of a node, without the permissions that its ACL denies.
    fn permissions(&self, id: NodeId, node: &Node) -> Result<u16> {
        let mut permitted = node.permissions();
        if self.acls.is_masked() {
            self.index.xattrs_of(id, &mut |name, value| {
                if acl::is_access(name) {
                    permitted &= acl::mask(name, &self.index.value(value)?);
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(permitted)
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
        let unchecked = self.checks.as_ref().filter(|checks| len > 0 && !checks.is_done(id));
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
        match &self.compressed {
            _ if len == 0 => {}
            // The storage of a compressed archive reads ahead by itself.
            Some(storage) => {
                let offset = start.saturating_add(range.start).saturating_sub(length(before));
                storage.read_contents_at(answer, offset)?;
            }
            None => {
                let file = (start, node.size);
                self.stored.read(ino_of(id), file, range, (&mut *answer, after_reply))?;
            }
        }
        let (found, answer) = answer.split_at_checked(before).unwrap_or_default();
        if let Some(checks) = together {
            checks.compare(headers, found)?;
            checks.done(id);
        }
        Ok(answer)
    }

    /// Checks the headers of a sparse file, if that is still to be done.
    fn check_sparse(&self, (id, node): (NodeId, &Node), map: &Map) -> Result<()> {
        let Some(checks) = self.checks.as_ref().filter(|checks| !checks.is_done(id)) else {
            return Ok(());
        };
        let start = self.data_start(map)?;
        start.map_or(Ok(()), |start| checks.read(self.storage.as_ref(), node.headers(), start))?;
        checks.done(id);
        Ok(())
    }

    /// Where the data of a sparse file begin in the archive. `None` if it has none.
    fn data_start(&self, map: &Map) -> Result<Option<u64>> {
        let mut start = None;
        self.segments(map, 0, &mut |first| {
            start = Some(first.archive_offset);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(start)
    }

    /// Fills `answer` with the bytes of a sparse file from `offset`.
    fn read_sparse(&self, map: &Map, offset: u64, answer: &mut [u8]) -> Result<()> {
        answer.fill(0);
        let end = offset.saturating_add(length(answer.len()));
        self.segments(map, offset, &mut |segment| {
            if segment.offset >= end {
                return Ok(ControlFlow::Break(()));
            }
            let part_start = segment.offset.max(offset);
            let part_end = segment.end().min(end);
            let range =
                index(part_start.saturating_sub(offset))..index(part_end.saturating_sub(offset));
            let skipped = part_start.saturating_sub(segment.offset);
            let archive_offset = segment.archive_offset.saturating_add(skipped);
            self.storage
                .read_contents_at(answer.get_mut(range).unwrap_or_default(), archive_offset)?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Visits the segments of `map` that end after `offset`.
    fn segments(
        &self,
        map: &Map,
        offset: u64,
        visit: &mut dyn FnMut(Segment) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        // Errors of `visit` are not errors of the index.
        let mut failed = Ok(());
        self.in_index(self.index.segments(map, offset, &mut |segment| {
            visit(segment).unwrap_or_else(|error| {
                failed = Err(error);
                ControlFlow::Break(())
            })
        }))?;
        failed
    }

    /// Adds the name of the index to an error.
    fn in_index<T>(&self, outcome: Result<T>) -> Result<T> {
        self.index.named(outcome)
    }

    /// Adds the name of the archive to an error.
    fn named(&self) -> impl Fn(Error) -> Error + '_ {
        |error| error.within(&self.name)
    }
}

impl Tree for Tar {
    fn attr(&self, ino: Ino) -> Result<Attr> {
        let (id, node) = self.index.node_of(ino)?;
        self.in_index(self.attr_of(id, &node))
    }

    fn lookup(&self, parent: Ino, name: Name<'_>) -> Result<Option<Attr>> {
        let found = self.index.lookup(parent, name)?;
        found.map(|(id, node)| self.in_index(self.attr_of(id, &node))).transpose()
    }

    fn read_dir(
        &self,
        ino: Ino,
        cookie: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.index.read_dir(ino, cookie, visit)
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let target = self.index.read_link(ino)?;
        link_target(target).map_err(|error| error.within(&self.name))
    }

    fn read<'s>(
        &self,
        ino: Ino,
        offset: u64,
        size: u32,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        let (id, node) = self.index.node_of(ino)?;
        let end = offset.saturating_add(u64::from(size)).min(node.size);
        let range = offset.min(end)..end;
        let answer = match node.content() {
            Content::Stored { start } => self.read_stored((id, &node), start, range, scratch),
            Content::Sparse { map } => {
                let map = self.in_index(self.index.map(id, &node, map))?;
                let answer = scratch.answer(index(end.saturating_sub(range.start)));
                let checked = self.check_sparse((id, &node), &map);
                checked.and_then(|()| self.read_sparse(&map, offset, answer)).map(|()| &*answer)
            }
            Content::Directory { .. } => Err(Error::new(Kind::IsADirectory, "is a directory")),
            Content::AfterHeader { .. } | Content::Described { .. } => {
                self.in_index(Err(Error::corrupt("a file of another format")))
            }
            _ => Err(Error::new(Kind::InvalidInput, "not a regular file")),
        };
        answer.map(ReadBytes::Scratch).map_err(self.named())
    }

    fn seek(&self, ino: Ino, offset: u64, target: SeekTarget) -> Result<u64> {
        let (id, node) = self.index.node_of(ino)?;
        let past_end = || Error::new(Kind::PastEnd, format!("nothing after byte {offset}"));
        let map = match node.content() {
            Content::Stored { .. } | Content::Sparse { .. } if offset >= node.size => {
                return Err(past_end());
            }
            Content::Stored { .. } => {
                return Ok(if target == SeekTarget::Data { offset } else { node.size });
            }
            Content::Sparse { map } => self.in_index(self.index.map(id, &node, map))?,
            _ => return Err(Error::new(Kind::InvalidInput, "not a regular file")),
        };
        // The first gap between segments. The end of the file counts as one.
        let (mut data, mut hole) = (None, offset);
        self.segments(&map, offset, &mut |segment| {
            data = data.or(Some(segment.offset.max(offset)));
            if target == SeekTarget::Data || segment.offset > hole {
                return Ok(ControlFlow::Break(()));
            }
            hole = segment.end();
            Ok(ControlFlow::Continue(()))
        })?;
        if target == SeekTarget::Data { data.ok_or_else(past_end) } else { Ok(hole) }
    }

    fn has_xattrs(&self) -> bool {
        self.index.has_xattrs()
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        let (id, _) = self.index.node_of(ino)?;
        let mut list = Vec::new();
        self.in_index(self.index.xattrs_of(id, &mut |name, _| {
            if self.acls.shows(name) {
                list.extend(name);
                list.push(0);
            }
            Ok(ControlFlow::Continue(()))
        }))?;
        Ok(list)
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let (id, _) = self.index.node_of(ino)?;
        let mut found = None;
        self.in_index(self.index.xattrs_of(id, &mut |other, value| {
            if other != name || !self.acls.shows(name) {
                return Ok(ControlFlow::Continue(()));
            }
            found = Some(self.index.value(value)?);
            Ok(ControlFlow::Break(()))
        }))?;
        found.ok_or_else(|| Error::new(Kind::NoAttribute, "no such attribute"))
    }

    fn totals(&self) -> Totals {
        Totals {
            bytes: self.storage.len(),
            inodes: self.index.len().into(),
            block_size: header::BLOCK_LEN.try_into().unwrap_or(512),
        }
    }

    fn parent(&self, ino: Ino) -> Result<Option<Ino>> {
        self.index.parent_of(ino).map(Some)
    }

    fn numbers_end(&self) -> u64 {
        u64::from(self.index.len()).saturating_add(1)
    }

    fn data_offset(&self, ino: Ino) -> Result<u64> {
        let (id, node) = self.index.node_of(ino)?;
        match node.content() {
            Content::Stored { start } => Ok(start),
            Content::Sparse { map } => {
                let map = self.in_index(self.index.map(id, &node, map))?;
                Ok(self.data_start(&map)?.unwrap_or(0))
            }
            _ => Ok(0),
        }
    }

    fn stored_files(&self, visit: &mut dyn FnMut(Ino, StoredFile)) -> Result<()> {
        if self.storage.position(0, 0).is_none() {
            return Ok(());
        }
        if let Some(checks) = &self.checks {
            // Nothing would check the headers.
            let what = format_args!("{}: no direct reads: {}", self.name, checks.doubt());
            crate::log::warn(what, &checks.remedy(&self.name));
            return Ok(());
        }
        for id in 0..self.index.len() {
            let node = self.in_index(self.index.node(id))?;
            if let (FileKind::Regular, Content::Stored { start }) = (node.kind(), node.content())
                && node.size > 0
                && let Some(head) = self.storage.position(start, node.size)
            {
                visit(ino_of(id), StoredFile { size: node.size, head, tail: None });
            }
        }
        Ok(())
    }

    fn audit(&self, found: &mut dyn FnMut(Finding)) {
        self.index.findings.iter().cloned().for_each(found);
    }

    fn release(&self) {
        self.index.release();
        self.storage.release();
    }
}
