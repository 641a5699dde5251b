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

use std::hash::{BuildHasher, Hash, RandomState};
// Not the model checker's atomics: each would multiply the interleavings the models explore.
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Result;
use crate::os::processors;
use crate::stats::{CacheCounts, CacheKind, LoadClock, Stats};
use crate::sync::{Arc, Mutex};

mod archive_order;
mod block;
mod budget;
mod inflight;
#[cfg(all(test, feature = "model"))]
mod model;
mod permits;
mod readahead;
mod room;
mod shard;
mod workers;

pub use archive_order::ArchiveOrder;
pub use block::{Block, BlockPool, BlockPools};
pub use budget::{Budget, LEAST, Part, Resize, default_bytes, largest_within, reduced_to_fit};
pub use permits::Permit;
pub use readahead::Readahead;
pub use room::{Evict, Room};
pub use workers::{Fetch, Request, Workers};

use inflight::Flight;
use shard::Shard;

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

    /// Limits the cache to `part` of the capacity it was created with. Values that no longer fit
    /// are dropped a few at a time, so that no reader waits long.
    pub fn resize(&self, part: Part) {
        let capacity = part.of(self.capacity);
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
        self.flight.land(value.clone());
        value
    }
}

impl<K: Copy + Eq + Hash, V: Cached> Drop for Leader<'_, K, V> {
    fn drop(&mut self) {
        if !self.landed {
            self.shard.lock().abandon(&self.key);
            self.flight.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::error::Error;
    use crate::sync::{AtomicU64, Ordering};

    fn block(byte: u8, len: usize) -> Arc<[u8]> {
        vec![byte; len].into()
    }

    #[test]
    fn loads_a_block_once_however_many_readers_wait() {
        const READERS: usize = 32;
        let cache: Cache<u64, Arc<[u8]>> = Cache::new(1 << 20, 1 << 10);
        let loads = AtomicU64::new(0);
        let start = Barrier::new(READERS);
        thread::scope(|scope| {
            for _ in 0..READERS {
                scope.spawn(|| {
                    start.wait();
                    for key in 0..64 {
                        let value = cache.get_or_load(key, || {
                            loads.fetch_add(1, Ordering::Relaxed);
                            thread::yield_now();
                            Ok(block(key as u8, 100))
                        });
                        assert_eq!(value.unwrap()[..], [key as u8; 100]);
                    }
                });
            }
        });
        assert_eq!(loads.into_inner(), 64);
        let counts = cache.counts();
        assert_eq!((counts.loads, counts.loaded_bytes), (64, 6400));
        assert_eq!(counts.hits + counts.loads + counts.waits, 64 * READERS as u64);
    }

    #[test]
    fn does_not_cache_errors() {
        let cache: Cache<u64, Arc<[u8]>> = Cache::new(1 << 20, 1 << 10);
        assert!(cache.get_or_load(1, || Err(Error::corrupt("first"))).is_err());
        assert_eq!(cache.get_or_load(1, || Ok(block(7, 1))).unwrap()[..], [7]);
    }

    /// > A reader that waited for the same block retries by itself, and also gets an error while
    /// > the fault lasts.
    #[test]
    fn wakes_the_waiters_of_a_leader_that_fails_or_unwinds() {
        for unwinds in [false, true] {
            let cache: Cache<u64, Arc<[u8]>> = Cache::new(1 << 20, 1 << 10);
            let tries = AtomicU64::new(0);
            let leading = Barrier::new(2);
            thread::scope(|scope| {
                let first = scope.spawn(|| {
                    cache.get_or_load(1, || {
                        leading.wait();
                        // Until the other reader waits on the flight.
                        while cache.counts().waits == 0 {
                            thread::yield_now();
                        }
                        assert!(!unwinds, "the leader unwinds");
                        Err(Error::corrupt("the leader fails"))
                    })
                });
                let second = scope.spawn(|| {
                    leading.wait();
                    cache.get_or_load(1, || {
                        tries.fetch_add(1, Ordering::Relaxed);
                        Ok(block(9, 1))
                    })
                });
                assert!(first.join().map_or(true, |outcome| outcome.is_err()));
                assert_eq!(second.join().unwrap().unwrap()[..], [9]);
            });
            assert_eq!(tries.into_inner(), 1);
        }
    }

    #[test]
    fn stays_within_its_budget_and_evicts_the_least_recently_used_first() {
        // One shard: capacity for eight of the heaviest values.
        let cache: Cache<u64, Arc<[u8]>> = Cache::new(8 * 1024, 1024);
        let load = |key: u64| cache.get_or_load(key, || Ok(block(key as u8, 1024 - 128)));
        for key in 0..8 {
            load(key).unwrap();
        }
        load(0).unwrap();
        load(100).unwrap();
        let loaded_bytes = 9 * (1024 - 128);
        let held_bytes = 8 * 1024;
        let counts = cache.counts();
        assert_eq!((counts.hits, counts.loads, counts.waits, counts.evictions), (1, 9, 0, 1));
        assert_eq!((counts.loaded_bytes, counts.held_bytes), (loaded_bytes, held_bytes));
        load(0).unwrap();
        assert_eq!(cache.counts().hits, 2, "0 was used after 1 and stays");
        load(1).unwrap();
        assert_eq!(cache.counts().loads, 10, "1 was the least recently used");
    }

    #[test]
    fn shrinks_and_grows_while_in_use() {
        // Eight shards of 128 KiB; an eighth of the capacity is one.
        let cache: Cache<u64, Arc<[u8]>> = Cache::with_processors(1 << 20, 16 << 10, 4);
        assert_eq!(cache.shards.len(), 8);
        let load = |key: u64| cache.get_or_load(key, || Ok(block(key as u8, 1024 - 128)));
        let fill = || (0..2000).for_each(|key| assert_eq!(load(key).unwrap()[0], key as u8));
        let held = || cache.counts().held_bytes;
        fill();
        assert!(held() > 900 << 10, "{}", held());
        for (eighths, shards) in [(1, 1), (3, 3), (8, 8), (0, 1), (4, 4)] {
            cache.resize(Part::new(eighths, 8));
            assert_eq!(cache.used.load(Ordering::Relaxed), shards);
            assert!(held() <= eighths << 17, "{}", held());
            fill();
            let most = eighths << 17;
            assert!(held() <= most && held() >= most / 10 * 8, "{} of {most}", held());
        }
    }

    #[test]
    fn a_smaller_cache_keeps_the_most_recently_used_and_a_larger_one_all() {
        // One shard throughout: capacity for eight of the heaviest values.
        let cache: Cache<u64, Arc<[u8]>> = Cache::new(8 * 1024, 1024);
        let load = |key: u64| cache.get_or_load(key, || Ok(block(key as u8, 1024 - 128)));
        (0..8).for_each(|key| _ = load(key).unwrap());
        load(0).unwrap();
        cache.resize(Part::new(1, 4));
        assert_eq!((cache.counts().held_bytes, cache.counts().evictions), (2048, 6));
        cache.resize(Part::new(1, 1));
        [0, 7].into_iter().for_each(|key| _ = load(key).unwrap());
        assert_eq!(cache.counts().loads, 8, "both are still there");
    }

    #[test]
    fn a_load_in_progress_lands_even_if_its_shard_is_no_longer_used() {
        let cache: Cache<u64, Arc<[u8]>> = Cache::with_processors(1 << 20, 16 << 10, 4);
        for key in 0..64 {
            let load = || {
                cache.resize(Part::new(1, 8));
                Ok(block(7, 1000))
            };
            assert_eq!(cache.get_or_load(key, load).unwrap()[0], 7);
            assert!(cache.counts().held_bytes <= 1 << 17);
            cache.resize(Part::new(1, 1));
        }
        cache.resize(Part::new(0, 1));
        assert_eq!(cache.counts().held_bytes, 0);
    }

    #[test]
    fn reports_its_counts_even_after_it_was_dropped() {
        let stats = Stats::default();
        let cache: Cache<u64, Arc<[u8]>> = Cache::new(1 << 20, 1 << 10);
        cache.report_to(&stats, CacheKind::Metadata);
        cache.get_or_load(1, || Ok(block(1, 10))).unwrap();
        cache.get_or_load(1, || Ok(block(1, 10))).unwrap();
        drop(cache);
        let totals = stats.totals();
        assert_eq!((totals.metadata.hits, totals.metadata.loads), (1, 1));
        assert_eq!(totals.data, CacheCounts::default());
    }

    #[test]
    fn hands_out_a_value_too_heavy_to_keep() {
        let cache: Cache<u64, Arc<[u8]>> = Cache::new(100, 100);
        assert_eq!(cache.get_or_load(1, || Ok(block(1, 1000))).unwrap().len(), 1000);
        assert_eq!(cache.get_or_load(1, || Ok(block(1, 1000))).unwrap().len(), 1000);
        assert_eq!(cache.counts().loads, 2);
    }
}
