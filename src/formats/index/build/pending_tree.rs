//! The tree while members are added: unsorted names, and the directories that contain them.

use std::io;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::super::NodeId;
use super::super::node::{Content, Headers, Node};
use super::directories::{Directories, DirectoryId, Ranks, Slot};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::length;
use crate::formats::index::members::{Member, components_of};
use crate::formats::limits::MEMBER_DEPTH_MAX;
use crate::spilled::{Spill, Spilled};
use crate::vfs::{FileKind, Name};

/// The tree under construction.
pub(super) struct PendingTree {
    /// One node for each member, and for each directory that only paths imply. Several nodes may
    /// have the same path.
    pub(super) nodes: Spilled<PendingNode>,
    /// The names of the pending nodes, and the targets of symbolic links.
    pub(super) names: Spilled<u8>,
    pub(super) root: PendingNode,
    pub(super) directories: Directories,
    pub(super) ranks: Ranks,
    /// The last lookup in `parent_and_name`: base, path, result. Most members are in the same
    /// directory as the member before them.
    last_parent: Option<(DirectoryId, Vec<u8>, DirectoryId)>,
    /// Where lists with an entry for each member are kept: in memory or in temporary files.
    pub(super) spill: Spill,
}

impl PendingTree {
    /// The root alone.
    pub(super) fn new(spill: Spill) -> Self {
        Self {
            nodes: Spilled::new(&spill),
            names: Spilled::new(&spill),
            root: PendingNode::root(),
            directories: Directories::new(),
            ranks: Ranks::default(),
            last_parent: None,
            spill,
        }
    }

    /// Sets the depth of the members that are added next.
    pub(super) fn enter(&mut self, depth: u32) {
        if self.ranks.current() != depth {
            // The first path at this depth may change the owner of the directories it implies.
            self.last_parent = None;
        }
        // If there is no such slot, the next `push` fails.
        self.ranks.enter(Slot::after(self.nodes.len()).unwrap_or(Slot::ROOT), depth);
    }

    /// Appends a pending node with the attributes of `member`. Returns its slot.
    ///
    /// Fails with `Unsupported` if there are more names than an index can hold: 4 GiB, or 2^32 of
    /// them. `Io` if there is no room.
    pub(super) fn push(
        &mut self,
        parent: DirectoryId,
        name: Name<'_>,
        content: Content,
        size: u64,
        member: &Member,
    ) -> Result<Slot> {
        let more_than = |limit| Error::new(Kind::Unsupported, format!("more than {limit}"));
        let name_offset = u32::try_from(self.names.len());
        let name_offset = name_offset.map_err(|_| more_than("4 GiB of names"))?;
        let slot = Slot::after(self.nodes.len());
        let slot = slot.ok_or_else(|| more_than("2^32 members and directories"))?;
        let name = name.as_bytes();
        self.names.extend_from_slice(name).map_err(no_room)?;
        let name = (name_offset, u8::try_from(name.len()).unwrap_or(u8::MAX));
        let node = PendingNode::new(parent, name, content, size, member);
        self.nodes.push(node).map_err(no_room)?;
        Ok(slot)
    }

    /// Stores the target of a symbolic link. Returns its offset in the names.
    pub(super) fn push_symlink_target(&mut self, target: &[u8]) -> Result<u64> {
        let offset = length(self.names.len());
        self.names.extend_from_slice(target).map_err(no_room)?;
        Ok(offset)
    }

    /// The directory at `path` below `base`. Creates missing directories with `member`'s owner and
    /// time. `None` if Linux cannot show the path.
    pub(super) fn ensure_directory(
        &mut self,
        base: DirectoryId,
        path: &[u8],
        member: &Member,
    ) -> Result<Option<DirectoryId>> {
        self.ensure_components(base, &components_of(path), member)
    }

