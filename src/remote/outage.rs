//! How long, and how often, a request is repeated.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::units::format_duration;

/// Time before the second repetition; the first comes at once, because a server may have closed a
/// connection that was idle.
const FIRST: Duration = Duration::from_millis(200);

/// The longest time between two repetitions, unless the server asks for more.
const MOST: Duration = Duration::from_secs(5);

/// Requests of one read that have failed.
pub(super) struct Outage {
    patience: Duration,
    began: Option<Instant>,
    repetitions: u32,
}

impl Outage {
    /// No failure yet; requests are repeated for `patience`.
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, began: None, repetitions: 0 }
    }

    /// Waits until the request is to be repeated: at least for the time `after`, which the server
    /// asked for. Returns whether it is to be repeated at all.
    pub(super) fn wait(&mut self, after: Option<Duration>) -> bool {
        let (now, random) = (Instant::now(), SystemTime::UNIX_EPOCH.elapsed());
        let random = f64::from(random.unwrap_or_default().subsec_nanos()) / 1e9;
        let wait = self.next(now, after, random);
        wait.inspect(|&wait| thread::sleep(wait)).is_some()
    }

    /// Time from `now` to the next repetition. `random` is from 0 to 1, so that thousands of nodes
    /// that failed together do not return together.
    fn next(&mut self, now: Instant, after: Option<Duration>, random: f64) -> Option<Duration> {
        let began = *self.began.get_or_insert(now);
        let left = self.patience.checked_sub(now.saturating_duration_since(began))?;
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
        let time = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        format!("{why}; tried for {}", format_duration(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_ever_later_until_the_patience_ends() {
        let mut outage = Outage::new(Duration::from_secs(20));
        let start = Instant::now();
        let mut now = start;
        let mut waits = Vec::new();
        while let Some(wait) = outage.next(now, None, 1.0) {
            waits.push(wait.as_millis());
            now += wait;
        }
        assert_eq!(waits, [0, 200, 400, 800, 1600, 3200, 5000, 5000, 3800]);
        assert_eq!(now - start, Duration::from_secs(20));
    }

    #[test]
    fn the_server_may_ask_for_more_time_and_chance_makes_it_less() {
        let mut outage = Outage::new(Duration::from_secs(20));
        let now = Instant::now();
        let mut next = |after: Option<u64>, random| {
            outage.next(now, after.map(Duration::from_secs), random).unwrap().as_millis()
        };
        assert_eq!(next(Some(3), 0.0), 3000);
        assert_eq!(next(None, 0.0), 100);
        assert_eq!(next(Some(3600), 0.0), 20_000, "as long as the patience");
    }
}
