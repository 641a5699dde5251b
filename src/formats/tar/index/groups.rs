//! The members of each folder, sorted by name.
//!
//! Owns the sorting, and which of several members of one path is shown.
//! Invariant: among members of one name the order is that of their depths, then of the archive.

use std::collections::HashMap;

use super::super::notes::Notes;
use super::builder::{Builder, Folder, no_room};
use crate::error::Result;
use crate::formats::bytes::index;
use crate::storage::Spilled;
use crate::vfs::FileKind;

/// Places in `pending`, folder by folder, in the order of their names, then as `Depths` ranks them.
pub(super) struct Groups {
    pub(super) order: Spilled<u32>,
    /// Where the children of each folder begin in `order`, and where the last ones end.
    starts: Vec<usize>,
}

impl Groups {
    /// Sorts what is pending: first into folders, then by name within each, where it is mostly
    /// sorted already and at least close together in memory.
    ///
    /// # Errors
    /// `Io` where there is no room for the order.
    pub(super) fn new(builder: &Builder) -> Result<Self> {
        let mut starts = vec![0_usize; builder.folders.len().saturating_add(1)];
        for pending in builder.pending.iter() {
            if let Some(count) = starts.get_mut(index(pending.parent).saturating_add(1)) {
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
        for (place, pending) in builder.pending.iter().enumerate() {
            let Some(end) = ends.get_mut(index(pending.parent)) else { continue };
            if let Some(slot) = order.get_mut(*end) {
                *slot = u32::try_from(place).unwrap_or(u32::MAX);
            }
            *end = end.saturating_add(1);
        }
        for window in starts.windows(2) {
            let &[start, end] = window else { continue };
            if let Some(children) = order.get_mut(start..end) {
                let rank = |place: u32| builder.depths.rank(place);
                children.sort_unstable_by(|&a, &b| {
                    builder.name(a).cmp(builder.name(b)).then_with(|| rank(a).cmp(&rank(b)))
                });
            }
        }
        Ok(Self { order, starts })
    }

    pub(super) fn of(&self, folder: Folder) -> &[u32] {
        let start = self.starts.get(index(folder.0)).copied().unwrap_or(usize::MAX);
        let end = self.starts.get(index(folder.0).saturating_add(1)).copied().unwrap_or(0);
        self.order.get(start..end).unwrap_or_default()
    }

    /// All of that name, as `Depths` ranks them.
    pub(super) fn named(&self, builder: &Builder, folder: Folder, name: &[u8]) -> &[u32] {
        let children = self.of(folder);
        let start = children.partition_point(|&place| builder.name(place) < name);
        let rest = children.get(start..).unwrap_or_default();
        let count = rest.partition_point(|&place| builder.name(place) == name);
        rest.get(..count).unwrap_or_default()
    }

    /// The one of each name that is shown, and none of the links that name nothing.
    ///
    /// # Errors
    /// `Io` where there is no room for the order.
    pub(super) fn shown(
        &self,
        builder: &Builder,
        targets: &HashMap<u32, u32>,
        notes: &mut Notes,
    ) -> Result<Self> {
        let mut order =
            Spilled::with_capacity(self.order.len(), &builder.spill).map_err(no_room)?;
        let mut starts = Vec::with_capacity(self.starts.len());
        let folders = 0..u32::try_from(builder.folders.len()).unwrap_or(u32::MAX);
        for folder in folders.map(Folder) {
            starts.push(order.len());
            let same = |a: &u32, b: &u32| builder.name(*a) == builder.name(*b);
            for run in self.of(folder).chunk_by(same) {
                let folder = run.iter().find(|&&place| builder.kind(place) == FileKind::Directory);
                if let (Some(&folder), true) = (folder, run.len() > 1) {
                    let what = "members whose path is that of a folder, too";
                    notes.skip(what, Some(&builder.path_of(folder)));
                }
                let alive =
                    |place: &&u32| !builder.is_link(**place) || targets.contains_key(*place);
                if let Some(&shown) = folder.or_else(|| run.iter().rev().find(alive)) {
                    order.push(shown).map_err(no_room)?;
                }
            }
        }
        starts.push(order.len());
        Ok(Self { order, starts })
    }
}
