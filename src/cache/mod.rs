//! A parallel-safe cache of decoded blocks: sharded, bounded in bytes, one load per block.
//!
//! Owns which blocks stay and who loads a missing one; leaves what a block is to its user, who
//! gives the key, the loader and the weight.
//! Invariant: no lock is held while a block is loaded, waited for or freed, and no error is kept.
//!
//! Single flight, the hard part. A block that several readers miss at once must be decoded once,
//! and a reader that waits must not wait for ever. The first to miss becomes the leader: under the
//! shard's lock it leaves a `Flight` in the shard, then it loads with no lock held. Whoever misses
//! meanwhile finds the flight and waits on it. The leader lands it: under the shard's lock the
//! block goes in and the flight out, then the waiters are handed the block itself, so that it
//! reaches them even if it is evicted at once. A leader that fails (or unwinds) abandons the flight
//! in its drop; each waiter then starts over, and one of them leads. The cost is one small
//! allocation a miss.
//!
//! A cache can become smaller and larger while it serves. A smaller one may use fewer shards, so
//! that each still has room for the heaviest values. Values are then found in other shards, and all
//! are dropped. A load that is under way lands in its old shard, which keeps nothing if it is not
//! used any more; a reader who misses meanwhile loads the block a second time.

use std::hash::{BuildHasher, Hash, RandomState};
// Not those of the model checker: each would multiply the orders that the models go through.
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Result;
use crate::processors;
use crate::stats::{CacheCounts, CacheKind, Stats};
use crate::sync::{Arc, Mutex};

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

pub use block::{Block, BlockPool, BlockPools};
pub use budget::{Budget, LEAST, Part, Resize, default_bytes, largest_within, most_bytes};
pub use permits::Permit;
pub use readahead::Readahead;
pub use room::{Evict, Room};
pub use workers::{Fetch, Request, Workers};

use inflight::Flight;
use shard::Shard;

/// A value that a cache can hold: cheap to clone, with a weight in bytes.
pub trait Cached: Clone {
    /// The memory it takes, bytes.
    fn weight(&self) -> u64;

    /// What was loaded, decoded bytes.
    fn decoded_len(&self) -> u64 {
        self.weight()
    }

    /// Whether all who are expected to ask for it have: it is not worth its memory any more.
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
    /// Each lock guards one shard, is the only one held at a time, and only while the shard's maps
    /// are touched.
    shards: Shards<K, V>,
    /// How many of the shards are used, from the first.
    used: AtomicUsize,
    /// Counts what `evict` took, to take from all shards alike.
    evicts_next: AtomicUsize,
    /// The capacity it was made with, bytes.
    capacity: u64,
    /// The weight of the heaviest values, bytes.
    heaviest: u64,
}

/// Values evicted at once while a shard is locked, when the cache becomes smaller.
const EVICTED_AT_ONCE: usize = 64;

type Shards<K, V> = Arc<[Mutex<Shard<K, V>>]>;

/// What a lookup that found nothing has to do.
enum Turn<V> {
    Lead(Arc<Flight<V>>),
    Wait(Arc<Flight<V>>),
}

impl<K: Copy + Eq + Hash, V: Cached> Cache<K, V> {
    /// A cache of at most `capacity` bytes of values that weigh at most `heaviest` bytes each.
    ///
    /// Enough shards that threads rarely meet (four a processor), but each with room for eight of
    /// the heaviest values, lest a small budget be all fragments.
    pub fn new(capacity: u64, heaviest: u64) -> Self {
        Self::with_processors(capacity, heaviest, processors::count())
    }

    fn with_processors(capacity: u64, heaviest: u64, processors: usize) -> Self {
        let wanted = processors.saturating_mul(4);
        let count = wanted.min(roomy(capacity, heaviest)).clamp(1, 1024);
        let each = share(capacity, count);
        let shards = (0..count).map(|_| Mutex::new(Shard::new(each))).collect();
        let (hasher, used) = (RandomState::new(), AtomicUsize::new(count));
        let evicts_next = AtomicUsize::new(0);
        Self { hasher, shards, used, evicts_next, capacity, heaviest }
    }

