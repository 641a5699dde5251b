//! Refuses archives in which members share bytes. Such an archive decompresses to a multiple of
//! what its size suggests, and other programs refuse it as a ZIP bomb.
//!
//! Nearly all archives have their entries in the order of their members. Then each member must
//! start after the one before. Only for other archives, all entries are read again and sorted. The
//! bytes of a member are its data and the fixed part of its local header: how long the rest of the
//! header is only the header knows.

use std::hash::{BuildHasher, RandomState};

use super::end::CentralDirectory;
use super::entry::Entry;
use super::entry_walk::EntryWalk;
use crate::error::{Error, Result};
use crate::formats::bytes::length;
use crate::storage::Storage;
use crate::sync::Arc;
use crate::units::counted;

/// Watches the members of an archive in the order of their entries.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Order {
    end: u64,
    is_broken: bool,
}

impl Order {
    /// Adds a member: its bytes from the local header to the end of its data.
    pub(super) fn add(&mut self, start: u64, end: u64) {
        self.is_broken |= start < self.end;
        self.end = self.end.max(end);
    }

    /// Checks that no two members share a byte.
    pub(super) fn check(
        self,
        storage: &Arc<dyn Storage>,
        directory: &CentralDirectory,
    ) -> Result<()> {
        if self.is_broken { check_all(storage, directory) } else { Ok(()) }
    }
}

/// The bytes of a member, and a hash of its name, by a random key.
type Extent = (u64, u64, u64);

fn check_all(storage: &Arc<dyn Storage>, directory: &CentralDirectory) -> Result<()> {
    let (mut extents, hasher) = (Vec::new(), RandomState::new());
    let mut walk = EntryWalk::new(storage, directory);
    while let Some((_, entry)) = walk.next()? {
        extents.extend(extent_of(&entry, directory, &hasher));
    }
    extents.sort_unstable();
    // Some programs write an entry twice.
    extents.dedup();
    let mut pairs = extents.windows(2);
    let overlap = pairs.find_map(|pair| match pair {
        [(_, end, _), (start, ..)] if end > start => Some(*start),
        _ => None,
    });
    match overlap {
        None => Ok(()),
        Some(at) => {
            let members = counted(length(extents.len()), "member");
            Err(Error::corrupt("members overlap: a ZIP bomb, or damage")
                .with_detail(format_args!("at {at:#x}, of {members}"))
                .with_hint("copy it again; if that does not help, do not trust it"))
        }
    }
}

/// `None` for a member that is left out.
fn extent_of(
    entry: &Entry<'_>,
    directory: &CentralDirectory,
    hasher: &RandomState,
) -> Option<Extent> {
    let start = entry.header_offset(directory).ok().filter(|_| entry.unreadable().is_none())?;
    Some((start, start.saturating_add(entry.least_len()), hasher.hash_one(entry.name)))
}
