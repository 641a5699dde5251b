//! A finished tree, and how it is written as an index.

use std::io::{self, Write};

use super::super::NodeId;
use super::super::file::Output;
use super::super::layout::{Key, Section};
use super::super::node::{Content, Node};
use super::super::notes::loss_of;
use super::numbering::Numbering;
use super::pending_tree::PendingTree;
use super::side_tables::SideTables;
use crate::error::Error;
use crate::formats::bytes::{index, length};
use crate::vfs::{Finding, Location};

/// A finished tree that is not an index yet.
pub(crate) struct FinishedTree {
    pub(super) tree: PendingTree,
    pub(super) numbering: Numbering,
    pub(super) side_tables: SideTables,
    /// The output of `SeekIndex::write`, for a compressed archive.
    pub(crate) seek_points: Vec<u8>,
    /// Warnings about this archive, as `Notes::finish` returns them.
    pub(crate) notes: Vec<String>,
    /// The same for `archfs verify`, with paths. Not saved in a file.
    pub(crate) findings: Vec<Finding>,
}

impl FinishedTree {
    /// Number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.numbering.len()
    }

    /// Adds damage because of which members of the archive are missing.
    pub(crate) fn lose(&mut self, error: &Error) {
        self.notes.push(loss_of(error));
        self.findings.push(Finding::from_error(Location::Archive, error));
    }

    /// Whether the tree has only its root.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() <= 1
    }

    fn nodes(&self) -> impl Iterator<Item = Node> {
        let ids = 0..NodeId::try_from(self.len()).unwrap_or(NodeId::MAX);
        ids.map(|id| self.numbering.final_node(&self.tree, id))
    }

    /// About `count` offsets of headers, unordered. A header is the `header_len` bytes before the
    /// data of a stored file. Samples of them identify the archive.
    pub(crate) fn header_offsets(&self, count: usize, header_len: u64) -> Vec<u64> {
        let step = self.len().div_ceil(count.max(1)).max(1);
        let header_offset = |id| {
            let node = self.numbering.final_node(&self.tree, NodeId::try_from(id).ok()?);
            match node.content() {
                Content::Stored { start } => start.checked_sub(header_len),
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

    /// Writes the index with `key` of an archive of `archive_len` bytes.
    pub(crate) fn write(&self, key: &Key, archive_len: u64, out: &mut dyn Write) -> io::Result<()> {
        let Self { tree, numbering, side_tables, seek_points, notes, .. } = self;
        let mut out = Output::new(out, key)?;
        let mut names_offset = 0_u32;
        for node in self.nodes() {
            out.bytes(&with_name_offsets(&mut names_offset, node).to_bytes())?;
        }
        out.begin(Section::Names);
        for node in self.nodes() {
            out.bytes(node.name_in(&tree.names))?;
            if let Content::Symlink { target } = node.content() {
                let range = index(target)..index(target.saturating_add(node.size));
                out.bytes(tree.names.get(range).unwrap_or_default())?;
            }
        }
        out.begin(Section::Segments);
        for segment in &side_tables.sparse_maps.segments {
            out.bytes(&segment.offset.to_le_bytes())?;
            out.bytes(&segment.len.to_le_bytes())?;
            out.bytes(&segment.archive_offset.to_le_bytes())?;
        }
        out.begin(Section::Maps);
        for ((end, stored), node) in side_tables.sparse_maps.map_records().zip(self.map_nodes()) {
            out.bytes(&end.to_le_bytes())?;
            out.bytes(&node.to_le_bytes())?;
            out.bytes(&stored.to_le_bytes())?;
        }
        out.begin(Section::LinkCounts);
        for (node, count) in &numbering.link_counts {
            out.bytes(&node.to_le_bytes())?;
            out.bytes(&count.to_le_bytes())?;
        }
        out.begin(Section::WithXattrs);
        for (node, set_offset) in numbering.with_xattrs(&side_tables.xattrs) {
            out.bytes(&node.to_le_bytes())?;
            out.bytes(&set_offset.to_le_bytes())?;
        }
        out.begin(Section::Xattrs);
        out.bytes(&side_tables.xattrs.bytes)?;
        out.begin(Section::NestedArchives);
        for nested_archive in &side_tables.nested_archives {
            out.bytes(&nested_archive.offset.to_le_bytes())?;
            out.bytes(&nested_archive.len.to_le_bytes())?;
            out.bytes(&nested_archive.headers.to_bytes())?;
            out.bytes(&length(nested_archive.path.len()).to_le_bytes())?;
            out.bytes(&nested_archive.path)?;
        }
        out.begin(Section::Notes);
        for note in notes {
            out.bytes(&length(note.len()).to_le_bytes())?;
            out.bytes(note.as_bytes())?;
        }
        out.begin(Section::SeekPoints);
        out.bytes(seek_points)?;
        // The tail makes the file an index, so all temporary files are checked first.
        tree.check()?;
        numbering.check()?;
        out.finish(archive_len)
    }

    /// The node of each sparse map.
    fn map_nodes(&self) -> Vec<NodeId> {
        let mut map_nodes = vec![NodeId::MAX; self.side_tables.sparse_maps.len()];
        for (id, node) in (0..).zip(self.nodes()) {
            if let Content::Sparse { map } = node.content()
                && let Some(map_node) = map_nodes.get_mut(index(map))
            {
                *map_node = id;
            }
        }
        map_nodes
    }

    /// Approximate size of the index, bytes.
    pub(crate) fn estimate(&self) -> u64 {
        let Self { tree, numbering, side_tables, seek_points, notes, .. } = self;
        let tables = [
            (numbering.len(), Section::Nodes),
            (side_tables.sparse_maps.segments.len(), Section::Segments),
            (side_tables.sparse_maps.len(), Section::Maps),
            (numbering.link_counts.len(), Section::LinkCounts),
            (side_tables.xattrs.entries.len(), Section::WithXattrs),
        ];
        let tables = tables.map(|(count, section)| count.saturating_mul(section.record_len()));
        let images = side_tables.nested_archives.iter();
        let images = images.map(|image| image.path.len().saturating_add(29));
        let notes = notes.iter().map(|note| note.len().saturating_add(8));
        let bytes = [tree.names.len(), side_tables.xattrs.bytes.len(), seek_points.len()];
        let parts = tables.into_iter().chain(images).chain(notes).chain(bytes);
        length(parts.fold(0, usize::saturating_add))
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
