//! The cache of decoded chunks, shared by all compressed archives of a mount, and the buffers of
//! freed chunks.
//!
//! `cache::MemoryLimit` bounds the memory of chunks and of decoding together: a mount has many
//! threads, and a chunk of xz may have 64 MiB. `cache` decides which chunks to evict.

use std::ops::Range;
// Not the model checker's atomic, which cannot be static.
use std::sync::atomic::AtomicU32;

use super::spool_limit::SpoolLimit;
use crate::cache::{
    Budget, Cache, Cached, Fetch, Fraction, MemoryLimit, Permit, Readahead, Request, Resize,
    Workers, largest_within,
};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::os::memory;
use crate::stats::{CacheKind, Stats};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, Weak};
use crate::units::Size;

/// A decoded chunk and the permit for its memory.
#[derive(Debug)]
pub(crate) struct Chunk {
    bytes: Vec<u8>,
    /// Where the memory is returned to.
    buffers: Arc<Buffers>,
    /// Dropped last, after the memory is returned.
    _permit: Permit,
}

impl Chunk {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.buffers.recycle(std::mem::take(&mut self.bytes));
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

/// Why a chunk is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// A reader waits for it.
    Now,
    /// A reader may need it soon.
    Ahead,
}

/// A chunk is decoded ahead only if the cache has room for this many of its size.
const AHEAD_MIN: u64 = 8;

/// The cache of decoded chunks, by archive number and chunk number.
pub(crate) struct ChunkCache {
    cache: Arc<Cache<(u32, u32), Arc<Chunk>>>,
    /// Initial and current capacity, bytes.
    initial_capacity: u64,
    capacity: AtomicU64,
    room: Arc<MemoryLimit>,
    buffers: Arc<Buffers>,
    /// Limit of the temporary files of all archives.
    spool_limit: Arc<SpoolLimit>,
    /// Which archives are read in order.
    readahead: Readahead,
    workers: Arc<Workers>,
}

/// The number of the next archive. One sequence for all caches, so that an archive can have the
/// same number in another cache as well. After 2^32 archives, the first numbers are long out of the
/// caches.
static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);

/// A number for an archive, or for a member that has chunks, that no other has.
pub(crate) fn new_number() -> u32 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

