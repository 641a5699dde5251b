//! Answers the requests of a `Tree` that need only the index.
//!
//! An inode number is the number of a node plus one.

use std::ops::ControlFlow;

use super::{Content, Index, Node, NodeId};
use crate::error::{Error, Kind, Result};
use crate::vfs::{Attr, Cookie, DirEntry, FileKind, Ino, Name, Timestamp};

/// The st_blksize of files, bytes. Python uses it as its buffer size, so one read gets a whole
/// JPEG.
const PREFERRED_READ: u32 = 256 << 10;

/// The inode number of a node.
pub(in crate::formats) fn ino_of(id: NodeId) -> Ino {
    Ino::new(u64::from(id).saturating_add(1)).unwrap_or(Ino::ROOT)
}

impl Index {
    /// The node with the inode number `ino`, or the target of that hard link.
    pub(in crate::formats) fn node_of(&self, ino: Ino) -> Result<(NodeId, Node)> {
        let id = ino.number().checked_sub(1).and_then(|id| NodeId::try_from(id).ok());
        let id = id.filter(|&id| id < self.len()).ok_or_else(|| {
            let context =
                format!("{}: {} is not an inode of this archive", self.name, ino.number());
            Error::new(Kind::NotFound, context)
        })?;
        self.named(self.resolve_hard_link(id))
    }

    /// The attributes of a node.
    pub(in crate::formats) fn attr(&self, id: NodeId, node: &Node) -> Result<Attr> {
        let (size, allocated, device) = match node.content() {
            Content::Sparse { map } => (node.size, self.map(id, node, map)?.stored, 0),
            Content::Device { number, .. } => (0, 0, number),
            Content::Directory { .. }
            | Content::Symlink { .. }
            | Content::Described { kind: FileKind::Symlink, .. }
            | Content::Fifo => (node.size, 0, 0),
            Content::Stored { .. }
            | Content::AfterHeader { .. }
            | Content::Described { .. }
            | Content::HardLink { .. } => (node.size, node.size, 0),
        };
        Ok(Attr {
            ino: ino_of(id),
            kind: node.kind(),
            permissions: node.permissions(),
            nlink: match node.kind() {
                // Counting subdirectories would take a read of all children. 1 means unknown, as
                // for large directories in ext4.
                FileKind::Directory => 1,
                _ => self.link_count(id)?,
            },
            uid: node.uid,
            gid: node.gid,
            size,
            allocated,
            device,
            modified: Timestamp { seconds: node.seconds, nanoseconds: node.nanoseconds },
            block_size: PREFERRED_READ,
        })
    }

    /// The entry `name` of the directory `parent`: its node, or the target of a hard link.
    pub(in crate::formats) fn lookup(
        &self,
        parent: Ino,
        name: Name<'_>,
    ) -> Result<Option<(NodeId, Node)>> {
        let (id, children) = self.directory(parent)?;
        self.named(self.find(id, children, name))
    }

    /// Visits the entries of a directory.
    pub(in crate::formats) fn read_dir(
        &self,
        ino: Ino,
        cookie: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (id, (first, count)) = self.directory(ino)?;
        let skipped = cookie.0.checked_sub(Cookie::START.0);
        let skipped = skipped.and_then(|skipped| u32::try_from(skipped).ok());
        let skipped = skipped.filter(|&skipped| skipped <= count).ok_or_else(|| {
            Error::new(
                Kind::InvalidInput,
                format!("{} is not a position in this directory", cookie.0),
            )
        })?;
        self.named(self.visit_children(id, (first, count), skipped, visit))
    }

    /// The target of a symbolic link that the index has.
    pub(in crate::formats) fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let (_, node) = self.node_of(ino)?;
        match node.content() {
            Content::Symlink { target } => self.named(self.target(target, node.size)),
            _ => Err(Error::new(Kind::InvalidInput, "not a symbolic link")),
        }
    }

    /// The parent of a directory; the root is its own.
    pub(in crate::formats) fn parent_of(&self, ino: Ino) -> Result<Ino> {
        let (id, _) = self.directory(ino)?;
        Ok(ino_of(self.named(self.parent(id))?))
    }

    /// Adds the name of the index to an error.
    pub(in crate::formats) fn named<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| self.name_error(error))
    }

    /// A directory: its node, its first child and its number of children.
    fn directory(&self, ino: Ino) -> Result<(NodeId, (NodeId, u32))> {
        let (id, node) = self.node_of(ino)?;
        match node.content() {
            Content::Directory { first, count } => Ok((id, (first, count))),
            _ => Err(Error::new(Kind::NotADirectory, "not a directory")),
        }
    }

    /// Visits the children of a directory, except the first `skipped`.
    fn visit_children(
        &self,
        directory: NodeId,
        (first, count): (NodeId, u32),
        skipped: u32,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (mut buffer, mut previous) = ([0; 255], [0; 255]);
        let mut previous_len = 0;
        for nth in skipped..count {
            let (own_node, (id, node)) = self.child(directory, first.saturating_add(nth))?;
            let name = self.name(&own_node, &mut buffer)?;
            // Names ascend strictly, so even a listing from a hostile index ends.
            let is_next = previous.get(..previous_len).is_some_and(|previous| previous < name);
            let name = Name::parse(name).filter(|_| is_next);
            let Some(name) = name else {
                return Err(Error::corrupt("names of a directory in the index are out of order"));
            };
            let ino = ino_of(id);
            let next = Cookie(Cookie::START.0.saturating_add(u64::from(nth)).saturating_add(1));
            if visit(DirEntry { ino, kind: node.kind(), name, next }).is_break() {
                break;
            }
            previous_len = name.as_bytes().len();
            if let Some(previous) = previous.get_mut(..previous_len) {
                previous.copy_from_slice(name.as_bytes());
            }
        }
        Ok(())
    }
}
