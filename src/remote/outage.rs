//! How long archfs waits for a server, and how often it repeats a request.
//!
//! Only time without useful bytes counts. Bytes pay for the time that they take at the lowest rate
//! that archfs accepts, so a server that sends one now and then gains nothing.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::HAS_ENDED;
use crate::sync::{AtomicBool, Mutex, Ordering};
use crate::units::format_duration;

/// Time before the second repetition; the first comes at once, because a server may have closed a
/// connection that was idle.
const FIRST: Duration = Duration::from_millis(200);

/// The longest time between two repetitions, unless the server asks for more.
const MOST: Duration = Duration::from_secs(5);

/// An outage that the user hears about.
const LONG: Duration = Duration::from_secs(2);

const STEP: Duration = Duration::from_millis(50);

/// The lowest rate of a server, in bytes per second.
pub(super) const RATE_MIN: u64 = 16 << 10;

/// The time that `bytes` take at the lowest rate.
pub(super) fn paid_by(bytes: usize) -> Duration {
    Duration::from_micros((bytes as u64).saturating_mul(1_000_000) / RATE_MIN)
}

/// The least time of a request that is repeated, however little is left.
const ATTEMPT_MIN: Duration = Duration::from_secs(1);

/// How long a read waits for its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Patience {
    /// For how long it is repeated.
    pub(super) repeated: Duration,
    /// The longest time of one request without useful bytes.
    pub(super) attempt: Duration,
}

impl Patience {
    /// Waits for this time in all.
    pub(super) const fn of(time: Duration) -> Self {
        Self { repeated: time, attempt: time }
    }
}

/// Since when all requests to a server fail, and when the last one did. Readers that come during an
/// outage do not begin to wait anew, one after the other. The flag is set after a warning.
#[derive(Debug, Default)]
pub(super) struct Failing(Mutex<Option<(Instant, Instant)>>, AtomicBool);

impl Failing {
    /// A failure is forgotten after this time without another.
    const FORGOTTEN: Duration = Duration::from_secs(30);

    pub(super) fn end(&self) {
        *self.0.lock() = None;
        self.1.store(false, Ordering::Relaxed);
    }

    /// When the outage began that still lasts at `now`.
    fn since(&self, now: Instant) -> Option<Instant> {
        let (since, last) = (*self.0.lock())?;
        (now.saturating_duration_since(last) < Self::FORGOTTEN).then_some(since)
    }

    /// Notes that one failed, whose read fails since `began`. Returns when the outage began.
    fn note(&self, began: Instant, now: Instant) -> Instant {
        let known = self.since(now);
        if known.is_none() {
            self.1.store(false, Ordering::Relaxed);
        }
        let since = known.map_or(began, |since| since.min(began));
        *self.0.lock() = Some((since, now));
        since
    }
}

/// How one read waits for its server.
#[derive(Clone)]
pub(super) struct Outage<'f> {
    failing: &'f Failing,
    patience: Patience,
    /// When the time without useful bytes began, for all readers together.
    began: Instant,
    /// The same for the request that is under way.
    asked: Instant,
    /// The earliest end of that request.
    earliest: Instant,
    is_paid: bool,
    repetitions: u32,
}

impl<'f> Outage<'f> {
    /// The read begins now. During an outage it has at least half of the time of a request.
    pub(super) fn new(patience: Patience, failing: &'f Failing) -> Self {
        let now = Instant::now();
        let began = failing.since(now).map_or(now, |since| since.min(now));
        let earliest = now + patience.attempt / 2;
        Self { failing, patience, began, asked: now, earliest, is_paid: false, repetitions: 0 }
    }

    /// A request begins. Returns when it ends, unless useful bytes arrive.
    pub(super) fn ask(&mut self) -> Instant {
        self.asked = Instant::now();
        self.is_paid = false;
        self.until()
    }

    /// When the request that is under way ends, unless more useful bytes arrive.
    pub(super) fn until(&self) -> Instant {
        (self.began + self.patience.attempt).max(self.earliest)
    }

    /// Whether the bytes that arrived pay for the time since they were asked for.
    pub(super) fn is_paid(&self) -> bool {
        self.is_paid
    }

