//! What a small index has to be as a whole, beyond what is checked of each record.
//!
//! What passes is a tree that can be walked in time proportional to its size, each name of it is
//! found, and no file reaches outside the archive. What a scan cannot make is refused, because
//! something else made it.

use std::ops::ControlFlow;

use super::file::Section;
use super::{
    Content, Index, LINK_COUNT, MAP, NestedImage, NodeId, ROOT, SEGMENT, WITH_XATTRS, wrong,
};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::vfs::{FileKind, Name};

impl Index {
    /// Refuses an index that is no tree, or points outside itself or the archive.
    ///
    /// # Errors
    /// `Corrupt`, with what is wrong.
    pub(super) fn check(&self) -> Result<()> {
        self.check_root()?;
        self.check_tables()?;
        self.check_nodes()?;
        self.check_xattrs()
    }

    /// Images lie within the archive, at paths that can be.
    pub(super) fn check_grafts(&self) -> Result<()> {
        let sound = |nested_image: &NestedImage| {
            let end = nested_image.at.checked_add(nested_image.len);
            let mut names = nested_image.path.split(|&byte| byte == b'/');
            end.is_some_and(|end| end <= self.archive_len)
                && (nested_image.path.is_empty() || names.all(|name| Name::parse(name).is_some()))
        };
        match self.nested_images.iter().all(sound) {
            true => Ok(()),
            false => Err(Error::corrupt("an image lies outside the archive or the tree")),
        }
    }

    /// The root is a directory.
    pub(super) fn check_root(&self) -> Result<()> {
        match self.len() > 0 && self.node(ROOT)?.kind() == FileKind::Directory {
            true => Ok(()),
            false => Err(Error::corrupt("the root is no folder")),
        }
    }

    /// The tables beside the nodes are in order and name nodes that there are.
    fn check_tables(&self) -> Result<()> {
        let out_of_order = || Error::corrupt("a table of the index is out of order");
        let (mut links, mut with_xattrs) = (None, None);
        self.each(Section::Links, &mut |bytes: [u8; LINK_COUNT]| {
            let mut reader = Reader::new("link", &bytes);
            let (id, count) = (reader.u32()?, reader.u32()?);
            let is_next = links.replace(id).is_none_or(|before| before < id);
            if is_next && id < self.len() && count > 1 { Ok(()) } else { Err(out_of_order()) }
        })?;
        self.each(Section::WithXattrs, &mut |bytes: [u8; WITH_XATTRS]| {
            let id = Reader::new("node with attributes", &bytes).u32()?;
            let is_next = with_xattrs.replace(id).is_none_or(|before| before < id);
            if is_next && id < self.len() { Ok(()) } else { Err(out_of_order()) }
        })?;
        let segments = self.layout.count(Section::Segments, SEGMENT);
        let mut before = 0;
        self.each(Section::Maps, &mut |bytes: [u8; MAP]| {
            let end = Reader::new("map", &bytes).u64()?;
            let is_next = before <= end && end <= segments;
            before = end;
            if is_next { Ok(()) } else { Err(out_of_order()) }
        })
    }

    fn check_nodes(&self) -> Result<()> {
        let mut next_child = 1;
        for id in 0..self.len() {
            let (_, node) = self.inode(id)?;
            let own = self.node(id)?;
            match own.content() {
                Content::Sparse { map } => {
                    let map = self.map(id, &node, map)?;
                    let mut stored = 0_u64;
                    self.segments(&map, 0, &mut |segment| {
                        stored = stored.saturating_add(segment.len);
                        ControlFlow::Continue(())
                    })?;
                    if stored != map.stored {
                        return Err(wrong(id, "its sparse map is none"));
                    }
                }
                Content::Folder { first, count } => {
                    // Directories stand in the order of their children. Those without children have
                    // a place as well, because a listing counts up from it.
                    if first != next_child {
                        return Err(wrong(id, "its children are not where they should be"));
                    }
                    next_child = first.saturating_add(count);
                    self.check_listing(id, first, count)?;
                }
                _ => {}
            }
        }
        match next_child == self.len() {
            true => Ok(()),
            false => Err(Error::corrupt("some nodes are in no folder")),
        }
    }

    /// The children have names that ascend.
    fn check_listing(&self, id: NodeId, first: NodeId, count: u32) -> Result<()> {
        let mut before: Option<Vec<u8>> = None;
        let mut buffer = [0; 255];
        for child in first..first.saturating_add(count) {
            let (node, _) = self.child(id, child)?;
            let name = self.name(&node, &mut buffer)?;
            let is_next = before.as_deref().is_none_or(|before| before < name);
            if !is_next || Name::parse(name).is_none() {
                return Err(wrong(id, "its children are no listing"));
            }
            before = Some(name.to_vec());
        }
        Ok(())
    }

    /// Sets of attributes stand one behind the other, and each node's is one of them. Sets that
    /// overlap could make as much work as their number times their length.
    fn check_xattrs(&self) -> Result<()> {
        let mut starts = Vec::new();
        let mut at = 0;
        while at < self.layout.len_of(Section::Xattrs) {
            starts.push(at);
            at = self.set(at, &mut |_, _| Ok(ControlFlow::Continue(())))?.unwrap_or(at);
        }
        self.each(Section::WithXattrs, &mut |bytes: [u8; WITH_XATTRS]| {
            let mut reader = Reader::new("node with attributes", &bytes);
            let (_, at) = (reader.u32()?, reader.u64()?);
            match starts.binary_search(&at) {
                Ok(_) => Ok(()),
                Err(_) => Err(Error::corrupt("attributes in the index are none")),
            }
        })
    }

    /// Visits all records of a section.
    fn each<const N: usize>(
        &self,
        section: Section,
        visit: &mut dyn FnMut([u8; N]) -> Result<()>,
    ) -> Result<()> {
        (0..self.layout.count(section, N)).try_for_each(|nth| visit(self.record(section, nth)?))
    }

    /// Whether `other` shows the same, whatever there is to tell of it.
    ///
    /// # Errors
    /// `Corrupt`, `Io` where one of them cannot be read.
    pub(in crate::formats::tar) fn is_same_tree(&self, other: &Self) -> Result<bool> {
        let has_same_len =
            |&section: &Section| self.layout.len_of(section) == other.layout.len_of(section);
        let is_alike =
            (self.archive_len, &self.nested_images) == (other.archive_len, &other.nested_images);
        Ok(is_alike && Section::TREE.iter().all(has_same_len) && self.has_same_bytes(other)?)
    }

    fn has_same_bytes(&self, other: &Self) -> Result<bool> {
        // Those of the tree come first, so they are at the same offsets.
        let end = self.layout.range(Section::Xattrs).end;
        let mut at = 0;
        let (mut mine, mut others) = (vec![0; STEP], vec![0; STEP]);
        while at < end {
            let len = index(end.saturating_sub(at)).min(STEP);
            let mine = mine.get_mut(..len).unwrap_or_default();
            let others = others.get_mut(..len).unwrap_or_default();
            self.blocks.read(at, mine)?;
            other.blocks.read(at, others)?;
            if mine != others {
                return Ok(false);
            }
            at = at.saturating_add(length(len));
        }
        Ok(true)
    }
}

/// Bytes that are compared at once.
const STEP: usize = 64 << 10;
