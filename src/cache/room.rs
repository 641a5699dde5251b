//! The memory that all caches of a mount share, including decoding, in bytes.
//!
//! `Permits` bound it. A reader that needs room evicts from the caches in turn.

// Not the model checker's atomics: each would multiply the interleavings the models explore.
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::budget::{Part, Resize};
use super::permits::{Permit, Permits};
use crate::error::{Error, Kind, Result};
use crate::sync::{Arc, Mutex, Weak};

/// A cache that can release memory.
pub trait Evict: Send + Sync {
    /// Drops values that weigh at least `bytes` together, or all values; returns the weight
    /// dropped.
    fn evict(&self, bytes: u64) -> u64;
}

/// Room for decoded blocks and for decoding.
pub struct Room {
    permits: Arc<Permits>,
    /// Guards the list. Held to look up one cache.
    caches: Mutex<Vec<Weak<dyn Evict>>>,
    /// The index of the next cache to evict from.
    next: AtomicUsize,
    /// The size with the original budget, in bytes.
    whole: AtomicU64,
}

impl Room {
    /// Room for `bytes`.
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            permits: Permits::new(bytes),
            caches: Mutex::default(),
            next: AtomicUsize::new(0),
            whole: AtomicU64::new(bytes),
        })
    }

    /// Reserves `bytes` permanently for a cache that does its own accounting.
    pub fn set_aside(&self, bytes: u64) {
        let before = self.whole.load(Ordering::Relaxed);
        let left = before.saturating_sub(bytes);
        self.whole.store(left, Ordering::Relaxed);
        self.permits.set_room(left);
    }

    /// Registers `cache` for eviction.
    pub fn add(&self, cache: Weak<dyn Evict>) {
        self.caches.lock().push(cache);
    }

    /// Waits for a permit for `bytes`. The caller must not hold the permit of a block that is still
    /// being decoded.
    pub fn wait(&self, bytes: u64) -> Permit {
        self.permits.wait(bytes, |missing| self.evict(missing))
    }

    /// Like `wait`, but returns `None` instead of waiting.
    pub fn now(&self, bytes: u64) -> Option<Permit> {
        self.permits.now(bytes, |missing| self.evict(missing))
    }

    /// Like `now`, for decoding ahead.
    ///
    /// # Errors
    /// `Busy` if there is no room now.
    pub fn ahead(&self, bytes: u64) -> Result<Permit> {
        self.now(bytes).ok_or_else(|| {
            Error::new(Kind::Busy, "no room to decode ahead, others are waiting for it")
        })
    }

    /// To be called when a value with a permit enters a cache.
    pub fn entered(&self) {
        self.permits.change();
    }

    /// The sum of all permits, in bytes.
    pub fn taken(&self) -> u64 {
        self.permits.taken()
    }

    fn evict(&self, missing: u64) {
        let (mut freed, mut empty) = (0_u64, 0);
        while freed < missing {
            let cache = {
                let caches = self.caches.lock();
                if empty >= caches.len() {
                    return;
                }
                let nth = self.next.fetch_add(1, Ordering::Relaxed) % caches.len();
                caches[nth].upgrade()
            };
            // Eviction, and possibly freeing the cache itself, happens with no lock held.
            match cache.map_or(0, |cache| cache.evict(missing - freed)) {
                0 => empty += 1,
                evicted => (freed, empty) = (freed.saturating_add(evicted), 0),
            }
        }
    }
}

impl Resize for Room {
    fn resize(&self, part: Part) {
        self.permits.set_room(part.of(self.whole.load(Ordering::Relaxed)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Cache, Cached};

    impl Cached for Arc<Permit> {
        fn weight(&self) -> u64 {
            self.bytes()
        }
    }

    type Blocks = Cache<u64, Arc<Permit>>;

    fn miss(room: &Room, cache: &Blocks, key: u64, bytes: u64) {
        cache.get_or_load(key, || Ok(Arc::new(room.wait(bytes)))).unwrap();
        room.entered();
    }

    #[test]
    fn caches_that_share_room_are_evicted_in_turn() {
        let room = Room::new(1000);
        let caches: [Arc<Blocks>; 2] = std::array::from_fn(|_| Arc::new(Cache::new(1 << 20, 1)));
        for cache in &caches {
            let weak = Arc::downgrade(cache);
            room.add(weak);
        }
        for key in 0..100 {
            miss(&room, &caches[0], key, 90);
            miss(&room, &caches[1], key, 10);
            assert!(room.taken() <= 1000, "{}", room.taken());
        }
        let counts = caches.each_ref().map(|cache| cache.counts());
        assert!(counts.iter().all(|counts| counts.evictions > 50), "{counts:?}");
        // A request above the limit is granted when it is the only one.
        assert_eq!(room.wait(5000).bytes(), 5000);
        assert_eq!(room.taken(), 0, "all was evicted for it");
    }

    #[test]
    fn a_reservation_and_a_smaller_budget_leave_less_room() {
        let room = Room::new(1000);
        room.set_aside(200);
        let permit = room.now(500).unwrap();
        assert!(room.now(301).is_none());
        room.resize(Part::new(1, 2));
        assert!(room.now(1).is_none(), "500 of 400 are taken");
        drop(permit);
        assert!(room.now(400).is_some());
    }
}
