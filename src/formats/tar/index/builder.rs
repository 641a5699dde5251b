//! Makes the tree out of members in the order of the archive.
//!
//! Owns what paths mean; leaves reading members to `scan`, and choosing between members of one path
//! to `groups`, and the order of nodes to `layout`.
//! Invariant: whatever a path says, its member ends up below the folder it was added to.
//!
//! The rules, where tars leave room. A path is cleaned as text: `.` and empty parts vanish, `..`
//! goes up and stops at the top. Folders that a path implies are made. A later member replaces an
//! earlier one of the same path; but a folder stays a folder, so that nothing in it is lost, even
//! if a link or a file has the same path: a link never leads a member elsewhere. A hard link names
//! the latest member before it that has the path it says.

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

/// A folder of the tree that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::formats::tar) struct Folder(pub(super) u32);

impl Folder {
    /// The root of the tree.
    pub(in crate::formats::tar) const ROOT: Self = Self(0);
}

/// A tar within the archive, to be scanned into a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::formats::tar) struct Nested {
    pub(in crate::formats::tar) folder: Folder,
    /// Archives it lies in; the outermost one in none.
    pub(in crate::formats::tar) depth: u32,
    pub(in crate::formats::tar) start: u64,
    pub(in crate::formats::tar) end: u64,
}

/// The tree so far.
pub(in crate::formats::tar) struct Builder {
    /// All members that are shown, if no other has their name. The `parent` of each is the number
    /// of its `Folder`.
    pub(super) pending: Spilled<Node>,
    /// Their names, and the targets of symbolic links.
    pub(super) names: Spilled<u8>,
    /// Of each folder the place in `pending`; the root is none.
    pub(super) folders: Vec<Option<u32>>,
    pub(super) by_name: HashMap<(Folder, Box<[u8]>), Folder>,
    pub(super) root: Node,
    pub(super) hard_links: Vec<HardLink>,
    /// The paths that hard links say, one behind the other.
    pub(super) link_paths: Vec<u8>,
    pub(super) segments: Vec<Segment>,
    /// Pieces that `segments` may grow to, and bytes that `xattrs` may.
    pub(super) pieces_max: usize,
    pub(super) xattrs_max: usize,
    pub(super) maps: Vec<u64>,
    /// Place in `pending`, place in `xattrs`, depth of the member that said so.
    pub(super) with_xattrs: Vec<(u32, u64, u32)>,
    pub(super) xattrs: Vec<u8>,
    /// Where a set of attributes is already kept, by its hash: files of one folder often have the
    /// same. Two sets with one hash are both kept, as often as they come.
    pub(super) known_xattrs: HashMap<u64, u64>,
    pub(super) nested_images: Vec<(Folder, u64, u64)>,
    /// The folder that the last path led to: members mostly come folder by folder.
    pub(super) last: Option<(Folder, Vec<u8>, Folder)>,
    pub(super) depths: Depths,
    /// Where the parts go that are as long as the archive has members.
    pub(super) spill: Spill,
}

/// Members that are left out, as a note says it.
const NOT_SHOWN: &str = "paths that Linux can not show";
const TOO_MANY_PIECES: &str = "sparse files with more pieces than are kept of one archive";

/// What stands in `Content` of a pending folder or link, whose place in the tree is not known yet.
const UNPLACED: Content = Content::Link { target: NodeId::MAX };

impl Builder {
    /// A builder whose long lists go where `spill` says.
    pub(in crate::formats::tar) fn new(spill: Spill) -> Self {
        Self {
            pending: Spilled::new(&spill),
            names: Spilled::new(&spill),
            folders: vec![None],
            by_name: HashMap::new(),
            root: Node { mode: 0o755, uid: owner(0), gid: owner(0), ..Node::empty() },
            hard_links: Vec::new(),
            link_paths: Vec::new(),
            segments: Vec::new(),
            pieces_max: TAR_PIECES_MAX,
            xattrs_max: TAR_XATTRS_MAX,
            maps: Vec::new(),
            with_xattrs: Vec::new(),
            xattrs: Vec::new(),
            known_xattrs: HashMap::new(),
            nested_images: Vec::new(),
            last: None,
            depths: Depths::new(),
            spill,
        }
    }

