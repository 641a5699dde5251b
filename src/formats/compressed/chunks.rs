//! Decoded chunks of all compressed archives of a mount, and which are decoded ahead of a reader.
//!
//! Chunks, and what decoding them takes, are bounded together by `cache::Room`: a mount has many
//! threads, and chunks of xz may have 64 MiB each. `cache` decides which chunks stay.

use std::ops::Range;

use super::buffers::Buffers;
use super::spool::SpoolLimit;
use crate::cache::{
    Budget, Cache, Cached, Fetch, Part, Permit, Readahead, Request, Resize, Room, Workers,
    largest_within,
};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::length;
use crate::memory;
use crate::stats::{CacheKind, Stats};
use crate::sync::{Arc, AtomicU64, Ordering, Weak};
use crate::units::Size;

/// A decoded chunk, and the permit for its memory.
#[derive(Debug)]
pub(super) struct Chunk {
    bytes: Vec<u8>,
    /// Where its memory goes.
    buffers: Arc<Buffers>,
    /// Given back last.
    _permit: Permit,
}

impl Chunk {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.buffers.give(std::mem::take(&mut self.bytes));
    }
}

impl Cached for Arc<Chunk> {
    fn weight(&self) -> u64 {
        length(self.bytes.capacity())
    }

    fn decoded_len(&self) -> u64 {
        length(self.bytes.len())
    }
}

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
    cache: Arc<Cache<(u32, u32), Arc<Chunk>>>,
    /// The capacity it was made with, and now, bytes.
    whole: u64,
    capacity: AtomicU64,
    room: Arc<Room>,
    buffers: Arc<Buffers>,
    /// What temporary files of all archives may take.
    spools: Arc<SpoolLimit>,
    /// Who reads an archive in order, by its number.
    readahead: Readahead,
    workers: Arc<Workers>,
}

impl ChunkCache {
    /// A cache of at most `capacity` bytes of chunks of at most `heaviest` bytes; `workers` decode
    /// ahead.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn new(capacity: u64, heaviest: u64, workers: Arc<Workers>) -> Self {
        Self::within(Room::new(capacity), capacity, heaviest, workers)
    }

    /// The same, in a `room` that others share.
    pub(crate) fn within(
        room: Arc<Room>,
        capacity: u64,
        heaviest: u64,
        workers: Arc<Workers>,
    ) -> Self {
        let cache = Arc::new(Cache::new(capacity, heaviest));
        let evicted = Arc::downgrade(&cache);
        room.add(evicted);
        Self {
            cache,
            whole: capacity,
            capacity: AtomicU64::new(capacity),
            room,
            buffers: Arc::new(Buffers::beside(capacity)),
            spools: SpoolLimit::beside(capacity),
            readahead: Readahead::new(capacity),
            workers,
        }
    }

    /// Has `stats` ask what it did.
    pub(crate) fn report_to(&self, stats: &Stats) {
        self.cache.report_to(stats, CacheKind::Data);
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
        self.buffers.release();
    }

    /// Checks that the job can hold the `cost` bytes that decoding a chunk takes, if that is more
    /// than the cache.
    ///
    /// # Errors
    /// `Io` where it cannot.
    pub(super) fn check(&self, cost: u64) -> Result<()> {
        if cost <= self.whole {
            return Ok(());
        }
        let Some(left) = memory::headroom().filter(|left| cost > largest_within(left.bytes)) else {
            return Ok(());
        };
        let context = format!(
            "a part of it must be decoded as one, which takes {} of memory, but {} {}, of which the \
             cache may take {}",
            Size(cost),
            left.bound.leaves(),
            Size(left.bytes),
            Size(largest_within(left.bytes))
        );
        let hint = "give the job more memory, or re-pack the archive in smaller blocks";
        Err(Error::new(Kind::Io, context).with_hint(hint))
    }

    /// Memory for chunks.
    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// What temporary files of all archives may take.
    pub(super) fn spools(&self) -> &Arc<SpoolLimit> {
        &self.spools
    }

    /// A permit for `bytes`, once there is room; chunks are evicted for it. The caller must
    /// have none of an unfinished chunk.
    pub(super) fn wait(&self, bytes: u64) -> Permit {
        self.room.wait(bytes)
    }

    /// The same at once, if no other waits and chunks that can be evicted leave enough room.
    pub(super) fn now(&self, bytes: u64) -> Option<Permit> {
        self.room.now(bytes)
    }

    /// The chunk `key`, from the cache or from `decode`, once there is room for the bytes that
    /// decoding takes, which `cost` finds.
    ///
    /// # Errors
    /// What `decode` reports; `Busy` where there is no room now and nobody waits for the chunk.
    pub(super) fn get_or_decode(
        &self,
        key: (u32, u32),
        cost: impl Fn() -> u64,
        demand: Demand,
        decode: impl Fn() -> Result<Vec<u8>>,
    ) -> Result<Arc<Chunk>> {
        let mut is_new = false;
        let chunk = self.cache.get_or_load(key, || {
            is_new = true;
            let mut permit = match demand {
                Demand::Now => self.wait(cost()),
                Demand::Ahead => self.room.ahead(cost())?,
            };
            let bytes = decode()?;
            permit.shrink(length(bytes.capacity()));
            let buffers = Arc::clone(&self.buffers);
            Ok(Arc::new(Chunk { bytes, buffers, _permit: permit }))
        })?;
        if is_new {
            self.room.entered();
        }
        Ok(chunk)
    }
}

impl Resize for ChunkCache {
    fn resize(&self, part: Part) {
        let capacity = part.of(self.whole);
        self.capacity.store(capacity, Ordering::Relaxed);
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
        let chunks = ChunkCache::new(100, 10, Arc::default());
        let (now, most) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (chunks, now, most) = (&chunks, &now, &most);
                scope.spawn(move || {
                    for number in 0..50 {
                        // Every tenth is larger than all the room there is, and is decoded alone.
                        let len = if number % 10 == 0 { 140 } else { 30 };
                        let decode = || {
                            let before = now.fetch_add(len, Ordering::Relaxed);
                            most.fetch_max(before + len, Ordering::Relaxed);
                            std::thread::yield_now();
                            now.fetch_sub(len, Ordering::Relaxed);
                            Ok(vec![0; 4])
                        };
                        let key = (thread, number);
                        chunks.get_or_decode(key, || len, Demand::Now, decode).unwrap();
                    }
                });
            }
        });
        // Three of 30 bytes, or one of 140 alone.
        assert!(most.into_inner() <= 140);
        assert!(chunks.now(1000).is_some(), "all room was given back");
    }
}
