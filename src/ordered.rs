//! Runs work on several threads and delivers the results in order.
//!
//! Invariant: results are delivered in the order of their numbers, and at most `AHEAD` per thread
//! are waiting.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::mpsc::sync_channel;
use std::thread;

use crate::sync::{Condvar, Mutex};

/// Results per thread that may wait for an earlier one.
const AHEAD: usize = 4;

/// Progress: numbers below `limit` may be started; `next` is the first that was not.
struct Gate {
    next: usize,
    limit: usize,
}

/// Runs `work` for the numbers from 0 to `count` on up to `threads` threads. Passes the results to
/// `take` in order, on this thread, until it breaks.
pub fn ordered<R: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize) -> R + Sync,
    mut take: impl FnMut(usize, R) -> ControlFlow<()>,
) {
    let threads = threads.min(count).max(1);
    let ahead = threads.saturating_mul(AHEAD);
    // Guards the choice of the next number. No other lock is taken within it.
    let gate = Mutex::new(Gate { next: 0, limit: ahead.min(count) });
    let opened = Condvar::new();
    thread::scope(|scope| {
        let (sender, results) = sync_channel(ahead);
        let start = |_: &usize| {
            let (sender, gate, opened, work) = (sender.clone(), &gate, &opened, &work);
            let run = move || {
                // A panic in `work` must also stop the other threads.
                let _close = Close { gate, opened };
                while let Some(nth) = begin(gate, opened, count) {
                    if sender.send((nth, work(nth))).is_err() {
                        return;
                    }
                }
            };
            thread::Builder::new().spawn_scoped(scope, run).is_ok()
        };
        // At a process limit there are fewer threads; without any, this thread does the work.
        if (0..threads).take_while(start).count() == 0 {
            let _ = (0..count).try_for_each(|nth| take(nth, work(nth)));
            return;
        }
        drop(sender);
        // A panic in `take` must also stop the threads.
        let _close = Close { gate: &gate, opened: &opened };
        let mut waiting = BTreeMap::new();
        let mut next = 0_usize;
        for (nth, result) in results {
            waiting.insert(nth, result);
            while let Some(result) = waiting.remove(&next) {
                let flow = take(next, result);
                next = next.saturating_add(1);
                if flow.is_break() {
                    return;
                }
                gate.lock().limit = next.saturating_add(ahead).min(count);
                opened.notify_all();
            }
        }
    });
}

/// Like `ordered`, for work that may fail: stops at the first error in the order of the numbers.
pub fn try_ordered<T: Send, E: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize) -> Result<T, E> + Sync,
    mut take: impl FnMut(T),
) -> Result<(), E> {
    let mut outcome = Ok(());
    ordered(count, threads, work, |_, result| match result {
        Ok(result) => {
            take(result);
            ControlFlow::Continue(())
        }
        Err(error) => {
            outcome = Err(error);
            ControlFlow::Break(())
        }
    });
    outcome
}

/// Waits for the next number that may be started; `None` if there are no more.
fn begin(gate: &Mutex<Gate>, opened: &Condvar, count: usize) -> Option<usize> {
    let mut gate = gate.lock();
    while gate.next >= gate.limit && gate.next < count {
        opened.wait(&mut gate);
    }
    let nth = gate.next;
    gate.next = nth.saturating_add(1);
    (nth < count).then_some(nth)
}

/// Stops the threads when dropped.
struct Close<'g> {
    gate: &'g Mutex<Gate>,
    opened: &'g Condvar,
}

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.gate.lock().next = usize::MAX;
        self.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{AtomicU64, Ordering};

    #[test]
    fn results_are_delivered_in_order_and_once() {
        for (count, threads) in [(0, 4), (1, 4), (1000, 7), (1000, 1)] {
            let mut taken = Vec::new();
            let work = |nth: usize| nth * 2;
            ordered(count, threads, work, |nth, result| {
                taken.push((nth, result));
                ControlFlow::Continue(())
            });
            assert_eq!(taken, (0..count).map(|nth| (nth, nth * 2)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_error_in_order_stops_the_work() {
        let work = |nth: usize| if nth == 30 || nth == 31 { Err(nth) } else { Ok(nth) };
        let mut taken = Vec::new();
        assert_eq!(try_ordered(1000, 4, work, |nth| taken.push(nth)), Err(30));
        assert_eq!(taken, (0..30).collect::<Vec<_>>());
    }

    #[test]
    fn limits_how_far_it_runs_ahead_and_stops_on_break() {
        let started = AtomicU64::new(0);
        let work = |_| started.fetch_add(1, Ordering::Relaxed);
        ordered(100_000, 4, work, |nth, _| {
            let started = started.load(Ordering::Relaxed) as usize;
            assert!(started <= nth + 4 * AHEAD + 4, "{started} begun, {nth} taken");
            if nth == 50 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(started.into_inner() <= 50 + 4 * AHEAD as u64 + 8);
    }
}
