//! Models of the cache, for every interleaving of threads (see the essay in `sync::model`).
//!
//! They cover single flight, eviction and removal, and blocks with their buffers. A model uses only
//! the cache's public interface, so its results hold for all users.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::*;
use crate::error::Error;
use crate::sync::model::{caught, check, check_all};
use crate::sync::{AtomicU64, AtomicUsize, Condvar, Ordering, thread};

/// A value that knows its key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Loaded {
    key: u8,
    weight: u64,
}

impl Cached for Loaded {
    fn weight(&self) -> u64 {
        self.weight
    }
}

const OVERHEAD: u64 = ENTRY_OVERHEAD;

type Values = Cache<u8, Loaded>;

/// A cache with room for `count` values of `weight` bytes, in one shard so that all threads
/// contend.
fn room_for(count: u64, weight: u64) -> Arc<Values> {
    let cache = Cache::new(count * (weight + OVERHEAD), u64::MAX);
    assert_eq!(cache.shards.len(), 1);
    Arc::new(cache)
}

fn spawn_all(threads: Vec<Box<dyn FnOnce() + Send>>) {
    let handles: Vec<_> = threads.into_iter().map(thread::spawn).collect();
    for handle in handles {
        handle.join().unwrap();
    }
}

/// The weight of the cached values among `keys`, with their overhead. Nothing is loaded.
fn kept(cache: &Values, keys: impl IntoIterator<Item = u8>) -> u64 {
    let weight = |key| {
        // If a flight were left behind, this would wait forever and the checker would report it.
        let found = cache.get_or_load(key, || Err(Error::corrupt("not kept"))).ok();
        found.map_or(0, |value| value.weight + OVERHEAD)
    };
    keys.into_iter().map(weight).sum()
}

/// Readers of two keys in different orders. Each key must be loaded once.
fn single_flight(readers: u8) {
    let cache = room_for(8, 100);
    let loads = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let reader = |nth: u8| {
        let (cache, loads) = (Arc::clone(&cache), Arc::clone(&loads));
        move || {
            for key in [nth % 2, 1 - nth % 2] {
                let load = || {
                    loads[usize::from(key)].fetch_add(1, Ordering::Relaxed);
                    Ok(Loaded { key, weight: 100 })
                };
                assert_eq!(cache.get_or_load(key, load).unwrap().key, key);
            }
        }
    };
    spawn_all((0..readers).map(|nth| Box::new(reader(nth)) as Box<_>).collect());
    for key in &*loads {
        assert_eq!(key.load(Ordering::Relaxed), 1);
    }
    let counts = cache.counts();
    assert_eq!((counts.loads, counts.loaded_bytes), (2, 200));
    assert_eq!(counts.hits + counts.waits, u64::from(readers) * 2 - 2);
    assert_eq!(counts.held_bytes, kept(&cache, 0..2));
}

#[test]
fn a_block_is_loaded_once_for_any_number_of_waiters() {
    check(|| single_flight(4));
}

#[test]
fn two_readers_load_a_block_once_in_every_interleaving() {
    let count = check_all(200_000, || {
        let cache = room_for(8, 100);
        let other = Arc::clone(&cache);
        let get = |cache: &Values| cache.get_or_load(1, || Ok(Loaded { key: 1, weight: 100 }));
        let first = thread::spawn(move || get(&other).unwrap());
        assert_eq!(get(&cache).unwrap(), first.join().unwrap());
        assert_eq!(cache.counts().loads, 1);
    });
    assert!(count > 10);
}

/// How a load can end without a value.
#[derive(Clone, Copy)]
enum Failure {
    Error,
    Panic,
}