    pub(super) fn receive(&mut self, bytes: usize) {
        self.receive_at(Instant::now(), bytes);
    }

    fn receive_at(&mut self, now: Instant, bytes: usize) {
        let later = |time: Instant| (time + paid_by(bytes)).min(now);
        self.asked = later(self.asked);
        self.is_paid = self.asked == now;
        if self.is_paid {
            self.began = now;
            self.repetitions = 0;
        } else {
            self.began = later(self.began);
        }
    }

    /// Waits until the request is to be repeated: at least for the time `after`, which the server
    /// asked for. Returns whether it is to be repeated at all.
    pub(super) fn wait(&mut self, after: Option<Duration>) -> bool {
        let (now, random) = (Instant::now(), SystemTime::UNIX_EPOCH.elapsed());
        let random = f64::from(random.unwrap_or_default().subsec_nanos()) / 1e9;
        let wait = self.next(now, after, random);
        let Some(wait) = wait else { return false };
        let until = now + wait;
        // In steps, because the process may want to end.
        while !HAS_ENDED.load(Ordering::SeqCst) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            thread::sleep(left.min(STEP));
        }
        false
    }

    /// Time from `now` to the next repetition. `random` is from 0 to 1, so that thousands of nodes
    /// that failed together do not return together.
    fn next(&mut self, now: Instant, after: Option<Duration>, random: f64) -> Option<Duration> {
        self.began = self.failing.note(self.began, now);
        let waited = now.saturating_duration_since(self.began);
        let left = self.patience.repeated.saturating_sub(waited);
        let doubled = self.repetitions.checked_sub(1).map_or(Duration::ZERO, |exponent| {
            FIRST.saturating_mul(1 << exponent.min(16)).min(MOST)
        });
        self.repetitions = self.repetitions.saturating_add(1);
        if left.is_zero() {
            return None;
        }
        // In the end once more.
        let wait = after.unwrap_or_default().max(doubled.mul_f64(0.5 + random / 2.0)).min(left);
        self.earliest = now + wait + ATTEMPT_MIN;
        Some(wait)
    }

    /// Whether requests have failed for so long that the user should know. Once in an outage.
    pub(super) fn becomes_long(&self) -> bool {
        let is_long = self.repetitions > 0 && self.began.elapsed() >= LONG;
        is_long && !self.failing.1.swap(true, Ordering::Relaxed)
    }

    /// `why` the last request failed, and since when all have failed. A read that begins late in an
    /// outage may have asked only once.
    pub(super) fn describe(&self, why: &str) -> String {
        format!("{why}; failing for {}", format_duration(self.began.elapsed()))
    }
}

thread_local! {
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
    static SKIPPED: Cell<usize> = const { Cell::new(0) };
}

/// The time by which a server must send something that archfs can use: limits the requests of this
/// thread until it is dropped.
///
/// The client limits each phase of a request: the lookup of the name, the connection, TLS, the
/// header, each read of the body. Together these take minutes. One deadline therefore limits them
/// all. It moves while a body arrives fast enough, which no setting of the client can do. A request
/// runs on the thread of its caller, so each thread has its own deadline.
pub(super) struct Deadline;

impl Deadline {
    pub(super) fn set(until: Instant) -> Self {
        Self::change(until);
        Self
    }

    pub(super) fn change(until: Instant) {
        DEADLINE.set(Some(until));
    }

    /// Has the requests of this thread begin after this many addresses of a name, over a new
    /// connection unless that is 0.
    pub(super) fn skip_addresses(&self, count: usize) {
        SKIPPED.set(count);
    }

    /// How many addresses they skip.
    pub(super) fn skipped_addresses() -> usize {
        SKIPPED.get()
    }

