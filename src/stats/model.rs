//! What the alarm promises, whatever the order (`sync::model` has the essay).
//!
//! Owns the model of one who waits for a request. Invariant: it does as `lifecycle::release` does.

use super::*;
use crate::sync::model::check;
use crate::sync::thread;

#[test]
fn a_request_after_the_alarm_was_set_makes_the_call_or_is_seen_in_the_count() {
    check(|| {
        let stats = Arc::new(Stats::default());
        let calls = Arc::new(AtomicU64::new(0));
        let called = Arc::clone(&calls);
        stats.connect_alarm(Box::new(move || {
            calls.fetch_add(1, Ordering::Relaxed);
        }));
        let asks = |count: u64| {
            let stats = Arc::clone(&stats);
            thread::spawn(move || (0..count).for_each(|_| stats.count(Operation::Other)))
        };
        let (first, second) = (asks(2), asks(1));
        stats.set_alarm();
        let seen = stats.requests();
        first.join().unwrap();
        second.join().unwrap();
        let (all, calls) = (stats.requests(), called.load(Ordering::Relaxed));
        assert_eq!(all, 3);
        assert!(calls == 1 || (calls == 0 && seen == all), "{calls} calls, {seen} seen");
        // What went unnoticed then is noticed with the next one, and nothing twice.
        stats.count(Operation::Other);
        stats.count(Operation::Other);
        assert_eq!(called.load(Ordering::Relaxed), 1);
    });
}
