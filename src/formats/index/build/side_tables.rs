//! Data that few members have, in tables beside the pending nodes: maps of sparse files, extended
//! attributes, and nested archives.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use super::super::NestedArchive;
use super::super::members::Segment;
use super::directories::Slot;
use crate::formats::bytes::{index, length};

/// The tables that an index takes over.
pub(super) struct SideTables {
    pub(super) sparse_maps: SparseMaps,
    pub(super) xattrs: XattrSets,
    pub(super) nested_archives: Vec<NestedArchive>,
}

impl SideTables {
    /// Empty tables with limits for segments of sparse files, and for bytes of attributes.
    pub(super) fn new(segments_max: usize, xattrs_max: usize) -> Self {
        Self {
            sparse_maps: SparseMaps { segments_max, segments: Vec::new(), ends: Vec::new() },
            xattrs: XattrSets { bytes_max: xattrs_max, ..XattrSets::default() },
            nested_archives: Vec::new(),
        }
    }
}

/// All maps so far.
pub(super) struct SparseMaps {
    /// The stored segments of all files, one map after the other.
    pub(super) segments: Vec<Segment>,
    /// Most segments to keep.
    segments_max: usize,
    /// Where each map ends in `segments`.
    ends: Vec<u64>,
}

impl SparseMaps {
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

    /// For each map: where it ends in `segments`, and how many bytes it stores.
    pub(super) fn map_records(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let map = self.segments.get(index(start)..index(end)).unwrap_or_default();
            start = end;
            (end, map.iter().fold(0, |sum: u64, segment| sum.saturating_add(segment.len)))
        })
    }
}

/// All sets of attributes so far, and the nodes that have them. Members with the same attributes
/// share one set.
///
/// A set is the number of attributes, then the name and the value of each. Each name and value
/// follows its length (4 bytes). `Index::xattrs_of` decodes it.
#[derive(Default)]
pub(super) struct XattrSets {
    /// The sets, encoded one after the other.
    pub(super) bytes: Vec<u8>,
    /// Most bytes to keep.
    bytes_max: usize,
    /// Offset in `bytes` by the hash of a set. If different sets have one hash, the entry is that
    /// of the set added last.
    offsets: HashMap<u64, u64>,
    /// Members with attributes, in the order of the scan.
    pub(super) entries: Vec<XattrEntry>,
}

/// A member with attributes.
#[derive(Clone, Copy)]
pub(super) struct XattrEntry {
    /// Its slot, which may be `Slot::ROOT`.
    pub(super) slot: Slot,
    /// The offset of its set.
    pub(super) set: u64,
    pub(super) depth: u32,
}

impl XattrSets {
    /// Adds the attributes of a member in `slot` at `depth`. Returns false if there is no room for
    /// them.
    pub(super) fn add(&mut self, slot: Slot, list: &[(Vec<u8>, Vec<u8>)], depth: u32) -> bool {
        if list.is_empty() {
            return true;
        }
        let set = self.intern(&encoded(list));
        self.entries.extend(set.map(|set| XattrEntry { slot, set, depth }));
        set.is_some()
    }

    /// The offset of `set` in `bytes`, or `None` if there is no room for it.
    fn intern(&mut self, set: &[u8]) -> Option<u64> {
        let hash = xxh3_64(set);
        let offset = self.offsets.get(&hash).copied();
        let is_equal = |&offset: &u64| {
            let rest = self.bytes.get(index(offset)..).unwrap_or_default();
            // A set starts with its lengths, so no set is a prefix of another.
            rest.starts_with(set)
        };
        if let Some(offset) = offset.filter(is_equal) {
            return Some(offset);
        }
        let offset = self.bytes.len();
        if offset.saturating_add(set.len()) > self.bytes_max {
            return None;
        }
        self.bytes.extend(set);
        self.offsets.insert(hash, length(offset));
        Some(length(offset))
    }
}

fn encoded(list: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut set = Vec::new();
    let put_number = |bytes: &mut Vec<u8>, number: usize| {
        bytes.extend(u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
    };
    put_number(&mut set, list.len());
    for (name, value) in list {
        for part in [name, value] {
            put_number(&mut set, part.len());
            set.extend(part);
        }
    }
    set
}
