//! Whether a copy may grow, while it is filled.

use std::fs::File;

use crate::os::memory::{self, Headroom};
use crate::os::unlinked;
use crate::sync::Arc;
use crate::units::Size;

/// Says why the copy should not grow now; `None` if it may.
pub type Room = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// What a copy leaves to others: this part of the memory of the job or of the free space, and at
/// most this many bytes.
const RESERVE_PART: u64 = 16;
const MEMORY_RESERVE_MAX: u64 = 256 << 20;
const DISK_RESERVE_MAX: u64 = 1 << 30;

/// The room of a copy in memory of `len` bytes, if this much was `left` before it.
pub fn room_in_memory(len: u64, left: Option<Headroom>) -> Room {
    // If nothing else needs memory, the copy fits.
    let spare = left.map_or(u64::MAX, |left| left.bytes.saturating_sub(len) / 2);
    room_above(memory_reserve().min(spare))
}

/// The room of a copy in memory that need not be complete.
pub(in crate::storage) fn room_beside_others() -> Room {
    room_above(memory_reserve())
}

/// The room of a copy on a disk that need not be complete.
pub(in crate::storage) fn room_on_disk(file: &Arc<File>) -> Room {
    let file = Arc::clone(file);
    let free = move || unlinked::free_bytes(&file).ok().flatten();
    let reserve = free().map_or(0, |free| (free / RESERVE_PART).min(DISK_RESERVE_MAX));
    Box::new(move || {
        let free = free().filter(|&free| free < reserve)?;
        Some(format!("only {} are free", Size(free)))
    })
}

fn memory_reserve() -> u64 {
    let part = memory::limit().map_or(MEMORY_RESERVE_MAX, |limit| limit / RESERVE_PART);
    part.min(MEMORY_RESERVE_MAX)
}

/// Room as long as this much memory is left.
fn room_above(reserve: u64) -> Room {
    Box::new(move || {
        let Headroom { bytes, bound } = memory::headroom().filter(|left| left.bytes < reserve)?;
        Some(format!("{} only {}", bound.leaves(), Size(bytes)))
    })
}
