//! Tar archives as a `Tree`: v7, ustar, GNU and pax, stored or compressed.
//!
//! Owns the translation of an index into the words of `vfs`. `open` gets that index, saved or from
//! a scan; `header`, `pax`, `extensions`, `sparse` and `chain` read members, `scan` and `segments`
//! all of them, `packed` and `unpack` those of a compressed tar; `index` is the tree, `saved` keeps
//! it for the next mount.
//! Invariants: opening reads headers, and not the data of large members; the bytes of a member are
//! read straight from the archive into the answer, with no lock and no copy in between.

use std::ops::ControlFlow;

use crate::error::{Error, Kind, Result};
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::{
    Attr, Cookie, DirEntry, FileKind, Finding, Ino, Name, ReadBytes, Scratch, SeekTarget,
    Timestamp, Totals, Tree,
};

mod acl;
mod chain;
mod compressed_tar;
mod extensions;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod header;
mod index;
mod info;
mod members;
mod notes;
mod open;
mod pax;
mod saved;
mod scan;
mod segments;
mod source;
mod sparse;
mod unpack;
mod weight;

#[cfg(test)]
mod tests;

use super::bytes::{index, length};
use super::compressed::Compressed;
use header::{BLOCK, Block, Seen};
use index::{Content, Index, Map, Node, NodeId};
use open::Opened;
use sparse::Segment;

pub use acl::Acls;
pub(in crate::formats) use chain::folder_name;
pub(in crate::formats) use compressed_tar::CompressedTar;
pub(in crate::formats) use index::{Allowance, NestedImage};
pub use open::Saving;
pub(in crate::formats) use open::{Bytes, SavedIndex, TarOptions};

/// What st_blksize says, bytes: Python takes it as its buffer, so one read takes a whole image.
const PREFERRED_READ: u32 = 256 << 10;

/// Bytes of a file that tell whether it is a tar, and any other format: two blocks.
pub(in crate::formats) const HEAD: usize = 2 * BLOCK;

/// An archive.
pub(crate) struct Tar {
    /// Its name, for errors.
    name: String,
    storage: Arc<dyn Storage>,
    /// The chunks of a compressed one.
    packed: Option<Arc<Compressed>>,
    index: Index,
    /// Whether an index of it is saved.
    is_kept: bool,
    acls: Acls,
}

/// Whether the first blocks of a file look like a tar: a header, or the end mark of an empty one.
pub(crate) fn recognises(head: &[u8]) -> bool {
    let (blocks, _) = head.as_chunks::<BLOCK>();
    let seen = |nth: usize| blocks.get(nth).map(|block: &Block| header::look(block));
    seen(0) == Some(Seen::Header) || (seen(0), seen(1)) == (Some(Seen::Zeros), Some(Seen::Zeros))
}

impl Tar {
    /// Opens a tar; `name` is for errors and for what there is to tell of it.
    ///
    /// # Errors
    /// `Io` where it can not be read; `UnknownFormat` where a compressed file holds no tar;
    /// `Unsupported` where it has too many names, or is compressed so that it does not fit here.
    pub(crate) fn open(name: &str, bytes: Bytes, options: &TarOptions<'_>) -> Result<Self> {
        let Opened { storage, packed, index, is_kept } = open::open(name, bytes, options)?;
        // Who verifies is told in another way, and more. Also said with --quiet: files are missing.
        if !options.is_verified() {
            for note in &index.notes {
                log::error!("{name}: {note}");
            }
        }
        let (name, acls) = (name.to_owned(), options.acls);
        Ok(Self { name, storage, packed, index, is_kept, acls })
    }

    /// Images within the archive whose trees belong into its folders.
    pub(crate) fn nested_images(&self) -> &[NestedImage] {
        &self.index.nested_images
    }

    /// The bytes of the archive, decoded.
    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    fn node(&self, ino: Ino) -> Result<(NodeId, Node)> {
        let id = ino.number().checked_sub(1).and_then(|id| NodeId::try_from(id).ok());
        let id = id.filter(|&id| id < self.index.len()).ok_or_else(|| {
            let context = format!("{}: {} is no inode of this archive", self.name, ino.number());
            Error::new(Kind::NotFound, context)
        })?;
        self.by_index(self.index.inode(id))
    }

