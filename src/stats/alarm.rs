//! A callback for the next request.
//!
//! Invariants: while the alarm is not set, a request only reads a flag that no thread writes; the
//! callback runs once each time the alarm was set.

use std::fmt;

use crate::sync::{AtomicBool, OnceLock, Ordering};

/// The callback.
type Call = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
pub(super) struct Alarm {
    is_set: AtomicBool,
    call: OnceLock<Call>,
}

impl Alarm {
    /// Registers the callback. Only the first call counts.
    pub(super) fn connect(&self, call: Call) {
        let _ = self.call.set(call);
    }

    /// Makes the next request run the callback. A concurrent request may be missed, so the caller
    /// must check the number of requests afterwards.
    pub(super) fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
    }

    /// Called for each request.
    pub(super) fn on_request(&self) {
        if self.is_set.load(Ordering::Relaxed) {
            self.fire();
        }
    }

    #[cold]
    fn fire(&self) {
        if self.is_set.swap(false, Ordering::Relaxed)
            && let Some(call) = self.call.get()
        {
            call();
        }
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_set.load(Ordering::Relaxed) { "set" } else { "not set" })
    }
}
