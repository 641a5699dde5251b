//! The last step of building a tree: finds the targets of hard links and numbers the nodes.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;

use super::super::notes::Notes;
use super::builder::{Builder, DirectoryId, components_of, no_room};
use super::draft::Draft;
use super::groups::Groups;
use super::{Content, NestedImage, Node, NodeId, ROOT};
use crate::error::Result;
use crate::formats::bytes::index;
use crate::storage::Spilled;
use crate::vfs::{FileKind, Name};

/// A hard link: its slot in `pending`, the directory its target path starts from, and the range of
/// that path in `link_paths`.
pub(super) struct HardLink {
    pub(super) slot: u32,
    pub(super) base: DirectoryId,
    pub(super) path: std::ops::Range<usize>,
}

/// The order of the nodes in the finished tree.
pub(super) struct Order {
    /// The slot of each node in `pending`. `NONE` for the root.
    pub(super) slots: Spilled<u32>,
    /// The node of each slot. `NONE` if the pending node is not shown.
    ids: Spilled<NodeId>,
    /// The first child and the number of children of each directory.
    children: Vec<(NodeId, u32)>,
    /// The target's slot of each hard link, by the link's slot.
    targets: HashMap<u32, u32>,
    /// Nodes with more than one name, and how many they have, in ascending order of the nodes.
    pub(super) links: Vec<(NodeId, u32)>,
}

/// No slot, and no node.
const NONE: u32 = u32::MAX;

impl Builder {
    /// Finishes the tree.
    ///
    /// # Errors
    /// `Io` if there is no room for the order of its nodes.
    pub(in crate::formats::tar) fn finish(mut self, notes: &mut Notes) -> Result<Draft> {
        self.subdirectories.shrink_to_fit();
        let groups = Groups::new(&self)?;
        let depths = &self.depths;
        self.hard_links.sort_by_key(|link| depths.rank(link.slot));
        let targets = self.resolve_links(&groups, notes);
        let shown = groups.shown(&self, &targets, notes)?;
        drop(groups);
        let order = self.number_nodes(&shown, targets)?;
        Ok(Draft::new(self, order))
    }

    /// The slot of each hard link's target, by the link's slot. A note says which links have none.
    fn resolve_links(&self, groups: &Groups, notes: &mut Notes) -> HashMap<u32, u32> {
        let mut targets = HashMap::new();
        for link in &self.hard_links {
            let path = self.link_paths.get(link.path.clone()).unwrap_or_default();
            let found = self.find_parent(link.base, path).and_then(|(parent, name)| {
                let candidates = groups.slots_named(self, parent, name.as_bytes());
                let is_candidate =
                    |&slot: &&u32| self.kind(*slot) != FileKind::Directory && *slot != link.slot;
                // The last one before the link, or else the first one after it. `candidates` is
                // sorted by rank, and at most one of them is a directory.
                let own_rank = self.depths.rank(link.slot);
                let split = candidates.partition_point(|&slot| self.depths.rank(slot) < own_rank);
                let (before, after) = candidates.split_at_checked(split)?;
                let before = before.iter().rev().find(is_candidate);
                before.or_else(|| after.iter().find(is_candidate)).copied()
            });
            // The target of a link to a link is the target of the latter. Links are resolved in
            // order of rank, so an earlier link is already in `targets`.
            let found = found.and_then(|slot| match self.is_link(slot) {
                true => targets.get(&slot).copied(),
                false => Some(slot),
            });
            match found {
                Some(slot) => _ = targets.insert(link.slot, slot),
                None => {
                    notes.lost_link(&self.path_of(link.slot), path);
                }
            }
        }
        targets
    }

