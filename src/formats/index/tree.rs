//! The members of an archive as a `Tree`, from their index. A `MemberReader` reads their contents.
//!
//! An inode number is the number of a node plus one, and a cookie counts the children of a
//! directory.
//!
//! Invariant: a read of a stored file goes straight from the archive into the answer, with no lock
//! and no copy in between.

use std::ops::{ControlFlow, Range};

use super::acl::{self, Acls};
use super::members::Segment;
use super::{Content, Index, Map, Node, NodeId};
use crate::cache::{ArchiveOrder, Readahead};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::formats::limits::SYMLINK_MAX;
use crate::storage::{FilePart, Storage};
use crate::sync::Arc;
use crate::vfs::{
    AfterReply, Attr, Cookie, DirEntry, FileKind, Finding, Ino, Name, ReadBytes, Scratch,
    SeekTarget, StoredFile, Timestamp, Totals, Tree, link_target,
};

/// The st_blksize of files, bytes. Python uses it as its buffer size, so one read gets a whole
/// JPEG.
const PREFERRED_READ: u32 = 256 << 10;

/// The st_frsize of the file system, bytes.
const FRAGMENT: u32 = 512;

/// The tree of an archive.
pub(crate) struct IndexedTree<M> {
    /// The name of the archive, for errors.
    pub(crate) name: String,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) index: Index,
    pub(crate) acls: Acls,
    pub(crate) stored: StoredReads,
    pub(crate) members: M,
}

/// What a format knows of the members of an archive beyond their index.
pub(crate) trait MemberReader: Sized + Send + Sync {
    /// Reads `range` of a file, or of a symbolic link whose target the index does not have. The
    /// range is within the file.
    fn read<'s>(
        tree: &IndexedTree<Self>,
        node: (NodeId, &Node),
        range: Range<u64>,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>>;

    /// Offset in the archive at which the contents of a file start, if they are stored as they are.
    fn stored_start(tree: &IndexedTree<Self>, id: NodeId, node: &Node) -> Option<u64>;

    /// Whether stored files may be read without `read`. Warns of the reason if not.
    fn allows_direct_reads(_tree: &IndexedTree<Self>) -> bool {
        true
    }

    /// Offset in the archive of the contents that the entry at `entry` describes.
    fn described_offset(_tree: &IndexedTree<Self>, _entry: u64) -> Result<u64> {
        Ok(0)
    }

    /// `Tree::stored_crc32`.
    fn stored_crc32(_tree: &IndexedTree<Self>, _node: &Node) -> Result<Option<u32>> {
        Ok(None)
    }

    /// Reports what the index does not have (`Tree::audit`).
    fn audit(_tree: &IndexedTree<Self>, _found: &mut dyn FnMut(Finding)) {}

    /// Frees what can be read again.
    fn release(&self) {}
}

