//! A concurrent cache of decoded blocks: sharded, bounded in bytes, one load per block.
//!
//! Invariant: no lock is held while a block is loaded, waited for or freed. Errors are not cached.
//!
//! Single flight, the hard part. A block that several readers miss at once must be decoded once,
//! and a waiting reader must not wait forever. The first reader to miss becomes the leader: under
//! the shard's lock it leaves a `Flight` in the shard, then it loads with no lock held. Readers
//! that miss in the meantime find the flight and wait on it. The leader lands the flight: under the
//! shard's lock it inserts the block and removes the flight. Then it hands the block itself to the
//! waiters, so they get it even if it is evicted at once. If the leader fails or unwinds, its drop
//! abandons the flight; each waiter then starts over, and one of them leads. The cost is one small
//! allocation per miss.
//!
//! A cache can shrink and grow while it is in use. A smaller cache may use fewer shards, so that
//! each still has room for the heaviest values. Keys then map to other shards, so all values are
//! dropped. A load in progress lands in its old shard, which keeps nothing if it is no longer used.
//! A reader that misses in the meantime loads the block a second time.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
// Not the model checker's atomics: each would multiply the interleavings the models explore.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lru::LruCache;

use crate::error::Result;
use crate::os::processors;
use crate::stats::{CacheCounts, CacheKind, LoadClock, Stats};
use crate::sync::{Arc, Condvar, Mutex};

mod archive_order;
mod budget;
mod memory;
#[cfg(all(test, feature = "model"))]
mod model;
mod readahead;
#[cfg(test)]
mod tests;
mod workers;

pub use archive_order::ArchiveOrder;
pub use budget::{Budget, Fraction, LEAST, Resize, default_bytes, largest_within, reduced_to_fit};
pub use memory::{Block, BlockPool, BlockPools, Evict, MemoryLimit, Permit};
pub use readahead::Readahead;
pub use workers::{Fetch, Request, Workers};

/// A value that a cache can hold: cheap to clone, with a weight in bytes.
pub trait Cached: Clone {
    /// Memory used, in bytes.
    fn weight(&self) -> u64;

    /// Decoded size, in bytes.
    fn decoded_len(&self) -> u64 {
        self.weight()
    }

    /// Whether every expected reader has had it, so that keeping it only wastes memory.
    fn is_used_up(&self) -> bool {
        false
    }
}

impl Cached for Arc<[u8]> {
    fn weight(&self) -> u64 {
        u64::try_from(self.len()).unwrap_or(u64::MAX)
    }
}

/// A cache from `K` to `V`.
pub struct Cache<K, V> {
    hasher: RandomState,
    /// Each lock guards one shard. At most one is held at a time, and only for map operations.
    shards: Shards<K, V>,
    /// How many shards are in use, counted from the first.
    used: AtomicUsize,
    /// The next shard `evict` starts at, so that it takes from all shards evenly.
    next_eviction: AtomicUsize,
    /// The capacity the cache was created with, in bytes.
    capacity: u64,
    /// The weight of the heaviest values, in bytes.
    heaviest: u64,
}

/// Values evicted per lock acquisition while the cache shrinks.
const EVICTED_AT_ONCE: usize = 64;

/// Memory of an entry in addition to its value, in bytes: list node, table slot, reference counts.
const ENTRY_OVERHEAD: u64 = 128;

type Shards<K, V> = Arc<[Mutex<Shard<K, V>>]>;

/// What a lookup has to do after a miss.
enum Turn<V> {
    Lead(Arc<Flight<V>>),
    Wait(Arc<Flight<V>>),
}

impl<K: Copy + Eq + Hash, V: Cached> Cache<K, V> {
    /// A cache of at most `capacity` bytes of values that weigh at most `heaviest` bytes each.
    ///
    /// It has enough shards that threads rarely contend (four per CPU core). Each shard has room
    /// for eight of the heaviest values, because otherwise fragmentation would waste most of a
    /// small budget.
    pub fn new(capacity: u64, heaviest: u64) -> Self {
        Self::with_processors(capacity, heaviest, processors::count())
    }

    fn with_processors(capacity: u64, heaviest: u64, processors: usize) -> Self {
        let wanted = processors.saturating_mul(4);
        let count = wanted.min(shards_that_fit(capacity, heaviest)).clamp(1, 1024);
        let each = share(capacity, count);
        let shards = (0..count).map(|_| Mutex::new(Shard::new(each))).collect();
        let (hasher, used) = (RandomState::new(), AtomicUsize::new(count));
        let next_eviction = AtomicUsize::new(0);
        Self { hasher, shards, used, next_eviction, capacity, heaviest }
    }

