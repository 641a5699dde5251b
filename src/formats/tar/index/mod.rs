//! The tree of a tar archive in memory: what a scan of all headers leaves behind.
//!
//! Owns the nodes and how a name is found among them; leaves making them to `builder`, `groups` and
//! `layout`, keeping them in a file to `file`, and what can be believed of that to `check`.
//! Invariant: the children of a folder stand side by side, in ascending order of their names,
//! behind their folder; node 0 is the root. `check` refuses whatever is not so.
//!
//! Memory is what decides here: an archive of 1.3 million members has as many nodes. A node takes
//! 48 bytes and its name one byte more than it has letters. There is no table to find names with:
//! the order is one, and 20 comparisons find a name among a million. What few members have
//! (attributes, maps of sparse files, second links) stands in tables of its own, sorted by node.

use crate::formats::bytes::index;
use crate::vfs::{Fault, FileKind, Name};

mod builder;
#[cfg(test)]
mod caps;
mod check;
mod depths;
mod file;
mod groups;
mod layout;
#[cfg(test)]
mod tests;
mod xattrs;

pub(super) use builder::{Builder, Folder, Nested, cleaned};
pub(super) use file::{FileKey, Hash, IndexFile, Key, MAGIC};

use super::header::BLOCK_LEN;
use super::sparse::Segment;

/// A node's number.
pub(super) type NodeId = u32;

/// The root's.
pub(super) const ROOT: NodeId = 0;

/// One name of the tree and what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Where its name is in `Index::names`: a byte of length, then the name.
    name: u32,
    /// Kind in the upper four bits, permissions in the lower twelve.
    mode: u16,
    pub(super) nanoseconds: u32,
    pub(super) seconds: i64,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Bytes of a file or of a link's target; children of a folder.
    pub(super) size: u64,
    /// By kind: place in the archive, number of the sparse map, first child, place of the target in
    /// `names`, device number, or the node that this is another name of.
    content: u64,
}

/// What a node is, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Stored { at: u64 },
    Sparse { map: usize },
    Folder { first: NodeId, count: u32 },
    Symlink { target: usize },
    Device { kind: FileKind, number: u32 },
    Fifo,
    Link { target: NodeId },
}

const STORED: u16 = 1;
const SPARSE: u16 = 2;
const FOLDER: u16 = 3;
const SYMLINK: u16 = 4;
const CHAR: u16 = 5;
const BLOCK: u16 = 6;
const FIFO: u16 = 7;
const LINK: u16 = 8;

/// Whether a node can have that kind.
fn is_kind(kind: u16) -> bool {
    (STORED..=LINK).contains(&kind)
}

impl Content {
    fn pack(self) -> (u16, u64) {
        match self {
            Self::Stored { at } => (STORED, at),
            Self::Sparse { map } => (SPARSE, u64::try_from(map).unwrap_or(u64::MAX)),
            Self::Folder { first, .. } => (FOLDER, u64::from(first)),
            Self::Symlink { target } => (SYMLINK, u64::try_from(target).unwrap_or(u64::MAX)),
            Self::Device { kind: FileKind::BlockDevice, number } => (BLOCK, u64::from(number)),
            Self::Device { number, .. } => (CHAR, u64::from(number)),
            Self::Fifo => (FIFO, 0),
            Self::Link { target } => (LINK, u64::from(target)),
        }
    }
}

impl Node {
    /// Permission, set-id and sticky bits.
    pub(super) fn permissions(&self) -> u16 {
        self.mode & 0o7777
    }

    /// What it is; a kind that no index holds is taken for a file that is nowhere.
    pub(super) fn content(&self) -> Content {
        let id = || NodeId::try_from(self.content).unwrap_or(NodeId::MAX);
        let number = || u32::try_from(self.content).unwrap_or(0);
        match self.mode >> 12 {
            SPARSE => Content::Sparse { map: index(self.content) },
            FOLDER => Content::Folder { first: id(), count: u32::try_from(self.size).unwrap_or(0) },
            SYMLINK => Content::Symlink { target: index(self.content) },
            CHAR => Content::Device { kind: FileKind::CharDevice, number: number() },
            BLOCK => Content::Device { kind: FileKind::BlockDevice, number: number() },
            FIFO => Content::Fifo,
            LINK => Content::Link { target: id() },
            _ => Content::Stored { at: self.content },
        }
    }

    pub(super) fn kind(&self) -> FileKind {
        match self.content() {
            Content::Stored { .. } | Content::Sparse { .. } | Content::Link { .. } => {
                FileKind::Regular
            }
            Content::Folder { .. } => FileKind::Directory,
            Content::Symlink { .. } => FileKind::Symlink,
            Content::Device { kind, .. } => kind,
            Content::Fifo => FileKind::Fifo,
        }
    }

    fn set(&mut self, content: Content) {
        let (kind, packed) = content.pack();
        self.mode = kind << 12 | self.permissions();
        self.content = packed;
    }
}

/// An image within the archive whose tree belongs into a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::formats) struct Graft {
    /// The folder's path, without a leading slash.
    pub(in crate::formats) path: Vec<u8>,
    /// Where the image is, bytes.
    pub(in crate::formats) at: u64,
    pub(in crate::formats) len: u64,
}