    /// Adds `list`, members of `members`, which are those of `archive`; tars among them go to
    /// `nested`.
    ///
    /// # Errors
    /// `Unsupported` for an archive with more names than an index holds (4 GiB of them); `Io` where
    /// there is no room for them.
    pub(in crate::formats::tar) fn add(
        &mut self,
        archive: Nested,
        members: &Members,
        list: &[Member],
        nested: &mut Vec<Nested>,
        notes: &mut Notes,
    ) -> Result<()> {
        if let (Some(first), true) = (list.first(), self.pending.is_empty()) {
            // What the root is like until its own member comes, if it has one.
            self.describe(Folder::ROOT, first, 0o755);
        }
        let (base, depth) = (archive.folder, archive.depth.saturating_add(1));
        // Of more members than there are numbers none gets that far.
        self.depths.enter(u32::try_from(self.pending.len()).unwrap_or(u32::MAX), archive.depth);
        for member in list {
            let path = members.path(member);
            match member.kind {
                Kind::Directory => {
                    let Some(folder) = self.folder(base, path, member)? else {
                        notes.skip(NOT_SHOWN, Some(path));
                        continue;
                    };
                    self.describe(folder, member, member.permissions);
                    self.set_xattrs(folder.0, members, member, true, notes);
                }
                Kind::Archive(inner) => {
                    let stem = folder_name(path).unwrap_or(path);
                    let Some(folder) = self.folder(base, stem, member)? else {
                        notes.skip(NOT_SHOWN, Some(path));
                        continue;
                    };
                    // Who may read the archive may enter the folder.
                    let enter = (member.permissions & 0o444) >> 2;
                    self.describe(folder, member, member.permissions | enter);
                    let Body::Stored(start) = member.body else { continue };
                    let end = start.saturating_add(member.size);
                    match inner {
                        Inner::Tar => nested.push(Nested { folder, depth, start, end }),
                        Inner::SquashFs => self.nested_images.push((folder, start, member.size)),
                    }
                }
                _ => {
                    let placed = self.place(base, path, member)?;
                    let Some((parent, name)) = placed else {
                        notes.skip(NOT_SHOWN, Some(path));
                        continue;
                    };
                    let pieces = members.pieces(member);
                    if self.segments.len().saturating_add(pieces) > self.pieces_max {
                        notes.skip(TOO_MANY_PIECES, Some(path));
                        continue;
                    }
                    let pending = self.add_leaf(base, parent, name, members, member)?;
                    if member.kind != Kind::HardLink {
                        self.set_xattrs(pending, members, member, false, notes);
                    }
                }
            }
        }
        Ok(())
    }

    fn add_leaf(
        &mut self,
        base: Folder,
        parent: Folder,
        name: Name<'_>,
        members: &Members,
        member: &Member,
    ) -> Result<u32> {
        let target = members.link(member);
        let (content, size) = match (member.kind, member.body) {
            (Kind::Symlink, _) => {
                let at = length(self.names.len());
                self.names.extend_from_slice(target).map_err(no_room)?;
                (Content::Symlink { target: at }, length(target.len()))
            }
            (Kind::CharDevice, Body::Device(number)) => {
                (Content::Device { kind: FileKind::CharDevice, number }, 0)
            }
            (Kind::BlockDevice, Body::Device(number)) => {
                (Content::Device { kind: FileKind::BlockDevice, number }, 0)
            }
            (Kind::Fifo, _) => (Content::Fifo, 0),
            (Kind::HardLink, _) => (UNPLACED, 0),
            (_, Body::Sparse(number)) => {
                self.segments.extend(members.sparse(number));
                self.maps.push(length(self.segments.len()));
                (Content::Sparse { map: length(self.maps.len()).saturating_sub(1) }, member.size)
            }
            (_, Body::Stored(at)) => (Content::Stored { at }, member.size),
            (_, Body::Device(_)) => (Content::Stored { at: 0 }, 0),
        };
        let pending = self.push(parent, name, content, size, member)?;
        if member.kind == Kind::HardLink {
            let start = self.link_paths.len();
            self.link_paths.extend(target);
            let path = start..self.link_paths.len();
            self.hard_links.push(HardLink { pending, base, path });
        }
        Ok(pending)
    }

