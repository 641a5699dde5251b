//! From the members that were added to the finished tree.
//!
//! Owns what a hard link names, and the order of the nodes.
//! Invariant: what it returns passes `Index::check`.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::super::notes::Notes;
use super::builder::{Builder, Folder, cleaned};
use super::groups::Groups;
use super::{Content, Graft, Index, Node, NodeId};
use crate::formats::bytes::index;
use crate::vfs::{FileKind, Name};

/// A hard link: its place in `pending`, the folder its path starts at, and that path in
/// `link_paths`.
pub(super) struct HardLink {
    pub(super) pending: u32,
    pub(super) base: Folder,
    pub(super) path: std::ops::Range<usize>,
}

impl Builder {
    /// The finished tree.
    pub(in crate::formats::tar) fn finish(mut self, notes: &mut Notes) -> Index {
        self.by_name.shrink_to_fit();
        let groups = Groups::new(&self);
        let depths = &self.depths;
        self.hard_links.sort_by_key(|link| depths.rank(link.pending));
        let targets = self.resolve_links(&groups, notes);
        let shown = groups.shown(&self, &targets, notes);
        self.lay_out(&shown, &targets)
    }

    /// Of each hard link (by its place in `pending`) the place of the member it names.
    fn resolve_links(&self, groups: &Groups, notes: &mut Notes) -> HashMap<u32, u32> {
        let mut targets = HashMap::new();
        for link in &self.hard_links {
            let path = self.link_paths.get(link.path.clone()).unwrap_or_default();
            let found = self.existing(link.base, path).and_then(|(parent, name)| {
                let same = groups.named(self, parent, name.as_bytes());
                let not_folder = |&place: &&u32| {
                    self.kind(*place) != FileKind::Directory && *place != link.pending
                };
                // The latest before the link; if there is none, the first behind it. They are
                // sorted by rank, and one of them at most is a folder.
                let own = self.depths.rank(link.pending);
                let behind = same.partition_point(|&place| self.depths.rank(place) < own);
                let (before, after) = same.split_at_checked(behind)?;
                let before = before.iter().rev().find(not_folder);
                before.or_else(|| after.iter().find(not_folder)).copied()
            });
            // A link to a link names what that names; links are sorted as members are.
            let found = found.and_then(|place| match self.is_link(place) {
                true => targets.get(&place).copied(),
                false => Some(place),
            });
            match found {
                Some(place) => _ = targets.insert(link.pending, place),
                None => {
                    notes.lost_link(&self.path_of(link.pending), path);
                }
            }
        }
        targets
    }

