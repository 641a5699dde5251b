//! The tree of an archive of members (tar), made from all their headers and kept in a file or in
//! memory. A scan adds `members` to a `NewTree`, and `build` makes the index. The rest reads it;
//! `tree` answers the requests of a `Tree`.
//!
//! Node numbers start at the root, which is 0. The children of a directory have consecutive
//! numbers, ascending by name, and higher than that of their directory. So no table of names is
//! needed: 24 comparisons find a name among 14 million. A node takes 52 bytes and the bytes of its
//! name. Rare data (attributes, maps of sparse files, link counts) is in separate tables, sorted by
//! node.
//!
//! An index is loaded on demand (`blocks`), so a large one cannot be checked as a whole when it is
//! opened. Each record is checked when it is read: a file system can show the node, its bytes are
//! within the archive, its children have higher numbers and name it as their parent. So a directory
//! has one parent, and no walk loops or visits a node twice, whatever the file contains. A small
//! index is read and checked as a whole (`check`).

use std::cmp::Ordering;

use crate::error::{Error, Kind as ErrorKind, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::{FILE_SIZE_MAX, MEMBER_PATH_MAX};
use crate::vfs::{Finding, Name};

mod acl;
mod blocks;
mod build;
mod check;
mod file;
#[cfg(any(test, fuzzing))]
pub(crate) mod index_parts;
mod layout;
pub(crate) mod members;
mod node;
pub(crate) mod notes;
mod tables;
#[cfg(test)]
mod tests;
mod tree;

pub use acl::Acls;
pub(crate) use acl::TEXT as ACL_TEXT;
pub(crate) use blocks::Allowance;
#[cfg(any(test, fuzzing))]
pub(crate) use build::in_memory;
pub(crate) use build::{ArchiveRange, DirectoryId, FinishedTree, NewTree, unsaved};
pub(crate) use file::{IndexFile, IndexOptions};
pub(crate) use layout::{FileKey, Hash, Key, MAGIC};
pub(crate) use node::{Content, HeaderRun, Headers, Node};
pub(crate) use tables::Map;
pub(crate) use tree::{IndexedTree, MemberReader, StoredReads};

use blocks::Blocks;
use layout::{LINK_COUNT_LEN, Section, Sections};
use node::NODE_LEN;

/// The number of a node.
pub(crate) type NodeId = u32;

/// The number of the root.
pub(crate) const ROOT: NodeId = 0;

/// A buffer for any name.
pub(crate) type NameBuffer = [u8; 255];

/// An archive within the archive that is opened by itself, and shown as a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NestedArchive {
    /// The path of the directory, without a leading slash.
    pub(crate) path: Vec<u8>,
    /// Its offset in the outer archive.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) headers: Headers,
}

/// The whole tree.
pub(crate) struct Index {
    /// The name of the index in errors.
    name: String,
    blocks: Blocks,
    section_lens: Sections,
    /// Length of the uncompressed archive, bytes.
    archive_len: u64,
    pub(crate) nested_archives: Vec<NestedArchive>,
    /// Warnings about this archive, as `Notes::finish` returns them.
    pub(crate) notes: Vec<String>,
    /// The same for `archfs verify`, with paths. Not saved in a file.
    pub(crate) findings: Vec<Finding>,
}

impl Index {
    /// The same index with `findings`.
    pub(crate) fn with_findings(self, findings: Vec<Finding>) -> Self {
        Self { findings, ..self }
    }

