//! One load under way, and those who wait for it.
//!
//! Owns the wait; who leads is decided under the shard's lock (see the essay in `cache`).
//! Invariant: a flight ends exactly once, and whoever waits is woken then.

use crate::sync::{Condvar, Mutex};

pub(super) struct Flight<V> {
    /// Guards the outcome; taken with no other lock held.
    outcome: Mutex<Outcome<V>>,
    ended: Condvar,
}

enum Outcome<V> {
    Pending,
    Landed(V),
    Abandoned,
}

impl<V: Clone> Flight<V> {
    pub(super) fn new() -> Self {
        Self { outcome: Mutex::new(Outcome::Pending), ended: Condvar::new() }
    }

    /// The value, once it is there; `None` where the leader gave up.
    pub(super) fn wait(&self) -> Option<V> {
        let mut outcome = self.outcome.lock();
        loop {
            match &*outcome {
                Outcome::Landed(value) => return Some(value.clone()),
                Outcome::Abandoned => return None,
                Outcome::Pending => self.ended.wait(&mut outcome),
            }
        }
    }

    pub(super) fn land(&self, value: V) {
        *self.outcome.lock() = Outcome::Landed(value);
        self.ended.notify_all();
    }

    pub(super) fn abandon(&self) {
        *self.outcome.lock() = Outcome::Abandoned;
        self.ended.notify_all();
    }
}
