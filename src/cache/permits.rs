//! Bounds the memory of the caches and of the decoding for them, in bytes.
//!
//! A permit is taken before the memory is allocated and lives as long as the memory: while a block
//! is decoded, cached, or held by a reader. So the permits never add up to more than the limit,
//! whatever readers do. The one exception is a block that needs more than the limit: it is decoded
//! once there is no other permit.
//!
//! The hard part is to find room. The cache is usually full, so a reader that has to decode a block
//! evicts others first. `make_room` does that, with no lock held. An evicted block may still be
//! held by a reader, or there may be nothing to evict because all the memory is being decoded into.
//! Then the reader waits. Whenever a permit is returned or a block enters the cache, the reader
//! tries again. Readers are served first come, first served, so a stream of small requests cannot
//! starve a large one.
//!
//! No thread that holds the permit of an unfinished block waits for another permit. So there is no
//! deadlock: cached blocks can be evicted, and all other permits are returned eventually.

use std::fmt;

use crate::sync::{Arc, Condvar, Mutex};

#[cfg(all(test, feature = "model"))]
#[path = "permits_model.rs"]
mod model;

/// A bounded amount of memory.
#[derive(Debug)]
pub(super) struct Permits {
    /// No other lock is held while this one is taken, and no decoding or eviction runs under it.
    state: Mutex<State>,
    /// Signals that `State::changes` has changed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The limit on the sum of all permits, in bytes.
    room: u64,
    /// The sum of all permits, in bytes.
    taken: u64,
    /// The ticket of the next caller, and the ticket to be served next.
    next: u64,
    serving: u64,
    /// Counts events that may let a waiting thread have its permit.
    changes: u64,
}

/// A reservation of memory, returned when dropped.
pub struct Permit {
    permits: Arc<Permits>,
    bytes: u64,
}

impl Permits {
    /// Permits that add up to at most `room` bytes.
    pub(super) fn new(room: u64) -> Arc<Self> {
        let state = Mutex::new(State { room, ..State::default() });
        Arc::new(Self { state, changed: Condvar::new() })
    }

    /// Changes the limit to `room` bytes. Existing permits stay valid.
    pub(super) fn set_room(&self, room: u64) {
        self.state.lock().room = room;
        self.change();
    }

    /// Waits until there is room for `bytes` and all earlier callers have been served. `make_room`
    /// evicts up to that many bytes; it may free fewer.
    pub(super) fn wait(self: &Arc<Self>, bytes: u64, make_room: impl Fn(u64)) -> Permit {
        let mut state = self.state.lock();
        let ticket = state.next;
        state.next = state.next.wrapping_add(1);
        loop {
            if ticket == state.serving {
                if state.fits(bytes) {
                    break;
                }
                let (changes, missing) = (state.changes, state.missing(bytes));
                drop(state);
                make_room(missing);
                state = self.state.lock();
                if state.changes != changes {
                    continue;
                }
            }
            self.changed.wait(&mut state);
        }
        state.serving = state.serving.wrapping_add(1);
        state.taken = state.taken.saturating_add(bytes);
        let has_waiters = state.next != state.serving;
        drop(state);
        if has_waiters {
            // The next waiter may fit too.
            self.changed.notify_all();
        }
        Permit { permits: Arc::clone(self), bytes }
    }

    /// Like `wait`, but returns `None` instead of waiting. It never overtakes a waiting thread.
    pub(super) fn now(self: &Arc<Self>, bytes: u64, make_room: impl Fn(u64)) -> Option<Permit> {
        for is_last_try in [false, true] {
            let mut state = self.state.lock();
            if state.next != state.serving {
                return None;
            }
            if state.fits(bytes) {
                state.taken = state.taken.saturating_add(bytes);
                return Some(Permit { permits: Arc::clone(self), bytes });
            }
            let missing = state.missing(bytes);
            drop(state);
            if !is_last_try {
                make_room(missing);
            }
        }
        None
    }

    /// The sum of all permits, in bytes.
    pub(super) fn taken(&self) -> u64 {
        self.state.lock().taken
    }

