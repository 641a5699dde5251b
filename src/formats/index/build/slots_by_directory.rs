//! The pending nodes of each directory, sorted by name.
//!
//! Invariant: nodes with the same name are ordered by rank: by depth, then in the order of the
//! scan.

use super::directories::DirectoryId;
use super::pending_tree::{PendingTree, no_room};
use super::slot::Slot;
use crate::error::Result;
use crate::formats::bytes::index;
use crate::spilled::Spilled;

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
        let nodes = tree.nodes();
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
    pub(super) fn filter_by_path(
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
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slots of the nodes in `directory`.
    pub(super) fn slots_of(&self, directory: DirectoryId) -> &[Slot] {
        let start = self.starts.get(index(directory.0)).copied().unwrap_or(usize::MAX);
        let end = self.starts.get(index(directory.0).saturating_add(1)).copied().unwrap_or(0);
        self.slots.get(start..end).unwrap_or_default()
    }

    /// All slots with this name, ordered by rank.
    pub(super) fn slots_named(
        &self,
        tree: &PendingTree,
        directory: DirectoryId,
        name: &[u8],
    ) -> &[Slot] {
        let children = self.slots_of(directory);
        let start = children.partition_point(|&slot| tree.name(slot) < name);
        let rest = children.get(start..).unwrap_or_default();
        let count = rest.partition_point(|&slot| tree.name(slot) == name);
        rest.get(..count).unwrap_or_default()
    }
}
