//! How far a long piece of work is.
//!
//! Owns a name and two counters that work sets and somebody may watch; knows neither. Leaves
//! showing them to `cli::bar`. Invariant: counting costs no lock and no allocation.

use std::any::Any;

use crate::sync::{AtomicU64, Mutex, Ordering};

/// Shows a person what is waited for, until what it returns is dropped.
pub type Show<'a> = &'a dyn Fn(&str) -> Box<dyn Any>;

/// Bytes done of bytes to do. Relaxed, for nobody decides anything by them.
#[derive(Debug, Default)]
pub struct Progress {
    /// Guards the name of what is being done, which changes a few times in all; taken alone.
    phase: Mutex<String>,
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Begins `phase`, such as `reading headers`, of which nothing is done or known yet.
    pub fn begin(&self, phase: impl Into<String>) {
        let mut name = self.phase.lock();
        *name = phase.into();
        self.done.store(0, Ordering::Relaxed);
        self.total.store(0, Ordering::Relaxed);
    }

    /// What is being done.
    pub fn phase(&self) -> String {
        self.phase.lock().clone()
    }

    /// Adds `bytes` to what is to be done.
    pub fn expect(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds `bytes` to what is done.
    pub fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes done, and bytes to do in all as far as known.
    pub fn now(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }
}
