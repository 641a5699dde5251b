//! A pending node: one name from one member, not yet numbered.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::super::NodeId;
use super::super::headers::Headers;
use super::super::node::{Content, Node};
use super::directories::DirectoryId;
use crate::formats::index::members::Member;
use crate::vfs::FileKind;

/// A pending node. It takes no more memory than a `Node`, whose fields it keeps. Until it is
/// numbered, its parent and its child directory are `DirectoryId`s, a hard link has no target, and
/// its name and the target of a symbolic link are offsets in the names of the pending tree.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub(super) struct PendingNode(Node);

/// What a pending node refers to.
#[derive(Clone, Copy)]
pub(super) enum PendingContent {
    ChildDirectory(DirectoryId),
    /// `HardLinks` has the path of its target.
    HardLink,
    /// Neither a directory nor a hard link.
    Leaf(Content),
}

impl PendingNode {
    /// The root, which has no name.
    pub(super) fn root(owner: u32) -> Self {
        let mut node = Node { mode: 0o755, uid: owner, gid: owner, ..Node::empty() };
        node.set(PendingContent::ChildDirectory(DirectoryId::ROOT).encode());
        Self(node)
    }

    /// A node with the attributes of `member`, whose name is `name_len` bytes at `name`.
    pub(super) fn new(
        parent: DirectoryId,
        (name, name_len): (u32, u8),
        content: PendingContent,
        size: u64,
        member: &Member,
    ) -> Self {
        let Headers { blocks: header_blocks, crc32: headers_crc32 } = member.headers;
        let node = Node { name, name_len, parent: parent.0, size, ..Node::empty() };
        let mut node = Node { header_blocks, headers_crc32, ..node };
        node.set(content.encode());
        let mut pending = Self(node);
        pending.set_attributes(member, member.permissions);
        pending
    }

    /// Sets the permissions, and the owner and time of `member`.
    pub(super) fn set_attributes(&mut self, member: &Member, permissions: u16) {
        let Self(node) = self;
        node.mode = (node.mode & !0o7777) | (permissions & 0o7777);
        (node.uid, node.gid) = (member.uid, member.gid);
        (node.seconds, node.nanoseconds) = (member.modified.seconds, member.modified.nanoseconds);
    }

    /// The directory that its name is in.
    pub(super) fn parent(&self) -> DirectoryId {
        DirectoryId(self.0.parent)
    }

    /// The directory that it is, if it is one.
    pub(super) fn child_directory(&self) -> Option<DirectoryId> {
        match self.0.content() {
            Content::Directory { first, .. } => Some(DirectoryId(first)),
            _ => None,
        }
    }

    pub(super) fn is_hard_link(&self) -> bool {
        matches!(self.0.content(), Content::HardLink { .. })
    }

    pub(super) fn kind(&self) -> FileKind {
        self.0.kind()
    }

    /// Its name, in `bytes`, which are all names of the pending tree.
    pub(super) fn name_in<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        self.0.name_in(bytes)
    }

    /// The node in the directory with number `parent`. The caller sets the children of a directory
    /// and the target of a hard link.
    pub(super) fn numbered(&self, parent: NodeId) -> Node {
        Node { parent, ..self.0 }
    }
}

impl PendingContent {
    fn encode(self) -> Content {
        match self {
            Self::ChildDirectory(DirectoryId(first)) => Content::Directory { first, count: 0 },
            Self::HardLink => Content::HardLink { target: NodeId::MAX },
            Self::Leaf(content) => content,
        }
    }
}