    /// Limits the cache to `fraction` of the capacity it was created with. Values that no longer
    /// fit are dropped a few at a time, so that no reader waits long.
    pub fn resize(&self, fraction: Fraction) {
        let capacity = fraction.of(self.capacity);
        let used = shards_that_fit(capacity, self.heaviest).clamp(1, self.shards.len());
        // A reader that still picks a shard by the old count either finds nothing there or leaves a
        // value behind, which is evicted in turn.
        if self.used.swap(used, Ordering::Relaxed) != used {
            self.clear();
        }
        for (nth, shard) in self.shards.iter().enumerate() {
            let capacity = if nth < used { share(capacity, used) } else { 0 };
            loop {
                let evicted = shard.lock().resize(capacity, EVICTED_AT_ONCE);
                if evicted.is_empty() {
                    break;
                }
                // Freed here, outside the lock.
                drop(evicted);
            }
        }
    }

    /// The value of `key`, from the cache or from `load`, which runs at most once at a time for a
    /// key.
    ///
    /// A value that is already used up when loaded is returned and not cached.
    pub fn get_or_load(&self, key: K, load: impl FnOnce() -> Result<V>) -> Result<V> {
        let shard = self.shard(&key);
        loop {
            let turn = {
                let mut shard = shard.lock();
                if let Some(value) = shard.get(&key) {
                    return Ok(value);
                }
                shard.board(key)
            };
            match turn {
                Turn::Lead(flight) => {
                    let leader = Leader { shard, key, flight, landed: false };
                    let clock = LoadClock::start();
                    return load().map(|value| leader.land(value, &clock));
                }
                Turn::Wait(flight) => {
                    if let Some(value) = flight.wait() {
                        return Ok(value);
                    }
                }
            }
        }
    }

    /// Drops the value of `key`, if cached.
    pub fn remove(&self, key: &K) {
        let removed = self.shard(key).lock().remove(key);
        // Freed here, outside the lock.
        drop(removed);
    }

    /// Drops all values. Loads in progress continue, and their values are cached.
    pub fn clear(&self) {
        for shard in &*self.shards {
            let dropped = shard.lock().clear();
            drop(dropped);
        }
    }

    /// The cache's counters so far.
    pub fn counts(&self) -> CacheCounts {
        counts(&self.shards)
    }

    /// Registers these counters with `stats`, as those of a cache of `kind`.
    pub fn report_to(&self, stats: &Stats, kind: CacheKind)
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let shards = Arc::clone(&self.shards);
        stats.watch_cache(kind, Arc::new(move || counts(&shards)));
    }

    fn shard(&self, key: &K) -> &Mutex<Shard<K, V>> {
        let hash = usize::try_from(self.hasher.hash_one(key) >> 32).unwrap_or(0);
        &self.shards[hash % self.used.load(Ordering::Relaxed)]
    }
}

impl<K, V> Evict for Cache<K, V>
where
    K: Copy + Eq + Hash + Send + Sync,
    V: Cached + Send + Sync,
{
    /// Evicts the least recently used value of each shard in turn.
    fn evict(&self, bytes: u64) -> u64 {
        let mut freed = 0_u64;
        let used = self.used.load(Ordering::Relaxed);
        let mut empty = 0;
        while freed < bytes && empty < used {
            let nth = self.next_eviction.fetch_add(1, Ordering::Relaxed) % used;
            let evicted = self.shards[nth].lock().evict();
            // Freed here, outside the lock.
            match evicted {
                Some(value) => (freed, empty) = (freed.saturating_add(value.weight()), 0),
                None => empty += 1,
            }
        }
        freed
    }
}

/// The number of shards that a cache of `capacity` bytes can have if each must hold eight of the
/// heaviest values.
fn shards_that_fit(capacity: u64, heaviest: u64) -> usize {
    usize::try_from(capacity / heaviest.max(1).saturating_mul(8)).unwrap_or(usize::MAX)
}

/// The share of `capacity` bytes that each of `count` shards gets.
fn share(capacity: u64, count: usize) -> u64 {
    capacity.checked_div(u64::try_from(count).unwrap_or(u64::MAX)).unwrap_or(capacity)
}

fn counts<K: Copy + Eq + Hash, V: Cached>(shards: &[Mutex<Shard<K, V>>]) -> CacheCounts {
    shards.iter().map(|shard| shard.lock().counts()).sum()
}

/// The reader that loads. It abandons its flight if dropped before landing it.
struct Leader<'c, K: Copy + Eq + Hash, V: Cached> {
    shard: &'c Mutex<Shard<K, V>>,
    key: K,
    flight: Arc<Flight<V>>,
    landed: bool,
}

impl<K: Copy + Eq + Hash, V: Cached> Leader<'_, K, V> {
    fn land(mut self, value: V, clock: &LoadClock) -> V {
        self.landed = true;
        let decoding = clock.decoding();
        let evicted = self.shard.lock().land(self.key, value.clone(), decoding);
        // Freed here, outside the lock.
        drop(evicted);
        self.flight.end(Outcome::Landed(value.clone()));
        value
    }
}

impl<K: Copy + Eq + Hash, V: Cached> Drop for Leader<'_, K, V> {
    fn drop(&mut self) {
        if !self.landed {
            self.shard.lock().flights.remove(&self.key);
            self.flight.end(Outcome::Abandoned);
        }
    }
}

