//! Decoded chunks of all compressed archives of a mount, and which are decoded ahead of a reader.
//!
//! Owns the bound on the memory of all that; leaves which chunks stay to `cache`, and how many are
//! decoded at once to `turns`.
//! Invariant: what is being decoded takes at most as much memory again as the cache has, or one
//! chunk where that is more: a mount has many threads, and chunks of xz may have 64 MiB each.

use std::ops::Range;

use super::turns::Turns;
use crate::cache::{Budget, Cache, Fetch, Part, Readahead, Request, Resize, Workers};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::length;
use crate::stats::{Held, Stats};
use crate::sync::{Arc, AtomicU64, Ordering, Weak};
use crate::vfs::SharedBytes;

/// How much memory decoding a chunk takes, in sizes of the chunk: the decoder's output, the copy of
/// it that is shared, and input and tables, which are less than a third.
const SIZES: u64 = 3;

/// Who wants a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// A reader, who waits.
    Now,
    /// Perhaps one soon.
    Ahead,
}

/// Chunks that the cache must have room for before one is decoded ahead.
const AHEAD_LEAST: u64 = 8;

/// By archive number and chunk number.
pub(crate) struct ChunkCache {
    cache: Cache<(u32, u32), SharedBytes>,
    /// The capacity it was made with, and now, bytes.
    whole: u64,
    capacity: AtomicU64,
    turns: Turns,
    /// Who reads an archive in order, by its number.
    readahead: Readahead,
    workers: Arc<Workers>,
}

impl ChunkCache {
    /// A cache of at most `capacity` bytes of chunks of at most `heaviest` bytes; `workers` decode
    /// ahead.
    pub(crate) fn new(capacity: u64, heaviest: u64, workers: Arc<Workers>) -> Self {
        Self {
            cache: Cache::new(capacity, heaviest),
            whole: capacity,
            capacity: AtomicU64::new(capacity),
            turns: Turns::new(capacity),
            readahead: Readahead::new(capacity),
            workers,
        }
    }

    /// Has `stats` ask what it did.
    pub(crate) fn report_to(&self, stats: &Stats) {
        self.cache.report_to(stats, Held::Data);
    }

    /// Becomes smaller and larger with `budget`.
    pub(crate) fn draw_on(self: &Arc<Self>, budget: &Budget) {
        let itself = Arc::downgrade(self);
        budget.add(itself);
    }

    /// Takes note of a read of `range` of the decoded bytes of `archive`, which are `len`; returns
    /// which bytes to decode ahead of it now, if any.
    pub(super) fn observe(&self, archive: u32, range: Range<u64>, len: u64) -> Option<Range<u64>> {
        self.readahead.observe(u64::from(archive), range, len)
    }

    /// Whether a reader is still on its way to `range` of `archive`.
    pub(super) fn is_wanted(&self, archive: u32, range: Range<u64>) -> bool {
        self.readahead.wanted(u64::from(archive), range).is_some()
    }

    /// Has `by` fetch chunk `number` of `len` bytes ahead of a reader; tells whether to ask on.
    /// Not one so large that what is being read would have to make room for it.
    pub(super) fn decode_ahead(&self, by: Weak<dyn Fetch>, number: usize, len: u64) -> bool {
        len.saturating_mul(AHEAD_LEAST) <= self.capacity.load(Ordering::Relaxed)
            && self.workers.submit(Request { by, file: length(number), range: 0..len })
    }

    /// Frees the chunks of all archives. Those being decoded now are kept.
    pub(super) fn release(&self) {
        self.cache.clear();
    }

    /// The chunk `key` of `len` bytes, from the cache or from `decode`, once there is room for
    /// that.
    ///
    /// # Errors
    /// What `decode` reports; `Busy` where there is no room now and nobody waits for the chunk.
    pub(super) fn get_or_decode(
        &self,
        key: (u32, u32),
        len: usize,
        demand: Demand,
        decode: impl Fn() -> Result<SharedBytes>,
    ) -> Result<SharedBytes> {
        self.cache.get_or_load(key, || {
            let bytes = length(len).saturating_mul(SIZES);
            let _turn = match demand {
                Demand::Now => self.turns.wait(bytes),
                Demand::Ahead => self.turns.now(bytes).ok_or_else(|| {
                    Error::new(Kind::Busy, "no room to decode ahead, others are waiting for it")
                })?,
            };
            decode()
        })
    }
}

impl Resize for ChunkCache {
    fn resize(&self, part: Part) {
        let capacity = part.of(self.whole);
        self.capacity.store(capacity, Ordering::Relaxed);
        self.turns.set_room(capacity);
        self.readahead.set_capacity(capacity);
        self.cache.resize(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{AtomicU64, Ordering};

    #[test]
    fn decodes_no_more_at_once_than_there_is_room_for() {
        let chunks = ChunkCache::new(90, 10, Arc::default());
        let (now, most) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (chunks, now, most) = (&chunks, &now, &most);
                scope.spawn(move || {
                    for number in 0..50 {
                        // Every tenth is larger than all the room there is, and still gets a turn.
                        let len = if number % 10 == 0 { 40 } else { 10 };
                        let decode = || {
                            let before = now.fetch_add(len, Ordering::Relaxed);
                            most.fetch_max(before + len, Ordering::Relaxed);
                            std::thread::yield_now();
                            now.fetch_sub(len, Ordering::Relaxed);
                            Ok(vec![0; usize::try_from(len).unwrap()].into())
                        };
                        let len = usize::try_from(len).unwrap();
                        chunks.get_or_decode((thread, number), len, Demand::Now, decode).unwrap();
                    }
                });
            }
        });
        // Three of ten bytes, or one of forty alone.
        assert!(most.into_inner() <= 40);
        assert!(chunks.turns.now(1000).is_some(), "all room was given back");
    }
}
