//! What happens to a tree after its last member: its nodes are sorted by directory, hard links find
//! their targets, one node is chosen for each path, and those are numbered (`mod.rs` has the
//! phases).

use std::collections::{BTreeMap, HashMap};
use std::io;

use super::super::members::components_of;
use super::super::node::{Content, Node};
use super::super::notes::Notes;
use super::super::{NodeId, ROOT};
use super::directories::{DirectoryId, Slot};
use super::pending_tree::{PendingNode, PendingTree, no_room};
use super::side_tables::{XattrEntry, XattrSets};
use crate::error::Result;
use crate::formats::bytes::index;
use crate::spilled::Spilled;
use crate::vfs::FileKind;

/// Slots of pending nodes, grouped by directory and sorted by name, then by rank (`Ranks::rank`).
pub(super) struct SlotsByDirectory {
    slots: Spilled<Slot>,
    /// Where the slots of each directory start in `slots`. The last entry is the end of `slots`.
    starts: Vec<usize>,
}

impl SlotsByDirectory {
    /// Sorts the slots of pending nodes, first into directories, then by name within each. Within a
    /// directory they are mostly sorted already, and close together in memory.
    pub(super) fn new(tree: &PendingTree) -> Result<Self> {
        let nodes: &[PendingNode] = &tree.nodes;
        let mut starts = vec![0_usize; tree.directories.len().saturating_add(1)];
        for node in nodes {
            if let Some(count) = starts.get_mut(index(node.parent().0).saturating_add(1)) {
                *count = count.saturating_add(1);
            }
        }
        let mut sum = 0_usize;
        for start in &mut starts {
            sum = sum.saturating_add(*start);
            *start = sum;
        }
        let mut ends = starts.clone();
        let mut slots = Spilled::filled(Slot::ROOT, nodes.len(), &tree.spill).map_err(no_room)?;
        for (nth, node) in nodes.iter().enumerate() {
            let Some(end) = ends.get_mut(index(node.parent().0)) else { continue };
            if let (Some(entry), Some(slot)) = (slots.get_mut(*end), Slot::after(nth)) {
                *entry = slot;
            }
            *end = end.saturating_add(1);
        }
        for window in starts.windows(2) {
            let &[start, end] = window else { continue };
            if let Some(children) = slots.get_mut(start..end) {
                let rank = |slot: Slot| tree.ranks.rank(slot);
                children.sort_unstable_by(|&a, &b| {
                    tree.name(a).cmp(tree.name(b)).then_with(|| rank(a).cmp(&rank(b)))
                });
            }
        }
        Ok(Self { slots, starts })
    }

    /// Some of the slots: in each directory those that `pick` gives for all slots with the same
    /// name, which are ordered by rank.
    fn filter_by_path(
        &self,
        tree: &PendingTree,
        mut pick: impl FnMut(&[Slot]) -> Option<Slot>,
    ) -> Result<Self> {
        let mut slots = Spilled::with_capacity(self.len(), &tree.spill).map_err(no_room)?;
        let mut starts = Vec::with_capacity(self.starts.len());
        let has_same_name = |a: &Slot, b: &Slot| tree.name(*a) == tree.name(*b);
        for directory in tree.directories.ids() {
            starts.push(slots.len());
            for same_path in self.slots_of(directory).chunk_by(has_same_name) {
                if let Some(slot) = pick(same_path) {
                    slots.push(slot).map_err(no_room)?;
                }
            }
        }
        starts.push(slots.len());
        Ok(Self { slots, starts })
    }

    /// Number of slots in all directories.
    fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slots of the nodes in `directory`.
    fn slots_of(&self, directory: DirectoryId) -> &[Slot] {
        let start = self.starts.get(index(directory.0)).copied().unwrap_or(usize::MAX);
        let end = self.starts.get(index(directory.0).saturating_add(1)).copied().unwrap_or(0);
        self.slots.get(start..end).unwrap_or_default()
    }

