//! The memory of decoded blocks: its limit, and buffers that are reused.
//!
//! A permit is taken before the memory is allocated and lives as long as the memory: while a block
//! is decoded, cached, or held by a reader. So the permits never add up to more than the limit,
//! whatever readers do. The one exception is a block that needs more than the limit: it is decoded
//! once there is no other permit.
//!
//! The hard part is to find memory. The caches are usually full, so a reader that has to decode a
//! block first evicts others, from one cache after the other. A reader may still hold an evicted
//! block, or all the memory may be in use for decoding. Then the reader waits. Whenever a permit is
//! returned or a block enters a cache, the reader tries again. Readers are served first come, first
//! served, so a stream of small requests cannot starve a large one.
//!
//! No thread that holds the permit of an unfinished block waits for another permit. So there is no
//! deadlock: cached blocks can be evicted, and all other permits are returned eventually.
//!
//! Fresh memory costs a page fault per 4 KiB, which is as expensive as decoding the page, and a
//! buffer that was just used is still in the CPU cache. So a dropped block returns its buffer to a
//! pool, and the next block is decoded into it. At most `FREE_BYTES` of each size (or `FREE_COUNT`
//! buffers, if that is more) are kept, and no lock is held while a buffer is filled or freed.
//!
//! A block also counts how much of it was handed out. The kernel keeps what a mount reads in its
//! page cache, so a block whose every byte was read once would only be a second copy. Such a block
//! is used up and leaves the cache. During an epoch over an archive much larger than the budget,
//! memory then holds only data that is still to be read.

use std::fmt;
// Not the model checker's: it would multiply the interleavings that the models explore.
use std::sync::atomic::AtomicUsize;

use super::Cached;
use super::budget::{Fraction, Resize};
use crate::error::{Error, Kind, Result};
use crate::os::heap::PageAligned;
use crate::sync::{Arc, AtomicU64, Condvar, Mutex, Ordering, Weak};

#[cfg(all(test, feature = "model"))]
mod model;
#[cfg(test)]
mod tests;

/// Free buffers kept per size, in bytes: enough for all threads of a typical node.
const FREE_BYTES: usize = 8 << 20;

/// Free buffers kept if the blocks are large.
const FREE_COUNT: usize = 4;

/// A cache that can release memory.
pub trait Evict: Send + Sync {
    /// Drops values that weigh at least `bytes` together, or all values; returns the weight
    /// dropped.
    fn evict(&self, bytes: u64) -> u64;
}

/// The limit on the memory for decoded blocks and for decoding.
pub struct MemoryLimit {
    /// No other lock is held while this one is taken, and no decoding or eviction runs under it.
    state: Mutex<State>,
    /// Signals that `State::changes` has changed.
    changed: Condvar,
    /// Guards the list. Held to look up one cache.
    caches: Mutex<Vec<Weak<dyn Evict>>>,
    /// The index of the next cache to evict from.
    next_cache: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    /// The limit on the sum of all permits, in bytes.
    limit: u64,
    /// The limit with the original budget, in bytes.
    original: u64,
    /// The sum of all permits, in bytes.
    taken: u64,
    /// The ticket of the next caller, and the ticket to be served next.
    next: u64,
    serving: u64,
    /// Counts events that may let a waiting thread have its permit.
    changes: u64,
}

/// A reservation of memory, returned when dropped.
pub struct Permit {
    limit: Arc<MemoryLimit>,
    bytes: u64,
}

