//! The pending nodes of each directory, sorted by name, and the choice of the one to show.
//!
//! Invariant: nodes with the same name are ordered by rank: by depth, then in the order of the
//! scan.

use std::collections::HashMap;

use super::super::notes::Notes;
use super::builder::{Builder, DirectoryId, no_room};
use crate::error::Result;
use crate::formats::bytes::index;
use crate::storage::Spilled;
use crate::vfs::FileKind;

/// Slots in `pending`, grouped by directory and sorted by name, then by rank (`Depths::rank`).
pub(super) struct Groups {
    pub(super) order: Spilled<u32>,
    /// Where the slots of each directory start in `order`. The last entry is the end of `order`.
    starts: Vec<usize>,
}

impl Groups {
    /// Sorts the slots of pending nodes, first into directories, then by name within each. Within a
    /// directory they are mostly sorted already, and close together in memory.
    ///
    /// # Errors
    /// `Io` if there is no room for the order.
    pub(super) fn new(builder: &Builder) -> Result<Self> {
        let mut starts = vec![0_usize; builder.directory_slots.len().saturating_add(1)];
        for node in builder.pending.iter() {
            if let Some(count) = starts.get_mut(index(node.parent).saturating_add(1)) {
                *count = count.saturating_add(1);
            }
        }
        let mut sum = 0_usize;
        for start in &mut starts {
            sum = sum.saturating_add(*start);
            *start = sum;
        }
        let mut ends = starts.clone();
        let mut order =
            Spilled::filled(0_u32, builder.pending.len(), &builder.spill).map_err(no_room)?;
        for (slot, node) in builder.pending.iter().enumerate() {
            let Some(end) = ends.get_mut(index(node.parent)) else { continue };
            if let Some(entry) = order.get_mut(*end) {
                *entry = u32::try_from(slot).unwrap_or(u32::MAX);
            }
            *end = end.saturating_add(1);
        }
        for window in starts.windows(2) {
            let &[start, end] = window else { continue };
            if let Some(children) = order.get_mut(start..end) {
                let rank = |slot: u32| builder.depths.rank(slot);
                children.sort_unstable_by(|&a, &b| {
                    builder.name(a).cmp(builder.name(b)).then_with(|| rank(a).cmp(&rank(b)))
                });
            }
        }
        Ok(Self { order, starts })
    }

    /// The slots of the nodes in `directory`.
    pub(super) fn slots_of(&self, directory: DirectoryId) -> &[u32] {
        let start = self.starts.get(index(directory.0)).copied().unwrap_or(usize::MAX);
        let end = self.starts.get(index(directory.0).saturating_add(1)).copied().unwrap_or(0);
        self.order.get(start..end).unwrap_or_default()
    }

    /// All slots with this name, ordered by rank.
    pub(super) fn slots_named(
        &self,
        builder: &Builder,
        directory: DirectoryId,
        name: &[u8],
    ) -> &[u32] {
        let children = self.slots_of(directory);
        let start = children.partition_point(|&slot| builder.name(slot) < name);
        let rest = children.get(start..).unwrap_or_default();
        let count = rest.partition_point(|&slot| builder.name(slot) == name);
        rest.get(..count).unwrap_or_default()
    }

    /// One slot for each path: the directory, or else the node with the highest rank. Hard links
    /// without a target are left out.
    ///
    /// # Errors
    /// `Io` if there is no room for the order.
    pub(super) fn shown(
        &self,
        builder: &Builder,
        targets: &HashMap<u32, u32>,
        notes: &mut Notes,
    ) -> Result<Self> {
        let mut order =
            Spilled::with_capacity(self.order.len(), &builder.spill).map_err(no_room)?;
        let mut starts = Vec::with_capacity(self.starts.len());
        let directories = 0..u32::try_from(builder.directory_slots.len()).unwrap_or(u32::MAX);
        for directory in directories.map(DirectoryId) {
            starts.push(order.len());
            let same_name = |a: &u32, b: &u32| builder.name(*a) == builder.name(*b);
            for same_path in self.slots_of(directory).chunk_by(same_name) {
                let directory =
                    same_path.iter().find(|&&slot| builder.kind(slot) == FileKind::Directory);
                if let (Some(&directory), true) = (directory, same_path.len() > 1) {
                    let what = "members whose path is that of a folder, too";
                    notes.skip(what, Some(&builder.path_of(directory)));
                }
                let has_target =
                    |slot: &&u32| !builder.is_link(**slot) || targets.contains_key(*slot);
                if let Some(&shown) = directory.or_else(|| same_path.iter().rev().find(has_target))
                {
                    order.push(shown).map_err(no_room)?;
                }
            }
        }
        starts.push(order.len());
        Ok(Self { order, starts })
    }
}