    /// Signals that a block entered the cache, which `make_room` could evict.
    pub(super) fn change(&self) {
        let mut state = self.state.lock();
        state.changes = state.changes.wrapping_add(1);
        let has_waiters = state.next != state.serving;
        drop(state);
        if has_waiters {
            self.changed.notify_all();
        }
    }
}

impl State {
    fn fits(&self, bytes: u64) -> bool {
        self.taken == 0 || self.taken.saturating_add(bytes) <= self.room
    }

    /// Bytes that must be returned before `bytes` fit.
    fn missing(&self, bytes: u64) -> u64 {
        self.taken.saturating_add(bytes).saturating_sub(self.room).min(self.taken)
    }
}

impl Permit {
    /// The size of the reservation, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns all but `bytes`.
    pub fn shrink(&mut self, bytes: u64) {
        let returned = self.bytes.saturating_sub(bytes);
        self.bytes = self.bytes.min(bytes);
        self.permits.give_back(returned);
    }
}

impl Permits {
    fn give_back(&self, bytes: u64) {
        if bytes > 0 {
            let mut state = self.state.lock();
            state.taken = state.taken.saturating_sub(bytes);
            drop(state);
            self.change();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.give_back(self.bytes);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn waiting(permits: &Permits) -> u64 {
        let state = permits.state.lock();
        state.next - state.serving
    }

    fn nothing_to_evict(_: u64) {}

    #[test]
    fn a_reader_that_needs_all_the_room_is_not_overtaken_by_a_smaller_one() {
        let permits = Permits::new(100);
        let order = Mutex::new(Vec::new());
        let first = permits.wait(60, nothing_to_evict);
        thread::scope(|scope| {
            for (count, bytes) in [(1, 300), (2, 10)] {
                let (permits, order) = (&permits, &order);
                scope.spawn(move || {
                    let permit = permits.wait(bytes, nothing_to_evict);
                    order.lock().push(permit.bytes);
                });
                while waiting(permits) < count {
                    thread::yield_now();
                }
            }
            assert!(order.lock().is_empty());
            drop(first);
        });
        assert_eq!(order.into_inner(), [300, 10]);
        assert_eq!(permits.taken(), 0);
    }

    #[test]
    fn raising_the_limit_serves_waiting_readers() {
        let permits = Permits::new(100);
        permits.set_room(10);
        let first = permits.wait(60, nothing_to_evict);
        assert!(permits.now(5, nothing_to_evict).is_none(), "60 of 10 are taken");
        thread::scope(|scope| {
            let second = scope.spawn(|| drop(permits.wait(40, nothing_to_evict)));
            while waiting(&permits) < 1 {
                thread::yield_now();
            }
            permits.set_room(100);
            second.join().unwrap();
        });
        drop(first);
    }

    #[test]
    fn now_does_not_overtake_waiting_threads() {
        let permits = Permits::new(100);
        let first = permits.now(60, nothing_to_evict).unwrap();
        assert!(permits.now(60, nothing_to_evict).is_none());
        thread::scope(|scope| {
            let waits = scope.spawn(|| permits.wait(90, nothing_to_evict).bytes);
            while waiting(&permits) == 0 {
                thread::yield_now();
            }
            // There is room, but a thread is waiting for more.
            assert!(permits.now(10, nothing_to_evict).is_none());
            drop(first);
            assert_eq!(waits.join().unwrap(), 90);
        });
        assert!(permits.now(10, nothing_to_evict).is_some());
    }

    #[test]
    fn evicts_what_is_missing_and_no_more() {
        let permits = Permits::new(100);
        let kept = Mutex::new(vec![permits.wait(50, nothing_to_evict)]);
        kept.lock().push(permits.wait(50, nothing_to_evict));
        let evict = |missing| {
            assert_eq!(missing, 20);
            let evicted = kept.lock().pop();
            drop(evicted);
        };
        let mut permit = permits.wait(20, evict);
        assert_eq!((permits.taken(), kept.lock().len()), (70, 1));
        permit.shrink(5);
        assert_eq!(permits.taken(), 55);
        permit.shrink(50);
        assert_eq!(permits.taken(), 55, "a permit never grows");
    }
}
