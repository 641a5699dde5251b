//! Extended attributes of members, kept once for all that have the same.
//!
//! Owns the layout of a set: its number of attributes, then name and value of each, behind their
//! lengths (4 bytes each). `Index::xattrs_of` reads it.

use xxhash_rust::xxh3::xxh3_64;

use super::super::members::{Member, Members};
use super::super::notes::Notes;
use super::builder::Builder;
use crate::formats::bytes::{index, length};

/// What is left out, as a note says it.
const TOO_MANY: &str = "extended attributes of members, more than are kept of one archive";

impl Builder {
    /// Keeps the attributes of `member`, which is the folder or the pending node `number`.
    pub(super) fn set_xattrs(
        &mut self,
        number: u32,
        members: &Members,
        member: &Member,
        of_folder: bool,
        notes: &mut Notes,
    ) {
        let list = members.xattrs(member);
        if list.is_empty() {
            return;
        }
        let mut set = Vec::new();
        let number_of = |bytes: &mut Vec<u8>, number: usize| {
            bytes.extend(u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
        };
        number_of(&mut set, list.len());
        for (name, value) in list {
            for part in [name, value] {
                number_of(&mut set, part.len());
                set.extend(part);
            }
        }
        let Some(at) = self.kept(&set) else {
            notes.skip(TOO_MANY, Some(members.path(member)));
            return;
        };
        let pending = if of_folder {
            // The root has no pending node; it is the one that no number stands for.
            self.folders.get(index(number)).copied().flatten().unwrap_or(u32::MAX)
        } else {
            number
        };
        self.with_xattrs.push((pending, at, self.depths.now()));
    }

    /// Where `set` is kept, or `None` where there are too many.
    fn kept(&mut self, set: &[u8]) -> Option<u64> {
        let hash = xxh3_64(set);
        let known = self.known_xattrs.get(&hash).copied();
        let same = |&at: &u64| {
            let rest = self.xattrs.get(index(at)..).unwrap_or_default();
            // A set tells its own length, so none is the beginning of another.
            rest.starts_with(set)
        };
        if let Some(at) = known.filter(same) {
            return Some(at);
        }
        let at = self.xattrs.len();
        if at.saturating_add(set.len()) > self.xattrs_max {
            return None;
        }
        self.xattrs.extend(set);
        self.known_xattrs.insert(hash, length(at));
        Some(length(at))
    }
}
