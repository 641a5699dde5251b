//! The targets of hard links.

use std::collections::HashMap;

use super::directories::DirectoryId;
use super::hard_links::HardLinks;
use super::pending_tree::PendingTree;
use super::slot::Slot;
use super::slots_by_directory::SlotsByDirectory;
use crate::formats::index::notes::Notes;
use crate::formats::index::paths::components_of;
use crate::vfs::FileKind;

/// The slot of each hard link's target, by the link's slot. No target is a link.
pub(super) struct HardLinkTargets(HashMap<Slot, Slot>);

impl HardLinkTargets {
    /// Finds the targets. A note says which links have none.
    pub(super) fn new(
        tree: &PendingTree,
        by_directory: &SlotsByDirectory,
        mut links: HardLinks,
        notes: &mut Notes,
    ) -> Self {
        // The findings of both ways to scan are in one order.
        links.sort_by_rank(|slot| tree.ranks.rank(slot));
        let mut targets = Self(HashMap::new());
        for (link, base, path) in links.iter() {
            let found = candidate(tree, by_directory, link, (base, path));
            targets.0.extend(found.map(|slot| (link, slot)));
        }
        for (link, _, path) in links.iter() {
            if targets.resolve(tree, link).is_none() {
                notes.lost_link(&tree.path_of(link), path);
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
    pub(super) fn get(&self, slot: Slot) -> Option<Slot> {
        self.0.get(&slot).copied()
    }
}

/// The slot that the `link` with target `path` below `base` names: the last one before the link, or
/// else the first one after it.
fn candidate(
    tree: &PendingTree,
    by_directory: &SlotsByDirectory,
    link: Slot,
    (base, path): (DirectoryId, &[u8]),
) -> Option<Slot> {
    let (parent, name) = tree.directories.find_parent(base, &components_of(path))?;
    let named = by_directory.slots_named(tree, parent, name.as_bytes());
    let is_candidate = |&slot: &&Slot| tree.kind(*slot) != FileKind::Directory && *slot != link;
    // `named` is sorted by rank, and at most one of them is a directory.
    let own_rank = tree.ranks.rank(link);
    let split = named.partition_point(|&slot| tree.ranks.rank(slot) < own_rank);
    let (before, after) = named.split_at_checked(split)?;
    let before = before.iter().rev().find(is_candidate);
    before.or_else(|| after.iter().find(is_candidate)).copied()
}
