//! Adds members to a tree (`add`), and takes it through the later phases (`finish`).

use super::super::NodeId;
use super::super::node::Content;
use super::directories::DirectoryId;
use super::draft::Draft;
use super::groups::SlotsByDirectory;
use super::hard_links::HardLinks;
use super::order::Order;
use super::pending_tree::{PendingTree, ROOT_SLOT};
use super::rare::RareData;
use super::shown::shown;
use super::targets::HardLinkTargets;
use crate::error::Result;
use crate::formats::bytes::length;
use crate::formats::tar::members::{Body, Inner, Kind, Member, Members};
use crate::formats::tar::notes::Notes;
use crate::formats::tar::paths::archive_stem;
use crate::spilled::Spill;
use crate::vfs::{FileKind, Name};

/// A tar within the archive, and the directory that shows its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::formats::tar) struct Nested {
    pub(in crate::formats::tar) directory: DirectoryId,
    /// Number of archives around it. 0 for the outermost archive.
    pub(in crate::formats::tar) depth: u32,
    pub(in crate::formats::tar) start: u64,
    pub(in crate::formats::tar) end: u64,
}

/// A tree to which members are added.
pub(in crate::formats::tar) struct Builder {
    tree: PendingTree,
    hard_links: HardLinks,
    rare: RareData,
}

/// What a member loses, as a note says it.
type LeftOut = Option<&'static str>;

const NOT_SHOWN: LeftOut = Some("paths that are not valid on Linux");
const TOO_MANY_SEGMENTS: LeftOut = Some("sparse files beyond the limit on pieces in one archive");
const TOO_MANY_XATTRS: LeftOut =
    Some("extended attributes of members, beyond the limit in one archive");

impl Builder {
    /// An empty builder that keeps its long lists where `spill` says.
    pub(in crate::formats::tar) fn new(spill: Spill) -> Self {
        let tree = PendingTree::new(spill);
        Self { tree, hard_links: HardLinks::new(), rare: RareData::new() }
    }

    /// The same with limits for segments of sparse files, and for bytes of attributes.
    #[cfg(test)]
    pub(in crate::formats::tar) fn with_limits(mut self, segments: usize, xattrs: usize) -> Self {
        self.rare.sparse_maps.limit(segments);
        self.rare.xattrs.limit(xattrs);
        self
    }

    /// Adds the members in `batch`, which belong to `archive` and are part of `members`. Appends
    /// the tars among them to `nested`.
    ///
    /// # Errors
    /// `Unsupported` if there are more names than an index can hold: 4 GiB, or 2^32 of them. `Io`
    /// if there is no room for the lists.
    pub(in crate::formats::tar) fn add(
        &mut self,
        archive: Nested,
        members: &Members,
        batch: &[Member],
        nested: &mut Vec<Nested>,
        notes: &mut Notes,
    ) -> Result<()> {
        self.tree.enter(archive.depth);
        if let Some(first) = batch.first() {
            self.tree.imply_root(first);
        }
        for member in batch {
            let left_out = match member.kind {
                Kind::Directory => self.add_directory(archive, members, member)?,
                Kind::Archive(inner) => {
                    self.add_archive(archive, members, member, inner, nested)?
                }
                _ => self.add_leaf(archive, members, member)?,
            };
            if let Some(what) = left_out {
                notes.skip(what, Some(members.path(member)));
            }
        }
        Ok(())
    }

    fn add_directory(
        &mut self,
        archive: Nested,
        members: &Members,
        member: &Member,
    ) -> Result<LeftOut> {
        let path = members.path(member);
        let Some(directory) = self.tree.ensure_directory(archive.directory, path, member)? else {
            return Ok(NOT_SHOWN);
        };
        self.tree.describe(directory, member, member.permissions);
        let slot = self.tree.directories.slot(directory).unwrap_or(ROOT_SLOT);
        Ok(self.add_xattrs(slot, members, member))
    }