    fn attr_of(&self, id: NodeId, node: &Node) -> Result<Attr> {
        let (size, allocated, device) = match node.content() {
            Content::Stored { .. } => (node.size, node.size, 0),
            Content::Sparse { map } => (node.size, self.index.map(id, node, map)?.stored, 0),
            Content::Device { number, .. } => (0, 0, number),
            _ => (node.size, 0, 0),
        };
        Ok(Attr {
            ino: ino_of(id),
            kind: node.kind(),
            permissions: self.permissions(id, node)?,
            nlink: match node.kind() {
                // Not known without a look at all children: 1, as of large directories in ext4.
                FileKind::Directory => 1,
                _ => self.index.names_of(id)?,
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

    /// The mode of a node, without what its ACL does not give.
    fn permissions(&self, id: NodeId, node: &Node) -> Result<u16> {
        let mut left = node.permissions();
        if self.acls.is_masked() {
            self.index.xattrs_of(id, &mut |name, value| {
                if acl::is_access(name) {
                    left &= acl::mask(name, &self.index.value(value)?);
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(left)
    }

    /// A directory: its node, its first child, and how many it has.
    fn folder(&self, ino: Ino) -> Result<(NodeId, (NodeId, u32))> {
        let (id, node) = self.node(ino)?;
        match node.content() {
            Content::Folder { first, count } => Ok((id, (first, count))),
            _ => Err(Error::new(Kind::NotADirectory, "not a directory")),
        }
    }

    /// Visits the children of a directory from the `skipped`th on.
    fn visit_children(
        &self,
        folder: NodeId,
        (first, count): (NodeId, u32),
        skipped: u32,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (mut buffer, mut before) = ([0; 255], [0; 255]);
        let mut before_len = 0;
        for nth in skipped..count {
            let (own, (id, node)) = self.index.child(folder, first.saturating_add(nth))?;
            let name = self.index.name(&own, &mut buffer)?;
            // A name that came before cannot come again, so a listing has an end.
            let is_next = before.get(..before_len).is_some_and(|before| before < name);
            let name = Name::parse(name).filter(|_| is_next);
            let Some(name) = name else {
                return Err(Error::corrupt("names of a directory in the index are out of order"));
            };
            let ino = ino_of(id);
            let next = Cookie(Cookie::START.0.saturating_add(u64::from(nth)).saturating_add(1));
            if visit(DirEntry { ino, kind: node.kind(), name, next }).is_break() {
                break;
            }
            before_len = name.as_bytes().len();
            if let Some(before) = before.get_mut(..before_len) {
                before.copy_from_slice(name.as_bytes());
            }
        }
        Ok(())
    }

    /// Fills `answer` with the bytes of a sparse file from `offset`.
    fn read_sparse(&self, map: &Map, offset: u64, answer: &mut [u8]) -> Result<()> {
        answer.fill(0);
        let end = offset.saturating_add(length(answer.len()));
        self.segments(map, offset, &mut |segment| {
            if segment.offset >= end {
                return Ok(ControlFlow::Break(()));
            }
            let from = segment.offset.max(offset);
            let until = segment.end().min(end);
            let range = index(from.saturating_sub(offset))..index(until.saturating_sub(offset));
            let at = segment.at.saturating_add(from.saturating_sub(segment.offset));
            self.storage.read_exact_at(answer.get_mut(range).unwrap_or_default(), at)?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Visits the segments of `map` that end behind `offset`.
    fn segments(
        &self,
        map: &Map,
        offset: u64,
        visit: &mut dyn FnMut(Segment) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        // What `visit` reports is no finding of the index.
        let mut failed = Ok(());
        self.by_index(self.index.segments(map, offset, &mut |segment| {
            visit(segment).unwrap_or_else(|error| {
                failed = Err(error);
                ControlFlow::Break(())
            })
        }))?;
        failed
    }

    /// What the index answers; an error names it.
    fn by_index<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| self.index.named(error))
    }

    /// Puts the archive's name in front of an error.
    fn named(&self) -> impl Fn(Error) -> Error + '_ {
        |error| error.within(&self.name)
    }
}

fn ino_of(id: NodeId) -> Ino {
    Ino::new(u64::from(id).saturating_add(1)).unwrap_or(Ino::ROOT)
}

impl Tree for Tar {
    fn attr(&self, ino: Ino) -> Result<Attr> {
        let (id, node) = self.node(ino)?;
        self.by_index(self.attr_of(id, &node))
    }

    fn lookup(&self, parent: Ino, name: Name<'_>) -> Result<Option<Attr>> {
        let (id, children) = self.folder(parent)?;
        let found = self.by_index(self.index.find(id, children, name))?;
        found.map(|(id, node)| self.by_index(self.attr_of(id, &node))).transpose()
    }

    fn read_dir(
        &self,
        ino: Ino,
        cookie: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (id, (first, count)) = self.folder(ino)?;
        let behind = cookie.0.checked_sub(Cookie::START.0);
        let skipped = behind.and_then(|skipped| u32::try_from(skipped).ok());
        let skipped = skipped.filter(|&skipped| skipped <= count).ok_or_else(|| {
            Error::new(Kind::InvalidInput, format!("{} is no place in this directory", cookie.0))
        })?;
        self.by_index(self.visit_children(id, (first, count), skipped, visit))
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let (_, node) = self.node(ino)?;
        match node.content() {
            Content::Symlink { target } => self.by_index(self.index.target(target, node.size)),
            _ => Err(Error::new(Kind::InvalidInput, "not a symbolic link")),
        }
    }

    fn read<'s>(
        &self,
        ino: Ino,
        offset: u64,
        size: u32,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        let (id, node) = self.node(ino)?;
        let end = offset.saturating_add(u64::from(size)).min(node.size);
        let answer = scratch.answer(index(end.saturating_sub(offset)));
        let outcome = match node.content() {
            Content::Stored { .. } if answer.is_empty() => Ok(()),
            Content::Stored { at } => self.storage.read_exact_at(answer, at.saturating_add(offset)),
            Content::Sparse { map } => {
                let map = self.by_index(self.index.map(id, &node, map))?;
                self.read_sparse(&map, offset, answer)
            }
            Content::Folder { .. } => Err(Error::new(Kind::IsADirectory, "is a directory")),
            _ => Err(Error::new(Kind::InvalidInput, "not a regular file")),
        };
        outcome.map_err(self.named())?;
        Ok(ReadBytes::Scratch(answer))
    }

    fn seek(&self, ino: Ino, offset: u64, target: SeekTarget) -> Result<u64> {
        let (id, node) = self.node(ino)?;
        let past_end = || Error::new(Kind::PastEnd, format!("nothing behind byte {offset}"));
        let map = match node.content() {
            Content::Stored { .. } | Content::Sparse { .. } if offset >= node.size => {
                return Err(past_end());
            }
            Content::Stored { .. } => {
                return Ok(if target == SeekTarget::Data { offset } else { node.size });
            }
            Content::Sparse { map } => self.by_index(self.index.map(id, &node, map))?,
            _ => return Err(Error::new(Kind::InvalidInput, "not a regular file")),
        };
        // The first gap between segments; the end of the file is one.
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
        let (id, _) = self.node(ino)?;
        let mut list = Vec::new();
        self.by_index(self.index.xattrs_of(id, &mut |name, _| {
            if self.acls.shows(name) {
                list.extend(name);
                list.push(0);
            }
            Ok(ControlFlow::Continue(()))
        }))?;
        Ok(list)
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let (id, _) = self.node(ino)?;
        let mut found = None;
        self.by_index(self.index.xattrs_of(id, &mut |other, value| {
            if other != name || !self.acls.shows(name) {
                return Ok(ControlFlow::Continue(()));
            }
            found = Some(self.index.value(value)?);
            Ok(ControlFlow::Break(()))
        }))?;
        found.ok_or_else(|| Error::new(Kind::NoAttribute, "no such attribute"))
    }

    fn totals(&self) -> Totals {
        Totals {
            bytes: self.storage.len(),
            inodes: self.index.len().into(),
            block_size: header::BLOCK_LEN.try_into().unwrap_or(512),
        }
    }

    fn parent(&self, ino: Ino) -> Result<Option<Ino>> {
        let (id, _) = self.folder(ino)?;
        Ok(Some(ino_of(self.by_index(self.index.parent(id))?)))
    }

    fn numbers_end(&self) -> u64 {
        u64::from(self.index.len()).saturating_add(1)
    }

    fn data_offset(&self, ino: Ino) -> Result<u64> {
        let (id, node) = self.node(ino)?;
        let mut place = 0;
        match node.content() {
            Content::Stored { at } => place = at,
            Content::Sparse { map } => {
                let map = self.by_index(self.index.map(id, &node, map))?;
                self.segments(&map, 0, &mut |first| {
                    place = first.at;
                    Ok(ControlFlow::Break(()))
                })?;
            }
            _ => {}
        }
        Ok(place)
    }

    fn audit(&self, found: &mut dyn FnMut(Finding)) {
        self.index.findings.iter().cloned().for_each(found);
    }

    fn release(&self) {
        self.index.release();
        self.storage.release();
    }
}
