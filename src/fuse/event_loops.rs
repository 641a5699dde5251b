//! How many event loops receive requests.
//!
//! A mount has many loops, so that many readers can wait for storage at the same time. While no
//! request waits, only as many loops make progress as there are CPU cores, and the kernel gives a
//! request to the loop that has slept longest. When that one wakes, its stack, decoder and reply
//! buffer have left the caches of the core. So all loops but one for each core are parked while the
//! cores are busy and no request waits. With 4 readers of cached archives on two cores that is 1.15
//! times as fast (docs/bench/2026-11-28-loops.md).
//!
//! Evidence: every sixteenth request of a loop is measured: how long it took, and whether its
//! thread slept. Time alone does not tell a wait from a lost CPU core.
//!
//! - Loops are parked if, of `WINDOW` measured requests in a row, fewer than `SLEPT_MAX` slept, and
//!   on average at least half as many requests were being answered as there are cores. With fewer,
//!   cores are idle, and then it is faster to wake a loop that last ran on the core of the reader
//!   than one on an idle core: one reader on two cores reads 0.77 times as fast from two loops as
//!   from 32.
//! - All loops receive requests again if `SLEPT_MAX` slept, or if no measured request was answered
//!   within `TICK`, because all loops that are left wait for a server that is down, or because
//!   nothing is read. So an idle mount has no timer, and a slow request delays others by at most
//!   `TICK`.
//!
//! fuser receives the requests, so a loop is parked only after it has answered one. Invariant: no
//! loop is parked while it has a request to answer.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::os::{page_cache, processors};
use crate::sync::{AtomicUsize, Condvar, Mutex, Ordering};

/// One of this many requests is measured. Two system calls of 0.2 us for 16 requests of 15 us.
const EVERY: u32 = 16;

/// How many measured requests must show that nothing waits.
const WINDOW: u32 = 64;

/// This many sleeps among them are waits. A cached reply sleeps now and then for a lock.
const SLEPT_MAX: u32 = 4;

/// The longest time that a window may take: 4,000 requests a second. With fewer, nothing is gained.
const WINDOW_TIME: Duration = Duration::from_millis(256);

/// How long all requests may wait before every loop receives requests again.
const TICK: Duration = Duration::from_millis(10);

thread_local! {
    static LOOP: Cell<Option<Loop>> = const { Cell::new(None) };
}

/// An event loop, as its thread knows it.
#[derive(Clone, Copy)]
struct Loop {
    /// Loops are numbered in the order of their first requests.
    number: usize,
    /// Requests so far.
    requests: u32,
}

/// The event loops of a mount.
pub(super) struct EventLoops {
    known: AtomicUsize,
    /// Loops with this number and above are parked.
    limit: AtomicUsize,
    processors: usize,
    evidence: Mutex<Evidence>,
    /// Notified when `limit` grows, and when no parked loop looks after the others.
    changed: Condvar,
}

/// What was measured since the last decision.
struct Evidence {
    since: Instant,
    measured: u32,
    slept: u32,
    busy: Duration,
    /// Grows with every measured request.
    total: u64,
    /// Whether a parked loop looks after the others.
    is_watched: bool,
}

impl Evidence {
    fn start_again(&mut self) {
        (self.since, self.measured, self.slept, self.busy) = (Instant::now(), 0, 0, Duration::ZERO);
    }
}

impl EventLoops {
    /// Loops that all serve at first.
    pub(super) fn new() -> Self {
        Self::on(processors::count())
    }

    fn on(processors: usize) -> Self {
        let since = Instant::now();
        let evidence = Evidence {
            since,
            measured: 0,
            slept: 0,
            busy: Duration::ZERO,
            total: 0,
            is_watched: false,
        };
        Self {
            known: AtomicUsize::new(0),
            limit: AtomicUsize::new(usize::MAX),
            processors,
            evidence: Mutex::new(evidence),
            changed: Condvar::new(),
        }
    }