    /// Time until the deadline of this thread. `None` if it has none.
    pub(super) fn left() -> Option<Duration> {
        DEADLINE.get().map(|until| until.saturating_duration_since(Instant::now()))
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        DEADLINE.set(None);
        SKIPPED.set(0);
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    const PATIENCE: Patience = Patience::of(Duration::from_secs(20));

    /// > The last attempt has at least one second.
    #[test]
    fn repeats_ever_later_until_the_patience_ends() {
        let failing = Failing::default();
        let mut outage = Outage::new(PATIENCE, &failing);
        let (start, mut now) = (outage.began, outage.began);
        assert_eq!(outage.until(), start + PATIENCE.attempt);
        let mut waits = Vec::new();
        while let Some(wait) = outage.next(now, None, 1.0) {
            waits.push(wait.as_millis());
            now += wait;
        }
        assert_eq!(waits, [0, 200, 400, 800, 1600, 3200, 5000, 5000, 3800]);
        assert_eq!(outage.until(), start + PATIENCE.attempt + ATTEMPT_MIN);
    }

    #[test]
    fn the_time_of_a_request_counts_from_its_beginning() {
        let failing = Failing::default();
        let mut outage = Outage::new(PATIENCE, &failing);
        let start = outage.began;
        assert!(outage.next(start + Duration::from_secs(19), None, 1.0).is_some());
        assert_eq!(outage.next(start + Duration::from_secs(20), None, 1.0), None);
    }

    /// > Bytes that arrive extend it by the time that they take at 16 KiB/s.
    #[test]
    fn bytes_pay_for_the_time_that_they_take_at_the_lowest_rate() {
        let failing = Failing::default();
        let mut outage = Outage::new(PATIENCE, &failing);
        let start = outage.began;
        let at = |seconds| start + Duration::from_secs(seconds);
        let second = RATE_MIN as usize;
        outage.receive_at(at(10), 9 * second);
        assert!(!outage.is_paid());
        assert_eq!(outage.until(), at(9) + PATIENCE.attempt);
        outage.receive_at(at(10), second);
        assert!(outage.is_paid());
        assert_eq!(outage.until(), at(10) + PATIENCE.attempt, "nothing is saved up");
        for seconds in 11..30 {
            outage.receive_at(at(seconds), 1);
            assert!(!outage.is_paid());
        }
        assert!(outage.until() < at(10) + PATIENCE.attempt + Duration::from_millis(2));
        assert_eq!(outage.next(at(31), None, 1.0), None);
    }

    #[test]
    fn the_server_may_ask_for_more_time_and_chance_makes_it_less() {
        let failing = Failing::default();
        let mut outage = Outage::new(PATIENCE, &failing);
        let now = outage.began;
        let mut next = |after: Option<u64>, random| {
            outage.next(now, after.map(Duration::from_secs), random).unwrap().as_millis()
        };
        assert_eq!(next(Some(3), 0.0), 3000);
        assert_eq!(next(None, 0.0), 100);
        assert_eq!(next(Some(3600), 0.0), 20_000, "as long as the patience");
    }

    #[test]
    fn readers_that_come_during_an_outage_share_its_beginning() {
        let failing = Failing::default();
        let mut first = Outage::new(PATIENCE, &failing);
        let start = first.began;
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(first.next(at(0), None, 1.0).is_some());
        assert!(first.next(at(15), None, 1.0).is_some());
        let mut second = Outage { began: at(16), ..Outage::new(PATIENCE, &failing) };
        assert!(second.next(at(19), None, 1.0).is_some());
        assert!(second.next(at(20), None, 1.0).is_none());
        let mut later = Outage { began: at(60), ..Outage::new(PATIENCE, &failing) };
        assert!(later.next(at(60), None, 1.0).is_some(), "it was forgotten");
        failing.end();
        let mut after = Outage { began: at(61), ..Outage::new(PATIENCE, &failing) };
        assert!(after.next(at(80), None, 1.0).is_some());
    }

    #[test]
    fn a_read_that_begins_late_in_an_outage_still_asks_once() {
        let failing = Failing::default();
        let now = Instant::now();
        failing.note(now.checked_sub(Duration::from_secs(100)).unwrap(), now);
        let mut outage = Outage::new(PATIENCE, &failing);
        assert!(outage.until() >= now + PATIENCE.attempt / 2);
        assert_eq!(outage.next(now, None, 1.0), None);
    }
}
