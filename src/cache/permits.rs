//! How much memory a cache and the decoding for it take together, in bytes.
//!
//! A permit is taken before the memory is, and lives as long as the memory: while a block is
//! decoded, while it is in the cache, and while a reader holds it. So the permits of a cache never
//! add up to more than its room, whatever its readers do. The one exception is a block that needs
//! more than the room: it is decoded once no other permit is left.
//!
//! The hard part is to find room. A full cache is the usual state, so a reader that has to decode a
//! block evicts others first. `make_room` does that, with no lock held. What it evicts may still be
//! in the hands of a reader, or there may be nothing to evict because all the room is being decoded
//! into. Then the reader waits. Every end of a permit, and every block that enters the cache, makes
//! it look again. Readers are served in the order in which they came, so a reader that needs much
//! room gets it although others come without end.
//!
//! Nothing that holds the permit of an unfinished block waits for another permit, so there is no
//! deadlock: blocks in the cache can be evicted, and all other permits end by themselves.

use std::fmt;

use crate::sync::{Arc, Condvar, Mutex};

#[cfg(all(test, feature = "model"))]
#[path = "permits_model.rs"]
mod model;

/// A bounded amount of memory.
#[derive(Debug)]
pub(super) struct Permits {
    /// Taken alone, never while decoding or evicting.
    state: Mutex<State>,
    /// `State::changes` has changed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that all permits may add up to.
    room: u64,
    /// Bytes that they add up to.
    taken: u64,
    /// The ticket of the next to come, and of the next to get a permit.
    next: u64,
    serving: u64,
    /// Counts events that may let a waiting thread have its permit.
    changes: u64,
}

/// Room for some bytes, given back when dropped.
pub struct Permit {
    permits: Arc<Permits>,
    bytes: u64,
}

impl Permits {
    /// Permits for at most `room` bytes together.
    pub(super) fn new(room: u64) -> Arc<Self> {
        let state = Mutex::new(State { room, ..State::default() });
        Arc::new(Self { state, changed: Condvar::new() })
    }

    /// From now on permits add up to at most `room` bytes; those that there are stay.
    pub(super) fn set_room(&self, room: u64) {
        self.state.lock().room = room;
        self.change();
    }

    /// A permit for `bytes`, once there is room and all earlier callers have theirs.
    /// `make_room` evicts that many bytes if it can, and may free fewer.
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
        let others_wait = state.next != state.serving;
        drop(state);
        if others_wait {
            // The next one may fit as well.
            self.changed.notify_all();
        }
        Permit { permits: Arc::clone(self), bytes }
    }

    /// The same at once, or `None`: for work that can wait. It never overtakes a thread that waits.
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

    /// Bytes that the permits add up to.
    pub(super) fn taken(&self) -> u64 {
        self.state.lock().taken
    }

    /// Says that something entered the cache, which `make_room` could evict again.
    pub(super) fn change(&self) {
        let mut state = self.state.lock();
        state.changes = state.changes.wrapping_add(1);
        let is_waited_for = state.next != state.serving;
        drop(state);
        if is_waited_for {
            self.changed.notify_all();
        }
    }
}

impl State {
    fn fits(&self, bytes: u64) -> bool {
        self.taken == 0 || self.taken.saturating_add(bytes) <= self.room
    }

    /// Bytes that have to be given back before `bytes` fit.
    fn missing(&self, bytes: u64) -> u64 {
        self.taken.saturating_add(bytes).saturating_sub(self.room).min(self.taken)
    }
}

impl Permit {
    /// What it is for, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives back all but `bytes`.
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
    fn a_reader_that_needs_all_the_room_is_not_overtaken_by_one_that_would_fit() {
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
    fn a_reader_that_waits_gets_its_permit_when_there_is_more_room() {
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
    fn work_that_can_wait_overtakes_nobody() {
        let permits = Permits::new(100);
        let first = permits.now(60, nothing_to_evict).unwrap();
        assert!(permits.now(60, nothing_to_evict).is_none());
        thread::scope(|scope| {
            let waits = scope.spawn(|| permits.wait(90, nothing_to_evict).bytes);
            while waiting(&permits) == 0 {
                thread::yield_now();
            }
            // There is room, but a thread waits for more.
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
