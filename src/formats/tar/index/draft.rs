//! A tree that a scan made, on its way into an index: a file, or memory.

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

/// A longer index that is saved nowhere goes into a temporary file, bytes.
const IN_MEMORY_MAX: u64 = 1 << 20;

/// A tree that a scan made.
pub(in crate::formats::tar) struct Draft {
    builder: Builder,
    order: Order,
    /// What `SeekIndex` wrote, for a compressed archive.
    pub(in crate::formats::tar) seek_points: Vec<u8>,
    /// Warnings about this archive, a line each.
    pub(in crate::formats::tar) notes: Vec<String>,
    /// The same for who verifies, with paths; not kept in a file.
    pub(in crate::formats::tar) findings: Vec<Finding>,
}

impl Draft {
    pub(super) fn new(builder: Builder, order: Order) -> Self {
        let (seek_points, notes, findings) = (Vec::new(), Vec::new(), Vec::new());
        Self { builder, order, seek_points, notes, findings }
    }

    /// How many nodes there are.
    pub(in crate::formats::tar) fn len(&self) -> usize {
        self.order.places.len()
    }

    /// Whether there is nothing but the root.
    pub(in crate::formats::tar) fn is_empty(&self) -> bool {
        self.len() <= 1
    }

    fn nodes(&self) -> impl Iterator<Item = Node> {
        let ids = 0..NodeId::try_from(self.len()).unwrap_or(NodeId::MAX);
        ids.map(|id| self.order.node(&self.builder, id))
    }

    /// Where some headers of the archive are, in no order: about `count` blocks before the data of
    /// stored files.
    pub(in crate::formats::tar) fn places(&self, count: usize) -> Vec<u64> {
        let step = self.len().div_ceil(count.max(1)).max(1);
        let at = |id| {
            let node = self.order.node(&self.builder, NodeId::try_from(id).ok()?);
            match node.content() {
                Content::Stored { at } => at.checked_sub(BLOCK_LEN),
                _ => None,
            }
        };
        // Not all nodes are stored files; one that is not leaves its place to one behind it.
        let starts = (0..self.len()).step_by(step);
        let found = starts.filter_map(|from| {
            (from..from.saturating_add(step.min(SEARCHED)).min(self.len())).find_map(at)
        });
        // The first one begins the archive, whatever comes then.
        std::iter::once(0).chain(found).collect()
    }

    /// Writes the index that belongs to `key`, of an archive of `decoded_len` bytes.
    ///
    /// # Errors
    /// What `out` reports.
    pub(in crate::formats::tar) fn write(
        &self,
        key: &Key,
        decoded_len: u64,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let Self { builder, order, seek_points, notes, .. } = self;
        let mut out = Output::new(out, key)?;
        let mut owners = vec![NodeId::MAX; builder.maps.len()];
        let mut at = 0_u32;
        for (id, node) in (0..).zip(self.nodes()) {
            if let Content::Sparse { map } = node.content()
                && let Some(owner) = owners.get_mut(index(map))
            {
                *owner = id;
            }
            out.bytes(&with_names_from(&mut at, node).encoded())?;
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
            out.bytes(&segment.at.to_le_bytes())?;
        }
        out.begin(Section::Maps);
        let mut from = 0;
        for (end, owner) in builder.maps.iter().zip(&owners) {
            let map = builder.segments.get(index(from)..index(*end)).unwrap_or_default();
            let stored = map.iter().fold(0_u64, |sum, segment| sum.saturating_add(segment.len));
            out.bytes(&end.to_le_bytes())?;
            out.bytes(&owner.to_le_bytes())?;
            out.bytes(&stored.to_le_bytes())?;
            from = *end;
        }
        out.begin(Section::Links);
        for (node, count) in &order.links {
            out.bytes(&node.to_le_bytes())?;
            out.bytes(&count.to_le_bytes())?;
        }
        out.begin(Section::WithXattrs);
        for (node, at) in order.with_xattrs(builder) {
            out.bytes(&node.to_le_bytes())?;
            out.bytes(&at.to_le_bytes())?;
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
        // The tail makes it an index, so not before all that was written is known to be right.
        builder.pending.check()?;
        builder.names.check()?;
        order.check()?;
        out.finish(decoded_len)
    }

    /// Bytes that the index takes, about.
    fn estimate(&self) -> u64 {
        let Builder { names, segments, xattrs, .. } = &self.builder;
        let nodes = self.len().saturating_mul(NODE);
        let segments = segments.len().saturating_mul(super::SEGMENT);
        length(nodes.saturating_add(segments))
            .saturating_add(length(names.len().saturating_add(xattrs.len())))
    }
}

/// Nodes that are looked at for one whose header can be sampled.
const SEARCHED: usize = 1000;

/// The node with its name and target where they are written: at `at`, which goes on behind them.
fn with_names_from(at: &mut u32, node: Node) -> Node {
    let behind = at.saturating_add(u32::from(node.name_len));
    let mut placed = Node { name: *at, ..node };
    *at = behind;
    if let Content::Symlink { .. } = node.content() {
        placed.content = u64::from(behind);
        *at = behind.saturating_add(u32::try_from(node.size).unwrap_or(u32::MAX));
    }
    placed
}

/// The index of a tree that is saved nowhere: in a temporary file if it is long, else in memory.
///
/// # Errors
/// `Io` where the temporary file cannot be read, or where the index would take memory that the job
/// does not have.
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

/// The index of a tree in memory.
///
/// # Errors
/// `Corrupt` where it is none of an archive of `decoded_len` bytes.
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

/// The index in `file`, which lies in `directory` without a name.
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
