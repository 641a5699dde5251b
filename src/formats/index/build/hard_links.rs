//! The hard links of an archive, with the paths of their targets.

use std::ops::Range;

use super::directories::DirectoryId;
use super::slot::Slot;

/// All hard links so far.
pub(super) struct HardLinks {
    links: Vec<HardLink>,
    /// The target paths, concatenated.
    paths: Vec<u8>,
}

struct HardLink {
    slot: Slot,
    base: DirectoryId,
    path: Range<usize>,
}

impl HardLinks {
    pub(super) fn new() -> Self {
        Self { links: Vec::new(), paths: Vec::new() }
    }

    /// Adds the link in `slot`, whose target is at `path` below `base`.
    pub(super) fn add(&mut self, slot: Slot, base: DirectoryId, path: &[u8]) {
        let start = self.paths.len();
        self.paths.extend(path);
        self.links.push(HardLink { slot, base, path: start..self.paths.len() });
    }

    /// Sorts the links by `rank` of their slots.
    pub(super) fn sort_by_rank(&mut self, rank: impl Fn(Slot) -> (u32, Slot)) {
        self.links.sort_by_key(|link| rank(link.slot));
    }

    /// The slot of each link, the directory where the path of its target starts, and that path.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, DirectoryId, &[u8])> {
        self.links.iter().map(|HardLink { slot, base, path }| {
            (*slot, *base, self.paths.get(path.clone()).unwrap_or_default())
        })
    }
}
