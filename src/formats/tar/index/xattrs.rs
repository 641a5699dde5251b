//! Extended attributes of members, kept once for all that have the same.
//!
//! Owns the layout of a set: its number of attributes, then name and value of each, behind their
//! lengths (4 bytes each). `Index::xattrs_of` reads it.

use super::super::members::{Member, Members};
use super::builder::Builder;
use crate::formats::bytes::{index, length};

impl Builder {
    /// Keeps the attributes of `member`, which is the folder or the pending node `number`.
    pub(super) fn set_xattrs(
        &mut self,
        number: u32,
        members: &Members,
        member: &Member,
        of_folder: bool,
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
        let at = match self.known_xattrs.get(&set) {
            Some(&at) => at,
            None => {
                let at = length(self.xattrs.len());
                self.xattrs.extend(&set);
                self.known_xattrs.insert(set, at);
                at
            }
        };
        let pending = if of_folder {
            // The root has no pending node; it is the one that no number stands for.
            self.folders.get(index(number)).copied().flatten().unwrap_or(u32::MAX)
        } else {
            number
        };
        self.with_xattrs.push((pending, at, self.depths.now()));
    }
}
