//! The choice of the pending node to show for each path.

use super::hard_link_targets::HardLinkTargets;
use super::pending_tree::PendingTree;
use super::slot::Slot;
use super::slots_by_directory::SlotsByDirectory;
use crate::error::Result;
use crate::formats::index::notes::Notes;
use crate::vfs::FileKind;

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
