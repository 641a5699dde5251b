//! The rank of pending nodes: which of two with the same path is later.
//!
//! An outer archive's implied directory wins; an inner archive's own entry wins.
//!
//! An archive that can be read at any offset is scanned level by level: first the outermost
//! archive, then the archives in it. A stream is scanned in the order of its bytes. Both must give
//! the same tree. So members are compared by depth first, and by their order only at the same
//! depth.
//!
//! Invariant: the members of a nested archive rank after all members of the archive around it.

use super::slot::Slot;

/// The ranks of all pending nodes.
pub(super) struct Ranks {
    /// The depth of the members being added.
    current: u32,
    /// The slots at which the depth changes, and the depth from there.
    changes: Vec<(Slot, u32)>,
}

impl Ranks {
    pub(super) fn new() -> Self {
        Self { current: 0, changes: Vec::new() }
    }

    /// Notes that members from `slot` on are at `depth`.
    pub(super) fn enter(&mut self, slot: Slot, depth: u32) {
        if self.current != depth {
            self.current = depth;
            self.changes.push((slot, depth));
        }
    }

    /// The depth of the members being added.
    pub(super) fn current(&self) -> u32 {
        self.current
    }

    /// The sort key of the pending node in `slot`: among nodes with the same path, the one with the
    /// highest rank is shown.
    pub(super) fn rank(&self, slot: Slot) -> (u32, Slot) {
        let nth = self.changes.partition_point(|&(first_slot, _)| first_slot <= slot);
        let change = nth.checked_sub(1).and_then(|nth| self.changes.get(nth));
        (change.map_or(0, |&(_, depth)| depth), slot)
    }
}
