//! Counters of a mount's caches, and how the time of a load divides into reading the archive and
//! decoding.
//!
//! A load reads and decodes on one thread. So each thread adds up the time that it spent reading,
//! and what remains of a load is decoding.

use std::cell::Cell;
use std::iter::Sum;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::sync::Arc;

/// The kind of data in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheKind {
    /// Decoded metadata: inodes, directories, block lists.
    Metadata,
    /// Decoded file contents: blocks of images, chunks of compressed tars.
    Data,
}

/// Counters of a cache, and its current size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheCounts {
    /// Requests that found their block in the cache.
    pub hits: u64,
    /// Requests that loaded it, successfully or not.
    pub loads: u64,
    /// Requests that waited for another thread's load.
    pub waits: u64,
    /// Blocks evicted to make room.
    pub evictions: u64,
    /// Decoded bytes loaded.
    pub loaded_bytes: u64,
    /// Time of the loads that succeeded, without reading the archive.
    pub decode_ns: u64,
    /// Memory in use now, in bytes.
    pub held_bytes: u64,
}

impl CacheCounts {
    /// Hits per thousand requests; `None` if there were no requests.
    pub fn hits_per_thousand(&self) -> Option<u64> {
        let all = self.hits + self.loads + self.waits;
        self.hits.saturating_mul(1000).checked_div(all)
    }
}

impl Sum for CacheCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, one| Self {
            hits: sum.hits + one.hits,
            loads: sum.loads + one.loads,
            waits: sum.waits + one.waits,
            evictions: sum.evictions + one.evictions,
            loaded_bytes: sum.loaded_bytes + one.loaded_bytes,
            decode_ns: sum.decode_ns + one.decode_ns,
            held_bytes: sum.held_bytes + one.held_bytes,
        })
    }
}

/// Returns the counters of one cache.
type Source = Arc<dyn Fn() -> CacheCounts + Send + Sync>;

/// The caches of a mount.
#[derive(Default)]
pub(super) struct Caches(Vec<(CacheKind, Source)>);

impl Caches {
    pub(super) fn push(&mut self, kind: CacheKind, source: Source) {
        self.0.push((kind, source));
    }

    pub(super) fn counts(&self, selected: CacheKind) -> CacheCounts {
        self.0.iter().filter(|(kind, _)| *kind == selected).map(|(_, source)| source()).sum()
    }
}

thread_local! {
    /// Time that this thread has spent reading archives.
    static READING: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Adds time that this thread spent reading an archive.
pub(super) fn add_reading(time: Duration) {
    READING.set(READING.get().saturating_add(time));
}

/// Measures how long a load decodes. Start and end it on the same thread.
#[derive(Debug)]
pub struct LoadClock {
    start: Instant,
    reading: Duration,
}

impl LoadClock {
    /// Starts a load.
    pub fn start() -> Self {
        Self { start: Instant::now(), reading: READING.get() }
    }

    /// Time since the start, without the reads of this thread.
    pub fn decoding(&self) -> Duration {
        let reading = READING.get().saturating_sub(self.reading);
        self.start.elapsed().saturating_sub(reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_is_not_decoding() {
        let clock = LoadClock::start();
        std::thread::sleep(Duration::from_millis(20));
        assert!(clock.decoding() >= Duration::from_millis(20));
        add_reading(Duration::from_secs(1));
        assert_eq!(clock.decoding(), Duration::ZERO);
        // Another thread's reads are not those of this load.
        let clock = LoadClock::start();
        std::thread::spawn(|| add_reading(Duration::from_secs(1))).join().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        assert!(clock.decoding() > Duration::ZERO);
    }
}
