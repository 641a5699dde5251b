//! Adds members to a tree (`add`), and takes it through the later phases (`finish`).

use super::super::node::Content;
use super::choose_shown::choose_shown;
use super::directories::DirectoryId;
use super::finished_tree::FinishedTree;
use super::hard_link_targets::HardLinkTargets;
use super::hard_links::HardLinks;
use super::numbering::Numbering;
use super::pending_node::PendingContent;
use super::pending_tree::PendingTree;
use super::side_tables::SideTables;
use super::slot::Slot;
use super::slots_by_directory::SlotsByDirectory;
use crate::error::Result;
use crate::formats::bytes::length;
use crate::formats::index::members::{Body, Inner, Kind, Member, Members};
use crate::formats::index::notes::Notes;
use crate::formats::index::paths::archive_stem;
use crate::spilled::Spill;
use crate::vfs::{FileKind, Name};

/// A tar: the whole file or a member of a tar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArchiveRange {
    /// The directory that shows its contents.
    pub(crate) base: DirectoryId,
    /// Number of archives around it. 0 for the outermost archive.
    pub(crate) depth: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// A tree to which members are added.
pub(crate) struct Builder {
    tree: PendingTree,
    hard_links: HardLinks,
    side_tables: SideTables,
}

/// What the tree has of a member.
enum Added {
    Whole,
    /// Without what a note names.
    Without(&'static str),
}

const INVALID_PATH: Added = Added::Without("paths that are not valid on Linux");
const TOO_MANY_SEGMENTS: Added =
    Added::Without("sparse files beyond the limit on pieces in one archive");
const TOO_MANY_XATTRS: Added =
    Added::Without("extended attributes of members, beyond the limit in one archive");

impl Builder {
    /// An empty builder that keeps its long lists where `spill` says.
    pub(crate) fn new(spill: Spill) -> Self {
        let tree = PendingTree::new(spill);
        Self { tree, hard_links: HardLinks::new(), side_tables: SideTables::new() }
    }

    /// The same with limits for segments of sparse files, and for bytes of attributes.
    #[cfg(test)]
    pub(crate) fn with_limits(mut self, segments: usize, xattrs: usize) -> Self {
        self.side_tables.sparse_maps.limit(segments);
        self.side_tables.xattrs.limit(xattrs);
        self
    }

    /// Adds the members in `batch`, which belong to `archive` and are part of `members`. Appends
    /// the tars among them to `nested`.
    ///
    /// Fails with `Unsupported` if there are more names than an index can hold: 4 GiB, or 2^32 of
    /// them. `Io` if there is no room for the lists.
    pub(crate) fn add(
        &mut self,
        archive: ArchiveRange,
        members: &Members,
        batch: &[Member],
        nested: &mut Vec<ArchiveRange>,
        notes: &mut Notes,
    ) -> Result<()> {
        self.tree.enter(archive.depth);
        if let Some(first) = batch.first() {
            self.tree.imply_root(first);
        }
        for member in batch {
            let added = match member.kind {
                Kind::Directory => self.add_directory(archive, members, member)?,
                Kind::Archive(inner) => {
                    self.add_archive(archive, members, member, inner, nested)?
                }
                _ => self.add_leaf(archive, members, member)?,
            };
            if let Added::Without(what) = added {
                notes.skip(what, Some(members.path(member)));
            }
        }
        Ok(())
    }

    fn add_directory(
        &mut self,
        archive: ArchiveRange,
        members: &Members,
        member: &Member,
    ) -> Result<Added> {
        let path = members.path(member);
        let Some(directory) = self.tree.ensure_directory(archive.base, path, member)? else {
            return Ok(INVALID_PATH);
        };
        self.tree.set_attributes_from_member(directory, member, member.permissions);
        let slot = self.tree.directories.slot(directory).unwrap_or(Slot::ROOT);
        Ok(self.add_xattrs(slot, members, member))
    }

    /// Adds an archive within the archive, as a directory.
    fn add_archive(
        &mut self,
        archive: ArchiveRange,
        members: &Members,
        member: &Member,
        inner: Inner,
        nested: &mut Vec<ArchiveRange>,
    ) -> Result<Added> {
        let path = members.path(member);
        let stem = archive_stem(path).unwrap_or(path);
        let Some(directory) = self.tree.ensure_directory(archive.base, stem, member)? else {
            return Ok(INVALID_PATH);
        };
        // Permission to read the archive becomes permission to search the directory.
        let search = (member.permissions & 0o444) >> 2;
        self.tree.set_attributes_from_member(directory, member, member.permissions | search);
        let Body::Stored(start) = member.body else { return Ok(Added::Whole) };
        let end = start.saturating_add(member.size);
        let depth = archive.depth.saturating_add(1);
        match inner {
            Inner::Tar => nested.push(ArchiveRange { base: directory, depth, start, end }),
            Inner::Separate => {
                let nested = (directory, start, member.size, member.headers);
                self.side_tables.nested_archives.push(nested);
            }
        }
        Ok(Added::Whole)
    }

    /// Adds a member that is no directory.
    fn add_leaf(
        &mut self,
        archive: ArchiveRange,
        members: &Members,
        member: &Member,
    ) -> Result<Added> {
        let (base, path) = (archive.base, members.path(member));
        let Some((parent, name)) = self.tree.parent_and_name(base, path, member)? else {
            return Ok(INVALID_PATH);
        };
        if !self.side_tables.sparse_maps.has_room(members.segment_count(member)) {
            return Ok(TOO_MANY_SEGMENTS);
        }
        if member.kind == Kind::HardLink {
            let slot = self.tree.push(parent, name, PendingContent::HardLink, 0, member)?;
            self.hard_links.add(slot, base, members.link(member));
            return Ok(Added::Whole);
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
    ) -> Result<Slot> {
        let (content, size) = match (member.kind, member.body) {
            (Kind::Symlink, Body::Described(entry)) => {
                (Content::Described { kind: FileKind::Symlink, entry }, member.size)
            }
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
                let map = self.side_tables.sparse_maps.add(members.sparse(number));
                (Content::Sparse { map }, member.size)
            }
            (_, Body::Stored(start)) => (Content::Stored { start }, member.size),
            (_, Body::AfterHeader(header)) => (Content::AfterHeader { header }, member.size),
            (_, Body::Described(entry)) => {
                (Content::Described { kind: FileKind::Regular, entry }, member.size)
            }
            (_, Body::Device(_)) => (Content::Stored { start: 0 }, 0),
        };
        self.tree.push(parent, name, PendingContent::Leaf(content), size, member)
    }

    fn add_xattrs(&mut self, slot: Slot, members: &Members, member: &Member) -> Added {
        let depth = self.tree.ranks.current();
        match self.side_tables.xattrs.add(slot, members.xattrs(member), depth) {
            true => Added::Whole,
            false => TOO_MANY_XATTRS,
        }
    }

    /// The path of a directory from the root.
    pub(crate) fn path(&self, directory: DirectoryId) -> Vec<u8> {
        self.tree.path(directory)
    }

    /// Finishes the tree.
    pub(crate) fn finish(self, notes: &mut Notes) -> Result<FinishedTree> {
        let Self { mut tree, hard_links, side_tables } = self;
        tree.directories.shrink();
        let by_directory = SlotsByDirectory::new(&tree)?;
        let targets = HardLinkTargets::new(&tree, &by_directory, hard_links, notes);
        let shown = choose_shown(&tree, &by_directory, &targets, notes)?;
        drop(by_directory);
        let numbering = Numbering::new(&tree, &shown, targets)?;
        Ok(FinishedTree::new(tree, numbering, side_tables))
    }
}
