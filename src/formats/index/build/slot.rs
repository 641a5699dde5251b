//! Slots: the numbers of pending nodes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The number of a pending node, in the order in which members and implied directories are added.
/// It is not the number of a node in the finished tree (`NodeId`).
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(transparent)]
pub(super) struct Slot(u32);

impl Slot {
    /// Stands for the root, which is no pending node.
    pub(super) const ROOT: Self = Self(u32::MAX);

    /// The slot of the pending node that is added after `count` others. `None` if there are more
    /// than an index can number.
    pub(super) fn after(count: usize) -> Option<Self> {
        u32::try_from(count).ok().map(Self).filter(|&slot| slot != Self::ROOT)
    }

    /// Its index in the list of pending nodes.
    pub(super) fn index(self) -> usize {
        crate::formats::bytes::index(self.0)
    }
}
