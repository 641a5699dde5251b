//! How long, and how often, a request is repeated.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::HAS_ENDED;
use crate::sync::{Mutex, Ordering};
use crate::units::format_duration;

/// Time before the second repetition; the first comes at once, because a server may have closed a
/// connection that was idle.
const FIRST: Duration = Duration::from_millis(200);

/// The longest time between two repetitions, unless the server asks for more.
const MOST: Duration = Duration::from_secs(5);

/// The longest sleep.
const STEP: Duration = Duration::from_millis(50);

/// Since when all requests to a server fail, and when the last one did. Readers that come during an
/// outage do not begin to wait anew, one after the other.
#[derive(Debug, Default)]
pub(super) struct Failing(Mutex<Option<(Instant, Instant)>>);

impl Failing {
    /// A failure is forgotten after this time without another.
    const FORGOTTEN: Duration = Duration::from_secs(30);

    /// Notes that a request was answered.
    pub(super) fn end(&self) {
        *self.0.lock() = None;
    }

    /// Notes that one failed, whose read fails since `began`. Returns when the outage began.
    fn note(&self, began: Instant, now: Instant) -> Instant {
        let mut failing = self.0.lock();
        let since = match *failing {
            Some((since, last)) if now.saturating_duration_since(last) < Self::FORGOTTEN => {
                since.min(began)
            }
            _ => began,
        };
        *failing = Some((since, now));
        since
    }
}

/// Requests of one read that have failed.
pub(super) struct Outage<'f> {
    failing: &'f Failing,
    patience: Duration,
    began: Instant,
    repetitions: u32,
}

impl<'f> Outage<'f> {
    /// No failure yet; requests are repeated for `patience`.
    pub(super) fn new(patience: Duration, failing: &'f Failing) -> Self {
        Self { failing, patience, began: Instant::now(), repetitions: 0 }
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
        // What was read before the first failure does not count.
        let began = if self.repetitions == 0 { now } else { self.began };
        self.began = self.failing.note(began, now);
        let left = self.patience.saturating_sub(now.saturating_duration_since(self.began));
        let doubled = self.repetitions.checked_sub(1).map_or(Duration::ZERO, |exponent| {
            FIRST.saturating_mul(1 << exponent.min(16)).min(MOST)
        });
        self.repetitions = self.repetitions.saturating_add(1);
        if left.is_zero() {
            return None;
        }
        // In the end once more.
        Some(after.unwrap_or_default().max(doubled.mul_f64(0.5 + random / 2.0)).min(left))
    }

    /// `why` the last request failed, and how long they were repeated.
    pub(super) fn describe(&self, why: &str) -> String {
        format!("{why}; tried for {}", format_duration(self.began.elapsed()))
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn repeats_ever_later_until_the_patience_ends() {
        let failing = Failing::default();
        let mut outage = Outage::new(Duration::from_secs(20), &failing);
        let mut now = outage.began;
        let mut waits = Vec::new();
        while let Some(wait) = outage.next(now, None, 1.0) {
            waits.push(wait.as_millis());
            now += wait;
        }
        assert_eq!(waits, [0, 200, 400, 800, 1600, 3200, 5000, 5000, 3800]);
    }

    #[test]
    fn the_server_may_ask_for_more_time_and_chance_makes_it_less() {
        let failing = Failing::default();
        let mut outage = Outage::new(Duration::from_secs(20), &failing);
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
        let patience = Duration::from_secs(20);
        let mut first = Outage::new(patience, &failing);
        let start = first.began;
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(first.next(at(0), None, 1.0).is_some());
        assert!(first.next(at(15), None, 1.0).is_some());
        let mut second = Outage { began: at(16), ..Outage::new(patience, &failing) };
        assert!(second.next(at(19), None, 1.0).is_some());
        assert!(second.next(at(20), None, 1.0).is_none());
        let mut later = Outage { began: at(60), ..Outage::new(patience, &failing) };
        assert!(later.next(at(60), None, 1.0).is_some(), "it was forgotten");
        failing.end();
        let mut after = Outage { began: at(61), ..Outage::new(patience, &failing) };
        assert!(after.next(at(80), None, 1.0).is_some());
    }
}
