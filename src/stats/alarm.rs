//! A callback after a number of events, such as requests.
//!
//! Invariants: while the alarm is not set, an event only reads a number that no thread writes; the
//! callback runs once each time the alarm was set.

use crate::sync::{AtomicU64, OnceLock, Ordering};

/// The limit of an alarm that is not set.
const NEVER: u64 = u64::MAX;

/// The callback.
type Call = Box<dyn Fn() + Send + Sync>;

/// Runs a callback after a number of events.
pub struct Alarm {
    /// The number of events after which the callback runs.
    limit: AtomicU64,
    /// Events since the alarm was set.
    count: AtomicU64,
    call: OnceLock<Call>,
}

impl Alarm {
    /// Registers the callback. Only the first call counts.
    pub fn connect(&self, call: Call) {
        let _ = self.call.set(call);
    }

    /// Makes the `events`-th event from now on run the callback. A concurrent event may be missed,
    /// so who waits for the next one must check afterward whether there was one.
    pub fn set(&self, events: u64) {
        self.count.store(0, Ordering::Relaxed);
        self.limit.store(events.clamp(1, NEVER - 1), Ordering::Relaxed);
    }

    /// Whether the callback has not run since the alarm was set.
    pub fn is_set(&self) -> bool {
        self.limit.load(Ordering::Relaxed) != NEVER
    }

    /// Called for each event.
    pub fn on_event(&self) {
        let limit = self.limit.load(Ordering::Relaxed);
        if limit != NEVER && self.count.fetch_add(1, Ordering::Relaxed).saturating_add(1) >= limit {
            self.fire();
        }
    }

    #[cold]
    fn fire(&self) {
        // Several threads may have counted to the limit.
        if self.limit.swap(NEVER, Ordering::Relaxed) != NEVER
            && let Some(call) = self.call.get()
        {
            call();
        }
    }
}

impl Default for Alarm {
    fn default() -> Self {
        Self { limit: AtomicU64::new(NEVER), count: AtomicU64::new(0), call: OnceLock::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{Arc, AtomicUsize};

    #[test]
    fn calls_back_once_for_each_time_it_was_set() {
        let calls = Arc::new(AtomicUsize::new(0));
        let alarm = Alarm::default();
        let counted = Arc::clone(&calls);
        alarm.connect(Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        let calls_after = |events: u64| {
            (0..events).for_each(|_| alarm.on_event());
            calls.load(Ordering::Relaxed)
        };
        assert_eq!(calls_after(100), 0, "not set");
        alarm.set(100);
        assert_eq!(calls_after(99), 0);
        assert_eq!(calls_after(1), 1);
        assert_eq!(calls_after(1000), 1);
        alarm.set(0);
        assert_eq!(calls_after(1), 2, "at least one event");
        alarm.set(100);
        assert_eq!(calls_after(50), 2);
        alarm.set(100);
        assert_eq!(calls_after(99), 2, "counts from the last time it was set");
        assert_eq!(calls_after(1), 3);
    }
}
