//! Builds the tree of a tar from its members, in the order in which a scan finds them.
//!
//! Problem: a member says only its path. Paths come in any order, and some come twice. An index
//! needs the children of each directory side by side and sorted by name, and an archive may have
//! millions of members.
//!
//! Idea: work in two steps. `Builder::add` takes each member and appends a pending node to
//! `pending`. The position of that node is its slot. A pending node has a name and a parent
//! directory, but no node number yet. The parent is a `DirectoryId`, which is assigned when a path
//! first leads to that directory. Only directories are looked up in this step. Then
//! `Builder::finish` (in `layout`) sorts the pending nodes, picks the one to show for each path
//! (`groups`), resolves hard links, and numbers the nodes.
//!
//! For example, the members `a/f`, `b` and `a/f` add four pending nodes. Slot 0 is the directory
//! `a`, which the first path implies. Slots 1 to 3 are the members. The tree then has four nodes:
//! the root (0), `a` (1), `b` (2), and the later `f` (3). Slot 1 is not shown.
//!
//! Rules where the tar formats leave room:
//! - A path is normalized as text: `.` and empty components vanish, and `..` goes up, but not above
//!   the base directory.
//! - Parent directories that have no member of their own are created.
//! - A later member replaces an earlier one with the same path. `depths` decides which is later.
//! - A directory is never replaced by anything else, because that would lose its contents. So a
//!   symbolic link in the archive cannot redirect other members.
//! - A hard link names the last member before it that has the target path, or else the first
//!   after it.
//!
//! Invariant: whatever its path says, a member ends up in the directory that shows its archive, or
//! below it.

use std::collections::HashMap;
use std::io;

use super::super::chain::folder_name;
use super::super::header::owner;
use super::super::members::{Body, Inner, Kind, Member, Members};
use super::super::notes::Notes;
use super::super::sparse::Segment;
use super::depths::Depths;
use super::layout::HardLink;
use super::{Content, Node, NodeId};
use crate::error::{Error, Kind as ErrorKind, Result};
use crate::formats::bytes::{index, length};
use crate::formats::limits::{TAR_DEPTH_MAX, TAR_PIECES_MAX, TAR_XATTRS_MAX};
use crate::storage::{Spill, Spilled};
use crate::vfs::{FileKind, Name};

/// The number of a directory in the tree under construction, in order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::formats::tar) struct DirectoryId(pub(super) u32);

impl DirectoryId {
    /// The root of the tree.
    pub(in crate::formats::tar) const ROOT: Self = Self(0);
}

/// A tar within the archive, and the directory that shows its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::formats::tar) struct Nested {
    pub(in crate::formats::tar) directory: DirectoryId,
    /// Number of archives around it. 0 for the outermost archive.
    pub(in crate::formats::tar) depth: u32,
    pub(in crate::formats::tar) start: u64,
    pub(in crate::formats::tar) end: u64,
}

