//! The nesting depth of members, and which of two members with the same path is later.
//!
//! An archive that can be read at any offset is scanned level by level: first the outermost
//! archive, then the archives in it. A stream is scanned in the order of its bytes. Both must give
//! the same tree. So members are compared by depth first, and by their order only at the same
//! depth.
//!
//! Invariant: the members of a nested archive rank after all members of the archive around it.

use super::builder::DirectoryId;
use crate::formats::bytes::index;

/// The depths of all pending nodes, and where the attributes of directories come from.
pub(super) struct Depths {
    /// The depth of the members being added.
    current: u32,
    /// The slots at which the depth changes, and the depth from there.
    changes: Vec<(u32, u32)>,
    /// Where the mode, owner and time of each directory come from.
    sources: Vec<AttributeSource>,
}

#[derive(Clone, Copy)]
enum AttributeSource {
    /// From a member at this depth, whose path leads through the directory.
    Implied(u32),
    /// From a member at this depth that is the directory itself.
    Described(u32),
}

impl Depths {
    /// The depths of a tree that has only its root.
    pub(super) fn new() -> Self {
        Self { current: 0, changes: Vec::new(), sources: vec![AttributeSource::Implied(0)] }
    }

    /// Notes that members from `slot` on are at `depth`.
    pub(super) fn enter(&mut self, slot: u32, depth: u32) {
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
    pub(super) fn rank(&self, slot: u32) -> (u32, u32) {
        let nth = self.changes.partition_point(|&(first_slot, _)| first_slot <= slot);
        let change = nth.checked_sub(1).and_then(|nth| self.changes.get(nth));
        (change.map_or(0, |&(_, depth)| depth), slot)
    }

    /// Adds a directory, created for a member whose path leads through it.
    pub(super) fn add_directory(&mut self) {
        self.sources.push(AttributeSource::Implied(self.current));
    }

    /// Returns true if the current member, whose path leads through `directory`, comes from an
    /// outer archive and so replaces the implied owner and time. Records its depth.
    pub(super) fn record_implied(&mut self, directory: DirectoryId) -> bool {
        match self.sources.get_mut(index(directory.0)) {
            Some(AttributeSource::Implied(depth)) if self.current < *depth => {
                *depth = self.current;
                true
            }
            _ => false,
        }
    }

    /// Returns true if the current member, which is `directory` itself, gives its mode, owner and
    /// time. Records its depth.
    pub(super) fn record_described(&mut self, directory: DirectoryId) -> bool {
        match self.sources.get_mut(index(directory.0)) {
            Some(AttributeSource::Described(depth)) if self.current < *depth => false,
            Some(source) => {
                *source = AttributeSource::Described(self.current);
                true
            }
            None => false,
        }
    }
}