    /// Like `ensure_directory`, for a path split into components.
    fn ensure_components(
        &mut self,
        base: DirectoryId,
        components: &[&[u8]],
        member: &Member,
    ) -> Result<Option<DirectoryId>> {
        if components.len() > MEMBER_DEPTH_MAX {
            return Ok(None);
        }
        let mut directory = base;
        for name in components {
            let Some(name) = Name::parse(name) else {
                return Ok(None);
            };
            directory = self.ensure_subdirectory(directory, name, member)?;
        }
        Ok(Some(directory))
    }

    /// The directory `name` in `parent`. Creates it if it is missing. If only members of archives
    /// at a greater depth have implied it, it gets the owner and time of `member` (`ranks`).
    fn ensure_subdirectory(
        &mut self,
        parent: DirectoryId,
        name: Name<'_>,
        member: &Member,
    ) -> Result<DirectoryId> {
        let parent_and_name = (parent, Box::from(name.as_bytes()));
        let implied = Member { permissions: 0o755, ..*member };
        let depth = self.ranks.current();
        if let Some(directory) = self.directories.get(&parent_and_name) {
            if self.directories.claim_as_implied(directory, depth) {
                self.set_attributes(directory, &implied, implied.permissions);
            }
            return Ok(directory);
        }
        let directory = self.directories.next_id();
        let slot = self.push(parent, name, directory.content(), 0, &implied)?;
        self.directories.add(parent_and_name, slot, depth);
        Ok(directory)
    }

    /// Sets the owner and time of the root to those of `member`, unless an earlier member has set
    /// them.
    pub(super) fn imply_root(&mut self, member: &Member) {
        if self.directories.claim_as_implied(DirectoryId::ROOT, self.ranks.current()) {
            self.set_attributes(DirectoryId::ROOT, member, 0o755);
        }
    }

    /// The parent directory of the member at `path`, and the member's name in it. Creates missing
    /// directories. `None` if Linux cannot show the path.
    pub(super) fn parent_and_name<'p>(
        &mut self,
        base: DirectoryId,
        path: &'p [u8],
        member: &Member,
    ) -> Result<Option<(DirectoryId, Name<'p>)>> {
        let slash = path.iter().rposition(|&byte| byte == b'/');
        let (parent_path, name) = match slash.and_then(|slash| path.split_at_checked(slash)) {
            Some((parent, name)) => (parent, name.get(1..).unwrap_or_default()),
            None => (&[][..], path),
        };
        let Some(name) = Name::parse(name) else {
            // For example, the path ends in a slash or `.`: `a/b/` and `a/b/.` mean `a/b`.
            let components = components_of(path);
            let Some((last, parents)) = components.split_last() else {
                return Ok(None);
            };
            let directory = self.ensure_components(base, parents, member)?;
            return Ok(directory.zip(Name::parse(last)));
        };
        match &self.last_parent {
            Some((last_base, path, directory)) if *last_base == base && path == parent_path => {
                return Ok(Some((*directory, name)));
            }
            _ => {}
        }
        let Some(directory) = self.ensure_directory(base, parent_path, member)? else {
            return Ok(None);
        };
        self.last_parent = Some((base, parent_path.to_vec(), directory));
        Ok(Some((directory, name)))
    }

    /// Sets the mode, owner and time of a directory from its own member.
    pub(super) fn set_attributes_from_member(
        &mut self,
        directory: DirectoryId,
        member: &Member,
        permissions: u16,
    ) {
        if self.directories.claim_as_described(directory, self.ranks.current()) {
            self.set_attributes(directory, member, permissions);
        }
    }

    fn set_attributes(&mut self, directory: DirectoryId, member: &Member, permissions: u16) {
        let node = match self.directories.slot(directory) {
            Some(slot) => match self.nodes.get_mut(slot.index()) {
                Some(node) => node,
                None => return,
            },
            None => &mut self.root,
        };
        node.set_attributes(member, permissions);
    }

    /// The pending node in `slot`. `None` for the root.
    pub(super) fn node(&self, slot: Slot) -> Option<&PendingNode> {
        self.nodes.get(slot.index())
    }

    pub(super) fn kind(&self, slot: Slot) -> FileKind {
        self.node(slot).map_or(FileKind::Regular, PendingNode::kind)
    }

    pub(super) fn is_hard_link(&self, slot: Slot) -> bool {
        self.node(slot).is_some_and(PendingNode::is_hard_link)
    }

    /// The directory in `slot`, if it is one.
    pub(super) fn directory(&self, slot: Slot) -> Option<DirectoryId> {
        self.node(slot).map_or(Some(DirectoryId::ROOT), PendingNode::child_directory)
    }

    pub(super) fn name(&self, slot: Slot) -> &[u8] {
        self.node(slot).map_or(&[], |node| node.name_in(&self.names))
    }

    /// The path of a pending node from the root, including its name.
    pub(super) fn path_of(&self, slot: Slot) -> Vec<u8> {
        let mut path = self.path(self.parent(slot));
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(self.name(slot));
        path
    }

    /// The path of a directory from the root.
    pub(super) fn path(&self, directory: DirectoryId) -> Vec<u8> {
        let mut parts = Vec::new();
        let mut current = directory;
        while let Some(slot) = self.directories.slot(current) {
            parts.push(self.name(slot));
            current = self.parent(slot);
        }
        parts.reverse();
        parts.join(&b'/')
    }

    fn parent(&self, slot: Slot) -> DirectoryId {
        self.node(slot).map_or(DirectoryId::ROOT, PendingNode::parent)
    }

    /// Checks that all data the kernel wrote to temporary files can be read back.
    pub(super) fn check(&self) -> io::Result<()> {
        self.nodes.check().and_then(|()| self.names.check())
    }
}