/// Cached values with LRU eviction by weight, and the loads in progress. It takes no locks: the
/// cache holds the lock, and frees evicted values after unlocking. The weights of all entries add
/// up to `weight`, which is at most `capacity`.
struct Shard<K, V> {
    entries: LruCache<K, V>,
    flights: HashMap<K, Arc<Flight<V>>>,
    weight: u64,
    capacity: u64,
    counts: CacheCounts,
}

impl<K: Copy + Eq + Hash, V: Cached> Shard<K, V> {
    fn new(capacity: u64) -> Self {
        Self {
            entries: LruCache::unbounded(),
            flights: HashMap::new(),
            weight: 0,
            capacity,
            counts: CacheCounts::default(),
        }
    }

    fn get(&mut self, key: &K) -> Option<V> {
        let value = self.entries.get(key).cloned()?;
        self.counts.hits += 1;
        Some(value)
    }

    /// Joins the load of `key` in progress, or leads a new one.
    fn board(&mut self, key: K) -> Turn<V> {
        if let Some(flight) = self.flights.get(&key) {
            self.counts.waits += 1;
            return Turn::Wait(Arc::clone(flight));
        }
        self.counts.loads += 1;
        let flight = Arc::new(Flight::new());
        self.flights.insert(key, Arc::clone(&flight));
        Turn::Lead(flight)
    }

    /// Ends the load of `key`, which decoded for `decoding`, with a value; returns the evicted
    /// values for the caller to free.
    fn land(&mut self, key: K, value: V, decoding: Duration) -> Vec<V> {
        self.flights.remove(&key);
        self.counts.decode_ns += u64::try_from(decoding.as_nanos()).unwrap_or(u64::MAX);
        self.counts.loaded_bytes += value.decoded_len();
        let weight = value.weight().saturating_add(ENTRY_OVERHEAD);
        if weight > self.capacity || value.is_used_up() {
            return Vec::new();
        }
        let mut evicted = self.evict_down_to(self.capacity - weight, usize::MAX);
        self.weight += weight;
        if let Some(replaced) = self.entries.put(key, value) {
            self.weight -= replaced.weight().saturating_add(ENTRY_OVERHEAD);
            evicted.push(replaced);
        }
        evicted
    }

    /// Changes the capacity to `capacity` bytes; returns up to `most` evicted values for the caller
    /// to free. Call it until it returns none.
    fn resize(&mut self, capacity: u64, most: usize) -> Vec<V> {
        let evicted = self.evict_down_to(capacity, most);
        // Until all are evicted, an insert evicts no more than it needs itself.
        self.capacity = capacity.max(self.weight);
        evicted
    }

    /// Removes up to `most` values, until the others weigh at most `weight`; the caller frees them.
    fn evict_down_to(&mut self, weight: u64, most: usize) -> Vec<V> {
        let mut evicted = Vec::new();
        while self.weight > weight && evicted.len() < most {
            let Some(oldest) = self.evict() else { break };
            evicted.push(oldest);
        }
        evicted
    }

    /// Removes the least recently used value; the caller frees it.
    fn evict(&mut self) -> Option<V> {
        let (_, oldest) = self.entries.pop_lru()?;
        self.weight -= oldest.weight().saturating_add(ENTRY_OVERHEAD);
        self.counts.evictions += 1;
        Some(oldest)
    }

    /// Removes the value of `key`; the caller frees it.
    fn remove(&mut self, key: &K) -> Option<V> {
        let removed = self.entries.pop(key)?;
        self.weight -= removed.weight().saturating_add(ENTRY_OVERHEAD);
        Some(removed)
    }

    /// Removes all values; the caller frees them.
    fn clear(&mut self) -> LruCache<K, V> {
        self.weight = 0;
        std::mem::replace(&mut self.entries, LruCache::unbounded())
    }

    fn counts(&self) -> CacheCounts {
        CacheCounts { held_bytes: self.weight, ..self.counts }
    }
}

/// One load in progress, and its waiters. It ends exactly once, and all waiters wake up then.
struct Flight<V> {
    /// Guards the outcome. No other lock is held while this one is taken.
    outcome: Mutex<Outcome<V>>,
    ended: Condvar,
}

enum Outcome<V> {
    Pending,
    Landed(V),
    Abandoned,
}

impl<V: Clone> Flight<V> {
    fn new() -> Self {
        Self { outcome: Mutex::new(Outcome::Pending), ended: Condvar::new() }
    }

    /// Waits for the value. `None` if the leader failed.
    fn wait(&self) -> Option<V> {
        let mut outcome = self.outcome.lock();
        loop {
            match &*outcome {
                Outcome::Landed(value) => return Some(value.clone()),
                Outcome::Abandoned => return None,
                Outcome::Pending => self.ended.wait(&mut outcome),
            }
        }
    }

    fn end(&self, outcome: Outcome<V>) {
        *self.outcome.lock() = outcome;
        self.ended.notify_all();
    }
}