    /// Lets the cache use `part` of the capacity it was made with. Values that have no room any
    /// more are dropped, a few at a time, so that no reader waits for many.
    pub fn resize(&self, part: Part) {
        let capacity = part.of(self.capacity);
        let used = roomy(capacity, self.heaviest).clamp(1, self.shards.len());
        // A reader that still takes another shard finds nothing there, or leaves something behind
        // that is evicted in its turn.
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
    /// A value that is used up when it was loaded is returned and not kept.
    ///
    /// # Errors
    /// What `load` reports; nothing is kept then, and the next lookup loads again.
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
                    return load().map(|value| leader.land(value));
                }
                Turn::Wait(flight) => {
                    if let Some(value) = flight.wait() {
                        return Ok(value);
                    }
                }
            }
        }
    }

    /// Drops the value of `key`, if it is there.
    pub fn remove(&self, key: &K) {
        let removed = self.shard(key).lock().remove(key);
        // Freed here, outside the lock.
        drop(removed);
    }

    /// Drops all values; loads under way go on, and what they load is kept.
    pub fn clear(&self) {
        for shard in &*self.shards {
            let dropped = shard.lock().clear();
            drop(dropped);
        }
    }

    /// What the cache did so far.
    pub fn counts(&self) -> CacheCounts {
        counts(&self.shards)
    }

    /// Has `stats` ask for that from now on, as the counts of a cache of what is `held`.
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
    /// From each shard in turn what was not used there for longest.
    fn evict(&self, bytes: u64) -> u64 {
        let mut freed = 0_u64;
        let used = self.used.load(Ordering::Relaxed);
        let mut empty = 0;
        while freed < bytes && empty < used {
            let nth = self.evicts_next.fetch_add(1, Ordering::Relaxed) % used;
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

/// How many shards of a cache of `capacity` bytes have room for eight of the heaviest values.
fn roomy(capacity: u64, heaviest: u64) -> usize {
    usize::try_from(capacity / heaviest.max(1).saturating_mul(8)).unwrap_or(usize::MAX)
}

/// What each of `count` shards has of `capacity` bytes.
fn share(capacity: u64, count: usize) -> u64 {
    capacity.checked_div(u64::try_from(count).unwrap_or(u64::MAX)).unwrap_or(capacity)
}

fn counts<K: Copy + Eq + Hash, V: Cached>(shards: &[Mutex<Shard<K, V>>]) -> CacheCounts {
    shards.iter().map(|shard| shard.lock().counts()).sum()
}

/// The one that loads; abandons its flight when dropped before landing.
struct Leader<'c, K: Copy + Eq + Hash, V: Cached> {
    shard: &'c Mutex<Shard<K, V>>,
    key: K,
    flight: Arc<Flight<V>>,
    landed: bool,
}

impl<K: Copy + Eq + Hash, V: Cached> Leader<'_, K, V> {
    fn land(mut self, value: V) -> V {
        self.landed = true;
        let evicted = self.shard.lock().land(self.key, value.clone());
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
    fn keeps_no_error() {
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
                        // Until the other has boarded the flight.
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
    fn stays_within_its_budget_and_drops_the_least_recently_used_first() {
        // One shard: capacity for eight of the heaviest.
        let cache: Cache<u64, Arc<[u8]>> = Cache::new(8 * 1024, 1024);
        let load = |key: u64| cache.get_or_load(key, || Ok(block(key as u8, 1024 - 128)));
        for key in 0..8 {
            load(key).unwrap();
        }
        load(0).unwrap();
        load(100).unwrap();
        let loaded_bytes = 9 * (1024 - 128);
        let held_bytes = 8 * 1024;
        let counts =
            CacheCounts { hits: 1, loads: 9, waits: 0, evictions: 1, loaded_bytes, held_bytes };
        assert_eq!(cache.counts(), counts);
        load(0).unwrap();
        assert_eq!(cache.counts().hits, 2, "0 was used after 1 and stays");
        load(1).unwrap();
        assert_eq!(cache.counts().loads, 10, "1 was the least recently used");
    }

    #[test]
    fn becomes_smaller_and_larger_while_it_serves() {
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
    fn a_smaller_cache_keeps_what_was_used_last_and_a_larger_one_all() {
        // One shard throughout: capacity for eight of the heaviest.
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
    fn a_load_under_way_lands_though_its_shard_is_not_used_any_more() {
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
    fn tells_its_counts_also_when_it_is_gone() {
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
