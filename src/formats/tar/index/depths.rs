//! How deep, in archives within archives, members lie.
//!
//! Owns the order between members of one path, whichever way they were come upon.
//! Invariant: what is in an archive comes behind all that the archive around it holds.
//!
//! An archive that can be read anywhere is scanned level by level, one that is decoded from its
//! start to its end in the order of its bytes. The tree must not tell them apart, so where two
//! members meet it is their depth that decides first, and their order only within one depth.

use super::builder::Folder;
use crate::formats::bytes::index;

/// The depth of everything that was added.
pub(super) struct Depths {
    /// The depth of what is added now.
    now: u32,
    /// From which place in `pending` on which depth counts.
    changes: Vec<(u32, u32)>,
    /// Of each folder, who said its mode, owner and time.
    said: Vec<Said>,
}

#[derive(Clone, Copy)]
enum Said {
    /// A member within it, of that depth.
    Implied(u32),
    /// A member of that depth that is the folder itself.
    Described(u32),
}

impl Depths {
    /// Of a tree with nothing but its root.
    pub(super) fn new() -> Self {
        Self { now: 0, changes: Vec::new(), said: vec![Said::Implied(0)] }
    }

    /// From the place `pending` on members lie that deep.
    pub(super) fn enter(&mut self, pending: u32, depth: u32) {
        if self.now != depth {
            self.now = depth;
            self.changes.push((pending, depth));
        }
    }

    /// The depth of what is added now.
    pub(super) fn now(&self) -> u32 {
        self.now
    }

    /// What orders the members at places in `pending`.
    pub(super) fn rank(&self, place: u32) -> (u32, u32) {
        let behind = self.changes.partition_point(|&(from, _)| from <= place);
        let change = behind.checked_sub(1).and_then(|nth| self.changes.get(nth));
        (change.map_or(0, |&(_, depth)| depth), place)
    }

    /// The next folder is made for a member within it.
    pub(super) fn made(&mut self) {
        self.said.push(Said::Implied(self.now));
    }

    /// Whether a member within `folder` says its owner and time, although another did before.
    pub(super) fn implies(&mut self, folder: Folder) -> bool {
        match self.said.get_mut(index(folder.0)) {
            Some(Said::Implied(depth)) if self.now < *depth => {
                *depth = self.now;
                true
            }
            _ => false,
        }
    }

    /// Whether a member that is `folder` says its mode, owner and time.
    pub(super) fn describes(&mut self, folder: Folder) -> bool {
        match self.said.get_mut(index(folder.0)) {
            Some(Said::Described(depth)) if self.now < *depth => false,
            Some(said) => {
                *said = Said::Described(self.now);
                true
            }
            None => false,
        }
    }
}
