//! A finished tree, and how it becomes an index: in a file or in memory.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use super::super::header::BLOCK_LEN;
use super::super::weight;
use super::blocks::Allowance;
use super::builder::Builder;
use super::file::{IndexFile, IndexOptions, Section};
use super::key::Key;
use super::layout::Order;
use super::node::{Content, NODE, Node};
use super::output::Output;
use super::{Index, NodeId};
use crate::error::{Error, Result};
use crate::formats::bytes::{index, length};
use crate::storage::{self, FileStorage, InMemory, Storage};
use crate::sync::Arc;
use crate::vfs::Finding;

/// An unsaved index up to this size stays in memory, bytes. A larger one goes into a temporary
/// file.
const IN_MEMORY_MAX: u64 = 1 << 20;

/// A finished tree that is not an index yet.
pub(in crate::formats::tar) struct Draft {
    builder: Builder,
    order: Order,
    /// The output of `SeekIndex::write`, for a compressed archive.
    pub(in crate::formats::tar) seek_points: Vec<u8>,
    /// Warnings about this archive, one line each.
    pub(in crate::formats::tar) notes: Vec<String>,
    /// The same for `archfs verify`, with paths. Not saved in a file.
    pub(in crate::formats::tar) findings: Vec<Finding>,
}

impl Draft {
    pub(super) fn new(builder: Builder, order: Order) -> Self {
        let (seek_points, notes, findings) = (Vec::new(), Vec::new(), Vec::new());
        Self { builder, order, seek_points, notes, findings }
    }

    /// Number of nodes.
    pub(in crate::formats::tar) fn len(&self) -> usize {
        self.order.slots.len()
    }

    /// Whether the tree has only its root.
    pub(in crate::formats::tar) fn is_empty(&self) -> bool {
        self.len() <= 1
    }

    fn nodes(&self) -> impl Iterator<Item = Node> {
        let ids = 0..NodeId::try_from(self.len()).unwrap_or(NodeId::MAX);
        ids.map(|id| self.order.node(&self.builder, id))
    }

    /// About `count` offsets of headers, unordered: the blocks before the data of stored files.
    /// Samples of these blocks identify the archive.
    pub(in crate::formats::tar) fn header_offsets(&self, count: usize) -> Vec<u64> {
        let step = self.len().div_ceil(count.max(1)).max(1);
        let header_offset = |id| {
            let node = self.order.node(&self.builder, NodeId::try_from(id).ok()?);
            match node.content() {
                Content::Stored { start } => start.checked_sub(BLOCK_LEN),
                _ => None,
            }
        };
        // If a node is not a stored file, one of those after it is taken instead.
        let candidates = (0..self.len()).step_by(step);
        let found = candidates.filter_map(|first| {
            (first..first.saturating_add(step.min(SEARCH_MAX)).min(self.len()))
                .find_map(header_offset)
        });
        // The archive starts with a header in any case.
        std::iter::once(0).chain(found).collect()
    }

    /// Writes the index with `key` of an archive of `decoded_len` bytes.
    ///
    /// # Errors
    /// The errors of `out`.
    pub(in crate::formats::tar) fn write(
        &self,
        key: &Key,
        decoded_len: u64,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let Self { builder, order, seek_points, notes, .. } = self;
        let mut out = Output::new(out, key)?;
        let mut owners = vec![NodeId::MAX; builder.map_ends.len()];
        let mut names_offset = 0_u32;
        for (id, node) in (0..).zip(self.nodes()) {
            if let Content::Sparse { map } = node.content()
                && let Some(owner) = owners.get_mut(index(map))
            {
                *owner = id;
            }
            out.bytes(&with_name_offsets(&mut names_offset, node).encoded())?;
        }
        out.begin(Section::Names);
        for node in self.nodes() {
            out.bytes(node.name_in(&builder.names))?;
            if let Content::Symlink { target } = node.content() {
                let range = index(target)..index(target.saturating_add(node.size));
                out.bytes(builder.names.get(range).unwrap_or_default())?;
            }
        }
        out.begin(Section::Segments);
        for segment in &builder.segments {
            out.bytes(&segment.offset.to_le_bytes())?;
            out.bytes(&segment.len.to_le_bytes())?;
            out.bytes(&segment.archive_offset.to_le_bytes())?;
        }
        out.begin(Section::Maps);
        let mut start = 0;
        for (end, owner) in builder.map_ends.iter().zip(&owners) {
            let map = builder.segments.get(index(start)..index(*end)).unwrap_or_default();
            let stored = map.iter().fold(0_u64, |sum, segment| sum.saturating_add(segment.len));
            out.bytes(&end.to_le_bytes())?;
            out.bytes(&owner.to_le_bytes())?;
            out.bytes(&stored.to_le_bytes())?;
            start = *end;
        }
        out.begin(Section::Links);
        for (node, count) in &order.links {
            out.bytes(&node.to_le_bytes())?;
            out.bytes(&count.to_le_bytes())?;
        }
        out.begin(Section::WithXattrs);
        for (node, set_offset) in order.with_xattrs(builder) {
            out.bytes(&node.to_le_bytes())?;
            out.bytes(&set_offset.to_le_bytes())?;
        }
        out.begin(Section::Xattrs);
        out.bytes(&builder.xattrs)?;
        out.begin(Section::NestedImages);
        for nested_image in builder.images() {
            out.bytes(&nested_image.at.to_le_bytes())?;
            out.bytes(&nested_image.len.to_le_bytes())?;
            out.bytes(&length(nested_image.path.len()).to_le_bytes())?;
            out.bytes(&nested_image.path)?;
        }
        out.begin(Section::Notes);
        for note in notes {
            out.bytes(&length(note.len()).to_le_bytes())?;
            out.bytes(note.as_bytes())?;
        }
        out.begin(Section::SeekPoints);
        out.bytes(seek_points)?;
        // The tail makes the file an index, so all temporary files are checked first.
        builder.pending.check()?;
        builder.names.check()?;
        order.check()?;
        out.finish(decoded_len)
    }

