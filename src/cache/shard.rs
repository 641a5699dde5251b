//! One shard: which values stay, and which loads are under way.
//!
//! Owns the policy, least recently used by weight. Takes `&mut self` and no locks; the cache above
//! holds the lock and frees what is evicted after letting go of it.
//! Invariant: the weights of all entries add up to `weight`, which is at most `capacity`.

use std::collections::HashMap;
use std::hash::Hash;

use lru::LruCache;

use super::inflight::Flight;
use super::{Cached, Turn};
use crate::stats::CacheCounts;
use crate::sync::Arc;

/// What an entry takes besides its value, bytes: list node, table slot, reference counts.
const ENTRY_OVERHEAD: u64 = 128;

pub(super) struct Shard<K, V> {
    entries: LruCache<K, V>,
    flights: HashMap<K, Arc<Flight<V>>>,
    weight: u64,
    capacity: u64,
    counts: CacheCounts,
}

impl<K: Copy + Eq + Hash, V: Cached> Shard<K, V> {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            entries: LruCache::unbounded(),
            flights: HashMap::new(),
            weight: 0,
            capacity,
            counts: CacheCounts::default(),
        }
    }

    pub(super) fn get(&mut self, key: &K) -> Option<V> {
        let value = self.entries.get(key).cloned()?;
        self.counts.hits += 1;
        Some(value)
    }

    /// Joins the load of `key` that is under way, or leads a new one.
    pub(super) fn board(&mut self, key: K) -> Turn<V> {
        if let Some(flight) = self.flights.get(&key) {
            self.counts.waits += 1;
            return Turn::Wait(Arc::clone(flight));
        }
        self.counts.loads += 1;
        let flight = Arc::new(Flight::new());
        self.flights.insert(key, Arc::clone(&flight));
        Turn::Lead(flight)
    }

    /// Ends the load of `key` with a value; returns what had to go, for the caller to free.
    pub(super) fn land(&mut self, key: K, value: V) -> Vec<V> {
        self.flights.remove(&key);
        self.counts.loaded_bytes += value.decoded_len();
        let weight = value.weight().saturating_add(ENTRY_OVERHEAD);
        if weight > self.capacity || value.is_used_up() {
            return Vec::new();
        }
        let mut evicted = Vec::new();
        while self.weight.saturating_add(weight) > self.capacity {
            let Some(oldest) = self.evict() else {
                break;
            };
            evicted.push(oldest);
        }
        self.weight += weight;
        if let Some(replaced) = self.entries.put(key, value) {
            self.weight -= replaced.weight().saturating_add(ENTRY_OVERHEAD);
            evicted.push(replaced);
        }
        evicted
    }

    /// Lowers or raises its capacity to `capacity` bytes; returns up to `most` values that have to
    /// go, for the caller to free. To be called again until none has to.
    pub(super) fn resize(&mut self, capacity: u64, most: usize) -> Vec<V> {
        let mut evicted = Vec::new();
        while self.weight > capacity && evicted.len() < most {
            let Some(oldest) = self.evict() else {
                break;
            };
            evicted.push(oldest);
        }
        // Until all have gone, who adds a value evicts no more than that needs.
        self.capacity = capacity.max(self.weight);
        evicted
    }

    /// Takes out the value that was not used for longest, for the caller to free.
    pub(super) fn evict(&mut self) -> Option<V> {
        let (_, oldest) = self.entries.pop_lru()?;
        self.weight -= oldest.weight().saturating_add(ENTRY_OVERHEAD);
        self.counts.evictions += 1;
        Some(oldest)
    }

    /// Takes out the value of `key`, for the caller to free.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let removed = self.entries.pop(key)?;
        self.weight -= removed.weight().saturating_add(ENTRY_OVERHEAD);
        Some(removed)
    }

    /// Takes out all values, for the caller to free.
    pub(super) fn clear(&mut self) -> LruCache<K, V> {
        self.weight = 0;
        std::mem::replace(&mut self.entries, LruCache::unbounded())
    }

    /// Ends the load of `key` with nothing.
    pub(super) fn abandon(&mut self, key: &K) {
        self.flights.remove(key);
    }

    pub(super) fn counts(&self) -> CacheCounts {
        CacheCounts { held_bytes: self.weight, ..self.counts }
    }
}
