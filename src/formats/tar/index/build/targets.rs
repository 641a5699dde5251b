//! The targets of hard links.

use std::collections::HashMap;

use super::directories::DirectoryId;
use super::groups::SlotsByDirectory;
use super::hard_links::HardLinks;
use super::pending_tree::PendingTree;
use crate::formats::tar::notes::Notes;
use crate::formats::tar::paths::components_of;
use crate::vfs::FileKind;

/// The slot of each hard link's target, by the link's slot. No target is a link.
pub(super) struct HardLinkTargets(HashMap<u32, u32>);

impl HardLinkTargets {
    /// Finds the targets. A note says which links have none.
    pub(super) fn new(
        tree: &PendingTree,
        groups: &SlotsByDirectory,
        mut links: HardLinks,
        notes: &mut Notes,
    ) -> Self {
        let mut targets = Self(HashMap::new());
        links.sort_by_rank(|slot| tree.depths.rank(slot));
        for (link, base, path) in links.iter() {
            let found = candidate(tree, groups, link, (base, path));
            // The target of a link to a link is the target of the latter. Links are resolved in
            // order of rank, so an earlier link is already in `targets`.
            let found = found.and_then(|slot| match tree.is_hard_link(slot) {
                true => targets.get(slot),
                false => Some(slot),
            });
            match found {
                Some(slot) => _ = targets.0.insert(link, slot),
                None => notes.lost_link(&tree.path_of(link), path),
            }
        }
        targets
    }

    /// The slot of the target of the link in `slot`.
    pub(super) fn get(&self, slot: u32) -> Option<u32> {
        self.0.get(&slot).copied()
    }
}

/// The slot that the `link` with target `path` below `base` names: the last one before the link, or
/// else the first one after it.
fn candidate(
    tree: &PendingTree,
    groups: &SlotsByDirectory,
    link: u32,
    (base, path): (DirectoryId, &[u8]),
) -> Option<u32> {
    let (parent, name) = tree.directories.find_parent(base, &components_of(path))?;
    let named = groups.slots_named(tree, parent, name.as_bytes());
    let is_candidate = |&slot: &&u32| tree.kind(*slot) != FileKind::Directory && *slot != link;
    // `named` is sorted by rank, and at most one of them is a directory.
    let own_rank = tree.depths.rank(link);
    let split = named.partition_point(|&slot| tree.depths.rank(slot) < own_rank);
    let (before, after) = named.split_at_checked(split)?;
    let before = before.iter().rev().find(is_candidate);
    before.or_else(|| after.iter().find(is_candidate)).copied()
}
