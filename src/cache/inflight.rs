//! One load in progress, and its waiters. See the essay in `cache`.
//!
//! Invariant: a flight ends exactly once, and all waiters wake up then.

use crate::sync::{Condvar, Mutex};

pub(super) struct Flight<V> {
    /// Guards the outcome. No other lock is held while this one is taken.
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

    /// Waits for the value. `None` if the leader failed.
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