    /// Call it when a request was received. When the turn is dropped, the request must have been
    /// answered.
    pub(super) fn begin(&self) -> Turn<'_> {
        let mut this = LOOP.get().unwrap_or_else(|| Loop {
            number: self.known.fetch_add(1, Ordering::Relaxed),
            requests: 0,
        });
        this.requests = this.requests.wrapping_add(1);
        LOOP.set(Some(this));
        let is_measured = this.requests.is_multiple_of(EVERY);
        let start = is_measured.then(|| (Instant::now(), page_cache::sleeps_of_thread()));
        Turn { loops: self, number: this.number, start }
    }

    /// Decides after a measured request that was answered within `time`.
    fn measure(&self, time: Duration, has_slept: bool) {
        let evidence = &mut *self.evidence.lock();
        evidence.total += 1;
        evidence.measured += 1;
        evidence.slept += u32::from(has_slept);
        evidence.busy += time;
        if evidence.slept >= SLEPT_MAX {
            self.set_limit(usize::MAX, evidence);
        } else if evidence.measured >= WINDOW {
            let elapsed = evidence.since.elapsed();
            let limit = match elapsed <= WINDOW_TIME {
                true => self.wanted(evidence.busy * EVERY, elapsed),
                false => usize::MAX,
            };
            self.set_limit(limit, evidence);
        }
    }

    /// How many loops receive requests if those of the last `elapsed` took `busy` in all.
    fn wanted(&self, busy: Duration, elapsed: Duration) -> usize {
        let are_parked = self.limit.load(Ordering::Relaxed) != usize::MAX;
        // Parked loops make the others faster, and so less busy.
        let eighths = if are_parked { 3 } else { 4 };
        let processors = u32::try_from(self.processors).unwrap_or(u32::MAX);
        match busy * 8 >= elapsed.saturating_mul(processors * eighths) {
            true => self.processors.max(2),
            false => usize::MAX,
        }
    }

    fn set_limit(&self, limit: usize, evidence: &mut Evidence) {
        evidence.start_again();
        if self.limit.swap(limit, Ordering::Relaxed) < limit {
            self.changed.notify_all();
        }
    }

    fn is_parked(&self, number: usize) -> bool {
        number >= self.limit.load(Ordering::Relaxed)
    }

    #[cold]
    fn park(&self, number: usize) {
        let mut evidence = self.evidence.lock();
        while self.is_parked(number) {
            if evidence.is_watched {
                self.changed.wait(&mut evidence);
                continue;
            }
            evidence.is_watched = true;
            let before = evidence.total;
            let timed_out = self.changed.wait_for(&mut evidence, TICK).timed_out();
            evidence.is_watched = false;
            if timed_out && evidence.total == before {
                self.set_limit(usize::MAX, &mut evidence);
            }
        }
        // Another one looks after those that serve.
        self.changed.notify_one();
    }
}

/// A request that is being answered.
#[must_use = "dropped when it has been answered"]
pub(super) struct Turn<'l> {
    loops: &'l EventLoops,
    number: usize,
    /// When it was received, and how often the thread had slept; `None` if it is not measured.
    start: Option<(Instant, i64)>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some((start, sleeps)) = self.start {
            let has_slept = page_cache::sleeps_of_thread() > sleeps;
            self.loops.measure(start.elapsed(), has_slept);
        }
        if self.loops.is_parked(self.number) {
            self.loops.park(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{Arc, thread};

    const ALL: usize = usize::MAX;

    fn limit_after(
        loops: &EventLoops,
        measured: impl IntoIterator<Item = (Duration, bool)>,
    ) -> usize {
        measured.into_iter().for_each(|(time, has_slept)| loops.measure(time, has_slept));
        loops.limit.load(Ordering::Relaxed)
    }

    /// A window of requests that kept all cores busy.
    fn busy(slept: u32) -> impl Iterator<Item = (Duration, bool)> {
        (0..WINDOW).map(move |nth| (Duration::from_secs(1), nth < slept))
    }

    #[test]
    fn busy_cores_leave_a_loop_for_each_unless_requests_sleep() {
        for (processors, left) in [(1, 2), (2, 2), (64, 64)] {
            assert_eq!(limit_after(&EventLoops::on(processors), busy(0)), left);
        }
        let loops = EventLoops::on(2);
        assert_eq!(limit_after(&loops, busy(0).take(63)), ALL);
        assert_eq!(limit_after(&loops, busy(0).take(1)), 2);
        assert_eq!(limit_after(&loops, busy(SLEPT_MAX - 1)), 2);
        assert_eq!(limit_after(&loops, busy(SLEPT_MAX).take(4)), ALL);
    }

    #[test]
    fn idle_cores_let_all_loops_receive_requests() {
        let loops = EventLoops::on(2);
        let second = Duration::from_secs(1);
        assert_eq!(loops.wanted(second - Duration::from_millis(1), second), ALL);
        assert_eq!(loops.wanted(second, second), 2);
        // Parked loops come back a little later.
        loops.limit.store(2, Ordering::Relaxed);
        assert_eq!(loops.wanted(Duration::from_millis(750), second), 2);
        assert_eq!(loops.wanted(Duration::from_millis(749), second), ALL);
    }

    #[test]
    fn parked_loops_return_if_the_others_answer_nothing() {
        let loops = Arc::new(EventLoops::on(2));
        loops.limit.store(2, Ordering::Relaxed);
        let parked: Vec<_> = (2..8)
            .map(|number| {
                let loops = Arc::clone(&loops);
                thread::spawn(move || loops.park(number))
            })
            .collect();
        // The one that looks after the others waits behind them after each tick.
        let start = Instant::now();
        while start.elapsed() < 3 * TICK {
            loops.measure(Duration::from_secs(1), false);
            thread::sleep(TICK / 10);
        }
        // It may be among those that leave now.
        loops.set_limit(5, &mut loops.evidence.lock());
        parked.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(loops.limit.load(Ordering::Relaxed), ALL);
    }
}
