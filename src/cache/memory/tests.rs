//! Permits are limited, granted in order, and returned; caches are evicted in turn; buffers are
//! reused.

use std::thread;

use super::*;
use crate::cache::Cache;

fn waiting(limit: &MemoryLimit) -> u64 {
    let state = limit.state.lock();
    state.next - state.serving
}

#[test]
fn a_reader_that_needs_all_the_room_is_not_overtaken_by_a_smaller_one() {
    let limit = MemoryLimit::new(100);
    let order = Mutex::new(Vec::new());
    let first = limit.wait(60);
    thread::scope(|scope| {
        for (count, bytes) in [(1, 300), (2, 10)] {
            let (limit, order) = (&limit, &order);
            scope.spawn(move || {
                let permit = limit.wait(bytes);
                order.lock().push(permit.bytes);
            });
            while waiting(limit) < count {
                thread::yield_now();
            }
        }
        assert!(order.lock().is_empty());
        drop(first);
    });
    assert_eq!(order.into_inner(), [300, 10]);
    assert_eq!(limit.taken(), 0);
}

#[test]
fn raising_the_limit_serves_waiting_readers() {
    let limit = MemoryLimit::new(100);
    limit.change(|state| state.limit = 10);
    let first = limit.wait(60);
    assert!(limit.now(5).is_none(), "60 of 10 are taken");
    thread::scope(|scope| {
        let second = scope.spawn(|| drop(limit.wait(40)));
        while waiting(&limit) < 1 {
            thread::yield_now();
        }
        limit.change(|state| state.limit = 100);
        second.join().unwrap();
    });
    drop(first);
}

#[test]
fn now_does_not_overtake_waiting_threads() {
    let limit = MemoryLimit::new(100);
    let first = limit.now(60).unwrap();
    assert!(limit.now(60).is_none());
    thread::scope(|scope| {
        let waits = scope.spawn(|| limit.wait(90).bytes);
        while waiting(&limit) == 0 {
            thread::yield_now();
        }
        // There is room, but a thread is waiting for more.
        assert!(limit.now(10).is_none());
        drop(first);
        assert_eq!(waits.join().unwrap(), 90);
    });
    assert!(limit.now(10).is_some());
}

/// Keeps permits; evicts one at a time, and expects that 20 bytes are missing.
struct Kept(Mutex<Vec<Permit>>);

impl Evict for Kept {
    fn evict(&self, missing: u64) -> u64 {
        assert_eq!(missing, 20);
        let evicted = self.0.lock().pop();
        evicted.map_or(0, |permit| permit.bytes)
    }
}

#[test]
fn evicts_what_is_missing_and_no_more() {
    let limit = MemoryLimit::new(100);
    let kept = Arc::new(Kept(Mutex::new(vec![limit.wait(50)])));
    kept.0.lock().push(limit.wait(50));
    let cache = Arc::downgrade(&kept);
    limit.add(cache);
    let mut permit = limit.wait(20);
    assert_eq!((limit.taken(), kept.0.lock().len()), (70, 1));
    permit.shrink(5);
    assert_eq!(limit.taken(), 55);
    permit.shrink(50);
    assert_eq!(limit.taken(), 55, "a permit never grows");
}

impl Cached for Arc<Permit> {
    fn weight(&self) -> u64 {
        self.bytes()
    }
}

type Blocks = Cache<u64, Arc<Permit>>;

fn miss(limit: &Arc<MemoryLimit>, cache: &Blocks, key: u64, bytes: u64) {
    cache.get_or_load(key, || Ok(Arc::new(limit.wait(bytes)))).unwrap();
    limit.entered();
}

#[test]
fn caches_that_share_a_limit_are_evicted_in_turn() {
    let limit = MemoryLimit::new(1000);
    let caches: [Arc<Blocks>; 2] = std::array::from_fn(|_| Arc::new(Cache::new(1 << 20, 1)));
    for cache in &caches {
        let weak = Arc::downgrade(cache);
        limit.add(weak);
    }
    for key in 0..100 {
        miss(&limit, &caches[0], key, 90);
        miss(&limit, &caches[1], key, 10);
        assert!(limit.taken() <= 1000, "{}", limit.taken());
    }
    let counts = caches.each_ref().map(|cache| cache.counts());
    assert!(counts.iter().all(|counts| counts.evictions > 50), "{counts:?}");
    // A request above the limit is granted when it is the only one.
    assert_eq!(limit.wait(5000).bytes(), 5000);
    assert_eq!(limit.taken(), 0, "all was evicted for it");
}

#[test]
fn a_reservation_and_a_smaller_budget_leave_less_room() {
    let limit = MemoryLimit::new(1000);
    limit.set_aside(200);
    let permit = limit.now(500).unwrap();
    assert!(limit.now(301).is_none());
    limit.resize(Fraction::new(1, 2));
    assert!(limit.now(1).is_none(), "500 of 400 are taken");
    drop(permit);
    assert!(limit.now(400).is_some());
}

fn filled(pool: &Arc<BlockPool>, byte: u8, len: usize) -> Block {
    let fill = |buffer: &mut [u8]| {
        buffer[..len].fill(byte);
        Ok(len)
    };
    pool.block(fill).unwrap()
}

#[test]
fn reuses_the_most_recently_freed_buffer() {
    let pool = BlockPool::new(1000);
    let (first, second) = (filled(&pool, 1, 1000), filled(&pool, 2, 1000));
    let address = second.bytes().as_ptr();
    drop(first);
    drop(second);
    let third = filled(&pool, 3, 900);
    assert_eq!(third.bytes().as_ptr(), address);
    assert_eq!(third.bytes(), [3; 900], "and none of the earlier bytes");
}

#[test]
fn a_block_that_could_not_be_filled_returns_its_buffer() {
    let pool = BlockPool::new(1000);
    assert!(pool.block(|_| Err(Error::corrupt("no"))).is_err());
    assert_eq!(pool.free.lock().len(), 1);
}

#[test]
fn keeps_a_bounded_number_of_free_buffers() {
    for (size, free_max) in [(1 << 20, 8), (4 << 20, FREE_COUNT)] {
        let pool = BlockPool::new(size);
        let blocks: Vec<_> = (0..20).map(|_| filled(&pool, 0, 10)).collect();
        drop(blocks);
        assert_eq!(pool.free.lock().len(), free_max);
        pool.release();
        assert_eq!(pool.free.lock().len(), 0);
    }
}

#[test]
fn archives_with_blocks_of_one_size_share_a_pool() {
    let pools = BlockPools::default();
    let (one, other) = (pools.of(1000), pools.of(2000));
    assert!(Arc::ptr_eq(&one, &pools.of(1000)));
    assert!(!Arc::ptr_eq(&one, &other));
}

#[test]
fn a_short_block_is_cut_to_size() {
    let pool = BlockPool::new(1000);
    for (len, weight) in [(749, 749), (750, 1000)] {
        let block = Arc::new(filled(&pool, 7, len).fitted());
        assert_eq!((block.weight(), block.bytes()), (weight, &vec![7; len][..]));
    }
    assert_eq!(pool.free.lock().len(), 1, "one was cut, and both gave back what they could");
}

#[test]
fn is_used_up_when_all_its_bytes_were_handed_out() {
    let block = Arc::new(filled(&BlockPool::new(1000), 1, 1000));
    assert!(!block.is_used_up());
    assert!(!block.hand_out(600));
    assert!(!block.hand_out(399));
    assert!(block.hand_out(1));
    assert!(block.is_used_up());
}
