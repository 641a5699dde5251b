//! The tree of a tar archive: what a scan of all headers leaves behind, in a file or in memory.
//!
//! Nodes are numbered from the root, which is 0. The children of a directory stand side by side, in
//! ascending order of their names, behind their directory. So there is no table to find names with:
//! 24 comparisons find a name among 14 million. A node takes 47 bytes and the bytes of its name.
//! What few members have (attributes, maps of sparse files, second links) is in tables of its own,
//! sorted by node.
//!
//! Nothing of an index is in memory until it is wanted (`blocks`), so nothing can be checked as a
//! whole when a large one is opened. Each record is checked when it is read: it is a node that a
//! file system can show, its bytes are within the archive, its children stand behind it and name it
//! as their directory. So a directory has one parent, and no walk goes in circles or meets a node
//! twice, whatever the file says. A small index is read and checked as a whole (`check`).

use std::cmp::Ordering;

use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::{FILE_SIZE_MAX, TAR_PATH_MAX};
use crate::vfs::{Finding, Name};

#[cfg(any(test, fuzzing))]
pub(super) mod apart;
mod attributes;
mod blocks;
mod builder;
#[cfg(test)]
mod caps;
mod check;
mod depths;
mod draft;
mod file;
mod groups;
mod key;
mod layout;
mod maps;
mod node;
mod output;
#[cfg(test)]
mod refused;
#[cfg(test)]
mod tests;
mod xattrs;

pub(in crate::formats) use blocks::Allowance;
pub(super) use builder::{Builder, Folder, Nested, cleaned};
#[cfg(any(test, fuzzing))]
pub(super) use draft::in_memory;
pub(super) use draft::{Draft, unsaved};
pub(super) use file::{IndexFile, IndexOptions};
pub(super) use key::{FileKey, Hash, Key, MAGIC};
pub(super) use maps::Map;
pub(super) use node::{Content, Node};

use blocks::Blocks;
use file::{Section, Sections};
use node::NODE;

/// A node's number.
pub(super) type NodeId = u32;

/// The root's.
pub(super) const ROOT: NodeId = 0;

/// Bytes of the other records of an index.
const SEGMENT: usize = 24;
const MAP: usize = 20;
const LINK_COUNT: usize = 8;
const WITH_XATTRS: usize = 12;

/// Room for any name.
pub(super) type NameBuffer = [u8; 255];

/// An image within the archive whose tree belongs into a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::formats) struct NestedImage {
    /// The folder's path, without a leading slash.
    pub(in crate::formats) path: Vec<u8>,
    /// Where the image is, bytes.
    pub(in crate::formats) at: u64,
    pub(in crate::formats) len: u64,
}

/// The whole tree.
pub(super) struct Index {
    /// What it is called in errors.
    name: String,
    blocks: Blocks,
    layout: Sections,
    /// Bytes of the archive, decoded.
    archive_len: u64,
    pub(super) nested_images: Vec<NestedImage>,
    /// Warnings about this archive, a line each.
    pub(super) notes: Vec<String>,
    /// The same for who verifies, with paths; not kept in a file.
    pub(super) findings: Vec<Finding>,
}

impl Index {
    /// The same with what there is to tell those who verify.
    pub(super) fn with_findings(self, findings: Vec<Finding>) -> Self {
        Self { findings, ..self }
    }

