//! Builds the tree of an archive from its members, in the order in which a scan finds them.
//!
//! Problem: a member says only its path. Paths come in any order, and some come twice. An index
//! needs the children of each directory side by side and sorted by name, and an archive may have
//! millions of members.
//!
//! In: batches of members. Out: a `FinishedTree`, which writes the index. In between:
//! 1. `NewTree::add` appends each member to a `PendingTree`, as a pending node: one name from one
//!    member, not yet numbered. The position of that node is its slot. It has a name and a parent
//!    directory. The parent is a `DirectoryId`, which is assigned when a path first contains that
//!    directory. Only directories are looked up in this phase. Rare data goes into side tables.
//!
//! `numbering.rs` has the other phases:
//! 2. `SlotsByDirectory` sorts the slots by directory, then by name.
//! 3. `HardLinkTargets` finds the target of each hard link.
//! 4. `choose_shown` picks the one pending node to show for each path.
//! 5. `Numbering` numbers the nodes that are shown.
//!
//! For example, the members `a/f`, `b` and `a/f` add four pending nodes. Slot 0 is the directory
//! `a`, which the first path implies. Slots 1 to 3 are the members. The tree then has four nodes:
//! the root (0), `a` (1), `b` (2), and the later `f` (3). Slot 1 is not shown.
//!
//! Rules where the tar formats leave room:
//! - A path is normalized as text: `.` and empty components vanish, and `..` goes up, but not above
//!   the base directory.
//! - Parent directories that have no member of their own are created.
//! - A later member replaces an earlier one with the same path. `Ranks` decides which is later.
//! - A directory is never replaced by anything else, because that would lose its contents. So a
//!   symbolic link in the archive cannot redirect other members.
//! - A hard link names the last member before it that has the target path, or else the first
//!   after it. (GNU tar extracts no link to a later member.) The target of a link to a link is the
//!   target of the latter.
//!
//! Invariant: whatever its path says, a member ends up in the directory that shows its archive, or
//! below it.

use super::NestedArchive;
use super::members::{Body, Inner, Kind, Member, Members, archive_stem};
use super::node::Content;
use super::notes::Notes;
use crate::error::Result;
use crate::formats::bytes::length;
use crate::formats::limits::{MEMBER_SEGMENTS_MAX, MEMBER_XATTRS_MAX};
use crate::spilled::Spill;
use crate::vfs::{FileKind, Name};

mod directories;
mod finished_tree;
mod numbering;
mod pending_tree;
mod side_tables;
mod unsaved;

pub(crate) use directories::DirectoryId;
pub(crate) use finished_tree::FinishedTree;
#[cfg(any(test, fuzzing))]
pub(crate) use unsaved::in_memory;
pub(crate) use unsaved::unsaved;

use directories::Slot;
use numbering::{HardLink, HardLinkTargets, Numbering, SlotsByDirectory, choose_shown};
use pending_tree::{PENDING_HARD_LINK, PendingTree};
use side_tables::SideTables;
use unsaved::MemoryCheck;

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

/// A tree that a scan fills with members, and the notes on what it leaves out.
pub(crate) struct NewTree {
    tree: PendingTree,
    hard_links: Vec<HardLink>,
    side_tables: SideTables,
    memory_check: MemoryCheck,
    pub(crate) notes: Notes,
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

impl Default for NewTree {
    fn default() -> Self {
        Self::with_limits(Spill::default(), MEMBER_SEGMENTS_MAX, MEMBER_XATTRS_MAX)
    }
}

impl NewTree {
    /// An empty tree that keeps its long lists where `spill` says, with limits for segments of
    /// sparse files, and for bytes of attributes.
    pub(super) fn with_limits(spill: Spill, segments: usize, xattrs: usize) -> Self {
        Self {
            tree: PendingTree::new(spill),
            hard_links: Vec::new(),
            side_tables: SideTables::new(segments, xattrs),
            memory_check: MemoryCheck::new(),
            notes: Notes::default(),
        }
    }

    /// Adds all of `members`, which belong to `archive`. Appends the tars among them to `nested`.
    ///
    /// Fails with `Unsupported` if there are more names than an index can hold: 4 GiB, or 2^32 of
    /// them. `Io` if there is no room for the lists, or if the job has too little memory.
    pub(crate) fn add(
        &mut self,
        archive: ArchiveRange,
        members: &Members,
        nested: &mut Vec<ArchiveRange>,
    ) -> Result<()> {
        self.add_from(archive, members, 0, nested)
    }

    /// Adds the members from the `nth` on.
    pub(crate) fn add_from(
        &mut self,
        archive: ArchiveRange,
        members: &Members,
        nth: usize,
        nested: &mut Vec<ArchiveRange>,
    ) -> Result<()> {
        let list = members.list().get(nth..).unwrap_or_default();
        self.tree.enter(archive.depth);
        if let Some(first) = list.first() {
            self.tree.imply_root(first);
        }
        for member in list {
            let added = match member.kind {
                Kind::Directory => self.add_directory(archive, members, member)?,
                Kind::Archive(inner) => {
                    self.add_archive(archive, members, member, inner, nested)?
                }
                _ => self.add_leaf(archive, members, member)?,
            };
            if let Added::Without(what) = added {
                self.notes.skip(what, Some(members.path(member)));
            }
        }
        self.memory_check.add(list.len())
    }

    /// Adds the notes of the archive that `directory` shows.
    pub(crate) fn note(&mut self, directory: DirectoryId, notes: Notes) {
        self.notes.append(notes.within(&self.tree.path(directory)));
    }

    /// Finishes the tree.
    pub(crate) fn finish(self) -> Result<FinishedTree> {
        let Self { mut tree, hard_links, side_tables, mut notes, .. } = self;
        tree.directories.shrink();
        let by_directory = SlotsByDirectory::new(&tree)?;
        let targets = HardLinkTargets::new(&tree, &by_directory, hard_links, &mut notes);
        let shown = choose_shown(&tree, &by_directory, &targets, &mut notes)?;
        drop(by_directory);
        let numbering = Numbering::new(&tree, &shown, targets)?;
        let (notes, findings) = notes.finish();
        let seek_points = Vec::new();
        Ok(FinishedTree { tree, numbering, side_tables, seek_points, notes, findings })
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
                let (path, headers) = (self.tree.path(directory), member.headers);
                let nested = NestedArchive { path, offset: start, len: member.size, headers };
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
            let slot = self.tree.push(parent, name, PENDING_HARD_LINK, 0, member)?;
            self.hard_links.push(HardLink { slot, base, path: members.link(member).into() });
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
        self.tree.push(parent, name, content, size, member)
    }

    fn add_xattrs(&mut self, slot: Slot, members: &Members, member: &Member) -> Added {
        let depth = self.tree.ranks.current();
        match self.side_tables.xattrs.add(slot, members.xattrs(member), depth) {
            true => Added::Whole,
            false => TOO_MANY_XATTRS,
        }
    }
}