    fn push(
        &mut self,
        parent: Folder,
        name: Name<'_>,
        content: Content,
        size: u64,
        member: &Member,
    ) -> Result<u32> {
        let full =
            |_| Error::new(ErrorKind::Unsupported, "more names than an index holds: 4 GiB of them");
        let place = u32::try_from(self.names.len()).map_err(full)?;
        let number = u32::try_from(self.pending.len()).map_err(full)?;
        let name = name.as_bytes();
        self.names.extend_from_slice(name).map_err(no_room)?;
        let mut node = Node {
            name: place,
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
        Ok(number)
    }

    /// The folder at `path` below `base`, made where it is missing, with `member`'s owner and time.
    fn folder(&mut self, base: Folder, path: &[u8], member: &Member) -> Result<Option<Folder>> {
        self.folder_of(base, &cleaned(path), member)
    }

    /// The same for the names on the way to it.
    fn folder_of(
        &mut self,
        base: Folder,
        way: &[&[u8]],
        member: &Member,
    ) -> Result<Option<Folder>> {
        if way.len() > TAR_DEPTH_MAX {
            return Ok(None);
        }
        let mut folder = base;
        for name in way {
            let Some(name) = Name::parse(name) else {
                return Ok(None);
            };
            folder = self.subfolder(folder, name, member)?;
        }
        Ok(Some(folder))
    }

    fn subfolder(&mut self, parent: Folder, name: Name<'_>, member: &Member) -> Result<Folder> {
        let key = (parent, Box::from(name.as_bytes()));
        let implied = Member { permissions: 0o755, ..*member };
        if let Some(&folder) = self.by_name.get(&key) {
            if self.depths.implies(folder) {
                self.set_attributes(folder, &implied, implied.permissions);
            }
            return Ok(folder);
        }
        let pending = self.push(parent, name, UNPLACED, 0, &implied)?;
        let number = u32::try_from(self.folders.len()).unwrap_or(u32::MAX);
        let folder = Folder(number);
        // The number stands in the pending node until the folder's children have a place.
        if let Some(pending) = self.pending.get_mut(index(pending)) {
            pending.set(Content::Folder { first: number, count: 0 });
        }
        self.folders.push(Some(pending));
        self.depths.made();
        self.by_name.insert(key, folder);
        Ok(folder)
    }

    /// The folder that the member at `path` belongs into, and its name there.
    fn place<'p>(
        &mut self,
        base: Folder,
        path: &'p [u8],
        member: &Member,
    ) -> Result<Option<(Folder, Name<'p>)>> {
        let slash = path.iter().rposition(|&byte| byte == b'/');
        let (before, name) = match slash.and_then(|at| path.split_at_checked(at)) {
            Some((before, name)) => (before, name.get(1..).unwrap_or_default()),
            None => (&[][..], path),
        };
        let Some(name) = Name::parse(name) else {
            // `a/b/` and `a/b/.` are `a/b`, whatever it is.
            let names = cleaned(path);
            let Some((last, way)) = names.split_last() else {
                return Ok(None);
            };
            let folder = self.folder_of(base, way, member)?;
            return Ok(folder.zip(Name::parse(last)));
        };
        match &self.last {
            Some((from, path, folder)) if *from == base && path == before => {
                return Ok(Some((*folder, name)));
            }
            _ => {}
        }
        let Some(folder) = self.folder(base, before, member)? else {
            return Ok(None);
        };
        self.last = Some((base, before.to_vec(), folder));
        Ok(Some((folder, name)))
    }

    /// Gives a folder the mode, owner and time that its member says.
    fn describe(&mut self, folder: Folder, member: &Member, permissions: u16) {
        if self.depths.describes(folder) {
            self.set_attributes(folder, member, permissions);
        }
    }

    fn set_attributes(&mut self, folder: Folder, member: &Member, permissions: u16) {
        let place = self.folders.get(index(folder.0)).copied().flatten();
        let node = match place {
            Some(place) => match self.pending.get_mut(index(place)) {
                Some(pending) => pending,
                None => return,
            },
            None => &mut self.root,
        };
        node.mode = (node.mode & !0o7777) | permissions;
        (node.uid, node.gid) = (member.uid, member.gid);
        (node.seconds, node.nanoseconds) = (member.modified.seconds, member.modified.nanoseconds);
    }

    /// The member at `place`.
    pub(super) fn at(&self, place: u32) -> Option<&Node> {
        self.pending.get(index(place))
    }

    pub(super) fn kind(&self, place: u32) -> FileKind {
        self.at(place).map_or(FileKind::Regular, Node::kind)
    }

    pub(super) fn is_link(&self, place: u32) -> bool {
        matches!(self.at(place).map(Node::content), Some(Content::Link { .. }))
    }

    pub(super) fn name(&self, place: u32) -> &[u8] {
        self.at(place).map_or(&[], |node| node.name_in(&self.names))
    }
}

/// The error of a list that cannot grow.
pub(super) fn no_room(error: io::Error) -> Error {
    let directory = std::env::temp_dir();
    let context = format!("making the index in memory or in {}", directory.display());
    Error::io(context, error).with_hint(
        "set TMPDIR to a directory with more room on a local disk (ext4, XFS), or give the job \
         more memory",
    )
}

/// The names on the way along `path`: `.` and empty ones vanish, `..` goes back and stops at the
/// start.
pub(in crate::formats::tar) fn cleaned(path: &[u8]) -> Vec<&[u8]> {
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