impl MemoryLimit {
    /// A limit of `bytes`.
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State { limit: bytes, original: bytes, ..State::default() }),
            changed: Condvar::new(),
            caches: Mutex::default(),
            next_cache: AtomicUsize::new(0),
        })
    }

    /// Reserves `bytes` permanently for a cache that does its own accounting.
    pub fn set_aside(&self, bytes: u64) {
        self.change(|state| {
            state.original = state.original.saturating_sub(bytes);
            state.limit = state.original;
        });
    }

    /// Registers `cache` for eviction.
    pub fn add(&self, cache: Weak<dyn Evict>) {
        self.caches.lock().push(cache);
    }

    /// Waits for a permit for `bytes`, until all earlier callers have theirs. The caller must not
    /// hold the permit of a block that is still being decoded.
    pub fn wait(self: &Arc<Self>, bytes: u64) -> Permit {
        let mut state = self.state.lock();
        let ticket = state.next;
        state.next = state.next.wrapping_add(1);
        loop {
            if ticket == state.serving {
                if state.fits(bytes) {
                    break;
                }
                let (changes, missing) = (state.changes, state.missing(bytes));
                drop(state);
                self.evict(missing);
                state = self.state.lock();
                if state.changes != changes {
                    continue;
                }
            }
            self.changed.wait(&mut state);
        }
        state.serving = state.serving.wrapping_add(1);
        state.taken = state.taken.saturating_add(bytes);
        let has_waiters = state.next != state.serving;
        drop(state);
        if has_waiters {
            // The next waiter may fit too.
            self.changed.notify_all();
        }
        Permit { limit: Arc::clone(self), bytes }
    }

    /// Like `wait`, but returns `None` instead of waiting. It never overtakes a waiting thread.
    pub fn now(self: &Arc<Self>, bytes: u64) -> Option<Permit> {
        for is_last_try in [false, true] {
            let mut state = self.state.lock();
            if state.next != state.serving {
                return None;
            }
            if state.fits(bytes) {
                state.taken = state.taken.saturating_add(bytes);
                return Some(Permit { limit: Arc::clone(self), bytes });
            }
            let missing = state.missing(bytes);
            drop(state);
            if !is_last_try {
                self.evict(missing);
            }
        }
        None
    }

    /// Like `now`, for decoding ahead.
    ///
    /// # Errors
    /// `Busy` if there is no room now.
    pub fn ahead(self: &Arc<Self>, bytes: u64) -> Result<Permit> {
        self.now(bytes).ok_or_else(|| {
            Error::new(Kind::Busy, "no room to decode ahead, others are waiting for it")
        })
    }

    /// To be called when a value with a permit enters a cache, where it can be evicted.
    pub fn entered(&self) {
        self.change(|_| ());
    }

    /// The sum of all permits, in bytes.
    pub fn taken(&self) -> u64 {
        self.state.lock().taken
    }

    /// Evicts up to `missing` bytes from the caches in turn, with no lock held.
    fn evict(&self, missing: u64) {
        let (mut freed, mut empty) = (0_u64, 0);
        while freed < missing {
            let cache = {
                let caches = self.caches.lock();
                if empty >= caches.len() {
                    return;
                }
                let nth = self.next_cache.fetch_add(1, Ordering::Relaxed) % caches.len();
                caches[nth].upgrade()
            };
            // Eviction, and possibly freeing the cache itself, happens with no lock held.
            match cache.map_or(0, |cache| cache.evict(missing - freed)) {
                0 => empty += 1,
                evicted => (freed, empty) = (freed.saturating_add(evicted), 0),
            }
        }
    }

    /// Changes the state in a way that may let a waiting thread have its permit.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        state.changes = state.changes.wrapping_add(1);
        let has_waiters = state.next != state.serving;
        drop(state);
        if has_waiters {
            self.changed.notify_all();
        }
    }

    fn give_back(&self, bytes: u64) {
        if bytes > 0 {
            self.change(|state| state.taken = state.taken.saturating_sub(bytes));
        }
    }
}

impl Resize for MemoryLimit {
    /// Existing permits stay valid.
    fn resize(&self, fraction: Fraction) {
        self.change(|state| state.limit = fraction.of(state.original));
    }
}

impl State {
    fn fits(&self, bytes: u64) -> bool {
        self.taken == 0 || self.taken.saturating_add(bytes) <= self.limit
    }

    /// Bytes that must be returned before `bytes` fit.
    fn missing(&self, bytes: u64) -> u64 {
        self.taken.saturating_add(bytes).saturating_sub(self.limit).min(self.taken)
    }
}

impl Permit {
    /// The size of the reservation, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns all but `bytes`.
    pub fn shrink(&mut self, bytes: u64) {
        let returned = self.bytes.saturating_sub(bytes);
        self.bytes = self.bytes.min(bytes);
        self.limit.give_back(returned);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limit.give_back(self.bytes);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({} bytes)", self.bytes)
    }
}

/// The pools of a mount, one per block size of its archives.
#[derive(Debug, Default)]
pub struct BlockPools(
    /// Guards the list. Held for a lookup when an archive is opened.
    Mutex<Vec<Arc<BlockPool>>>,
);