impl<M> IndexedTree<M> {
    /// Adds the name of the archive to an error.
    pub(crate) fn named(&self) -> impl Fn(Error) -> Error + '_ {
        |error| error.within(&self.name)
    }

    fn attr_of(&self, id: NodeId, node: &Node) -> Result<Attr> {
        let permissions = self.permissions(id, node)?;
        let (size, allocated, device) = match node.content() {
            Content::Sparse { map } => (node.size, self.index.map(id, node, map)?.stored, 0),
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
            permissions,
            nlink: match node.kind() {
                // Counting subdirectories would take a read of all children. 1 means unknown, as
                // for large directories in ext4.
                FileKind::Directory => 1,
                _ => self.index.link_count(id)?,
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

    /// The mode of a node, without the permissions that its ACL denies.
    fn permissions(&self, id: NodeId, node: &Node) -> Result<u16> {
        let mut permitted = node.permissions();
        if self.acls.is_masked() {
            self.index.xattrs_of(id, &mut |name, value| {
                if acl::is_access(name) {
                    permitted &= acl::mask(name, &self.index.value(value)?);
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(permitted)
    }

    /// Visits the segments of `map` that end after `offset`.
    pub(crate) fn segments(
        &self,
        map: &Map,
        offset: u64,
        visit: &mut dyn FnMut(Segment) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        // Errors of `visit` are not errors of the index.
        let mut failed = Ok(());
        self.index.named(self.index.segments(map, offset, &mut |segment| {
            visit(segment).unwrap_or_else(|error| {
                failed = Err(error);
                ControlFlow::Break(())
            })
        }))?;
        failed
    }

    /// Offset in the archive at which the data of a sparse file begin. `None` if it has none.
    pub(crate) fn data_start(&self, map: &Map) -> Result<Option<u64>> {
        let mut start = None;
        self.segments(map, 0, &mut |first| {
            start = Some(first.archive_offset);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(start)
    }
}

impl<M: MemberReader> Tree for IndexedTree<M> {
    fn attr(&self, ino: Ino) -> Result<Attr> {
        let (id, node) = self.index.node_of(ino)?;
        self.index.named(self.attr_of(id, &node))
    }

    fn lookup(&self, parent: Ino, name: Name<'_>) -> Result<Option<Attr>> {
        let (id, children) = self.index.directory(parent)?;
        let found = self.index.find(id, children, name);
        let attr =
            found.and_then(|found| found.map(|(id, node)| self.attr_of(id, &node)).transpose());
        self.index.named(attr)
    }

    fn read_dir(
        &self,
        ino: Ino,
        cookie: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (id, (first, count)) = self.index.directory(ino)?;
        let skipped = cookie.entries_before(index(count))?;
        let skipped = u32::try_from(skipped).unwrap_or(count);
        self.index.named(self.index.visit_children(id, (first, count), skipped, visit))
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let (id, node) = self.index.node_of(ino)?;
        let target = match node.content() {
            Content::Symlink { target } => {
                self.index.named(self.index.target(target, node.size))?
            }
            Content::Described { kind: FileKind::Symlink, .. }
                if node.size <= SYMLINK_MAX.into() =>
            {
                let mut scratch = Scratch::default();
                let target = M::read(self, (id, &node), 0..node.size, &mut scratch);
                target.map_err(self.named())?.as_slice().to_vec()
            }
            _ => return Err(Error::new(Kind::InvalidInput, "not a symbolic link")),
        };
        link_target(target).map_err(self.named())
    }

    fn read<'s>(
        &self,
        ino: Ino,
        offset: u64,
        size: u32,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        let (id, node) = self.index.node_of(ino)?;
        let end = offset.saturating_add(u64::from(size)).min(node.size);
        let answer = match node.kind() {
            FileKind::Regular => M::read(self, (id, &node), offset.min(end)..end, scratch),
            FileKind::Directory => Err(Error::new(Kind::IsADirectory, "is a directory")),
            _ => Err(Error::new(Kind::InvalidInput, "not a regular file")),
        };
        answer.map_err(self.named())
    }

    fn seek(&self, ino: Ino, offset: u64, target: SeekTarget) -> Result<u64> {
        let (id, node) = self.index.node_of(ino)?;
        let past_end = || Error::new(Kind::PastEnd, format!("nothing after byte {offset}"));
        let map = match (node.kind(), node.content()) {
            (FileKind::Regular, _) if offset >= node.size => return Err(past_end()),
            (_, Content::Sparse { map }) => self.index.named(self.index.map(id, &node, map))?,
            (FileKind::Regular, _) => {
                return Ok(if target == SeekTarget::Data { offset } else { node.size });
            }
            _ => return Err(Error::new(Kind::InvalidInput, "not a regular file")),
        };
        // The first gap between segments. The end of the file counts as one.
        let (mut data, mut hole) = (None, offset);
        self.segments(&map, offset, &mut |segment| {
            data = data.or(Some(segment.offset.max(offset)));
            if target == SeekTarget::Data || segment.offset > hole {
                return Ok(ControlFlow::Break(()));
            }
            hole = segment.end();
            Ok(ControlFlow::Continue(()))
        })?;
        if target == SeekTarget::Data { data.ok_or_else(past_end) } else { Ok(hole) }
    }

    fn has_xattrs(&self) -> bool {
        self.index.has_xattrs()
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        let (id, _) = self.index.node_of(ino)?;
        let mut list = Vec::new();
        self.index.named(self.index.xattrs_of(id, &mut |name, _| {
            if self.acls.shows(name) {
                list.extend(name);
                list.push(0);
            }
            Ok(ControlFlow::Continue(()))
        }))?;
        Ok(list)
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let (id, _) = self.index.node_of(ino)?;
        let mut found = None;
        self.index.named(self.index.xattrs_of(id, &mut |other, value| {
            if other != name || !self.acls.shows(name) {
                return Ok(ControlFlow::Continue(()));
            }
            found = Some(self.index.value(value)?);
            Ok(ControlFlow::Break(()))
        }))?;
        found.ok_or_else(|| Error::new(Kind::NoAttribute, "no such attribute"))
    }

    fn totals(&self) -> Totals {
        let inodes = self.index.len().into();
        Totals { bytes: self.storage.len(), inodes, block_size: FRAGMENT }
    }

    fn parent(&self, ino: Ino) -> Result<Option<Ino>> {
        let (id, _) = self.index.directory(ino)?;
        self.index.named(self.index.parent(id)).map(|parent| Some(ino_of(parent)))
    }

    fn numbers_end(&self) -> u64 {
        u64::from(self.index.len()).saturating_add(1)
    }

    fn data_offset(&self, ino: Ino) -> Result<u64> {
        let (id, node) = self.index.node_of(ino)?;
        match node.content() {
            Content::Stored { start } | Content::AfterHeader { header: start } => Ok(start),
            Content::Sparse { map } => {
                let map = self.index.named(self.index.map(id, &node, map))?;
                Ok(self.data_start(&map)?.unwrap_or(0))
            }
            Content::Described { entry, .. } => M::described_offset(self, entry),
            _ => Ok(0),
        }
    }

    fn stored_files(&self, visit: &mut dyn FnMut(Ino, StoredFile)) -> Result<()> {
        if self.storage.position(0, 0).is_none() || !M::allows_direct_reads(self) {
            return Ok(());
        }
        for id in 0..self.index.len() {
            let node = self.index.named(self.index.node(id))?;
            if node.size > 0
                && let Some(start) = M::stored_start(self, id, &node)
                && let Some(head) = self.storage.position(start, node.size)
            {
                visit(ino_of(id), StoredFile { size: node.size, head, tail: None });
            }
        }
        Ok(())
    }

    fn stored_crc32(&self, ino: Ino) -> Result<Option<u32>> {
        let (_, node) = self.index.node_of(ino)?;
        M::stored_crc32(self, &node)
    }

    fn audit(&self, found: &mut dyn FnMut(Finding)) {
        self.index.findings.iter().cloned().for_each(&mut *found);
        M::audit(self, found);
    }

    fn release(&self) {
        self.index.release();
        self.members.release();
        self.storage.release();
    }
}

/// The inode number of a node.
pub(crate) fn ino_of(id: NodeId) -> Ino {
    Ino::new(u64::from(id).saturating_add(1)).unwrap_or(Ino::ROOT)
}

impl Index {
    /// The node with the inode number `ino`, or the target of that hard link.
    fn node_of(&self, ino: Ino) -> Result<(NodeId, Node)> {
        let id = ino.number().checked_sub(1).and_then(|id| NodeId::try_from(id).ok());
        let id = id.filter(|&id| id < self.len()).ok_or_else(|| {
            let context =
                format!("{}: {} is not an inode of this archive", self.name, ino.number());
            Error::new(Kind::NotFound, context)
        })?;
        self.named(self.resolve_hard_link(id))
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

/// Reads files that an archive stores as they are, with the advice to the kernel that belongs to
/// them: what is read next, and what need not stay in memory.
pub(crate) struct StoredReads {
    storage: Arc<dyn Storage>,
    /// Sequential readers of a file.
    readahead: Readahead,
    /// Sequential readers of many files.
    order: ArchiveOrder,
}

impl StoredReads {
    pub(crate) fn new(storage: Arc<dyn Storage>) -> Self {
        Self { storage, readahead: Readahead::furthest(), order: ArchiveOrder::default() }
    }

    /// Reads `range` of the file `id`, which has `len` bytes from `start` on in the archive. If
    /// the answer is longer, it begins with what is before `range` in the archive.
    pub(crate) fn read(
        &self,
        id: NodeId,
        (start, len): (u64, u64),
        range: Range<u64>,
        (answer, after_reply): (&mut [u8], &mut AfterReply),
    ) -> Result<()> {
        self.read_ahead(id, (start, len), range.clone());
        let end = start.saturating_add(range.end);
        let offset = end.saturating_sub(length(answer.len()));
        let outcome = self.storage.read_contents_at(answer, offset, FilePart::at(range.start));
        self.drop_served(start, range, after_reply);
        outcome
    }

    /// Announces what a sequential reader of a file, or of files in the order of the archive, will
    /// read next. `range` of the file is read now.
    pub(crate) fn read_ahead(&self, id: NodeId, (start, len): (u64, u64), range: Range<u64>) {
        let announce = |ahead: Range<u64>| {
            self.storage.will_need(ahead.start, ahead.end.saturating_sub(ahead.start));
        };
        let end = Some(start.saturating_add(len));
        if let Some(ahead) = self.order.observe(start, shifted(start, range.clone()), end) {
            announce(ahead);
        }
        if let Some(ahead) = self.readahead.observe(ino_of(id).number(), range, len) {
            announce(shifted(start, ahead));
        }
    }

    /// Leaves it to after the reply to drop the served `range` of a file at `start` from the page
    /// cache of the archive.
    pub(crate) fn drop_served(&self, start: u64, range: Range<u64>, after_reply: &mut AfterReply) {
        if self.storage.drops_served() {
            let storage = Arc::clone(&self.storage);
            let part = FilePart::at(range.start);
            let served = shifted(start, range);
            after_reply.push(Box::new(move || storage.drop_served(served, part)));
        }
    }
}

/// A range of a file that starts at `start`, in the archive.
fn shifted(start: u64, range: Range<u64>) -> Range<u64> {
    start.saturating_add(range.start)..start.saturating_add(range.end)
}
