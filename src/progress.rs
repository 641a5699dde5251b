//! Progress of a long operation: the name of its phase and two counters.
//!
//! `cli::bar` shows them. Invariant: counting takes no lock and allocates nothing.

use std::any::Any;

use crate::sync::{Arc, AtomicU64, Mutex, Ordering};

/// Shows the user what is being waited for, until the returned value is dropped.
pub type Show<'a> = &'a dyn Fn(&str) -> Box<dyn Any>;

/// Shows progress to the user, until the returned value is dropped.
pub type Watch<'a> = &'a dyn Fn(&Arc<Progress>) -> Box<dyn Any>;

/// Bytes done and bytes in total. Relaxed, because nothing depends on their order.
#[derive(Debug, Default)]
pub struct Progress {
    /// Guards the name of the phase, which changes only a few times. No other lock is held with it.
    phase: Mutex<String>,
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Begins `phase`, such as `reading headers`, and resets the counters.
    pub fn begin(&self, phase: impl Into<String>) {
        let mut name = self.phase.lock();
        *name = phase.into();
        self.done.store(0, Ordering::Relaxed);
        self.total.store(0, Ordering::Relaxed);
    }

    /// The current phase.
    pub fn phase(&self) -> String {
        self.phase.lock().clone()
    }

    /// Adds `bytes` to the total.
    pub fn expect(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds `bytes` to those done.
    pub fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes done, and the total as far as it is known.
    pub fn now(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }
}
