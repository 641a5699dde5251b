//! Models of permits, for every interleaving (see the essay in `sync::model`).
//!
//! A reader that needs more than the whole limit takes part in each model of the limit and of the
//! order. The cache models below keep blocks the way the cache does: with their permits, until
//! evicted.

use super::*;
use crate::sync::model::{check, check_all};
use crate::sync::{Arc, AtomicU64, Ordering, thread};

const ROOM: u64 = 100;

fn nothing_to_evict(_: u64) {}

/// Holds a permit for `bytes` while other threads run; `taken` is the sum of all permits.
fn decode(permits: &Arc<Permits>, taken: &AtomicU64, bytes: u64) {
    let permit = permits.wait(bytes, nothing_to_evict);
    let others = taken.fetch_add(bytes, Ordering::Relaxed);
    assert!(others == 0 || others + bytes <= ROOM, "{bytes} bytes beside {others}");
    taken.fetch_sub(bytes, Ordering::Relaxed);
    drop(permit);
}

fn all_decode(sizes: &'static [u64]) {
    let (permits, taken) = (Permits::new(ROOM), Arc::new(AtomicU64::new(0)));
    let waits = |bytes: &u64| {
        let (permits, taken, bytes) = (Arc::clone(&permits), Arc::clone(&taken), *bytes);
        thread::spawn(move || decode(&permits, &taken, bytes))
    };
    let threads: Vec<_> = sizes.iter().map(waits).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let all = permits.now(10 * ROOM, nothing_to_evict);
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
        let permits = Permits::new(ROOM);
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = permits.wait(60, nothing_to_evict);
        let mut threads = Vec::new();
        // Smaller requests queue behind one that does not fit.
        for (count, bytes) in [(1, 300), (2, 10), (3, 20)] {
            let (requested, order) = (Arc::clone(&permits), Arc::clone(&order));
            threads.push(thread::spawn(move || {
                let permit = requested.wait(bytes, nothing_to_evict);
                order.lock().push(bytes);
                drop(permit);
            }));
            let waiting = |state: &State| state.next.wrapping_sub(state.serving);
            while waiting(&permits.state.lock()) < count {
                thread::yield_now();
            }
        }
        assert!(order.lock().is_empty());
        assert!(
            permits.now(10, nothing_to_evict).is_none(),
            "work that can wait does not overtake"
        );
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
        let permits = Permits::new(ROOM);
        let with_permit = Arc::new((Mutex::new(0), Condvar::new()));
        let first = permits.wait(60, nothing_to_evict);
        let waits = |bytes| {
            let (permits, with_permit) = (Arc::clone(&permits), Arc::clone(&with_permit));
            thread::spawn(move || {
                let _permit = permits.wait(bytes, nothing_to_evict);
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
        let permits = Permits::new(ROOM);
        let ahead = |bytes| {
            let permits = Arc::clone(&permits);
            thread::spawn(move || drop(permits.now(bytes, nothing_to_evict)))
        };
        let (first, second) = (ahead(90), ahead(40));
        drop(permits.wait(50, nothing_to_evict));
        drop(permits.wait(500, nothing_to_evict));
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(permits.state.lock().taken, 0);
    });
}

/// Blocks with their permits, as in a cache.
type Kept = Arc<Mutex<Vec<Arc<Permit>>>>;

/// Decodes a block, reads it and leaves it in the cache, as a reader does on a miss.
fn miss(permits: &Arc<Permits>, kept: &Kept, bytes: u64, decoding: u64) {
    let evict = |missing: u64| {
        let mut freed = 0;
        while freed < missing {
            let evicted = kept.lock().pop();
            let Some(evicted) = evicted else { return };
            freed += evicted.bytes;
        }
    };
    let mut permit = permits.wait(bytes + decoding, evict);
    permit.shrink(bytes);
    let block = Arc::new(permit);
    kept.lock().push(Arc::clone(&block));
    permits.change();
    // The reader still holds the block, although other readers may evict it now.
    drop(block);
}

fn all_miss(readers: &'static [&'static [u64]]) {
    let (permits, kept) = (Permits::new(ROOM), Kept::default());
    let read = |sizes: &&'static [u64]| {
        let (permits, kept, sizes) = (Arc::clone(&permits), Arc::clone(&kept), *sizes);
        // Decoding takes twice the memory of the block.
        thread::spawn(move || sizes.iter().for_each(|&bytes| miss(&permits, &kept, bytes, bytes)))
    };
    let threads: Vec<_> = readers.iter().map(read).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let sum: u64 = kept.lock().iter().map(|permit| permit.bytes).sum();
    assert_eq!(permits.taken(), sum, "what is in the cache is all that is taken");
    kept.lock().clear();
    assert_eq!(permits.taken(), 0);
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
        let (permits, kept) = (Permits::new(ROOM), Kept::default());
        let (others, cache) = (Arc::clone(&permits), Arc::clone(&kept));
        let first = thread::spawn(move || miss(&others, &cache, 60, 0));
        miss(&permits, &kept, 60, 0);
        first.join().unwrap();
        assert_eq!(permits.taken(), 60, "the block that was decoded last");
    });
}