    /// The directory and the name that `path` leads to from `base`. Creates nothing.
    fn find_parent<'p>(
        &self,
        base: DirectoryId,
        path: &'p [u8],
    ) -> Option<(DirectoryId, Name<'p>)> {
        let components = components_of(path);
        let (&last, parents) = components.split_last()?;
        let mut directory = base;
        for &name in parents {
            directory = *self.subdirectories.get(&(directory, Box::from(name)))?;
        }
        Some((directory, Name::parse(last)?))
    }

    /// Numbers the nodes breadth first: the root, its children, then the children of each directory
    /// in the order of the directories.
    fn number_nodes(&self, shown: &Groups, targets: HashMap<u32, u32>) -> Result<Order> {
        let count = shown.order.len().saturating_add(1);
        let mut slots = Spilled::with_capacity(count, &self.spill).map_err(no_room)?;
        let mut ids = Spilled::filled(NONE, self.pending.len(), &self.spill).map_err(no_room)?;
        let mut children = vec![(0, 0); self.directory_slots.len()];
        slots.push(NONE).map_err(no_room)?;
        let mut next = 0;
        while let Some(&slot) = slots.get(next) {
            if let Some(directory) = self.directory_in(slot) {
                let list = shown.slots_of(directory);
                let first = id_of(slots.len());
                if let Some(children) = children.get_mut(index(directory.0)) {
                    *children = (first, id_of(list.len()));
                }
                for &slot in list {
                    if let Some(id) = ids.get_mut(index(slot)) {
                        *id = id_of(slots.len());
                    }
                    slots.push(slot).map_err(no_room)?;
                }
            }
            next = next.saturating_add(1);
        }
        let mut order = Order { slots, ids, children, targets, links: Vec::new() };
        order.count_links(self);
        Ok(order)
    }

    /// The directory in `slot`, if it is one. `NONE` stands for the root.
    fn directory_in(&self, slot: u32) -> Option<DirectoryId> {
        match self.node(slot) {
            None => Some(DirectoryId::ROOT),
            Some(node) => match node.content() {
                Content::Directory { first, .. } => Some(DirectoryId(first)),
                _ => None,
            },
        }
    }

    /// The path of a pending node from the root, including its name.
    pub(super) fn path_of(&self, slot: u32) -> Vec<u8> {
        let mut path = self.path(DirectoryId(self.node(slot).map_or(0, |node| node.parent)));
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(self.name(slot));
        path
    }

    /// The path of a directory from the root.
    pub(in crate::formats::tar) fn path(&self, directory: DirectoryId) -> Vec<u8> {
        let mut parts = Vec::new();
        let mut current = directory;
        while let Some(slot) = self.directory_slots.get(index(current.0)).copied().flatten() {
            parts.push(self.name(slot));
            current = DirectoryId(self.node(slot).map_or(0, |node| node.parent));
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// The nested images, with their paths.
    pub(super) fn images(&self) -> impl Iterator<Item = NestedImage> {
        self.nested_images.iter().map(|&(directory, at, len)| NestedImage {
            path: self.path(directory),
            at,
            len,
        })
    }
}

impl Order {
    /// Checks that all data the kernel wrote to temporary files can be read back.
    ///
    /// # Errors
    /// The error of the disk.
    pub(super) fn check(&self) -> io::Result<()> {
        self.slots.check().and_then(|()| self.ids.check())
    }

    /// The node of `slot`, if it is shown.
    fn id(&self, slot: u32) -> Option<NodeId> {
        self.ids.get(index(slot)).copied().filter(|&id| id != NONE)
    }

    fn count_links(&mut self, builder: &Builder) {
        let mut name_counts: HashMap<NodeId, u32> = HashMap::new();
        for (id, &slot) in (0..).zip(self.slots.iter()) {
            let target = builder.is_link(slot).then(|| self.targets.get(&slot)).flatten();
            let Some(target_id) = target.and_then(|&target| self.ids.get_mut(index(target))) else {
                continue;
            };
            if *target_id == NONE {
                // A later member took the name of the target, so this link is its only name now.
                *target_id = id;
            } else {
                let count = name_counts.entry(*target_id).or_insert(1);
                *count = count.saturating_add(1);
            }
        }
        self.links = name_counts.into_iter().collect();
        self.links.sort_unstable();
    }

    /// The node `id`. Its name and target are still offsets in the names of `builder`.
    pub(super) fn node(&self, builder: &Builder, id: NodeId) -> Node {
        let slot = self.slots.get(index(id)).copied().unwrap_or(NONE);
        let Some(pending) = builder.node(slot) else {
            return self.with_children(Node { parent: ROOT, ..builder.root }, DirectoryId::ROOT);
        };
        let parent = builder.directory_slots.get(index(pending.parent)).copied().flatten();
        let parent = parent.and_then(|slot| self.id(slot)).unwrap_or(ROOT);
        let node = Node { parent, ..*pending };
        match node.content() {
            Content::Directory { first, .. } => self.with_children(node, DirectoryId(first)),
            Content::Link { .. } => {
                let target = self.targets.get(&slot).copied().unwrap_or(NONE);
                let target_id = self.id(target).unwrap_or(ROOT);
                let mut node = node;
                node.set(Content::Link { target: target_id });
                match builder.node(target) {
                    Some(&target) if target_id == id => {
                        Node { name: node.name, name_len: node.name_len, parent, ..target }
                    }
                    _ => node,
                }
            }
            _ => node,
        }
    }

    fn with_children(&self, mut node: Node, directory: DirectoryId) -> Node {
        let (first, count) = self.children.get(index(directory.0)).copied().unwrap_or((0, 0));
        node.set(Content::Directory { first, count });
        node.size = u64::from(count);
        node
    }

    /// Nodes with attributes in ascending order, and the offsets of their sets.
    pub(super) fn with_xattrs(&self, builder: &Builder) -> Vec<(NodeId, u64)> {
        // `NONE` stands for the root.
        let node = |slot: u32| if slot == NONE { Some(ROOT) } else { self.id(slot) };
        let all = builder.with_xattrs.iter();
        let mut found: Vec<_> =
            all.filter_map(|&(slot, offset, depth)| Some((node(slot)?, offset, depth))).collect();
        // If the archive has several members for one directory, the later one counts.
        found.reverse();
        found.sort_by_key(|&(id, _, depth)| (id, Reverse(depth)));
        found.dedup_by_key(|&mut (id, ..)| id);
        found.into_iter().map(|(id, offset, _)| (id, offset)).collect()
    }
}

/// `count` as the number of the next node.
fn id_of(count: usize) -> NodeId {
    u32::try_from(count).unwrap_or(NONE)
}