/// The tree under construction.
pub(in crate::formats::tar) struct Builder {
    /// One node for each name that a member or an implied directory gives. Several may have the
    /// same path. `parent` is a `DirectoryId`, not yet a node number.
    pub(super) pending: Spilled<Node>,
    /// The names of the pending nodes, and the targets of symbolic links.
    pub(super) names: Spilled<u8>,
    /// The slot of each directory in `pending`. `None` for the root, which is in `root` instead.
    pub(super) directory_slots: Vec<Option<u32>>,
    /// Each directory except the root, by its parent and its name.
    pub(super) subdirectories: HashMap<(DirectoryId, Box<[u8]>), DirectoryId>,
    pub(super) root: Node,
    pub(super) hard_links: Vec<HardLink>,
    /// The target paths of hard links, concatenated.
    pub(super) link_paths: Vec<u8>,
    /// The stored segments of all sparse files, one map after the other.
    pub(super) segments: Vec<Segment>,
    /// Limits: segments in `segments`, and bytes in `xattrs`.
    pub(super) pieces_max: usize,
    pub(super) xattrs_max: usize,
    /// Where the map of each sparse file ends in `segments`.
    pub(super) map_ends: Vec<u64>,
    /// Slot of a node with attributes (`u32::MAX` for the root), offset of its set in `xattrs`, and
    /// depth of its member.
    pub(super) with_xattrs: Vec<(u32, u64, u32)>,
    /// Sets of attributes, encoded (`xattrs`).
    pub(super) xattrs: Vec<u8>,
    /// Offset in `xattrs` by the hash of a set, so that files with the same attributes share one
    /// set. If different sets have one hash, the entry is that of the set added last.
    pub(super) xattr_sets: HashMap<u64, u64>,
    /// Images in the archive: the directory that shows the image, its offset and its length.
    pub(super) nested_images: Vec<(DirectoryId, u64, u64)>,
    /// The last lookup in `parent_and_name`: base, path, result. Most members follow one from the
    /// same directory.
    pub(super) last_parent: Option<(DirectoryId, Vec<u8>, DirectoryId)>,
    pub(super) depths: Depths,
    /// Where to keep lists that are as long as the archive has members: memory or temporary files.
    pub(super) spill: Spill,
}

/// Why members are left out, as a note says it.
const NOT_SHOWN: &str = "paths that Linux can not show";
const TOO_MANY_PIECES: &str = "sparse files with more pieces than are kept of one archive";

/// Content of a hard link until `finish`, and of a new directory until it has a `DirectoryId`.
const PLACEHOLDER: Content = Content::Link { target: NodeId::MAX };

impl Builder {
    /// An empty builder that keeps its long lists where `spill` says.
    pub(in crate::formats::tar) fn new(spill: Spill) -> Self {
        Self {
            pending: Spilled::new(&spill),
            names: Spilled::new(&spill),
            directory_slots: vec![None],
            subdirectories: HashMap::new(),
            root: Node { mode: 0o755, uid: owner(0), gid: owner(0), ..Node::empty() },
            hard_links: Vec::new(),
            link_paths: Vec::new(),
            segments: Vec::new(),
            pieces_max: TAR_PIECES_MAX,
            xattrs_max: TAR_XATTRS_MAX,
            map_ends: Vec::new(),
            with_xattrs: Vec::new(),
            xattrs: Vec::new(),
            xattr_sets: HashMap::new(),
            nested_images: Vec::new(),
            last_parent: None,
            depths: Depths::new(),
            spill,
        }
    }