impl ChunkCache {
    /// A cache of at most `capacity` bytes of chunks of at most `chunk_max` bytes; `workers` decode
    /// ahead.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn new(capacity: u64, chunk_max: u64, workers: Arc<Workers>) -> Self {
        Self::within(MemoryLimit::new(capacity), capacity, chunk_max, workers)
    }

    /// The same, in a `room` shared with other caches.
    pub(crate) fn within(
        room: Arc<MemoryLimit>,
        capacity: u64,
        chunk_max: u64,
        workers: Arc<Workers>,
    ) -> Self {
        let cache = Arc::new(Cache::new(capacity, chunk_max));
        let evicted = Arc::downgrade(&cache);
        room.add(evicted);
        Self {
            cache,
            initial_capacity: capacity,
            capacity: AtomicU64::new(capacity),
            room,
            buffers: Arc::new(Buffers::for_cache(capacity)),
            spool_limit: SpoolLimit::for_cache(capacity),
            readahead: Readahead::new(capacity),
            workers,
        }
    }

    /// Registers its counters with `stats`.
    pub(crate) fn report_to(&self, stats: &Stats) {
        self.cache.report_to(stats, CacheKind::Data);
    }

    /// Lets `budget` resize this cache.
    pub(crate) fn draw_on(self: &Arc<Self>, budget: &Budget) {
        let weak_self = Arc::downgrade(self);
        budget.add(weak_self);
    }

    /// Records a read of `range` in the `len` decoded bytes of `archive`. Returns the range to
    /// decode ahead now, if any.
    pub(super) fn observe(&self, archive: u32, range: Range<u64>, len: u64) -> Option<Range<u64>> {
        self.readahead.observe(u64::from(archive), range, len)
    }

    /// Whether a sequential reader of `archive` is still expected at `range`.
    pub(super) fn is_wanted(&self, archive: u32, range: Range<u64>) -> bool {
        self.readahead.wanted(u64::from(archive), range).is_some()
    }

    /// Requests that `by` fetch chunk `number` of `len` bytes ahead of a reader. Returns false to
    /// stop requesting: the queue is full, or the chunk is so large that it would evict chunks in
    /// use.
    pub(super) fn decode_ahead(&self, by: Weak<dyn Fetch>, number: usize, len: u64) -> bool {
        len.saturating_mul(AHEAD_MIN) <= self.capacity.load(Ordering::Relaxed)
            && self.workers.submit(Request { by, file: length(number), range: 0..len })
    }

    /// Drops the chunk `key`, because a reader has all of it. On a mount, the page cache has it
    /// then.
    pub(crate) fn forget(&self, key: (u32, u32)) {
        self.cache.remove(&key);
    }

    /// Frees the chunks of all archives, except those being decoded.
    pub(crate) fn release(&self) {
        self.cache.clear();
        self.buffers.release();
    }

    /// Checks that the job has `memory_needed` bytes for decoding a chunk, if that is more than the
    /// cache.
    pub(super) fn check(&self, memory_needed: u64) -> Result<()> {
        if memory_needed <= self.initial_capacity {
            return Ok(());
        }
        let Some(left) =
            memory::headroom().filter(|left| memory_needed > largest_within(left.bytes))
        else {
            return Ok(());
        };
        let context = format!(
            "a part of it must be decompressed at once and takes {}; the cache may take {} ({} {})",
            Size(memory_needed),
            Size(largest_within(left.bytes)),
            left.bound.leaves(),
            Size(left.bytes)
        );
        let hint = "give the job more memory, or re-pack the archive in smaller blocks";
        Err(Error::new(Kind::Io, context).with_hint(hint))
    }

    /// Memory for chunks.
    pub(crate) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Limit of the temporary files of all archives.
    pub(super) fn spool_limit(&self) -> &Arc<SpoolLimit> {
        &self.spool_limit
    }

    /// Waits for room and returns a permit for `bytes`; evicts chunks to make room. The caller must
    /// not hold a permit for an unfinished chunk.
    pub(super) fn wait(&self, bytes: u64) -> Permit {
        self.room.wait(bytes)
    }

    /// The same without waiting. None if others wait, or if evicting chunks would not make enough
    /// room.
    pub(super) fn now(&self, bytes: u64) -> Option<Permit> {
        self.room.now(bytes)
    }

    /// The chunk `key`, from the cache or from `decode`, which takes `memory_needed` bytes. Waits
    /// until there is room for them.
    ///
    /// Fails with the error of `decode`, or with `Busy` if the chunk is decoded ahead and there is
    /// no room now.
    pub(crate) fn get_or_decode(
        &self,
        key: (u32, u32),
        memory_needed: impl Fn() -> u64,
        demand: Demand,
        decode: impl Fn() -> Result<Vec<u8>>,
    ) -> Result<Arc<Chunk>> {
        let mut is_new = false;
        let chunk = self.cache.get_or_load(key, || {
            is_new = true;
            let mut permit = match demand {
                Demand::Now => self.wait(memory_needed()),
                Demand::Ahead => self.room.ahead(memory_needed())?,
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
    fn resize(&self, part: Fraction) {
        let capacity = part.of(self.initial_capacity);
        self.capacity.store(capacity, Ordering::Relaxed);
        self.readahead.set_capacity(capacity);
        self.cache.resize(part);
    }
}

/// The smallest buffer that is kept, bytes. The allocator reuses smaller ones well.
const SIZE_MIN: usize = 256 << 10;

/// Buffer sizes are rounded up to this, bytes, so that chunks of similar size can share buffers.
const STEP: usize = 64 << 10;

/// The most free buffers: enough for the chunks that CPU cores decode at once.
const COUNT_MAX: usize = 16;

/// The most bytes in all free buffers. They are also limited to 1/16 of the cache.
const BYTES_MAX: u64 = 8 << 20;

/// The buffers of freed chunks and of their compressed input, for reuse.
///
/// Fresh memory costs a page fault for every 4 KiB; a freed chunk therefore returns its buffer
/// here. Free buffers are a small fraction of the cache and do not count toward its capacity.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// Guards the free buffers, most recently used last. Held for a push or a scan.
    free: Mutex<Vec<Vec<u8>>>,
    /// The most bytes they may hold together.
    bytes_max: u64,
}

impl Buffers {
    /// Buffers for a cache of `capacity` bytes.
    fn for_cache(capacity: u64) -> Self {
        Self { free: Mutex::default(), bytes_max: (capacity / 16).min(BYTES_MAX) }
    }

    /// A buffer of `len` bytes of unspecified content. Its capacity is at most 1/4 or `STEP`
    /// larger.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        let capacity_max = len.saturating_add((len / 4).max(STEP));
        let fits = |buffer: &Vec<u8>| (len..=capacity_max).contains(&buffer.capacity());
        let found = {
            let mut free = self.free.lock();
            free.iter().rposition(fits).map(|nth| free.remove(nth))
        };
        // The kernel provides zeroed pages only when they are first written.
        let fresh = || vec![0; len.checked_next_multiple_of(STEP).unwrap_or(len)];
        let mut buffer = found.unwrap_or_else(fresh);
        buffer.resize(len, 0);
        buffer
    }

    /// Keeps `buffer` for later, or frees it.
    pub(crate) fn recycle(&self, buffer: Vec<u8>) {
        if buffer.capacity() < SIZE_MIN {
            return;
        }
        let mut free = self.free.lock();
        let free_bytes: usize = free.iter().map(Vec::capacity).fold(0, usize::saturating_add);
        let has_room = free_bytes.saturating_add(buffer.capacity()) <= index(self.bytes_max);
        if has_room && free.len() < COUNT_MAX {
            free.push(buffer);
            return;
        }
        drop(free);
        drop(buffer);
    }

    /// Frees all buffers.
    fn release(&self) {
        let freed = std::mem::take(&mut *self.free.lock());
        drop(freed);
    }

    #[cfg(test)]
    fn free_bytes(&self) -> u64 {
        self.free.lock().iter().map(Vec::capacity).sum::<usize>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_the_memory_of_concurrent_decodes() {
        let chunks = ChunkCache::new(100, 10, Arc::default());
        let (in_use, peak) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (chunks, in_use, peak) = (&chunks, &in_use, &peak);
                scope.spawn(move || {
                    for number in 0..50 {
                        // Every tenth chunk is larger than the whole room and is decoded alone.
                        let len = if number % 10 == 0 { 140 } else { 30 };
                        let decode = || {
                            let before = in_use.fetch_add(len, Ordering::Relaxed);
                            peak.fetch_max(before + len, Ordering::Relaxed);
                            std::thread::yield_now();
                            in_use.fetch_sub(len, Ordering::Relaxed);
                            Ok(vec![0; 4])
                        };
                        let key = (thread, number);
                        chunks.get_or_decode(key, || len, Demand::Now, decode).unwrap();
                    }
                });
            }
        });
        // Three of 30 bytes, or one of 140 alone.
        assert!(peak.into_inner() <= 140);
        assert!(chunks.now(1000).is_some(), "all room was given back");
    }

    const MIB: usize = 1 << 20;

    #[test]
    fn reuses_a_buffer_of_similar_size() {
        let buffers = Buffers::for_cache(1 << 30);
        let buffer = buffers.take(MIB);
        let address = buffer.as_ptr();
        buffers.recycle(buffer);
        let other = buffers.take(MIB / 2);
        assert_ne!(other.as_ptr(), address, "twice as large");
        assert_eq!(buffers.free_bytes(), 1 << 20);
        let again = buffers.take(MIB - 1000);
        assert_eq!((again.as_ptr(), again.len()), (address, MIB - 1000));
        assert_eq!(buffers.free_bytes(), 0);
    }

    #[test]
    fn limits_the_free_buffers() {
        let buffers = Buffers::for_cache(64 << 20);
        (0..10).for_each(|_| buffers.recycle(vec![0; MIB]));
        assert_eq!(buffers.free_bytes(), 4 << 20, "a sixteenth of the cache");
        buffers.release();
        assert_eq!(buffers.free_bytes(), 0);
        let buffers = Buffers::for_cache(1 << 30);
        (0..100).for_each(|_| buffers.recycle(vec![0; SIZE_MIN]));
        assert_eq!(buffers.free_bytes(), 4 << 20, "sixteen");
        buffers.recycle(vec![0; SIZE_MIN - 1]);
        assert_eq!(buffers.free_bytes(), 4 << 20);
    }
}
