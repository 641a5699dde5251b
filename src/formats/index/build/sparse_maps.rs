//! The maps of all sparse files in an archive.

use crate::formats::bytes::{index, length};
use crate::formats::index::members::Segment;
use crate::formats::limits::MEMBER_SEGMENTS_MAX;

/// All maps so far.
pub(super) struct SparseMaps {
    /// The stored segments of all files, one map after the other.
    segments: Vec<Segment>,
    /// Most segments to keep.
    segments_max: usize,
    /// Where each map ends in `segments`.
    ends: Vec<u64>,
}

impl SparseMaps {
    pub(super) fn new() -> Self {
        Self { segments: Vec::new(), segments_max: MEMBER_SEGMENTS_MAX, ends: Vec::new() }
    }

    /// Number of maps.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is room for `count` segments.
    pub(super) fn has_room(&self, count: usize) -> bool {
        self.segments.len().saturating_add(count) <= self.segments_max
    }

    /// Adds a map. Returns its number.
    pub(super) fn add(&mut self, map: &[Segment]) -> u64 {
        let number = length(self.ends.len());
        self.segments.extend(map);
        self.ends.push(length(self.segments.len()));
        number
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// For each map: where it ends in `segments`, and how many bytes it stores.
    pub(super) fn map_records(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let map = self.segments.get(index(start)..index(end)).unwrap_or_default();
            start = end;
            (end, map.iter().fold(0, |sum: u64, segment| sum.saturating_add(segment.len)))
        })
    }

    #[cfg(test)]
    pub(super) fn limit(&mut self, segments_max: usize) {
        self.segments_max = segments_max;
    }
}
