//! The numbers of the nodes in the finished tree, and each node as the index has it.

use std::collections::{BTreeMap, HashMap};
use std::io;

use super::super::node::{Content, Node};
use super::super::{NodeId, ROOT};
use super::directories::DirectoryId;
use super::hard_link_targets::HardLinkTargets;
use super::pending_tree::{PendingTree, no_room};
use super::slot::Slot;
use super::slots_by_directory::SlotsByDirectory;
use super::xattrs::{XattrEntry, XattrSets};
use crate::error::Result;
use crate::formats::bytes::index;
use crate::spilled::Spilled;

/// The numbers of the nodes in the finished tree.
pub(super) struct Numbering {
    /// The slot of each node. `Slot::ROOT` for the root.
    slot_of_node: Spilled<Slot>,
    /// The node of each slot. If a hard link is shown but its target is not, the slot of the target
    /// has the node of the link. `NONE` for all others that are not shown.
    node_of_slot: Spilled<NodeId>,
    /// The first child and the number of children of each directory.
    children: Vec<(NodeId, u32)>,
    targets: HardLinkTargets,
    /// Nodes with more than one name, and how many they have, in ascending order of the nodes.
    link_counts: Vec<(NodeId, u32)>,
}

/// No node.
const NONE: NodeId = NodeId::MAX;

impl Numbering {
    /// Numbers the nodes breadth first: the root, its children, then the children of each directory
    /// in the order of the directories.
    pub(super) fn new(
        tree: &PendingTree,
        shown: &SlotsByDirectory,
        targets: HardLinkTargets,
    ) -> Result<Self> {
        let count = shown.len().saturating_add(1);
        let mut slot_of_node = Spilled::with_capacity(count, &tree.spill).map_err(no_room)?;
        let mut node_of_slot =
            Spilled::filled(NONE, tree.nodes().len(), &tree.spill).map_err(no_room)?;
        let mut children = vec![(0, 0); tree.directories.len()];
        slot_of_node.push(Slot::ROOT).map_err(no_room)?;
        let mut next = 0;
        while let Some(&slot) = slot_of_node.get(next) {
            if let Some(directory) = tree.directory(slot) {
                let list = shown.slots_of(directory);
                let first = id_of(slot_of_node.len());
                if let Some(children) = children.get_mut(index(directory.0)) {
                    *children = (first, id_of(list.len()));
                }
                for &slot in list {
                    if let Some(id) = node_of_slot.get_mut(slot.index()) {
                        *id = id_of(slot_of_node.len());
                    }
                    slot_of_node.push(slot).map_err(no_room)?;
                }
            }
            next = next.saturating_add(1);
        }
        let mut numbering =
            Self { slot_of_node, node_of_slot, children, targets, link_counts: Vec::new() };
        numbering.promote_links(tree);
        numbering.count_links(tree);
        Ok(numbering)
    }

    /// Number of nodes.
    pub(super) fn len(&self) -> usize {
        self.slot_of_node.len()
    }

    /// Nodes with more than one name, and how many they have, in ascending order of the nodes.
    pub(super) fn link_counts(&self) -> &[(NodeId, u32)] {
        &self.link_counts
    }

    /// Checks that all data the kernel wrote to temporary files can be read back.
    pub(super) fn check(&self) -> io::Result<()> {
        self.slot_of_node.check().and_then(|()| self.node_of_slot.check())
    }

    /// The node of `slot`, if it is shown.
    fn id(&self, slot: Slot) -> Option<NodeId> {
        self.node_of_slot.get(slot.index()).copied().filter(|&id| id != NONE)
    }

    /// If a hard link's target is hidden by a later member, the first link becomes the file.
    fn promote_links(&mut self, tree: &PendingTree) {
        for (id, &slot) in (0..).zip(self.slot_of_node.iter()) {
            let target = tree.is_hard_link(slot).then(|| self.targets.get(slot)).flatten();
            let target_id = target.and_then(|target| self.node_of_slot.get_mut(target.index()));
            if let Some(target_id) = target_id.filter(|target_id| **target_id == NONE) {
                *target_id = id;
            }
        }
    }

    fn count_links(&mut self, tree: &PendingTree) {
        let mut name_counts: HashMap<NodeId, u32> = HashMap::new();
        for (id, &slot) in (0..).zip(self.slot_of_node.iter()) {
            let target = tree.is_hard_link(slot).then(|| self.targets.get(slot)).flatten();
            let target_id = target.and_then(|target| self.id(target));
            // A promoted link is the file.
            if let Some(target_id) = target_id.filter(|&target_id| target_id != id) {
                let count = name_counts.entry(target_id).or_insert(1);
                *count = count.saturating_add(1);
            }
        }
        self.link_counts = name_counts.into_iter().collect();
        self.link_counts.sort_unstable();
    }

    /// The node `id`. Its name and target are still offsets in the names of `tree`.
    pub(super) fn final_node(&self, tree: &PendingTree, id: NodeId) -> Node {
        let slot = self.slot_of_node.get(index(id)).copied().unwrap_or(Slot::ROOT);
        let Some(pending) = tree.node(slot) else {
            return self.with_children(tree.root.numbered(ROOT), DirectoryId::ROOT);
        };
        let parent = tree.directories.slot(pending.parent());
        let parent = parent.and_then(|slot| self.id(slot)).unwrap_or(ROOT);
        let mut node = pending.numbered(parent);
        if let Some(directory) = pending.child_directory() {
            return self.with_children(node, directory);
        }
        if pending.is_hard_link() {
            let target = self.targets.get(slot);
            let target_id = target.and_then(|slot| self.id(slot)).unwrap_or(ROOT);
            match target.and_then(|slot| tree.node(slot)) {
                Some(target) if target_id == id => {
                    let Node { name, name_len, .. } = node;
                    node = Node { name, name_len, ..target.numbered(parent) };
                }
                _ => node.set(Content::HardLink { target: target_id }),
            }
        }
        node
    }

    fn with_children(&self, mut node: Node, directory: DirectoryId) -> Node {
        let (first, count) = self.children.get(index(directory.0)).copied().unwrap_or((0, 0));
        node.set(Content::Directory { first, count });
        node.size = u64::from(count);
        node
    }

    /// Nodes with attributes in ascending order, and the offsets of their sets. If several members
    /// of a directory have attributes, those of the latest count. A later member without attributes
    /// leaves the set of an earlier one.
    pub(super) fn with_xattrs(&self, xattrs: &XattrSets) -> BTreeMap<NodeId, u64> {
        let mut latest: BTreeMap<NodeId, XattrEntry> = BTreeMap::new();
        for &entry in xattrs.entries() {
            let id = if entry.slot == Slot::ROOT { Some(ROOT) } else { self.id(entry.slot) };
            let Some(id) = id else { continue };
            let known = latest.entry(id).or_insert(entry);
            if known.depth <= entry.depth {
                *known = entry;
            }
        }
        latest.into_iter().map(|(id, entry)| (id, entry.set)).collect()
    }
}

/// `count` as the number of the next node.
fn id_of(count: usize) -> NodeId {
    u32::try_from(count).unwrap_or(NONE)
}
