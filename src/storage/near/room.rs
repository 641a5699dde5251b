//! Whether a copy may grow while it is filled, and what it keeps in memory if it may not.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::NearCopy;
use super::schedule::Schedule;
use crate::error::{Error, Kind};
use crate::os::memory::{self, Headroom};
use crate::os::unlinked;
use crate::stats::StageCounts;
use crate::sync::{Arc, Mutex, MutexGuard, Ordering};
use crate::units::Size;

/// Time until the next look for room, while there is none.
const ROOM_RETRY: Duration = Duration::from_secs(5);

/// Says why the copy should not grow now; `None` if it may.
pub type Room = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// What a copy in memory leaves to the job: this part of its memory, and at most this many bytes.
const RESERVE_PART: u64 = 16;
const RESERVE_MAX: u64 = 256 << 20;

/// The part of the job's memory, or of the free space, that a copy takes for which the user has not
/// asked.
const UNASKED_IN_MEMORY: u64 = 16;
const UNASKED_ON_DISK: u64 = 4;

/// The room of a copy in memory of `len` bytes, if this much was `left` before it.
pub fn room_in_memory(len: u64, left: Option<Headroom>) -> Room {
    // If nothing else needs memory, the copy fits.
    let spare = left.map_or(u64::MAX, |left| left.bytes.saturating_sub(len) / 2);
    let reserve = reserve().min(spare);
    Box::new(move || lack_of_memory(reserve))
}

/// The room of a copy in `file` for which the user has not asked, and about how many bytes that is.
pub(in crate::storage) fn room_on_demand(file: &Arc<File>) -> (Room, u64) {
    let is_in_memory = unlinked::is_in_memory(file);
    let most = match is_in_memory {
        true => memory::limit().map(|limit| limit / UNASKED_IN_MEMORY),
        false => unlinked::free_bytes(file).ok().flatten().map(|free| free / UNASKED_ON_DISK),
    };
    let most = most.unwrap_or(u64::MAX);
    (room_below(file, most, if is_in_memory { reserve() } else { 0 }), most)
}

/// The room of a copy in `file` of at most this many bytes, which leaves `reserve` bytes of memory.
fn room_below(file: &Arc<File>, most: u64, reserve: u64) -> Room {
    let file = Arc::clone(file);
    Box::new(move || {
        // 512 bytes each, whatever the file system (inode(7), st_blocks).
        let taken = file.metadata().map_or(0, |found| found.blocks().saturating_mul(512));
        if taken >= most {
            return Some(format!("it has {}, which is enough without --stage", Size(taken)));
        }
        lack_of_memory(reserve)
    })
}

/// Bytes of archives of `len` bytes that may be in the page cache and not be used yet, next to a
/// cache of `cache_bytes`. If not all fit, half of the memory that is left, so that files that are
/// read through the mount do not evict them.
pub fn unused_in_page_cache(len: u64, cache_bytes: u64, left: Option<Headroom>) -> u64 {
    match left {
        Some(Headroom { bytes, .. }) if len.saturating_add(cache_bytes) > bytes => {
            bytes.saturating_sub(cache_bytes) / 2
        }
        _ => u64::MAX,
    }
}

fn reserve() -> u64 {
    memory::limit().map_or(RESERVE_MAX, |limit| limit / RESERVE_PART).min(RESERVE_MAX)
}

/// Says so if less than `reserve` bytes of memory are left.
fn lack_of_memory(reserve: u64) -> Option<String> {
    let Headroom { bytes, bound } = memory::headroom().filter(|left| left.bytes < reserve)?;
    Some(format!("{} only {}", bound.leaves(), Size(bytes)))
}

impl NearCopy {
    /// Looks for room, which reads files of /proc and /sys and so happens without the lock.
    pub(super) fn look_for_room<'s>(
        &'s self,
        schedule: MutexGuard<'s, Schedule>,
    ) -> MutexGuard<'s, Schedule> {
        drop(schedule);
        if let Some(why) = (self.room)() {
            self.wait_for_room(&why);
        }
        let left = if self.is_in_memory() { memory::headroom() } else { None };
        let missing = self.len.saturating_sub(self.copied.load(Ordering::Relaxed));
        let has_room = left.as_ref().is_none_or(|left| left.bytes / 2 >= missing);
        let unused_max = match &self.file {
            Some(_) => u64::MAX,
            None => unused_in_page_cache(self.len, self.cache_bytes, left),
        };
        let mut schedule = self.schedule.lock();
        schedule.unused_max = unused_max;
        schedule.has_room_for_others = has_room;
        schedule.note_look(Instant::now());
        schedule
    }

    /// Keeps nothing for some time. Warns the first time.
    pub(super) fn wait_for_room(&self, why: &str) {
        self.schedule.lock().wait_for_room(Instant::now() + ROOM_RETRY);
        self.failure.lock().get_or_insert_with(|| Error::new(Kind::Io, why.to_owned()));
        if !self.has_warned_of_room.swap(true, Ordering::Relaxed) {
            let StageCounts { copied, total } = self.counts();
            log::warn!(
                "{}: {why}; {} of {} are copied, and archfs reads the rest from the archives",
                self.name,
                Size(copied),
                Size(total)
            );
        }
    }
}

