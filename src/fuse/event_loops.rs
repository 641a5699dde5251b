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
//! - Loops are parked after `CALM` windows of `WINDOW` measured requests in which hardly any time
//!   was slept, if on average at least half as many requests were being answered as there are
//!   cores. With fewer, cores are idle. Two loops then read 0.77 times as fast for one reader as 32
//!   loops, because they often have to wake an idle core.
//! - All loops receive requests again if requests sleep, or if a loop that should receive them has
//!   answered none in a window. The parked loops also return if no measured request was answered
//!   within `TICK`: all other loops wait, or nothing is read. So an idle mount has no timer.
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

/// This many sleeps in a window are waits at once. A cached reply sleeps now and then for a lock.
const SLEPT_MAX: u32 = 4;

/// Requests that slept may take this part of the time of all measured ones: a tenth.
const WAITED_PART: u32 = 10;

/// Windows in a row without a wait before loops are parked. If one of a hundred requests waits for
/// storage, most windows have one.
const CALM: u32 = 4;

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
    /// Notified when `limit` grows, and when no parked loop watches the others.
    changed: Condvar,
}

/// What was measured since the last decision.
struct Evidence {
    since: Instant,
    measured: u32,
    slept: u32,
    /// Time of all measured requests, and of those that slept.
    busy: Duration,
    waited: Duration,
    /// Bits of the loops that answered them: their numbers modulo 64.
    loops: u64,
    /// Windows in a row in which nothing waited.
    calm: u32,
    /// Grows with every measured request.
    total: u64,
    /// Whether a parked loop watches the others.
    is_watched: bool,
}

impl Evidence {
    fn start_again(&mut self) {
        (self.since, self.measured, self.slept, self.loops) = (Instant::now(), 0, 0, 0);
        (self.busy, self.waited) = (Duration::ZERO, Duration::ZERO);
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
            waited: Duration::ZERO,
            loops: 0,
            calm: 0,
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

    /// Decides after a measured request that was answered by loop `number` within `time`.
    fn measure(&self, number: usize, time: Duration, has_slept: bool) {
        let evidence = &mut *self.evidence.lock();
        evidence.total += 1;
        evidence.measured += 1;
        evidence.slept += u32::from(has_slept);
        evidence.busy += time;
        evidence.loops |= 1 << (number % 64);
        if has_slept {
            evidence.waited += time;
        }
        let is_over = evidence.measured >= self.window();
        if evidence.slept >= SLEPT_MAX || (is_over && self.waits(evidence)) {
            evidence.calm = 0;
            self.set_limit(usize::MAX, evidence);
        } else if is_over {
            evidence.calm = evidence.calm.saturating_add(1);
            let elapsed = evidence.since.elapsed();
            let is_fast = elapsed <= WINDOW_TIME * (self.window() / WINDOW);
            let limit = match is_fast && evidence.calm >= CALM {
                true => self.wanted(evidence.busy * EVERY, elapsed),
                false => usize::MAX,
            };
            self.set_limit(limit, evidence);
        }
    }

    /// How many measured requests make a decision: enough that each core is among them.
    fn window(&self) -> u32 {
        let processors = u32::try_from(self.processors).unwrap_or(u32::MAX / 8).min(256);
        WINDOW * processors.div_ceil(8).max(1)
    }

    /// Whether requests of a whole window wait: those that slept took a part of the time, or a loop
    /// that should receive requests has answered none.
    fn waits(&self, evidence: &Evidence) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let has_all = limit == usize::MAX || evidence.loops.count_ones() as usize >= limit.min(64);
        evidence.waited * WAITED_PART > evidence.busy || !has_all
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
        // Another one watches those that serve.
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
            self.loops.measure(self.number, start.elapsed(), has_slept);
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

    /// The limit after `count` requests of loops 0 and 1, of which the first `slept` slept.
    fn limit_after(loops: &EventLoops, count: u32, slept: u32) -> usize {
        for nth in 0..count {
            loops.measure((nth % 2) as usize, Duration::from_secs(1), nth < slept);
        }
        loops.limit.load(Ordering::Relaxed)
    }

    #[test]
    fn busy_cores_leave_a_loop_for_each_unless_requests_sleep() {
        let loops = EventLoops::on(2);
        assert_eq!(limit_after(&loops, CALM * WINDOW - 1, 0), ALL);
        assert_eq!(limit_after(&loops, 1, 0), 2);
        assert_eq!(limit_after(&loops, WINDOW, 0), 2);
        // All at once, or because of their time.
        assert_eq!(limit_after(&loops, SLEPT_MAX, SLEPT_MAX), ALL);
        assert_eq!(limit_after(&loops, CALM * WINDOW, 0), 2);
        loops.measure(0, Duration::from_secs(10), true);
        assert_eq!(limit_after(&loops, WINDOW - 1, 0), ALL);
        // A wait now and then keeps all of them.
        assert_eq!(limit_after(&loops, (CALM - 1) * WINDOW, 0), ALL);
        loops.measure(0, Duration::from_secs(10), true);
        assert_eq!(limit_after(&loops, WINDOW - 1, 0), ALL);
        assert_eq!(limit_after(&loops, (CALM - 1) * WINDOW, 0), ALL);
    }

    #[test]
    fn many_cores_and_few_leave_at_least_two_loops() {
        for (processors, left) in [(1, 2), (2, 2), (64, 64)] {
            let loops = EventLoops::on(processors);
            assert_eq!(loops.wanted(Duration::from_secs(64), Duration::from_secs(1)), left);
        }
        assert_eq!(
            [1, 8, 9, 64].map(|processors| EventLoops::on(processors).window() / WINDOW),
            [1, 1, 2, 8]
        );
    }

    #[test]
    fn a_loop_that_answers_nothing_brings_the_others_back() {
        let loops = EventLoops::on(2);
        assert_eq!(limit_after(&loops, CALM * WINDOW, 0), 2);
        for _ in 0..WINDOW {
            loops.measure(1, Duration::from_secs(1), false);
        }
        assert_eq!(loops.limit.load(Ordering::Relaxed), ALL);
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
        // The one that watches waits behind the others after each tick.
        let start = Instant::now();
        while start.elapsed() < 3 * TICK {
            loops.evidence.lock().total += 1;
            thread::sleep(TICK / 10);
        }
        // It may be among those that leave now. If this thread lost its core, all have left.
        {
            let mut evidence = loops.evidence.lock();
            if loops.limit.load(Ordering::Relaxed) == 2 {
                loops.set_limit(5, &mut evidence);
            }
        }
        parked.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(loops.limit.load(Ordering::Relaxed), ALL);
    }
}
