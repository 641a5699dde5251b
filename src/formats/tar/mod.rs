//! Tar archives as a `Tree`: v7, ustar, GNU and pax, stored or compressed.
//!
//! Owns the translation of an index into the words of `vfs`. `open` gets that index, saved or from
//! a scan; `header`, `pax`, `overrides`, `sparse` and `chain` read members, `scan` and `segments`
//! all of them, `packed` and `unpack` those of a compressed tar; `index` is the tree, `saved` keeps
//! it for the next mount.
//! Invariants: opening reads headers, and not the data of large members; the bytes of a member are
//! read straight from the archive into the answer, with no lock and no copy in between.

use std::ops::ControlFlow;

use crate::error::{Error, Kind, Result};
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::{
    Attr, Cookie, DirEntry, Fault, FileKind, Ino, Name, ReadBytes, Scratch, SeekTarget, Timestamp,
    Totals, Tree,
};

mod acl;
mod chain;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod header;
mod index;
mod info;
mod members;
mod notes;
mod open;
mod overrides;
mod packed;
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
use index::{Content, Index, Node, NodeId};
use open::Opened;
use sparse::Segment;

pub use acl::Acls;
pub(in crate::formats) use chain::folder_name;
pub(in crate::formats) use index::Graft;
pub use open::Saving;
pub(in crate::formats) use open::{Bytes, SavedIndex, TarOptions};
pub(in crate::formats) use packed::Packed;

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
    pub(crate) fn grafts(&self) -> &[Graft] {
        &self.index.grafts
    }

    /// The bytes of the archive, decoded.
    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    fn node(&self, ino: Ino) -> Result<(NodeId, &Node)> {
        let id = ino.number().checked_sub(1).and_then(|id| NodeId::try_from(id).ok());
        id.and_then(|id| self.index.inode(id)).ok_or_else(|| {
            let context = format!("{}: {} is no inode of this archive", self.name, ino.number());
            Error::new(Kind::NotFound, context)
        })
    }

    fn attr_of(&self, id: NodeId, node: &Node) -> Attr {
        let (size, allocated, device) = match node.content() {
            Content::Stored { .. } => (node.size, node.size, 0),
            Content::Sparse { map } => {
                (node.size, self.index.map(map).iter().map(|segment| segment.len).sum(), 0)
            }
            Content::Device { number, .. } => (0, 0, number),
            _ => (node.size, 0, 0),
        };
        Attr {
            ino: ino_of(id),
            kind: node.kind(),
            permissions: self.acls.mode(node.permissions(), || self.index.xattrs_of(id)),
            nlink: match node.kind() {
                // Not known without a look at all children: 1, as of large directories in ext4.
                FileKind::Directory => 1,
                _ => self.index.names_of(id),
            },
            uid: node.uid,
            gid: node.gid,
            size,
            allocated,
            device,
            modified: Timestamp { seconds: node.seconds, nanoseconds: node.nanoseconds },
            block_size: PREFERRED_READ,
        }
    }

    /// The first child of a folder, and how many it has.
    fn folder(&self, ino: Ino) -> Result<(NodeId, u32)> {
        match self.node(ino)?.1.content() {
            Content::Folder { first, count } => Ok((first, count)),
            _ => Err(Error::new(Kind::NotADirectory, "not a directory")),
        }
    }

    /// Fills `answer` with the bytes of a sparse file from `offset`.
    fn read_sparse(&self, map: &[Segment], offset: u64, answer: &mut [u8]) -> Result<()> {
        answer.fill(0);
        let end = offset.saturating_add(length(answer.len()));
        let first = map.partition_point(|segment| segment.end() <= offset);
        for segment in map.get(first..).unwrap_or_default() {
            if segment.offset >= end {
                break;
            }
            let from = segment.offset.max(offset);
            let until = segment.end().min(end);
            let range = index(from.saturating_sub(offset))..index(until.saturating_sub(offset));
            let at = segment.at.saturating_add(from.saturating_sub(segment.offset));
            self.storage.read_exact_at(answer.get_mut(range).unwrap_or_default(), at)?;
        }
        Ok(())
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
        Ok(self.attr_of(id, node))
    }

    fn lookup(&self, parent: Ino, name: Name<'_>) -> Result<Option<Attr>> {
        let (first, count) = self.folder(parent)?;
        let found = self.index.find(first, count, name).and_then(|id| self.index.inode(id));
        Ok(found.map(|(id, node)| self.attr_of(id, node)))
    }

    fn read_dir(
        &self,
        ino: Ino,
        cookie: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (first, count) = self.folder(ino)?;
        let behind = cookie.0.checked_sub(Cookie::START.0);
        let skipped = behind.filter(|&skipped| skipped <= u64::from(count)).ok_or_else(|| {
            Error::new(Kind::InvalidInput, format!("{} is no place in this directory", cookie.0))
        })?;
        let children = self.index.children(first, count).get(index(skipped)..).unwrap_or_default();
        let ids = first.saturating_add(u32::try_from(skipped).unwrap_or(0))..;
        let places = cookie.0.saturating_add(1)..;
        for ((id, place), child) in ids.zip(places).zip(children) {
            let name = Name::parse(self.index.name(child));
            let (Some((id, node)), Some(name)) = (self.index.inode(id), name) else { continue };
            let entry = DirEntry { ino: ino_of(id), kind: node.kind(), name, next: Cookie(place) };
            if visit(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let (_, node) = self.node(ino)?;
        match node.content() {
            Content::Symlink { target } => Ok(self.index.target(target, node.size).to_vec()),
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
        let (_, node) = self.node(ino)?;
        let end = offset.saturating_add(u64::from(size)).min(node.size);
        let answer = scratch.answer(index(end.saturating_sub(offset)));
        let outcome = match node.content() {
            Content::Stored { .. } if answer.is_empty() => Ok(()),
            Content::Stored { at } => self.storage.read_exact_at(answer, at.saturating_add(offset)),
            Content::Sparse { map } => self.read_sparse(self.index.map(map), offset, answer),
            Content::Folder { .. } => Err(Error::new(Kind::IsADirectory, "is a directory")),
            _ => Err(Error::new(Kind::InvalidInput, "not a regular file")),
        };
        outcome.map_err(self.named())?;
        Ok(ReadBytes::Scratch(answer))
    }

    fn seek(&self, ino: Ino, offset: u64, target: SeekTarget) -> Result<u64> {
        let (_, node) = self.node(ino)?;
        let past_end = || Error::new(Kind::PastEnd, format!("nothing behind byte {offset}"));
        let map = match node.content() {
            Content::Stored { .. } | Content::Sparse { .. } if offset >= node.size => {
                return Err(past_end());
            }
            Content::Stored { .. } => {
                return Ok(if target == SeekTarget::Data { offset } else { node.size });
            }
            Content::Sparse { map } => self.index.map(map),
            _ => return Err(Error::new(Kind::InvalidInput, "not a regular file")),
        };
        let mut rest = map.get(map.partition_point(|s| s.end() <= offset)..).unwrap_or_default();
        if target == SeekTarget::Data {
            return rest.first().map(|segment| segment.offset.max(offset)).ok_or_else(past_end);
        }
        // The first gap between segments; the end of the file is one.
        let mut at = offset;
        while let Some((segment, behind)) = rest.split_first() {
            if segment.offset > at {
                break;
            }
            at = segment.end();
            rest = behind;
        }
        Ok(at)
    }

    fn has_xattrs(&self) -> bool {
        self.index.has_xattrs()
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        let (id, _) = self.node(ino)?;
        let shown = self.index.xattrs_of(id).filter(|(name, _)| self.acls.shows(name));
        Ok(shown.flat_map(|(name, _)| [name, b"\0"].concat()).collect())
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let (id, _) = self.node(ino)?;
        let mut all = self.index.xattrs_of(id);
        let found = all.find(|&(other, _)| other == name && self.acls.shows(name));
        found
            .map(|(_, value)| value.to_vec())
            .ok_or_else(|| Error::new(Kind::NoAttribute, "no such attribute"))
    }

    fn totals(&self) -> Totals {
        Totals {
            bytes: self.storage.len(),
            inodes: length(self.index.len()),
            block_size: header::BLOCK_LEN.try_into().unwrap_or(512),
        }
    }

    fn parent(&self, ino: Ino) -> Result<Option<Ino>> {
        let (wanted, _) = self.node(ino)?;
        self.folder(ino)?;
        if ino == Ino::ROOT {
            return Ok(Some(ino));
        }
        let all =
            (0..self.index.len()).filter_map(|id| self.index.inode(NodeId::try_from(id).ok()?));
        let mut holding = all.filter(|(_, node)| match node.content() {
            Content::Folder { first, count } => {
                wanted.checked_sub(first).is_some_and(|place| place < count)
            }
            _ => false,
        });
        Ok(holding.next().map(|(id, _)| ino_of(id)))
    }

    fn numbers_end(&self) -> u64 {
        length(self.index.len()).saturating_add(1)
    }

    fn place(&self, ino: Ino) -> Result<u64> {
        Ok(match self.node(ino)?.1.content() {
            Content::Stored { at } => at,
            Content::Sparse { map } => self.index.map(map).first().map_or(0, |first| first.at),
            _ => 0,
        })
    }

    fn audit(&self, found: &mut dyn FnMut(Fault)) {
        self.index.faults.iter().cloned().for_each(found);
    }

    fn release(&self) {
        self.storage.release();
    }
}