    /// Adds an archive within the archive, as a directory.
    fn add_archive(
        &mut self,
        archive: Nested,
        members: &Members,
        member: &Member,
        inner: Inner,
        nested: &mut Vec<Nested>,
    ) -> Result<LeftOut> {
        let path = members.path(member);
        let stem = archive_stem(path).unwrap_or(path);
        let Some(directory) = self.tree.ensure_directory(archive.directory, stem, member)? else {
            return Ok(NOT_SHOWN);
        };
        // Permission to read the archive becomes permission to search the directory.
        let search = (member.permissions & 0o444) >> 2;
        self.tree.describe(directory, member, member.permissions | search);
        let Body::Stored(start) = member.body else { return Ok(None) };
        let end = start.saturating_add(member.size);
        let depth = archive.depth.saturating_add(1);
        match inner {
            Inner::Tar => nested.push(Nested { directory, depth, start, end }),
            Inner::SquashFs => self.rare.nested_images.push((directory, start, member.size)),
        }
        Ok(None)
    }

    /// Adds a member that is no directory.
    fn add_leaf(&mut self, archive: Nested, members: &Members, member: &Member) -> Result<LeftOut> {
        let (base, path) = (archive.directory, members.path(member));
        let Some((parent, name)) = self.tree.parent_and_name(base, path, member)? else {
            return Ok(NOT_SHOWN);
        };
        if !self.rare.sparse_maps.has_room(members.pieces(member)) {
            return Ok(TOO_MANY_SEGMENTS);
        }
        if member.kind == Kind::HardLink {
            // `Order` sets its target.
            let content = Content::HardLink { target: NodeId::MAX };
            let slot = self.tree.push(parent, name, content, 0, member)?;
            self.hard_links.add(slot, base, members.link(member));
            return Ok(None);
        }
        let slot = self.push_leaf(parent, name, members, member)?;
        Ok(self.add_xattrs(slot, members, member))
    }

    /// Appends the node of a member that is neither a directory nor a hard link. Returns its slot.
    fn push_leaf(
        &mut self,
        parent: DirectoryId,
        name: Name<'_>,
        members: &Members,
        member: &Member,
    ) -> Result<u32> {
        let (content, size) = match (member.kind, member.body) {
            (Kind::Symlink, _) => {
                let target = members.link(member);
                (
                    Content::Symlink { target: self.tree.push_symlink_target(target)? },
                    length(target.len()),
                )
            }
            (Kind::CharDevice, Body::Device(number)) => {
                (Content::Device { kind: FileKind::CharDevice, number }, 0)
            }
            (Kind::BlockDevice, Body::Device(number)) => {
                (Content::Device { kind: FileKind::BlockDevice, number }, 0)
            }
            (Kind::Fifo, _) => (Content::Fifo, 0),
            (_, Body::Sparse(number)) => {
                let map = self.rare.sparse_maps.add(members.sparse(number));
                (Content::Sparse { map }, member.size)
            }
            (_, Body::Stored(start)) => (Content::Stored { start }, member.size),
            (_, Body::Device(_)) => (Content::Stored { start: 0 }, 0),
        };
        self.tree.push(parent, name, content, size, member)
    }

    fn add_xattrs(&mut self, slot: u32, members: &Members, member: &Member) -> LeftOut {
        let depth = self.tree.depths.current();
        match self.rare.xattrs.add(slot, members.xattrs(member), depth) {
            true => None,
            false => TOO_MANY_XATTRS,
        }
    }

    /// The path of a directory from the root.
    pub(in crate::formats::tar) fn path(&self, directory: DirectoryId) -> Vec<u8> {
        self.tree.path(directory)
    }

    /// Finishes the tree.
    ///
    /// # Errors
    /// `Io` if there is no room for the order of its nodes.
    pub(in crate::formats::tar) fn finish(self, notes: &mut Notes) -> Result<Draft> {
        let Self { mut tree, hard_links, rare } = self;
        tree.directories.shrink();
        let groups = SlotsByDirectory::new(&tree)?;
        let targets = HardLinkTargets::new(&tree, &groups, hard_links, notes);
        let shown = shown(&tree, &groups, &targets, notes)?;
        drop(groups);
        let order = Order::new(&tree, &shown, targets)?;
        Ok(Draft::new(tree, order, rare))
    }
}
