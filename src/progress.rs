//! How far a long piece of work is.
//!
//! Owns two counters that work adds to and somebody may watch; knows neither. Leaves showing them
//! to `cli::bar`. Invariant: counting costs no lock and no allocation.

use crate::sync::{AtomicU64, Ordering};

/// Bytes done of bytes to do. Relaxed, for nobody decides anything by them.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
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