    /// The folder and name that `path` leads to, without making any.
    fn existing<'p>(&self, base: Folder, path: &'p [u8]) -> Option<(Folder, Name<'p>)> {
        let names = cleaned(path);
        let (&last, way) = names.split_last()?;
        let mut folder = base;
        for &name in way {
            folder = *self.by_name.get(&(folder, Box::from(name)))?;
        }
        Some((folder, Name::parse(last)?))
    }

    /// Puts the nodes into their order: the root, its children, then the children of each folder
    /// in the order in which the folders stand.
    fn lay_out(mut self, shown: &Groups, targets: &HashMap<u32, u32>) -> Index {
        let none = u32::MAX;
        let mut nodes = Vec::with_capacity(shown.order.len().saturating_add(1));
        let mut id_of = vec![none; self.pending.len()];
        let mut root = self.root;
        root.name = u32::try_from(self.names.len()).unwrap_or(0);
        self.names.push(0);
        root.set(Content::Folder { first: 0, count: 0 });
        nodes.push(root);
        // Links wait until every node has its number: its number, and the member that it names.
        let mut links = Vec::new();
        let mut next = 0;
        let mut folder = Folder::ROOT;
        while next < nodes.len() {
            let is_root = next == 0;
            let here: Option<&mut Node> = nodes.get_mut(next);
            if let Some(node) = here
                && let Content::Folder { first, .. } = node.content()
            {
                if !is_root {
                    folder = Folder(first);
                }
                let children = shown.of(folder);
                let count = u32::try_from(children.len()).unwrap_or(u32::MAX);
                node.size = u64::from(count);
                let first = nodes.len();
                for &place in children {
                    let Some(pending) = self.pending.get(index(place)) else { continue };
                    let id = u32::try_from(nodes.len()).unwrap_or(none);
                    if let Some(known) = id_of.get_mut(index(place)) {
                        *known = id;
                    }
                    if self.is_link(place) {
                        links.push((id, place));
                    }
                    nodes.push(pending.node);
                }
                if let Some(node) = nodes.get_mut(next) {
                    let first = u32::try_from(first).unwrap_or(none);
                    node.set(Content::Folder { first, count });
                }
            }
            next = next.saturating_add(1);
        }
        let mut names_of: HashMap<NodeId, u32> = HashMap::new();
        for (id, place) in links {
            let Some(&target) = targets.get(&place) else { continue };
            let known = id_of.get(index(target)).copied().unwrap_or(none);
            let Some(node) = nodes.get_mut(index(id)) else { continue };
            if known == none {
                // The member's own name was taken by a later one: the link is its only name now.
                let Some(pending) = self.pending.get(index(target)) else { continue };
                *node = Node { name: node.name, ..pending.node };
                if let Some(known) = id_of.get_mut(index(target)) {
                    *known = id;
                }
            } else {
                node.set(Content::Link { target: known });
                let count = names_of.entry(known).or_insert(1);
                *count = count.saturating_add(1);
            }
        }
        let mut links: Vec<_> = names_of.into_iter().collect();
        links.sort_unstable();
        let place = |number: u32| match number {
            u32::MAX => Some(super::ROOT),
            number => id_of.get(index(number)).copied().filter(|&id| id != none),
        };
        let mut with_xattrs: Vec<_> = self
            .with_xattrs
            .iter()
            .filter_map(|&(number, at, depth)| Some((place(number)?, at, depth)))
            .collect();
        // Of a folder that the archive names twice the later one counts.
        with_xattrs.reverse();
        with_xattrs.sort_by_key(|&(id, _, depth)| (id, Reverse(depth)));
        with_xattrs.dedup_by_key(|&mut (id, ..)| id);
        let mut with_xattrs: Vec<_> = with_xattrs.into_iter().map(|(id, at, _)| (id, at)).collect();
        let grafts = self.grafts.iter();
        let grafts = grafts.map(|&(folder, at, len)| Graft { path: self.path(folder), at, len });
        let grafts = grafts.collect();
        // They grew by doubling, and stay as long as the mount.
        self.names.shrink_to_fit();
        self.segments.shrink_to_fit();
        self.maps.shrink_to_fit();
        self.xattrs.shrink_to_fit();
        with_xattrs.shrink_to_fit();
        Index {
            nodes,
            names: self.names,
            segments: self.segments,
            maps: self.maps,
            links,
            with_xattrs,
            xattrs: self.xattrs,
            grafts,
            notes: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// The path of a member from the root, with its name.
    pub(super) fn path_of(&self, place: u32) -> Vec<u8> {
        let parent = self.pending.get(index(place)).map_or(Folder::ROOT, |found| found.parent);
        let mut path = self.path(parent);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(self.name(place));
        path
    }

    /// The path of a folder from the root.
    pub(in crate::formats::tar) fn path(&self, folder: Folder) -> Vec<u8> {
        let mut parts = Vec::new();
        let mut here = folder;
        while let Some(place) = self.folders.get(index(here.0)).copied().flatten() {
            parts.push(self.name(place));
            here = self.pending.get(index(place)).map_or(Folder::ROOT, |pending| pending.parent);
        }
        parts.reverse();
        parts.join(&b'/')
    }
}
