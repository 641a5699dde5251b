//! Encodes the extended attributes of members. Members with the same attributes share one set.
//!
//! A set is the number of attributes, then the name and the value of each. Each name and value
//! follows its length (4 bytes). `Index::xattrs_of` decodes it.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use super::slot::Slot;
use crate::formats::bytes::{index, length};
use crate::formats::limits::MEMBER_XATTRS_MAX;

/// All sets of attributes so far, and the nodes that have them.
pub(super) struct XattrSets {
    /// The sets, encoded one after the other.
    bytes: Vec<u8>,
    /// Most bytes to keep.
    bytes_max: usize,
    /// Offset in `bytes` by the hash of a set. If different sets have one hash, the entry is that
    /// of the set added last.
    offsets: HashMap<u64, u64>,
    entries: Vec<XattrEntry>,
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
    pub(super) fn new() -> Self {
        Self {
            bytes: Vec::new(),
            bytes_max: MEMBER_XATTRS_MAX,
            offsets: HashMap::new(),
            entries: Vec::new(),
        }
    }

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

    /// The encoded sets.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Members with attributes, in the order of the scan.
    pub(super) fn entries(&self) -> &[XattrEntry] {
        &self.entries
    }

    #[cfg(test)]
    pub(super) fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
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
