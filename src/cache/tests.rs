//! The cache loads a block once, stays within its budget, and shrinks and grows while in use.

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
        cache.resize(Fraction::new(eighths, 8));
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
    cache.resize(Fraction::new(1, 4));
    assert_eq!((cache.counts().held_bytes, cache.counts().evictions), (2048, 6));
    cache.resize(Fraction::new(1, 1));
    [0, 7].into_iter().for_each(|key| _ = load(key).unwrap());
    assert_eq!(cache.counts().loads, 8, "both are still there");
}

#[test]
fn a_load_in_progress_lands_even_if_its_shard_is_no_longer_used() {
    let cache: Cache<u64, Arc<[u8]>> = Cache::with_processors(1 << 20, 16 << 10, 4);
    for key in 0..64 {
        let load = || {
            cache.resize(Fraction::new(1, 8));
            Ok(block(7, 1000))
        };
        assert_eq!(cache.get_or_load(key, load).unwrap()[0], 7);
        assert!(cache.counts().held_bytes <= 1 << 17);
        cache.resize(Fraction::new(1, 1));
    }
    cache.resize(Fraction::new(0, 1));
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
