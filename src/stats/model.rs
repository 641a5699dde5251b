//! Model of the alarm, for every interleaving (see the essay in `sync::model`).
//!
//! It waits for a request in the same way as `lifecycle::release`.

use super::*;
use crate::sync::model::check;
use crate::sync::thread;

#[test]
fn a_request_after_set_runs_the_callback_or_is_seen_in_the_count() {
    check(|| {
        let stats = Arc::new(Stats::default());
        let calls = Arc::new(AtomicU64::new(0));
        let called = Arc::clone(&calls);
        stats.alarm.connect(Box::new(move || {
            calls.fetch_add(1, Ordering::Relaxed);
        }));
        let send_requests = |count: u64| {
            let stats = Arc::clone(&stats);
            thread::spawn(move || (0..count).for_each(|_| stats.count(Operation::Other)))
        };
        let (first, second) = (send_requests(2), send_requests(1));
        stats.alarm.set(1);
        let seen = stats.requests();
        first.join().unwrap();
        second.join().unwrap();
        let (all, calls) = (stats.requests(), called.load(Ordering::Relaxed));
        assert_eq!(all, 3);
        assert!(calls == 1 || (calls == 0 && seen == all), "{calls} calls, {seen} seen");
        // If a request was missed, the next one runs the callback, and none runs it twice.
        stats.count(Operation::Other);
        stats.count(Operation::Other);
        assert_eq!(called.load(Ordering::Relaxed), 1);
    });
}
