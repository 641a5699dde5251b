//! Checks a small index as a whole, beyond the checks of each record.
//!
//! A tree that passes can be walked in time proportional to its size, each of its names can be
//! looked up, and no file reaches outside the archive. What a scan cannot produce is rejected.

use std::ops::ControlFlow;

use super::layout::{LINK_COUNT_LEN, MAP_LEN, Section, WITH_XATTRS_LEN};
use super::{Content, Index, NestedArchive, NodeId, ROOT, wrong};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::vfs::{FileKind, Name};

impl Index {
    /// Rejects an index that is not a tree, or that points outside itself or the archive.
    pub(super) fn check(&self) -> Result<()> {
        self.check_root()?;
        self.check_tables()?;
        self.check_nodes()?;
        self.check_xattrs()
    }

    /// Checks that nested archives lie within the archive and have valid paths.
    pub(super) fn check_nested_archives(&self) -> Result<()> {
        let is_sound = |nested_archive: &NestedArchive| {
            let end = nested_archive.offset.checked_add(nested_archive.len);
            let mut names = nested_archive.path.split(|&byte| byte == b'/');
            end.is_some_and(|end| end <= self.archive_len)
                && (nested_archive.path.is_empty() || names.all(|name| Name::parse(name).is_some()))
        };
        match self.nested_archives.iter().all(is_sound) {
            true => Ok(()),
            false => Err(Error::corrupt("a nested archive lies outside the outer one or the tree")),
        }
    }

    /// Checks that the root is a directory.
    pub(super) fn check_root(&self) -> Result<()> {
        match self.len() > 0 && self.node(ROOT)?.kind() == FileKind::Directory {
            true => Ok(()),
            false => Err(Error::corrupt("the root is not a directory")),
        }
    }

    /// Checks that the tables are sorted by node and refer to existing nodes.
    fn check_tables(&self) -> Result<()> {
        let out_of_order = || Error::corrupt("a table of the index is out of order");
        let (mut links, mut with_xattrs) = (None, None);
        self.each(Section::LinkCounts, &mut |bytes: [u8; LINK_COUNT_LEN]| {
            let mut reader = Reader::new("link", &bytes);
            let (id, count) = (reader.u32()?, reader.u32()?);
            let is_next = links.replace(id).is_none_or(|previous| previous < id);
            if is_next && id < self.len() && count > 1 { Ok(()) } else { Err(out_of_order()) }
        })?;
        self.each(Section::WithXattrs, &mut |bytes: [u8; WITH_XATTRS_LEN]| {
            let id = Reader::new("node with attributes", &bytes).u32()?;
            let is_next = with_xattrs.replace(id).is_none_or(|previous| previous < id);
            if is_next && id < self.len() { Ok(()) } else { Err(out_of_order()) }
        })?;
        let segments = self.section_lens.count(Section::Segments);
        let mut previous_end = 0;
        self.each(Section::Maps, &mut |bytes: [u8; MAP_LEN]| {
            let end = Reader::new("map", &bytes).u64()?;
            let is_next = previous_end <= end && end <= segments;
            previous_end = end;
            if is_next { Ok(()) } else { Err(out_of_order()) }
        })
    }

    fn check_nodes(&self) -> Result<()> {
        let mut next_child = 1;
        for id in 0..self.len() {
            let (_, node) = self.resolve_hard_link(id)?;
            let own_node = self.node(id)?;
            match own_node.content() {
                Content::Sparse { map } => {
                    let map = self.map(id, &node, map)?;
                    let mut stored = 0_u64;
                    self.segments(&map, 0, &mut |segment| {
                        stored = stored.saturating_add(segment.len);
                        ControlFlow::Continue(())
                    })?;
                    if stored != map.stored {
                        return Err(wrong(id, "its sparse map is not valid"));
                    }
                }
                Content::Directory { first, count } => {
                    // Directories are in the order of their children. An empty directory has a
                    // first child number too, because a listing counts from there.
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
            false => Err(Error::corrupt("some nodes are in no directory")),
        }
    }

    /// Checks that the names of the children are valid and ascend.
    fn check_listing(&self, id: NodeId, first: NodeId, count: u32) -> Result<()> {
        let mut previous: Option<Vec<u8>> = None;
        let mut buffer = [0; 255];
        for child in first..first.saturating_add(count) {
            let (node, _) = self.child(id, child)?;
            let name = self.name(&node, &mut buffer)?;
            let is_next = previous.as_deref().is_none_or(|previous| previous < name);
            if !is_next || Name::parse(name).is_none() {
                return Err(wrong(id, "its children are not a listing"));
            }
            previous = Some(name.to_vec());
        }
        Ok(())
    }

    /// Checks that the sets of attributes follow each other without gaps, and that each node refers
    /// to the start of one. Overlapping sets could cost their number times their length.
    fn check_xattrs(&self) -> Result<()> {
        let mut starts = Vec::new();
        let mut offset = 0;
        while offset < self.section_lens.len_of(Section::Xattrs) {
            starts.push(offset);
            let end = self.visit_set(offset, &mut |_, _| Ok(ControlFlow::Continue(())))?;
            offset = end.unwrap_or(offset);
        }
        self.each(Section::WithXattrs, &mut |bytes: [u8; WITH_XATTRS_LEN]| {
            let mut reader = Reader::new("node with attributes", &bytes);
            let (_, offset) = (reader.u32()?, reader.u64()?);
            match starts.binary_search(&offset) {
                Ok(_) => Ok(()),
                Err(_) => Err(Error::corrupt("attributes in the index are not valid")),
            }
        })
    }

    /// Visits all records of a section.
    fn each<const N: usize>(
        &self,
        section: Section,
        visit: &mut dyn FnMut([u8; N]) -> Result<()>,
    ) -> Result<()> {
        (0..self.section_lens.count(section)).try_for_each(|nth| visit(self.record(section, nth)?))
    }

    /// Whether `other` shows the same tree. Notes and findings may differ.
    pub(crate) fn is_same_tree(&self, other: &Self) -> Result<bool> {
        let is_alike = (self.archive_len, &self.nested_archives)
            == (other.archive_len, &other.nested_archives);
        let has_same_lens = self.section_lens.of_tree() == other.section_lens.of_tree();
        Ok(is_alike && has_same_lens && self.has_same_bytes(other)?)
    }

    fn has_same_bytes(&self, other: &Self) -> Result<bool> {
        // The sections of the tree come first, so they are at the same offsets in both.
        let end = self.section_lens.range(Section::Xattrs).end;
        let mut offset = 0;
        let (mut mine, mut others) = (vec![0; STEP], vec![0; STEP]);
        while offset < end {
            let len = index(end.saturating_sub(offset)).min(STEP);
            let mine = mine.get_mut(..len).unwrap_or_default();
            let others = others.get_mut(..len).unwrap_or_default();
            self.blocks.read(offset, mine)?;
            other.blocks.read(offset, others)?;
            if mine != others {
                return Ok(false);
            }
            offset = offset.saturating_add(length(len));
        }
        Ok(true)
    }
}

/// Bytes to compare at a time.
const STEP: usize = 64 << 10;