/// Reusable buffers for blocks of at most one size.
#[derive(Debug)]
pub struct BlockPool {
    /// Size of each buffer, in bytes.
    size: usize,
    /// Guards the free buffers, most recently used on top. Held for a push or a pop.
    free: Mutex<Vec<PageAligned>>,
}

/// A decoded block.
#[derive(Debug)]
pub struct Block {
    /// The first `len` bytes are the content.
    buffer: PageAligned,
    len: usize,
    /// Bytes handed to readers; repeated reads count again.
    handed_out: AtomicU64,
    pool: Arc<BlockPool>,
    /// The permit for the buffer's memory; returned last.
    permit: Option<Permit>,
}

impl BlockPools {
    /// The pool of buffers of `size` bytes. All archives share it, so that each does not keep its
    /// own.
    pub fn of(&self, size: usize) -> Arc<BlockPool> {
        let mut pools = self.0.lock();
        if let Some(pool) = pools.iter().find(|pool| pool.size == size) {
            return Arc::clone(pool);
        }
        let pool = BlockPool::new(size);
        pools.push(Arc::clone(&pool));
        pool
    }
}

impl BlockPool {
    /// A pool of buffers of `size` bytes.
    pub fn new(size: usize) -> Arc<Self> {
        Arc::new(Self { size, free: Mutex::new(Vec::with_capacity(Self::free_max(size))) })
    }

    /// How many free buffers of `size` bytes a pool keeps.
    fn free_max(size: usize) -> usize {
        (FREE_BYTES / size.max(1)).max(FREE_COUNT)
    }

    /// A block filled by `fill`, which gets a buffer of unspecified content and returns the number
    /// of bytes it wrote.
    pub fn block(self: &Arc<Self>, fill: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<Block> {
        let free = self.free.lock().pop();
        let buffer = free.unwrap_or_else(|| PageAligned::zeroed(self.size));
        let pool = Arc::clone(self);
        let mut block = Block { buffer, len: 0, handed_out: AtomicU64::new(0), pool, permit: None };
        block.len = fill(&mut block.buffer)?.min(self.size);
        Ok(block)
    }

    /// Frees all buffers in the pool.
    pub fn release(&self) {
        let empty = Vec::with_capacity(Self::free_max(self.size));
        let free = std::mem::replace(&mut *self.free.lock(), empty);
        drop(free);
    }

    fn take_back(&self, buffer: PageAligned) {
        // A buffer that `fitted` cut to size cannot be reused.
        if buffer.len() != self.size {
            return;
        }
        let mut free = self.free.lock();
        if free.len() < Self::free_max(self.size) {
            free.push(buffer);
        } else {
            drop(free);
            drop(buffer);
        }
    }
}

impl Block {
    /// The decoded bytes.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(..self.len).unwrap_or_default()
    }

    /// Counts `count` bytes as handed to a reader. Returns whether the block is used up now.
    pub fn hand_out(&self, count: usize) -> bool {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        let before = self.handed_out.fetch_add(count, Ordering::Relaxed);
        before.saturating_add(count) >= u64::try_from(self.len).unwrap_or(u64::MAX)
    }

    /// Attaches the permit for the block's memory.
    #[must_use]
    pub fn with(mut self, permit: Permit) -> Self {
        self.permit = Some(permit);
        self
    }

    /// Moves the bytes to a smaller buffer if that saves at least a quarter.
    #[must_use]
    pub fn fitted(mut self) -> Self {
        if self.len < self.buffer.len() / 4 * 3 {
            let whole = std::mem::take(&mut self.buffer);
            self.buffer = PageAligned::zeroed(self.len);
            self.buffer.copy_from_slice(whole.get(..self.len).unwrap_or_default());
            self.pool.take_back(whole);
            if let Some(permit) = &mut self.permit {
                permit.shrink(u64::try_from(self.len).unwrap_or(u64::MAX));
            }
        }
        self
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Cached for Arc<Block> {
    fn weight(&self) -> u64 {
        u64::try_from(self.buffer.len()).unwrap_or(u64::MAX)
    }

    fn decoded_len(&self) -> u64 {
        u64::try_from(self.len).unwrap_or(u64::MAX)
    }

    fn is_used_up(&self) -> bool {
        self.hand_out(0)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.pool.take_back(std::mem::take(&mut self.buffer));
    }
}