/// The error for a list that cannot grow.
pub(super) fn no_room(error: io::Error) -> Error {
    let directory = std::env::temp_dir();
    let context = format!("cannot make the index in memory or in {}", directory.display());
    Error::io(context, error).with_hint(
        "set TMPDIR to a directory with more room on a local disk (ext4, XFS), or give the job \
         more memory",
    )
}

/// A pending node. It takes no more memory than a `Node`, whose fields it keeps. Until it is
/// numbered, its parent and its child directory are `DirectoryId`s, a hard link has no target, and
/// its name and the target of a symbolic link are offsets in the names of the pending tree.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub(super) struct PendingNode(Node);

/// What a pending hard link refers to. `HardLink` has the path of its target.
pub(super) const PENDING_HARD_LINK: Content = Content::HardLink { target: NodeId::MAX };

impl DirectoryId {
    /// What the pending node of the directory refers to.
    fn content(self) -> Content {
        Content::Directory { first: self.0, count: 0 }
    }
}

impl PendingNode {
    /// The root, which has no name.
    fn root() -> Self {
        let mut node = Node { mode: 0o755, ..Node::default() };
        node.set(DirectoryId::ROOT.content());
        Self(node)
    }

    /// A node with the attributes of `member`, whose name is `name_len` bytes at `name`.
    fn new(
        parent: DirectoryId,
        (name, name_len): (u32, u8),
        content: Content,
        size: u64,
        member: &Member,
    ) -> Self {
        let Headers { blocks: header_blocks, crc32: headers_crc32 } = member.headers;
        let node = Node { name, name_len, parent: parent.0, size, ..Node::default() };
        let mut node = Node { header_blocks, headers_crc32, ..node };
        node.set(content);
        let mut pending = Self(node);
        pending.set_attributes(member, member.permissions);
        pending
    }

    /// Sets the permissions, and the owner and time of `member`.
    fn set_attributes(&mut self, member: &Member, permissions: u16) {
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

    fn kind(&self) -> FileKind {
        self.0.kind()
    }

    /// Its name, in `bytes`, which are all names of the pending tree.
    fn name_in<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        self.0.name_in(bytes)
    }

    /// The node in the directory with number `parent`. The caller sets the children of a directory
    /// and the target of a hard link.
    pub(super) fn numbered(&self, parent: NodeId) -> Node {
        Node { parent, ..self.0 }
    }
}
