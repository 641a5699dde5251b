//! What an index from a file has to be before anything is looked up in it.
//!
//! Owns the rules; leaves the checksum to `file`. What a scan can not make is refused, too: it was
//! made by something else.
//! Invariant: what passes is a tree that can be walked in time proportional to its size, each name
//! of it is found, and no file reaches outside the archive.

use super::super::sparse::Segment;
use super::{Content, Graft, Index, LINK, Node, ROOT, STORED, take_bytes, take_number};
use crate::error::{Error, Result};
use crate::formats::bytes::{index, length};
use crate::formats::limits::{FILE_SIZE_MAX, TAR_PATH_MAX, XATTR_LIST_MAX, XATTR_VALUE_MAX};
use crate::vfs::{FileKind, Name};

impl Index {
    /// Refuses an index that breaks the invariant or points outside `archive_len` bytes.
    ///
    /// # Errors
    /// `Corrupt`, with what is wrong.
    pub(super) fn check(&self, archive_len: u64) -> Result<()> {
        self.check_tables()?;
        self.check_nodes(archive_len)?;
        self.check_xattrs()?;
        let sound = |graft: &Graft| {
            let end = graft.at.checked_add(graft.len);
            let mut names = graft.path.split(|&byte| byte == b'/');
            end.is_some_and(|end| end <= archive_len)
                && (graft.path.is_empty() || names.all(|name| Name::parse(name).is_some()))
        };
        match self.grafts.iter().all(sound) {
            true => Ok(()),
            false => Err(Error::corrupt("an image lies outside the archive or the tree")),
        }
    }

    /// The tables beside the nodes are in order and name nodes that there are.
    fn check_tables(&self) -> Result<()> {
        let is_node = |id: u32| index(id) < self.nodes.len();
        let links = self.links.is_sorted_by(|a, b| a.0 < b.0)
            && self.links.iter().all(|&(id, count)| is_node(id) && count > 1);
        let with_xattrs = self.with_xattrs.is_sorted_by(|a, b| a.0 < b.0)
            && self.with_xattrs.iter().all(|&(id, _)| is_node(id));
        let last = self.maps.last().copied().unwrap_or(0);
        let maps = self.maps.is_sorted() && last <= length(self.segments.len());
        match links && with_xattrs && maps {
            true => Ok(()),
            false => Err(Error::corrupt("a table of the index is out of order")),
        }
    }

    fn check_nodes(&self, archive_len: u64) -> Result<()> {
        let mut next_child = 1;
        // Two files with one map of a million pieces each could be a million files.
        let mut used = vec![false; self.maps.len()];
        for (id, node) in self.nodes.iter().enumerate() {
            let wrong = |what: &str| Err(Error::corrupt(format!("node {id}: {what}")));
            if !(STORED..=LINK).contains(&(node.mode >> 12)) || node.size > FILE_SIZE_MAX {
                return wrong("it is nothing a file system can show");
            }
            match node.content() {
                Content::Stored { at } => {
                    if at.checked_add(node.size).is_none_or(|end| end > archive_len) {
                        return wrong("its bytes lie outside the archive");
                    }
                }
                Content::Sparse { map } => {
                    let first_use =
                        used.get_mut(map).is_some_and(|used| !std::mem::replace(used, true));
                    if !first_use || !sound_map(self.map(map), node.size, archive_len) {
                        return wrong("its sparse map is none");
                    }
                }
                Content::Folder { first, count } => {
                    // Folders stand in the order of their children, so this makes it a tree. Those
                    // without children have a place, too: who lists them counts up from it.
                    if u64::from(first) != next_child || index(first) <= id {
                        return wrong("its children are not where they should be");
                    }
                    next_child = next_child.saturating_add(u64::from(count));
                    if u64::from(count) != node.size || !self.is_listing(first, count) {
                        return wrong("its children are no listing");
                    }
                }
                Content::Symlink { target } => {
                    let len = self.target(target, node.size).len();
                    if length(len) != node.size || len > TAR_PATH_MAX {
                        return wrong("its target is missing");
                    }
                }
                Content::Link { target } => {
                    let target = self.node(target).map(Node::content);
                    if matches!(target, None | Some(Content::Link { .. } | Content::Folder { .. }))
                    {
                        return wrong("it names nothing");
                    }
                }
                Content::Device { .. } | Content::Fifo => {}
            }
        }
        if self.node(ROOT).is_none_or(|root| root.kind() != FileKind::Directory) {
            return Err(Error::corrupt("the root is no folder"));
        }
        match next_child == length(self.nodes.len()) {
            true => Ok(()),
            false => Err(Error::corrupt("some nodes are in no folder")),
        }
    }

    /// Whether there are so many children, with names that ascend.
    fn is_listing(&self, first: u32, count: u32) -> bool {
        let children = self.children(first, count);
        children.len() == index(count)
            && children.is_sorted_by(|a, b| self.name(a) < self.name(b))
            && children.iter().all(|child| Name::parse(self.name(child)).is_some())
    }

    /// Sets of attributes stand one behind the other, and each node's is one of them. Sets that
    /// overlap could make as much work as their number times their length.
    fn check_xattrs(&self) -> Result<()> {
        let wrong = || Error::corrupt("attributes in the index are none");
        let mut starts = Vec::new();
        let mut rest = self.xattrs.as_slice();
        while !rest.is_empty() {
            starts.push(length(self.xattrs.len().saturating_sub(rest.len())));
            pass_set(&mut rest).ok_or_else(wrong)?;
        }
        let known = |&(_, at): &(u32, u64)| starts.binary_search(&at).is_ok();
        if self.with_xattrs.iter().all(known) { Ok(()) } else { Err(wrong()) }
    }
}

/// Passes one set of attributes, if Linux could show it.
fn pass_set(rest: &mut &[u8]) -> Option<()> {
    let count = take_number(rest)?;
    let mut listed = 0_usize;
    for _ in 0..count {
        let (name, value) = (take_bytes(rest)?, take_bytes(rest)?);
        listed = listed.saturating_add(name.len()).saturating_add(1);
        let sound = (1..=255).contains(&name.len())
            && !name.contains(&0)
            && value.len() <= index(XATTR_VALUE_MAX)
            && listed <= XATTR_LIST_MAX;
        if !sound {
            return None;
        }
    }
    (count > 0).then_some(())
}

fn sound_map(map: &[Segment], size: u64, archive_len: u64) -> bool {
    let inside = |segment: &Segment| {
        segment.len > 0
            && segment.offset.checked_add(segment.len).is_some_and(|end| end <= size)
            && segment.at.checked_add(segment.len).is_some_and(|end| end <= archive_len)
    };
    map.iter().all(inside) && map.is_sorted_by(|a, b| a.end() <= b.offset)
}