/// The first load fails, all later ones succeed. Only its leader gets the error.
fn first_load_fails(readers: usize, failure: Failure) {
    let cache = room_for(8, 100);
    let (loads, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let reader = || {
        let (cache, loads, failed) = (Arc::clone(&cache), Arc::clone(&loads), Arc::clone(&failed));
        move || {
            let load = || match (loads.fetch_add(1, Ordering::Relaxed), failure) {
                (0, Failure::Error) => Err(Error::corrupt("the first")),
                // Without printing a panic message.
                (0, Failure::Panic) => resume_unwind(Box::new("the first")),
                _ => Ok(Loaded { key: 1, weight: 100 }),
            };
            match catch_unwind(AssertUnwindSafe(|| cache.get_or_load(1, load))) {
                Ok(Ok(value)) => assert_eq!(value.key, 1),
                Ok(Err(_)) | Err(_) => _ = failed.fetch_add(1, Ordering::Relaxed),
            }
        }
    };
    spawn_all((0..readers).map(|_| Box::new(reader()) as Box<_>).collect());
    assert_eq!(failed.load(Ordering::Relaxed), 1);
    // One more load, unless the failing reader was the only one.
    assert_eq!(loads.load(Ordering::Relaxed), 2);
    assert_eq!(kept(&cache, [1]), 100 + OVERHEAD);
}

#[test]
fn a_failed_load_wakes_all_is_not_cached_and_is_retried() {
    check(|| first_load_fails(4, Failure::Error));
}

#[test]
fn a_panicking_load_wakes_all_and_is_retried() {
    check(|| first_load_fails(3, Failure::Panic));
}

#[test]
fn a_failed_load_wakes_the_other_reader_in_every_interleaving() {
    check_all(200_000, || first_load_fails(2, Failure::Error));
}

#[test]
fn readers_get_the_right_value_during_eviction_removal_and_clear() {
    check(|| {
        // There is room for two of the three values, whose weights differ.
        let weight = |key: u8| 100 + u64::from(key);
        let cache = room_for(2, 101);
        let running = Arc::new([const { AtomicUsize::new(0) }; 3]);
        let reader = |keys: [u8; 3]| {
            let (cache, running) = (Arc::clone(&cache), Arc::clone(&running));
            move || {
                for key in keys {
                    let load = || {
                        let running = &running[usize::from(key)];
                        assert_eq!(running.fetch_add(1, Ordering::Relaxed), 0, "one at a time");
                        running.fetch_sub(1, Ordering::Relaxed);
                        Ok(Loaded { key, weight: weight(key) })
                    };
                    assert_eq!(cache.get_or_load(key, load).unwrap().key, key);
                    assert!(cache.counts().held_bytes <= 2 * (101 + OVERHEAD));
                }
            }
        };
        let (removed, cleared) = (Arc::clone(&cache), Arc::clone(&cache));
        let resized = Arc::clone(&cache);
        spawn_all(vec![
            Box::new(reader([0, 1, 2])),
            Box::new(reader([2, 0, 1])),
            Box::new(move || (0..3).for_each(|key| removed.remove(&key))),
            Box::new(move || cleared.clear()),
            Box::new(move || {
                [1, 2].into_iter().for_each(|half| resized.resize(Fraction::new(half, 2)));
            }),
        ]);
        let counts = cache.counts();
        assert_eq!(counts.held_bytes, kept(&cache, 0..3));
        assert_eq!(counts.hits + counts.waits + counts.loads, 6, "no load fails");
        cache.clear();
        assert_eq!((cache.counts().held_bytes, kept(&cache, 0..3)), (0, 0));
    });
}

/// A block of `len` times `byte`, with a yield between its two halves.
fn filled(pool: &Arc<BlockPool>, byte: u8, len: usize) -> Block {
    let fill = |buffer: &mut [u8]| {
        let (front, back) = buffer[..len].split_at_mut(len / 2);
        front.fill(byte);
        thread::yield_now();
        back.fill(byte);
        Ok(len)
    };
    pool.block(fill).unwrap()
}

#[test]
fn a_used_up_block_leaves_and_its_buffer_is_not_reused_while_held() {
    const LEN: usize = 8;
    check(|| {
        let pool = BlockPool::new(LEN);
        let cache = Arc::new(Cache::<u8, Arc<Block>>::new(1 << 10, 1 << 10));
        // Like the reader of an image, half a block at a time.
        let read = |cache: &Cache<u8, Arc<Block>>, pool: &Arc<BlockPool>, key: u8| {
            let mut was_loaded = false;
            let block = cache.get_or_load(key, || {
                was_loaded = true;
                let block = filled(pool, key, LEN);
                block.hand_out(LEN / 2);
                Ok(Arc::new(block))
            });
            let block = block.unwrap();
            if !was_loaded && block.hand_out(LEN / 2) {
                cache.remove(&key);
            }
            thread::yield_now();
            assert_eq!(block.bytes(), [key; LEN]);
        };
        let reader = |keys: [u8; 2]| {
            let (cache, pool) = (Arc::clone(&cache), Arc::clone(&pool));
            Box::new(move || keys.into_iter().for_each(|key| read(&cache, &pool, key))) as Box<_>
        };
        spawn_all(vec![reader([1, 2]), reader([2, 1]), reader([1, 2])]);
        let mut held = 0;
        for key in 1..=2 {
            if let Ok(block) = cache.get_or_load(key, || Err(Error::corrupt("not kept"))) {
                assert!(!block.is_used_up(), "such a block is not kept");
                held += block.weight() + OVERHEAD;
            }
        }
        assert_eq!(cache.counts().held_bytes, held);
    });
}

#[test]
fn no_two_blocks_share_a_buffer_while_some_are_freed_fitted_and_released() {
    const LEN: usize = 8;
    check(|| {
        let pool = BlockPool::new(LEN);
        let holder = |byte: u8| {
            let pool = Arc::clone(&pool);
            Box::new(move || {
                let first = filled(&pool, byte, LEN);
                let second = filled(&pool, byte + 1, LEN / 2).fitted();
                thread::yield_now();
                assert_eq!(
                    (first.bytes(), second.bytes()),
                    (&[byte; LEN][..], &[byte + 1; LEN / 2][..])
                );
                drop(first);
                let third = filled(&pool, byte + 2, LEN);
                assert_eq!(third.bytes(), [byte + 2; LEN]);
                assert_eq!(second.bytes(), [byte + 1; LEN / 2]);
            }) as Box<dyn FnOnce() + Send>
        };
        let released = Arc::clone(&pool);
        spawn_all(vec![holder(10), holder(20), holder(30), Box::new(move || released.release())]);
    });
}

/// A flight as it might be written naively.
#[derive(Default)]
struct NaiveFlight {
    has_landed: Mutex<bool>,
    ended: Condvar,
}

impl NaiveFlight {
    /// Checks, unlocks, then waits: a landing in between wakes no waiter.
    fn wait(&self) {
        let has_landed = *self.has_landed.lock();
        if !has_landed {
            let mut guard = self.has_landed.lock();
            self.ended.wait(&mut guard);
        }
    }

    fn land(&self) {
        *self.has_landed.lock() = true;
        self.ended.notify_all();
    }
}

#[test]
fn the_checker_catches_a_lost_wake_up() {
    let (_, text) = caught(|| {
        let flight = Arc::new(NaiveFlight::default());
        let landed = Arc::clone(&flight);
        let leader = thread::spawn(move || landed.land());
        flight.wait();
        leader.join().unwrap();
    });
    assert!(text.contains("deadlock"), "{text}");
}

#[test]
fn the_checker_catches_a_check_outside_the_lock() {
    let (_, text) = caught(|| {
        // A cache of one value that checks under one lock and loads under the next.
        let (value, loads) = (Arc::new(Mutex::new(None)), Arc::new(AtomicU64::new(0)));
        let reader = || {
            let (value, loads) = (Arc::clone(&value), Arc::clone(&loads));
            Box::new(move || {
                let found = *value.lock();
                if found.is_none() {
                    loads.fetch_add(1, Ordering::Relaxed);
                    *value.lock() = Some(1);
                }
            }) as Box<_>
        };
        spawn_all(vec![reader(), reader()]);
        assert_eq!(loads.load(Ordering::Relaxed), 1, "loaded once");
    });
    assert!(text.contains("loaded once"), "{text}");
}
