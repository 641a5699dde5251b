//! Offsets and lengths over 4 GiB in archives without ZIP64.
//!
//! The archive program of macOS writes no ZIP64 records. Numbers that need more than 32 bits are
//! recorded modulo 4 GiB: the offset of the central directory, those of local headers, and the
//! lengths of members. It writes members and their entries in the same order, with nothing between
//! them but data descriptors.
//!
//! The end record shows that an archive is of this kind: the central directory is a multiple of
//! 4 GiB behind its recorded offset. As offsets ascend, each local header is at the first offset
//! that its entry may mean and that is past the member before. That needs no read of a local header
//! except where the next 4 GiB begin, to be sure. If the last member then ends more than 4 GiB
//! before the directory, the length of a member is modulo 4 GiB as well. To find it, the local
//! header of every entry is read: a member is as long as the next header is far.
//!
//! The length of a compressed member does not show that of its decoded data. It must be decoded
//! once for that, when the archive is opened (`Decoder::len_of`).
//!
//! Invariant: if the order leaves a doubt, the archive is refused.

use super::directory::{CentralDirectory, SPAN, Wraps, no_zip64};
use super::entry::{Entry, EntryWalk};
use super::local::{FIXED, LocalHeader};
use crate::error::Result;
use crate::formats::bytes::length;
use crate::storage::Storage;
use crate::sync::Arc;

/// Which local headers to read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Probed {
    /// The first one after each `SPAN`.
    AtWraps,
    All,
}

/// Finds what the numbers of entries lack.
///
/// Fails with `Unsupported` if the order of the entries leaves a doubt; `Corrupt`, `Io`.
pub(super) fn find_wraps(
    storage: &Arc<dyn Storage>,
    directory: &CentralDirectory,
) -> Result<Wraps> {
    if !directory.is_wrapped {
        return Ok(Wraps::default());
    }
    for probed in [Probed::AtWraps, Probed::All] {
        if let Some(found) = in_order(storage, directory, probed)? {
            return Ok(found);
        }
    }
    Err(no_zip64("offsets are recorded modulo 4 GiB, and the order of its members is unclear"))
}

fn in_order(
    storage: &Arc<dyn Storage>,
    directory: &CentralDirectory,
    probed: Probed,
) -> Result<Option<Wraps>> {
    let mut wraps = Wraps::default();
    // Where the member before ends at the least, its entry, and its recorded lengths.
    let mut end = 0_u64;
    let mut before = (0, 0, 0);
    let mut turns = 0;
    let mut walk = EntryWalk::new(storage, directory);
    while let Some((at, entry)) = walk.next()? {
        let recorded = entry.recorded_offset % SPAN;
        let past = end.saturating_sub(recorded).div_ceil(SPAN);
        let mut offset = recorded.saturating_add(past.saturating_mul(SPAN));
        loop {
            if offset.saturating_add(entry.least_len()) > directory.start {
                return Ok(None);
            }
            let is_sure = probed == Probed::AtWraps && offset / SPAN == turns;
            if is_sure || is_header_of(storage.as_ref(), offset, &entry)? {
                break;
            }
            if probed == Probed::AtWraps {
                return Ok(None);
            }
            offset = offset.saturating_add(SPAN);
        }
        while turns < offset / SPAN {
            wraps.turn(at);
            turns = turns.saturating_add(1);
        }
        wraps.extend(before, offset.saturating_sub(end));
        before = (at, entry.compressed, entry.size);
        end = offset.saturating_add(entry.least_len()).saturating_add(length(entry.name.len()));
    }
    let lacking = directory.start.saturating_sub(end);
    if probed == Probed::AtWraps && lacking >= SPAN {
        return Ok(None);
    }
    wraps.extend(before, lacking);
    Ok(Some(wraps))
}

/// Whether the local header of `entry` is at `offset`.
fn is_header_of(storage: &dyn Storage, offset: u64, entry: &Entry<'_>) -> Result<bool> {
    let mut fixed = [0; FIXED];
    storage.read_exact_at(&mut fixed, offset)?;
    match LocalHeader::parse(&fixed) {
        Ok(local) => local.has_name(storage, offset, entry.name),
        Err(_) => Ok(false),
    }
}
