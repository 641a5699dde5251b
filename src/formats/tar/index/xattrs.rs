//! Encodes the extended attributes of members. Members with the same attributes share one set.
//!
//! A set is the number of attributes, then the name and the value of each. Each name and value
//! follows its length (4 bytes). `Index::xattrs_of` decodes it.

use xxhash_rust::xxh3::xxh3_64;

use super::super::members::{Member, Members};
use super::super::notes::Notes;
use super::builder::Builder;
use crate::formats::bytes::{index, length};

/// Why attributes are left out, as a note says it.
const TOO_MANY: &str = "extended attributes of members, more than are kept of one archive";

impl Builder {
    /// Keeps the attributes of `member`. `number` is a directory if `is_directory`, or else a slot.
    pub(super) fn set_xattrs(
        &mut self,
        number: u32,
        members: &Members,
        member: &Member,
        is_directory: bool,
        notes: &mut Notes,
    ) {
        let list = members.xattrs(member);
        if list.is_empty() {
            return;
        }
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
        let Some(offset) = self.intern(&set) else {
            notes.skip(TOO_MANY, Some(members.path(member)));
            return;
        };
        let slot = if is_directory {
            // The root has no slot.
            self.directory_slots.get(index(number)).copied().flatten().unwrap_or(u32::MAX)
        } else {
            number
        };
        self.with_xattrs.push((slot, offset, self.depths.current()));
    }

    /// The offset of `set` in `xattrs`, or `None` if there is no room for it.
    fn intern(&mut self, set: &[u8]) -> Option<u64> {
        let hash = xxh3_64(set);
        let offset = self.xattr_sets.get(&hash).copied();
        let is_equal = |&offset: &u64| {
            let rest = self.xattrs.get(index(offset)..).unwrap_or_default();
            // A set starts with its lengths, so no set is a prefix of another.
            rest.starts_with(set)
        };
        if let Some(offset) = offset.filter(is_equal) {
            return Some(offset);
        }
        let offset = self.xattrs.len();
        if offset.saturating_add(set.len()) > self.xattrs_max {
            return None;
        }
        self.xattrs.extend(set);
        self.xattr_sets.insert(hash, length(offset));
        Some(length(offset))
    }
}