    /// Adds the members in `batch`, which belong to `archive` and are part of `members`. Appends
    /// the tars among them to `nested`.
    ///
    /// # Errors
    /// `Unsupported` if the names exceed 4 GiB, the limit of an index. `Io` if there is no room for
    /// the lists.
    pub(in crate::formats::tar) fn add(
        &mut self,
        archive: Nested,
        members: &Members,
        batch: &[Member],
        nested: &mut Vec<Nested>,
        notes: &mut Notes,
    ) -> Result<()> {
        if let (Some(first), true) = (batch.first(), self.pending.is_empty()) {
            // The root has this owner and time unless a member describes it.
            self.describe(DirectoryId::ROOT, first, 0o755);
        }
        let (base, nested_depth) = (archive.directory, archive.depth.saturating_add(1));
        // `push` fails before a slot exceeds `u32`.
        self.depths.enter(u32::try_from(self.pending.len()).unwrap_or(u32::MAX), archive.depth);
        for member in batch {
            let path = members.path(member);
            match member.kind {
                Kind::Directory => {
                    let Some(directory) = self.ensure_directory(base, path, member)? else {
                        notes.skip(NOT_SHOWN, Some(path));
                        continue;
                    };
                    self.describe(directory, member, member.permissions);
                    self.set_xattrs(directory.0, members, member, true, notes);
                }
                Kind::Archive(inner) => {
                    let stem = folder_name(path).unwrap_or(path);
                    let Some(directory) = self.ensure_directory(base, stem, member)? else {
                        notes.skip(NOT_SHOWN, Some(path));
                        continue;
                    };
                    // Permission to read the archive becomes permission to search the directory.
                    let search = (member.permissions & 0o444) >> 2;
                    self.describe(directory, member, member.permissions | search);
                    let Body::Stored(start) = member.body else { continue };
                    let end = start.saturating_add(member.size);
                    match inner {
                        Inner::Tar => {
                            nested.push(Nested { directory, depth: nested_depth, start, end });
                        }
                        Inner::SquashFs => self.nested_images.push((directory, start, member.size)),
                    }
                }
                _ => {
                    let found = self.parent_and_name(base, path, member)?;
                    let Some((parent, name)) = found else {
                        notes.skip(NOT_SHOWN, Some(path));
                        continue;
                    };
                    let pieces = members.pieces(member);
                    if self.segments.len().saturating_add(pieces) > self.pieces_max {
                        notes.skip(TOO_MANY_PIECES, Some(path));
                        continue;
                    }
                    let slot = self.add_leaf(base, parent, name, members, member)?;
                    if member.kind != Kind::HardLink {
                        self.set_xattrs(slot, members, member, false, notes);
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds a member that is not a directory, in the directory `parent`. Returns its slot.
    fn add_leaf(
        &mut self,
        base: DirectoryId,
        parent: DirectoryId,
        name: Name<'_>,
        members: &Members,
        member: &Member,
    ) -> Result<u32> {
        let target = members.link(member);
        let (content, size) = match (member.kind, member.body) {
            (Kind::Symlink, _) => {
                let offset = length(self.names.len());
                self.names.extend_from_slice(target).map_err(no_room)?;
                (Content::Symlink { target: offset }, length(target.len()))
            }
            (Kind::CharDevice, Body::Device(number)) => {
                (Content::Device { kind: FileKind::CharDevice, number }, 0)
            }
            (Kind::BlockDevice, Body::Device(number)) => {
                (Content::Device { kind: FileKind::BlockDevice, number }, 0)
            }
            (Kind::Fifo, _) => (Content::Fifo, 0),
            (Kind::HardLink, _) => (PLACEHOLDER, 0),
            (_, Body::Sparse(number)) => {
                self.segments.extend(members.sparse(number));
                self.map_ends.push(length(self.segments.len()));
                (
                    Content::Sparse { map: length(self.map_ends.len()).saturating_sub(1) },
                    member.size,
                )
            }
            (_, Body::Stored(start)) => (Content::Stored { start }, member.size),
            (_, Body::Device(_)) => (Content::Stored { start: 0 }, 0),
        };
        let slot = self.push(parent, name, content, size, member)?;
        if member.kind == Kind::HardLink {
            let start = self.link_paths.len();
            self.link_paths.extend(target);
            let path = start..self.link_paths.len();
            self.hard_links.push(HardLink { slot, base, path });
        }
        Ok(slot)
    }

    /// Appends a pending node with the attributes of `member`. Returns its slot.
    fn push(
        &mut self,
        parent: DirectoryId,
        name: Name<'_>,
        content: Content,
        size: u64,
        member: &Member,
    ) -> Result<u32> {
        let too_many =
            |_| Error::new(ErrorKind::Unsupported, "more names than an index holds: 4 GiB of them");
        let name_offset = u32::try_from(self.names.len()).map_err(too_many)?;
        let slot = u32::try_from(self.pending.len()).map_err(too_many)?;
        let name = name.as_bytes();
        self.names.extend_from_slice(name).map_err(no_room)?;
        let mut node = Node {
            name: name_offset,
            name_len: u8::try_from(name.len()).unwrap_or(u8::MAX),
            parent: parent.0,
            mode: member.permissions,
            nanoseconds: member.modified.nanoseconds,
            seconds: member.modified.seconds,
            uid: member.uid,
            gid: member.gid,
            size,
            content: 0,
            padding: 0,
        };
        node.set(content);
        self.pending.push(node).map_err(no_room)?;
        Ok(slot)
    }

    /// The directory at `path` below `base`. Creates missing directories with `member`'s owner and
    /// time. `None` if Linux cannot show the path.
    fn ensure_directory(
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
        if components.len() > TAR_DEPTH_MAX {
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

    /// The directory `name` in `parent`. Creates it if it is missing. If it exists, but only
    /// because another path implied it, `member` may still change its owner and time (`depths`).
    fn ensure_subdirectory(
        &mut self,
        parent: DirectoryId,
        name: Name<'_>,
        member: &Member,
    ) -> Result<DirectoryId> {
        let key = (parent, Box::from(name.as_bytes()));
        let implied = Member { permissions: 0o755, ..*member };
        if let Some(&directory) = self.subdirectories.get(&key) {
            if self.depths.record_implied(directory) {
                self.set_attributes(directory, &implied, implied.permissions);
            }
            return Ok(directory);
        }
        let slot = self.push(parent, name, PLACEHOLDER, 0, &implied)?;
        let number = u32::try_from(self.directory_slots.len()).unwrap_or(u32::MAX);
        let directory = DirectoryId(number);
        // The directory number stays in the node until its children have node numbers.
        if let Some(node) = self.pending.get_mut(index(slot)) {
            node.set(Content::Directory { first: number, count: 0 });
        }
        self.directory_slots.push(Some(slot));
        self.depths.add_directory();
        self.subdirectories.insert(key, directory);
        Ok(directory)
    }

    /// The parent directory of the member at `path`, and the member's name in it. Creates missing
    /// directories. `None` if Linux cannot show the path.
    fn parent_and_name<'p>(
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
    fn describe(&mut self, directory: DirectoryId, member: &Member, permissions: u16) {
        if self.depths.record_described(directory) {
            self.set_attributes(directory, member, permissions);
        }
    }

    fn set_attributes(&mut self, directory: DirectoryId, member: &Member, permissions: u16) {
        let slot = self.directory_slots.get(index(directory.0)).copied().flatten();
        let node = match slot {
            Some(slot) => match self.pending.get_mut(index(slot)) {
                Some(node) => node,
                None => return,
            },
            None => &mut self.root,
        };
        node.mode = (node.mode & !0o7777) | permissions;
        (node.uid, node.gid) = (member.uid, member.gid);
        (node.seconds, node.nanoseconds) = (member.modified.seconds, member.modified.nanoseconds);
    }

    /// The pending node in `slot`. `None` for the root.
    pub(super) fn node(&self, slot: u32) -> Option<&Node> {
        self.pending.get(index(slot))
    }

    pub(super) fn kind(&self, slot: u32) -> FileKind {
        self.node(slot).map_or(FileKind::Regular, Node::kind)
    }

    pub(super) fn is_link(&self, slot: u32) -> bool {
        matches!(self.node(slot).map(Node::content), Some(Content::Link { .. }))
    }

    pub(super) fn name(&self, slot: u32) -> &[u8] {
        self.node(slot).map_or(&[], |node| node.name_in(&self.names))
    }
}

/// The error for a list that cannot grow.
pub(super) fn no_room(error: io::Error) -> Error {
    let directory = std::env::temp_dir();
    let context = format!("making the index in memory or in {}", directory.display());
    Error::io(context, error).with_hint(
        "set TMPDIR to a directory with more room on a local disk (ext4, XFS), or give the job \
         more memory",
    )
}

/// The components of `path`, normalized as text: `.` and empty ones vanish, and `..` removes the
/// component before it, if there is one.
pub(in crate::formats::tar) fn components_of(path: &[u8]) -> Vec<&[u8]> {
    let mut names = Vec::new();
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => _ = names.pop(),
            name => names.push(name),
        }
    }
    names
}