/// The whole tree.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    nodes: Vec<Node>,
    /// Names and targets of links, each name behind a byte that says how long it is.
    names: Vec<u8>,
    /// Maps of sparse files, one behind the other, and where each one ends.
    segments: Vec<Segment>,
    maps: Vec<u64>,
    /// Nodes with more than one name, ascending, and how many they have.
    links: Vec<(NodeId, u32)>,
    /// Nodes with attributes, ascending, and where theirs begin in `xattrs`.
    with_xattrs: Vec<(NodeId, u64)>,
    /// Sets of attributes: their number, then name and value, each behind its length (4 bytes
    /// each).
    xattrs: Vec<u8>,
    pub(super) grafts: Vec<Graft>,
    /// What the user should be told of this archive, a line each.
    pub(super) notes: Vec<String>,
    /// The same for who verifies, with paths; not kept in a file.
    pub(super) faults: Vec<Fault>,
}

impl Index {
    pub(super) fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(index(id))
    }

    /// All names, the root's among them.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Whether there is nothing but the root.
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.len() <= 1
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether `other` shows the same, whatever there is to tell of it.
    pub(super) fn is_same_tree(&self, other: &Self) -> bool {
        let Self { nodes, names, segments, maps, links, with_xattrs, xattrs, grafts, .. } = self;
        (nodes, names, segments, maps) == (&other.nodes, &other.names, &other.segments, &other.maps)
            && (links, with_xattrs, xattrs) == (&other.links, &other.with_xattrs, &other.xattrs)
            && *grafts == other.grafts
    }

    /// Where headers of the archive are, in no order: the block before the data of each stored
    /// file.
    pub(super) fn places(&self) -> Vec<u64> {
        let at = |node: &Node| match node.content() {
            Content::Stored { at } => at.checked_sub(BLOCK_LEN),
            _ => None,
        };
        // The first one begins the archive, whatever comes then.
        std::iter::once(0).chain(self.nodes.iter().filter_map(at)).collect()
    }

    /// The node that `id` stands for, which is another one for a second name.
    pub(super) fn inode(&self, id: NodeId) -> Option<(NodeId, &Node)> {
        let node = self.node(id)?;
        match node.content() {
            Content::Link { target } => Some((target, self.node(target)?)),
            _ => Some((id, node)),
        }
    }

    pub(super) fn name(&self, node: &Node) -> &[u8] {
        let at = index(node.name);
        let len = self.names.get(at).copied().map_or(0, usize::from);
        let start = at.saturating_add(1);
        self.names.get(start..start.saturating_add(len)).unwrap_or_default()
    }

    /// The child `name` of the folder whose children are `count` from `first` on.
    pub(super) fn find(&self, first: NodeId, count: u32, name: Name<'_>) -> Option<NodeId> {
        let children = self.children(first, count);
        let wanted = name.as_bytes();
        let place = children.binary_search_by(|child| self.name(child).cmp(wanted)).ok()?;
        first.checked_add(NodeId::try_from(place).ok()?)
    }

    pub(super) fn children(&self, first: NodeId, count: u32) -> &[Node] {
        let first = index(first);
        self.nodes.get(first..first.saturating_add(index(count))).unwrap_or_default()
    }

    /// The target of a symbolic link, `len` bytes.
    pub(super) fn target(&self, at: usize, len: u64) -> &[u8] {
        self.names.get(at..at.saturating_add(index(len))).unwrap_or_default()
    }

    pub(super) fn map(&self, number: usize) -> &[Segment] {
        let end_of = |number: usize| self.maps.get(number).copied().map(index);
        let start = number.checked_sub(1).and_then(end_of).unwrap_or(0);
        let end = end_of(number).unwrap_or(start);
        self.segments.get(start..end).unwrap_or_default()
    }

    /// How many names the node has.
    pub(super) fn names_of(&self, id: NodeId) -> u32 {
        let found = self.links.binary_search_by_key(&id, |&(node, _)| node);
        found.ok().and_then(|at| self.links.get(at)).map_or(1, |&(_, count)| count)
    }

    pub(super) fn has_xattrs(&self) -> bool {
        !self.with_xattrs.is_empty()
    }

    /// The attributes of a node: name and value.
    pub(super) fn xattrs_of(&self, id: NodeId) -> impl Iterator<Item = (&[u8], &[u8])> {
        let found = self.with_xattrs.binary_search_by_key(&id, |&(node, _)| node);
        let at = found.ok().and_then(|at| self.with_xattrs.get(at)).map(|&(_, at)| index(at));
        let mut rest = at.and_then(|at| self.xattrs.get(at..)).unwrap_or_default();
        let mut count = take_number(&mut rest).unwrap_or(0);
        std::iter::from_fn(move || {
            count = count.checked_sub(1)?;
            Some((take_bytes(&mut rest)?, take_bytes(&mut rest)?))
        })
    }
}

fn take_number(bytes: &mut &[u8]) -> Option<u32> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*number))
}

fn take_bytes<'b>(bytes: &mut &'b [u8]) -> Option<&'b [u8]> {
    let len = index(take_number(bytes)?);
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}