    /// Number of nodes.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.section_lens.count(Section::Nodes)).unwrap_or(u32::MAX)
    }

    /// The node with number `id`.
    ///
    /// Fails with `Corrupt` if there is no such node, or if a file system cannot show it. `Io` if
    /// the index cannot be read.
    pub(crate) fn node(&self, id: NodeId) -> Result<Node> {
        let node = Node::from_bytes(&self.record(Section::Nodes, id.into())?)?;
        match self.fault_of(id, &node) {
            None => Ok(node),
            Some(what) => Err(wrong(id, what)),
        }
    }

    /// What is wrong with a node in itself, if anything.
    fn fault_of(&self, id: NodeId, node: &Node) -> Option<&'static str> {
        let names = self.section_lens.len_of(Section::Names);
        let is_within =
            |start: u64, len: u64, end: u64| start.checked_add(len).is_some_and(|e| e <= end);
        if !node.is_known() || node.size > FILE_SIZE_MAX {
            return Some("it is not of a known type");
        }
        if !is_within(node.name.into(), node.name_len.into(), names) {
            return Some("its name is missing");
        }
        let is_sound = match node.content() {
            Content::Stored { start } | Content::AfterHeader { header: start } => {
                return (!is_within(start, node.size, self.archive_len))
                    .then_some("its bytes lie outside the archive");
            }
            Content::Described { entry, .. } => entry < self.archive_len,
            // The owner of a sparse map is checked when the map is read.
            Content::Sparse { .. } | Content::Device { .. } | Content::Fifo => true,
            Content::Directory { first, count } => {
                let end = first.checked_add(count);
                let is_after = first > id && end.is_some_and(|end| end <= self.len());
                return (!is_after || u64::from(count) != node.size)
                    .then_some("its children are not where they should be");
            }
            Content::Symlink { target } => {
                let is_short = node.size <= length(MEMBER_PATH_MAX);
                return (!is_short || !is_within(target, node.size, names))
                    .then_some("its target is missing");
            }
            Content::HardLink { target } => target < self.len(),
        };
        (!is_sound).then_some("it names nothing")
    }

    /// The node that `id` refers to: the target of a hard link, or else the node itself.
    pub(crate) fn resolve_hard_link(&self, id: NodeId) -> Result<(NodeId, Node)> {
        let node = self.node(id)?;
        self.resolve_node(id, node)
    }

    fn resolve_node(&self, id: NodeId, node: Node) -> Result<(NodeId, Node)> {
        let Content::HardLink { target } = node.content() else {
            return Ok((id, node));
        };
        let found = self.node(target)?;
        match found.content() {
            Content::HardLink { .. } | Content::Directory { .. } => {
                Err(wrong(id, "it names nothing"))
            }
            _ => Ok((target, found)),
        }
    }

    /// The child `id` of the directory `parent`: its own node, and the node it refers to.
    pub(crate) fn child(&self, parent: NodeId, id: NodeId) -> Result<(Node, (NodeId, Node))> {
        let node = self.node(id)?;
        if node.parent != parent {
            return Err(wrong(id, "it is in another directory"));
        }
        Ok((node, self.resolve_node(id, node)?))
    }

    /// The parent of the directory `id`. The root is its own parent.
    pub(crate) fn parent(&self, id: NodeId) -> Result<NodeId> {
        let parent = self.node(id)?.parent;
        let is_child = match self.node(parent)?.content() {
            Content::Directory { first, count } => {
                id.checked_sub(first).is_some_and(|nth| nth < count)
            }
            _ => false,
        };
        match is_child || (id, parent) == (ROOT, ROOT) {
            true => Ok(parent),
            false => Err(wrong(id, "it is in another directory")),
        }
    }

    /// The name of a node.
    pub(crate) fn name<'b>(&self, node: &Node, buffer: &'b mut NameBuffer) -> Result<&'b [u8]> {
        self.name_at(node.name.into(), node.name_len.into(), buffer)
    }

    fn name_at<'b>(&self, offset: u64, len: usize, buffer: &'b mut NameBuffer) -> Result<&'b [u8]> {
        let name = buffer.get_mut(..len).unwrap_or_default();
        self.read_section(Section::Names, offset, name)?;
        Ok(name)
    }

    /// Finds the child `name` of the directory `parent`, whose `count` children start at `first`.
    /// Returns the node that it refers to.
    pub(crate) fn find(
        &self,
        parent: NodeId,
        (first, count): (NodeId, u32),
        name: Name<'_>,
    ) -> Result<Option<(NodeId, Node)>> {
        let mut buffer = [0; 255];
        let (mut low, mut high) = (first, first.saturating_add(count));
        while low < high {
            let middle = low.midpoint(high);
            // A record starts with the offset and length of the name.
            let mut head = [0; 5];
            let offset = u64::from(middle).saturating_mul(length(NODE_LEN));
            self.read_section(Section::Nodes, offset, &mut head)?;
            let [a, b, c, d, len] = head;
            let offset = u32::from_le_bytes([a, b, c, d]);
            let middle_name = self.name_at(offset.into(), len.into(), &mut buffer)?;
            match middle_name.cmp(name.as_bytes()) {
                Ordering::Less => low = middle.saturating_add(1),
                Ordering::Greater => high = middle,
                Ordering::Equal => return self.child(parent, middle).map(|(_, found)| Some(found)),
            }
        }
        Ok(None)
    }

    /// The target of a symbolic link: `len` bytes at `offset` in the names.
    pub(crate) fn target(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let mut target = vec![0; index(len).min(MEMBER_PATH_MAX)];
        self.read_section(Section::Names, offset, &mut target)?;
        Ok(target)
    }

    /// Number of names of a node.
    pub(crate) fn link_count(&self, id: NodeId) -> Result<u32> {
        let read = |nth| {
            let bytes: [u8; LINK_COUNT_LEN] = self.record(Section::LinkCounts, nth)?;
            let mut reader = Reader::new("link", &bytes);
            Ok((reader.u32()?, reader.u32()?))
        };
        let count = self.section_lens.count(Section::LinkCounts);
        Ok(binary_search(count, id, read)?.unwrap_or(1).max(1))
    }

    /// Adds the name of the index to an error. For damage, also adds a remedy.
    pub(crate) fn named<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| match error.is_damage() {
            true => error
                .within(&self.name)
                .with_kind(ErrorKind::Corrupt)
                .with_brief(format!("the index {} is damaged", self.name))
                .with_hint("run `archfs index` again, and remount"),
            false => error.within(&self.name),
        })
    }

    /// Drops the blocks that can be read again.
    pub(crate) fn release(&self) {
        self.blocks.release();
    }

    fn record<const N: usize>(&self, section: Section, nth: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_section(section, nth.saturating_mul(length(N)), &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `buffer` with the bytes at `offset` in `section`.
    fn read_section(&self, section: Section, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let range = self.section_lens.range(section);
        let start = range.start.saturating_add(offset);
        let end = start.saturating_add(length(buffer.len()));
        if end > range.end {
            let what = section.label();
            return Err(Error::corrupt(format!("the index points past the end of its {what}")));
        }
        self.blocks.read(start, buffer)
    }
}

/// The error for a node that contradicts other nodes or the archive.
fn wrong(id: NodeId, what: &str) -> Error {
    Error::corrupt(format!("node {id}: {what}"))
}

/// Looks up `id` in a table of `count` records, sorted by node.
fn binary_search<T>(
    count: u64,
    id: NodeId,
    read: impl Fn(u64) -> Result<(NodeId, T)>,
) -> Result<Option<T>> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low.midpoint(high);
        let (middle_id, value) = read(middle)?;
        match middle_id.cmp(&id) {
            Ordering::Less => low = middle.saturating_add(1),
            Ordering::Greater => high = middle,
            Ordering::Equal => return Ok(Some(value)),
        }
    }
    Ok(None)
}