    /// Approximate size of the index, bytes.
    fn estimate(&self) -> u64 {
        let Builder { names, segments, xattrs, .. } = &self.builder;
        let nodes = self.len().saturating_mul(NODE);
        let segments = segments.len().saturating_mul(super::SEGMENT);
        length(nodes.saturating_add(segments))
            .saturating_add(length(names.len().saturating_add(xattrs.len())))
    }
}

/// Nodes to search for a header that can be sampled.
const SEARCH_MAX: usize = 1000;

/// `node` with the offsets of its name and target in the written names: `offset`, which is advanced
/// past both.
fn with_name_offsets(offset: &mut u32, node: Node) -> Node {
    let name_end = offset.saturating_add(u32::from(node.name_len));
    let mut placed = Node { name: *offset, ..node };
    *offset = name_end;
    if let Content::Symlink { .. } = node.content() {
        placed.content = u64::from(name_end);
        *offset = name_end.saturating_add(u32::try_from(node.size).unwrap_or(u32::MAX));
    }
    placed
}

/// Makes the index of a tree that is not saved: in a temporary file if it is large, or else in
/// memory.
///
/// # Errors
/// `Io` if the temporary file cannot be read, or if the index would take memory that the job does
/// not have.
pub(in crate::formats::tar) fn unsaved(
    draft: Draft,
    decoded_len: u64,
    name: &str,
    allowance: &Arc<Allowance>,
) -> Result<Index> {
    let directory = std::env::temp_dir();
    if draft.estimate() <= IN_MEMORY_MAX {
        return in_memory(draft, decoded_len, name, allowance);
    }
    let file = storage::unlinked(&directory);
    if file.as_ref().is_ok_and(storage::is_in_memory) {
        weight::check(draft.estimate())?;
    }
    match file.and_then(|file| written(file, &draft, decoded_len, &directory)) {
        Ok(file) => opened(Arc::new(file), draft, name, allowance),
        Err(error) => {
            let place = directory.display();
            log::warn!("{name}: its index does not fit in {place}, and takes memory: {error}");
            weight::check(draft.estimate())?;
            in_memory(draft, decoded_len, name, allowance)
        }
    }
}

/// Makes the index of a tree in memory.
///
/// # Errors
/// `Corrupt` if the tree does not fit an archive of `decoded_len` bytes.
pub(in crate::formats::tar) fn in_memory(
    draft: Draft,
    decoded_len: u64,
    name: &str,
    allowance: &Arc<Allowance>,
) -> Result<Index> {
    let mut bytes = Vec::new();
    let written = draft.write(&Key::default(), decoded_len, &mut bytes);
    written.map_err(|error| Error::io(name, error))?;
    opened(Arc::new(InMemory::new(bytes)), draft, name, allowance)
}

/// Writes the index into `file`, an unlinked file in `directory`.
fn written(
    mut file: File,
    draft: &Draft,
    decoded_len: u64,
    directory: &Path,
) -> io::Result<FileStorage> {
    draft.write(&Key::default(), decoded_len, &mut file)?;
    FileStorage::of(file, directory.to_owned())
}

fn opened(
    file: Arc<dyn Storage>,
    draft: Draft,
    name: &str,
    allowance: &Arc<Allowance>,
) -> Result<Index> {
    let found = IndexFile::open(file, &IndexOptions::new(name, allowance), &|_| Ok(()))?;
    Ok(found.index.with_findings(draft.findings))
}