    /// How many nodes there are.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.layout.count(Section::Nodes, NODE)).unwrap_or(u32::MAX)
    }

    /// The node of that number.
    ///
    /// # Errors
    /// `Corrupt` where it is none, or nothing a file system can show; `Io`.
    pub(super) fn node(&self, id: NodeId) -> Result<Node> {
        let node = Node::decoded(&self.record(Section::Nodes, id.into())?)?;
        match self.fault_of(id, &node) {
            None => Ok(node),
            Some(what) => Err(wrong(id, what)),
        }
    }

    /// What is wrong with a node by itself.
    fn fault_of(&self, id: NodeId, node: &Node) -> Option<&'static str> {
        let names = self.layout.len_of(Section::Names);
        let is_within = |at: u64, len: u64, end: u64| at.checked_add(len).is_some_and(|e| e <= end);
        if !node.is_known() || node.size > FILE_SIZE_MAX {
            return Some("it is nothing a file system can show");
        }
        if !is_within(node.name.into(), node.name_len.into(), names) {
            return Some("its name is missing");
        }
        let is_sound = match node.content() {
            Content::Stored { at } => {
                return (!is_within(at, node.size, self.archive_len))
                    .then_some("its bytes lie outside the archive");
            }
            // Whether the map is its own is checked where the map is read.
            Content::Sparse { .. } | Content::Device { .. } | Content::Fifo => true,
            Content::Folder { first, count } => {
                let end = first.checked_add(count);
                let is_behind = first > id && end.is_some_and(|end| end <= self.len());
                return (!is_behind || u64::from(count) != node.size)
                    .then_some("its children are not where they should be");
            }
            Content::Symlink { target } => {
                let is_short = node.size <= length(TAR_PATH_MAX);
                return (!is_short || !is_within(target, node.size, names))
                    .then_some("its target is missing");
            }
            Content::Link { target } => target < self.len(),
        };
        (!is_sound).then_some("it names nothing")
    }

    /// The node that `id` stands for, which is another one for a second name.
    ///
    /// # Errors
    /// As `node`.
    pub(super) fn inode(&self, id: NodeId) -> Result<(NodeId, Node)> {
        let node = self.node(id)?;
        self.resolved(id, node)
    }

    fn resolved(&self, id: NodeId, node: Node) -> Result<(NodeId, Node)> {
        let Content::Link { target } = node.content() else {
            return Ok((id, node));
        };
        let found = self.node(target)?;
        match found.content() {
            Content::Link { .. } | Content::Folder { .. } => Err(wrong(id, "it names nothing")),
            _ => Ok((target, found)),
        }
    }

    /// The child `id` of the directory `parent`: its own node, and what that stands for.
    ///
    /// # Errors
    /// As `node`; `Corrupt` where it is a child of another directory.
    pub(super) fn child(&self, parent: NodeId, id: NodeId) -> Result<(Node, (NodeId, Node))> {
        let node = self.node(id)?;
        if node.parent != parent {
            return Err(wrong(id, "it is in another folder"));
        }
        Ok((node, self.resolved(id, node)?))
    }

    /// The directory that holds the directory `id`; the root is in itself.
    ///
    /// # Errors
    /// As `node`; `Corrupt` where that directory does not have it.
    pub(super) fn parent(&self, id: NodeId) -> Result<NodeId> {
        let parent = self.node(id)?.parent;
        let is_held = match self.node(parent)?.content() {
            Content::Folder { first, count } => {
                id.checked_sub(first).is_some_and(|nth| nth < count)
            }
            _ => false,
        };
        match is_held || (id, parent) == (ROOT, ROOT) {
            true => Ok(parent),
            false => Err(wrong(id, "it is in another folder")),
        }
    }

    /// The name of a node.
    ///
    /// # Errors
    /// As `node`.
    pub(super) fn name<'b>(&self, node: &Node, buffer: &'b mut NameBuffer) -> Result<&'b [u8]> {
        self.name_at(node.name.into(), node.name_len.into(), buffer)
    }

    fn name_at<'b>(&self, at: u64, len: usize, buffer: &'b mut NameBuffer) -> Result<&'b [u8]> {
        let name = buffer.get_mut(..len).unwrap_or_default();
        self.bytes(Section::Names, at, name)?;
        Ok(name)
    }

    /// The child `name` of the directory `parent`, whose children are `count` from `first` on: what
    /// it stands for.
    ///
    /// # Errors
    /// As `child`.
    pub(super) fn find(
        &self,
        parent: NodeId,
        (first, count): (NodeId, u32),
        name: Name<'_>,
    ) -> Result<Option<(NodeId, Node)>> {
        let mut buffer = [0; 255];
        let (mut low, mut high) = (first, first.saturating_add(count));
        while low < high {
            let middle = low.midpoint(high);
            // A node begins with its name.
            let mut head = [0; 5];
            let at = u64::from(middle).saturating_mul(length(NODE));
            self.bytes(Section::Nodes, at, &mut head)?;
            let [a, b, c, d, len] = head;
            let at = u32::from_le_bytes([a, b, c, d]);
            let found = self.name_at(at.into(), len.into(), &mut buffer)?;
            match found.cmp(name.as_bytes()) {
                Ordering::Less => low = middle.saturating_add(1),
                Ordering::Greater => high = middle,
                Ordering::Equal => return self.child(parent, middle).map(|(_, found)| Some(found)),
            }
        }
        Ok(None)
    }

    /// The target of a symbolic link, `len` bytes.
    ///
    /// # Errors
    /// As `node`.
    pub(super) fn target(&self, at: u64, len: u64) -> Result<Vec<u8>> {
        let mut target = vec![0; index(len).min(TAR_PATH_MAX)];
        self.bytes(Section::Names, at, &mut target)?;
        Ok(target)
    }

    /// How many names the node has.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(super) fn names_of(&self, id: NodeId) -> Result<u32> {
        let read = |nth| {
            let bytes: [u8; LINK_COUNT] = self.record(Section::Links, nth)?;
            let mut reader = Reader::new("link", &bytes);
            Ok((reader.u32()?, reader.u32()?))
        };
        let count = self.layout.count(Section::Links, LINK_COUNT);
        Ok(searched(count, id, read)?.unwrap_or(1).max(1))
    }

    /// Puts the name of the index in front of an error, and a remedy behind damage: a log shows no
    /// hints.
    pub(super) fn named(&self, error: Error) -> Error {
        match error.is_damage() {
            true => {
                let what = error.within(&self.name).to_string();
                Error::corrupt(format!("{what}; make it again with archfs index and remount"))
            }
            false => error.within(&self.name),
        }
    }

    /// Drops what is in memory only for speed.
    pub(super) fn release(&self) {
        self.blocks.release();
    }

    fn record<const N: usize>(&self, section: Section, nth: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.bytes(section, nth.saturating_mul(length(N)), &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `buffer` with the bytes of `section` from `at`.
    fn bytes(&self, section: Section, at: u64, buffer: &mut [u8]) -> Result<()> {
        let range = self.layout.range(section);
        let start = range.start.saturating_add(at);
        let end = start.saturating_add(length(buffer.len()));
        if end > range.end {
            let what = section.words();
            return Err(Error::corrupt(format!("the index points past the end of its {what}")));
        }
        self.blocks.read(start, buffer)
    }
}

/// The error for a node that contradicts the others or the archive.
fn wrong(id: NodeId, what: &str) -> Error {
    Error::corrupt(format!("node {id}: {what}"))
}

/// What stands beside `id` in a table of `count` records that ascend.
fn searched<T>(
    count: u64,
    id: NodeId,
    read: impl Fn(u64) -> Result<(NodeId, T)>,
) -> Result<Option<T>> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low.midpoint(high);
        let (found, value) = read(middle)?;
        match found.cmp(&id) {
            Ordering::Less => low = middle.saturating_add(1),
            Ordering::Greater => high = middle,
            Ordering::Equal => return Ok(Some(value)),
        }
    }
    Ok(None)
}