/// Blocks that are kept: one for each thread that scans an archive, and some more.
const BLOCKS: usize = 16;

/// The blocks of tables that a copy without room has read last. Tables are read a few bytes at a
/// time. If the source is far away, each read would take a request.
#[derive(Debug, Default)]
pub(super) struct RecentTables {
    /// Offsets in the copy, and bytes. Held to find or add a block.
    blocks: Mutex<VecDeque<(u64, Arc<Vec<u8>>)>>,
}

impl RecentTables {
    /// Fills `buffer` with the bytes at `offset`. Returns whether a block has them all.
    pub(super) fn copy_to(&self, buffer: &mut [u8], offset: u64) -> bool {
        let inside = |start: u64, len: usize| {
            let from = usize::try_from(offset.checked_sub(start)?).ok()?;
            let end = from.checked_add(buffer.len())?;
            (end <= len).then_some(from..end)
        };
        let blocks = self.blocks.lock();
        let found = blocks
            .iter()
            .find_map(|(start, block)| Some((Arc::clone(block), inside(*start, block.len())?)));
        drop(blocks);
        found.is_some_and(|(block, range)| {
            buffer.copy_from_slice(&block[range]);
            true
        })
    }

    /// Adds the block that was read at `offset`; the oldest makes room for it.
    pub(super) fn add(&self, offset: u64, block: Vec<u8>) {
        let mut blocks = self.blocks.lock();
        if blocks.len() == BLOCKS {
            blocks.pop_front();
        }
        blocks.push_back((offset, Arc::new(block)));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn half_of_the_memory_beside_the_cache_is_for_archives_that_do_not_fit() {
        let most = |len, bytes| {
            unused_in_page_cache(len, 28, Some(Headroom { bytes, bound: memory::Bound::Node }))
        };
        assert_eq!(most(100, 128), u64::MAX);
        assert_eq!([127, 29, 28, 0].map(|left| most(100, left)), [49, 0, 0, 0]);
        assert_eq!(unused_in_page_cache(u64::MAX, 28, None), u64::MAX);
    }

    /// > Without `--stage`, what was read stays in an unlinked file on this node: at most a quarter
    /// > of the free space of `$TMPDIR` or /tmp, or a sixteenth of the memory if that is in memory.
    #[test]
    fn a_copy_that_nobody_asked_for_ends_at_a_limit() {
        let file = Arc::new(unlinked::create("/dev/shm".as_ref()).unwrap());
        file.set_len(1 << 40).unwrap();
        let room = room_below(&file, 1 << 20, 0);
        assert_eq!(room(), None, "it is empty, although it is long");
        file.write_all_at(&[1; 512 << 10], 1 << 30).unwrap();
        assert_eq!(room(), None);
        file.write_all_at(&[1; 512 << 10], 1 << 33).unwrap();
        assert!(room().unwrap().contains("which is enough without --stage"), "{:?}", room());
        assert!(room_below(&file, u64::MAX, u64::MAX)().is_some(), "memory is short");
        assert_eq!((UNASKED_IN_MEMORY, UNASKED_ON_DISK), (16, 4));
        assert_eq!(room_on_demand(&file).0(), None);
    }

    #[test]
    fn only_a_block_with_all_bytes_is_used_and_old_ones_go() {
        let tables = RecentTables::default();
        tables.add(100, (0..50).collect());
        let read = |offset, len| {
            let mut buffer = vec![0; len];
            tables.copy_to(&mut buffer, offset).then_some(buffer)
        };
        assert_eq!(read(110, 3), Some(vec![10, 11, 12]));
        assert_eq!(read(100, 50).map(|found| found.len()), Some(50));
        for (offset, len) in [(99, 2), (149, 2), (150, 1), (u64::MAX, 1)] {
            assert_eq!(read(offset, len), None);
        }
        for number in 1..=BLOCKS as u64 {
            assert!(read(110, 3).is_some());
            tables.add(1000 * number, vec![0; 10]);
        }
        assert_eq!(read(110, 3), None);
    }
}
