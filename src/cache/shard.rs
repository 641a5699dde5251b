//! One shard: cached values with LRU eviction by weight, and the loads in progress.
//!
//! It takes no locks: the cache above holds the lock, and frees evicted values after unlocking.
//! Invariant: the weights of all entries add up to `weight`, which is at most `capacity`.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use lru::LruCache;

use super::inflight::Flight;
use super::{Cached, Turn};
use crate::stats::CacheCounts;
use crate::sync::Arc;

/// Memory of an entry in addition to its value, in bytes: list node, table slot, reference counts.
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

    /// Joins the load of `key` in progress, or leads a new one.
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

    /// Ends the load of `key`, which decoded for `decoding`, with a value; returns the evicted
    /// values for the caller to free.
    pub(super) fn land(&mut self, key: K, value: V, decoding: Duration) -> Vec<V> {
        self.flights.remove(&key);
        self.counts.decode_ns += u64::try_from(decoding.as_nanos()).unwrap_or(u64::MAX);
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

    /// Changes the capacity to `capacity` bytes; returns up to `most` evicted values for the caller
    /// to free. Call it until it returns none.
    pub(super) fn resize(&mut self, capacity: u64, most: usize) -> Vec<V> {
        let mut evicted = Vec::new();
        while self.weight > capacity && evicted.len() < most {
            let Some(oldest) = self.evict() else {
                break;
            };
            evicted.push(oldest);
        }
        // Until all are evicted, an insert evicts no more than it needs itself.
        self.capacity = capacity.max(self.weight);
        evicted
    }

    /// Removes the least recently used value; the caller frees it.
    pub(super) fn evict(&mut self) -> Option<V> {
        let (_, oldest) = self.entries.pop_lru()?;
        self.weight -= oldest.weight().saturating_add(ENTRY_OVERHEAD);
        self.counts.evictions += 1;
        Some(oldest)
    }

    /// Removes the value of `key`; the caller frees it.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let removed = self.entries.pop(key)?;
        self.weight -= removed.weight().saturating_add(ENTRY_OVERHEAD);
        Some(removed)
    }

    /// Removes all values; the caller frees them.
    pub(super) fn clear(&mut self) -> LruCache<K, V> {
        self.weight = 0;
        std::mem::replace(&mut self.entries, LruCache::unbounded())
    }

    /// Ends the load of `key` without a value.
    pub(super) fn abandon(&mut self, key: &K) {
        self.flights.remove(key);
    }

    pub(super) fn counts(&self) -> CacheCounts {
        CacheCounts { held_bytes: self.weight, ..self.counts }
    }
}
