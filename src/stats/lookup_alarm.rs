//! A callback after a number of lookups that found a name.
//!
//! Invariants: while the alarm is not set, a lookup only reads a number that no thread writes; the
//! callback runs once each time the alarm was set.

use std::fmt;

use crate::sync::{AtomicU64, OnceLock, Ordering};

/// The limit of an alarm that is not set.
const NEVER: u64 = u64::MAX;

/// The callback.
type Call = Box<dyn Fn() + Send + Sync>;

pub(super) struct LookupAlarm {
    /// The number of lookups after which the callback runs.
    limit: AtomicU64,
    /// Lookups since the alarm was set.
    found: AtomicU64,
    call: OnceLock<Call>,
}

impl LookupAlarm {
    /// Registers the callback. Only the first call counts.
    pub(super) fn connect(&self, call: Call) {
        let _ = self.call.set(call);
    }

    /// Makes the `lookups`-th lookup from now on run the callback.
    pub(super) fn set(&self, lookups: u64) {
        self.found.store(0, Ordering::Relaxed);
        self.limit.store(lookups.clamp(1, NEVER - 1), Ordering::Relaxed);
    }

    /// Whether the callback has not run since the alarm was set.
    pub(super) fn is_set(&self) -> bool {
        self.limit.load(Ordering::Relaxed) != NEVER
    }

    /// Called for each lookup that found a name.
    pub(super) fn on_found(&self) {
        let limit = self.limit.load(Ordering::Relaxed);
        // Exactly one thread counts to the limit.
        if limit != NEVER && self.found.fetch_add(1, Ordering::Relaxed).wrapping_add(1) == limit {
            self.fire();
        }
    }

    #[cold]
    fn fire(&self) {
        self.limit.store(NEVER, Ordering::Relaxed);
        if let Some(call) = self.call.get() {
            call();
        }
    }
}

impl Default for LookupAlarm {
    fn default() -> Self {
        Self { limit: AtomicU64::new(NEVER), found: AtomicU64::new(0), call: OnceLock::new() }
    }
}

impl fmt::Debug for LookupAlarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.found.load(Ordering::Relaxed);
        match self.limit.load(Ordering::Relaxed) {
            NEVER => f.write_str("not set"),
            limit => write!(f, "{found} of {limit} lookups"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{Arc, AtomicUsize};

    #[test]
    fn calls_back_once_for_each_time_it_was_set() {
        let calls = Arc::new(AtomicUsize::new(0));
        let alarm = LookupAlarm::default();
        let counted = Arc::clone(&calls);
        alarm.connect(Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        let calls_after = |lookups: u64| {
            (0..lookups).for_each(|_| alarm.on_found());
            calls.load(Ordering::Relaxed)
        };
        assert_eq!(calls_after(100), 0, "not set");
        alarm.set(100);
        assert_eq!(calls_after(99), 0);
        assert_eq!(calls_after(1), 1);
        assert_eq!(calls_after(1000), 1);
        alarm.set(0);
        assert_eq!(calls_after(1), 2, "at least one lookup");
        alarm.set(100);
        assert_eq!(calls_after(50), 2);
        alarm.set(100);
        assert_eq!(calls_after(99), 2, "counts from the last time it was set");
        assert_eq!(calls_after(1), 3);
    }
}
