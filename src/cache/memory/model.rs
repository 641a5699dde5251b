//! Models of permits, for every interleaving (see the essay in `sync::model`).
//!
//! A reader that needs more than the whole limit takes part in each model of the limit and of the
//! order. The cache models below keep blocks the way the cache does: with their permits, until
//! evicted.

use super::*;
use crate::sync::model::{check, check_all};
use crate::sync::{Arc, AtomicU64, Ordering, thread};

const ROOM: u64 = 100;

/// Holds a permit for `bytes` while other threads run; `taken` is the sum of all permits.
fn decode(limit: &Arc<MemoryLimit>, taken: &AtomicU64, bytes: u64) {
    let permit = limit.wait(bytes);
    let others = taken.fetch_add(bytes, Ordering::Relaxed);
    assert!(others == 0 || others + bytes <= ROOM, "{bytes} bytes beside {others}");
    taken.fetch_sub(bytes, Ordering::Relaxed);
    drop(permit);
}

fn all_decode(sizes: &'static [u64]) {
    let (limit, taken) = (MemoryLimit::new(ROOM), Arc::new(AtomicU64::new(0)));
    let waits = |bytes: &u64| {
        let (limit, taken, bytes) = (Arc::clone(&limit), Arc::clone(&taken), *bytes);
        thread::spawn(move || decode(&limit, &taken, bytes))
    };
    let threads: Vec<_> = sizes.iter().map(waits).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let all = limit.now(10 * ROOM);
    assert!(all.is_some(), "all room was given back, and no thread waits");
}

#[test]
fn every_reader_gets_a_permit_within_the_limit_or_alone() {
    check(|| all_decode(&[60, 300, 40, 50, 100]));
}

#[test]
fn two_readers_get_their_permits_in_every_interleaving() {
    check_all(500_000, || all_decode(&[60, 300]));
}

#[test]
fn permits_are_granted_in_the_order_of_requests() {
    check(|| {
        let limit = MemoryLimit::new(ROOM);
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = limit.wait(60);
        let mut threads = Vec::new();
        // Smaller requests queue behind one that does not fit.
        for (count, bytes) in [(1, 300), (2, 10), (3, 20)] {
            let (requested, order) = (Arc::clone(&limit), Arc::clone(&order));
            threads.push(thread::spawn(move || {
                let permit = requested.wait(bytes);
                order.lock().push(bytes);
                drop(permit);
            }));
            let waiting = |state: &State| state.next.wrapping_sub(state.serving);
            while waiting(&limit.state.lock()) < count {
                thread::yield_now();
            }
        }
        assert!(order.lock().is_empty());
        assert!(limit.now(10).is_none(), "work that can wait does not overtake");
        drop(first);
        for thread in threads {
            thread.join().unwrap();
        }
        let order = order.lock();
        assert_eq!(order[0], 300, "no other overtook it");
        // The order of the other two is not fixed: both may be served at once.
        assert_eq!(order.len(), 3);
    });
}

#[test]
fn a_reader_that_fits_does_not_wait_for_others() {
    check(|| {
        let limit = MemoryLimit::new(ROOM);
        let with_permit = Arc::new((Mutex::new(0), Condvar::new()));
        let first = limit.wait(60);
        let waits = |bytes| {
            let (limit, with_permit) = (Arc::clone(&limit), Arc::clone(&with_permit));
            thread::spawn(move || {
                let _permit = limit.wait(bytes);
                // Held until the other thread has a permit too.
                let (count, changed) = &*with_permit;
                let mut count = count.lock();
                *count += 1;
                changed.notify_all();
                while *count < 2 {
                    changed.wait(&mut count);
                }
            })
        };
        let threads = [waits(50), waits(50)];
        drop(first);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn now_never_keeps_other_threads_from_their_permits() {
    check(|| {
        let limit = MemoryLimit::new(ROOM);
        let ahead = |bytes| {
            let limit = Arc::clone(&limit);
            thread::spawn(move || drop(limit.now(bytes)))
        };
        let (first, second) = (ahead(90), ahead(40));
        drop(limit.wait(50));
        drop(limit.wait(500));
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(limit.state.lock().taken, 0);
    });
}

/// Blocks with their permits, as in a cache.
#[derive(Default)]
struct Kept(Mutex<Vec<Arc<Permit>>>);

impl Evict for Kept {
    fn evict(&self, bytes: u64) -> u64 {
        let mut freed = 0;
        while freed < bytes {
            let evicted = self.0.lock().pop();
            let Some(evicted) = evicted else { break };
            freed += evicted.bytes;
        }
        freed
    }
}

/// A limit, and the only cache under it.
fn limited_cache() -> (Arc<MemoryLimit>, Arc<Kept>) {
    let (limit, kept) = (MemoryLimit::new(ROOM), Arc::new(Kept::default()));
    let cache: Arc<dyn Evict> = Arc::clone(&kept) as _;
    limit.add(Arc::downgrade(&cache));
    (limit, kept)
}

/// Decodes a block, reads it and leaves it in the cache, as a reader does on a miss.
fn miss(limit: &Arc<MemoryLimit>, kept: &Kept, bytes: u64, decoding: u64) {
    let mut permit = limit.wait(bytes + decoding);
    permit.shrink(bytes);
    let block = Arc::new(permit);
    kept.0.lock().push(Arc::clone(&block));
    limit.entered();
    // The reader still holds the block, although other readers may evict it now.
    drop(block);
}

fn all_miss(readers: &'static [&'static [u64]]) {
    let (limit, kept) = limited_cache();
    let read = |sizes: &&'static [u64]| {
        let (limit, kept, sizes) = (Arc::clone(&limit), Arc::clone(&kept), *sizes);
        // Decoding takes twice the memory of the block.
        thread::spawn(move || sizes.iter().for_each(|&bytes| miss(&limit, &kept, bytes, bytes)))
    };
    let threads: Vec<_> = readers.iter().map(read).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let sum: u64 = kept.0.lock().iter().map(|permit| permit.bytes).sum();
    assert_eq!(limit.taken(), sum, "what is in the cache is all that is taken");
    kept.0.lock().clear();
    assert_eq!(limit.taken(), 0);
}

#[test]
fn readers_of_a_full_cache_evict_what_they_need_and_never_wait_forever() {
    // The checker reports an endless wait as a deadlock.
    check(|| all_miss(&[&[40, 30], &[30, 45, 10], &[200, 20]]));
}

#[test]
fn a_queued_reader_gets_its_turn() {
    // There are too many interleavings to try them all.
    check(|| {
        let (limit, kept) = limited_cache();
        let (others, cache) = (Arc::clone(&limit), Arc::clone(&kept));
        let first = thread::spawn(move || miss(&others, &cache, 60, 0));
        miss(&limit, &kept, 60, 0);
        first.join().unwrap();
        assert_eq!(limit.taken(), 60, "the block that was decoded last");
    });
}