    /// All slots with this name, ordered by rank.
    fn slots_named(&self, tree: &PendingTree, directory: DirectoryId, name: &[u8]) -> &[Slot] {
        let children = self.slots_of(directory);
        let start = children.partition_point(|&slot| tree.name(slot) < name);
        let rest = children.get(start..).unwrap_or_default();
        let count = rest.partition_point(|&slot| tree.name(slot) == name);
        rest.get(..count).unwrap_or_default()
    }
}

/// A hard link, whose target is at `path` below `base`.
pub(super) struct HardLink {
    pub(super) slot: Slot,
    pub(super) base: DirectoryId,
    pub(super) path: Box<[u8]>,
}

/// The slot of each hard link's target, by the link's slot. No target is a link.
pub(super) struct HardLinkTargets(HashMap<Slot, Slot>);

impl HardLinkTargets {
    /// Finds the targets. A note says which links have none.
    pub(super) fn new(
        tree: &PendingTree,
        by_directory: &SlotsByDirectory,
        mut links: Vec<HardLink>,
        notes: &mut Notes,
    ) -> Self {
        // The findings of both ways to scan are in one order.
        links.sort_by_key(|link| tree.ranks.rank(link.slot));
        let mut targets = Self(HashMap::new());
        for link in &links {
            let found = candidate(tree, by_directory, link);
            targets.0.extend(found.map(|slot| (link.slot, slot)));
        }
        for HardLink { slot, path, .. } in &links {
            if targets.resolve(tree, *slot).is_none() {
                notes.lost_link(&tree.path_of(*slot), path);
            }
        }
        targets
    }

    /// Follows `link` to a slot that is no link, which becomes the target of all links on the way.
    /// `None` if a link has no target, or if they form a cycle.
    fn resolve(&mut self, tree: &PendingTree, link: Slot) -> Option<Slot> {
        let (mut links, mut slot) = (Vec::new(), link);
        while tree.is_hard_link(slot) {
            // A removed link that comes again closes a cycle.
            let next = self.0.remove(&slot)?;
            links.push(slot);
            slot = next;
        }
        self.0.extend(links.into_iter().map(|link| (link, slot)));
        Some(slot)
    }

    /// The slot of the target of the link in `slot`.
    fn get(&self, slot: Slot) -> Option<Slot> {
        self.0.get(&slot).copied()
    }
}

/// The slot that `link` names: the last one before the link, or else the first one after it.
fn candidate(tree: &PendingTree, by_directory: &SlotsByDirectory, link: &HardLink) -> Option<Slot> {
    let (parent, name) = tree.directories.find_parent(link.base, &components_of(&link.path))?;
    let named = by_directory.slots_named(tree, parent, name.as_bytes());
    let is_candidate =
        |&slot: &&Slot| tree.kind(*slot) != FileKind::Directory && *slot != link.slot;
    // `named` is sorted by rank, and at most one of them is a directory.
    let own_rank = tree.ranks.rank(link.slot);
    let split = named.partition_point(|&slot| tree.ranks.rank(slot) < own_rank);
    let (before, after) = named.split_at_checked(split)?;
    let before = before.iter().rev().find(is_candidate);
    before.or_else(|| after.iter().find(is_candidate)).copied()
}

/// One slot for each path: the directory, or else the node with the highest rank. Hard links
/// without a target are left out.
pub(super) fn choose_shown(
    tree: &PendingTree,
    by_directory: &SlotsByDirectory,
    targets: &HardLinkTargets,
    notes: &mut Notes,
) -> Result<SlotsByDirectory> {
    by_directory.filter_by_path(tree, |same_path| {
        let directory = same_path.iter().find(|&&slot| tree.kind(slot) == FileKind::Directory);
        if let (Some(&directory), true) = (directory, same_path.len() > 1) {
            let what = "members whose path is also that of a directory";
            notes.skip(what, Some(&tree.path_of(directory)));
        }
        let has_target = |slot: &&Slot| !tree.is_hard_link(**slot) || targets.get(**slot).is_some();
        directory.or_else(|| same_path.iter().rev().find(has_target)).copied()
    })
}

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
    pub(super) link_counts: Vec<(NodeId, u32)>,
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
            Spilled::filled(NONE, tree.nodes.len(), &tree.spill).map_err(no_room)?;
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
        for &entry in &xattrs.entries {
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
