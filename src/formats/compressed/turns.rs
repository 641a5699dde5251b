//! How much is decoded at once, in bytes of memory that decoding takes.
//!
//! Owns who may start, in the order in which they came; leaves what is decoded to its user.
//! Invariants: what has a turn takes at most `room`, or is alone where it needs more; nobody is
//! overtaken, so one who needs all the room gets it although others come without end.

use crate::sync::{Condvar, Mutex};

#[cfg(all(test, feature = "model"))]
#[path = "turns_model.rs"]
mod model;

/// A bounded amount of decoding.
#[derive(Debug)]
pub(super) struct Turns {
    /// Taken alone, never while decoding.
    state: Mutex<State>,
    /// A turn began or ended.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that those with a turn may take.
    room: u64,
    /// Bytes that those with a turn take.
    taken: u64,
    /// The ticket of who comes next, and of who is the next to have a turn.
    next: u64,
    serving: u64,
}

/// Room for decoding, given back when dropped.
#[derive(Debug)]
pub(super) struct Turn<'t> {
    turns: &'t Turns,
    bytes: u64,
}

impl Turns {
    /// Turns that take at most `room` bytes together.
    pub(super) fn new(room: u64) -> Self {
        let state = Mutex::new(State { room, ..State::default() });
        Self { state, changed: Condvar::new() }
    }

    /// From now on turns take at most `room` bytes together; those that have begun go on.
    pub(super) fn set_room(&self, room: u64) {
        self.state.lock().room = room;
        self.changed.notify_all();
    }

    /// A turn that takes `bytes`, once there is room and all who came before have theirs.
    pub(super) fn wait(&self, bytes: u64) -> Turn<'_> {
        let mut state = self.state.lock();
        let ticket = state.next;
        state.next = state.next.wrapping_add(1);
        while ticket != state.serving || !fits(&state, bytes) {
            self.changed.wait(&mut state);
        }
        state.serving = state.serving.wrapping_add(1);
        state.taken = state.taken.saturating_add(bytes);
        drop(state);
        // Who comes next may fit as well.
        self.changed.notify_all();
        Turn { turns: self, bytes }
    }

    /// The same at once, or `None`: for work that can wait, and shall make nobody else wait.
    pub(super) fn now(&self, bytes: u64) -> Option<Turn<'_>> {
        let mut state = self.state.lock();
        if state.next != state.serving || !fits(&state, bytes) {
            return None;
        }
        state.taken = state.taken.saturating_add(bytes);
        Some(Turn { turns: self, bytes })
    }
}

fn fits(state: &State, bytes: u64) -> bool {
    state.taken == 0 || state.taken.saturating_add(bytes) <= state.room
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock();
        state.taken = state.taken.saturating_sub(self.bytes);
        drop(state);
        self.turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn waiting(turns: &Turns) -> u64 {
        let state = turns.state.lock();
        state.next - state.serving
    }

    #[test]
    fn who_needs_all_the_room_is_not_overtaken_by_who_would_fit() {
        let turns = Turns::new(100);
        let order = Mutex::new(Vec::new());
        let first = turns.wait(60);
        thread::scope(|scope| {
            for (count, bytes) in [(1, 300), (2, 10)] {
                let (turns, order) = (&turns, &order);
                scope.spawn(move || {
                    let turn = turns.wait(bytes);
                    order.lock().push(turn.bytes);
                });
                while waiting(turns) < count {
                    thread::yield_now();
                }
            }
            assert!(order.lock().is_empty());
            drop(first);
        });
        assert_eq!(order.into_inner(), [300, 10]);
        assert_eq!(turns.state.lock().taken, 0);
    }

    #[test]
    fn who_waits_gets_a_turn_when_there_is_more_room() {
        let turns = Turns::new(100);
        turns.set_room(10);
        let first = turns.wait(60);
        assert!(turns.now(5).is_none(), "60 of 10 are taken");
        thread::scope(|scope| {
            let second = scope.spawn(|| drop(turns.wait(40)));
            while waiting(&turns) < 1 {
                thread::yield_now();
            }
            turns.set_room(100);
            second.join().unwrap();
        });
        drop(first);
    }

    #[test]
    fn work_that_can_wait_overtakes_nobody() {
        let turns = Turns::new(100);
        let first = turns.now(60).unwrap();
        assert!(turns.now(60).is_none());
        thread::scope(|scope| {
            let waits = scope.spawn(|| turns.wait(90).bytes);
            while waiting(&turns) == 0 {
                thread::yield_now();
            }
            // There is room, but somebody waits for more.
            assert!(turns.now(10).is_none());
            drop(first);
            assert_eq!(waits.join().unwrap(), 90);
        });
        assert!(turns.now(10).is_some());
    }
}
