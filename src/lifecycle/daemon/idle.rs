//! Decides when an idle mount frees its cached memory.
//!
//! `IdleTime` does no I/O and reads no clock: it gets the time and the number of requests, and
//! returns what to do. `release` does it.
//! Invariant: memory is released at most once after a request, and requests are counted at most
//! once per idle time. After a release nothing is counted until the next request.
//!
//! Requests record no time, because reading a clock would cost each of them more than all the other
//! counters together. All that is known of the last request is that it came before a check of the
//! count. So a release follows the last request after one to two idle times.

use std::time::{Duration, Instant};

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lifecycle) enum Step {
    /// Check again at this time.
    CheckAt(Instant),
    /// Free memory, and check again at once.
    Release,
    /// Check again after the next request.
    AwaitRequest,
}

/// How long a mount has been idle.
#[derive(Debug)]
pub(in crate::lifecycle) struct IdleTime {
    /// Idle time before a release; `None` for never.
    limit: Option<Duration>,
    /// Start of the idle time, as far as known; `None` from a release to the next request.
    since: Option<Instant>,
    requests: u64,
}

impl IdleTime {
    /// The state of a mount made at `now`. Memory used by opening counts like memory used by a
    /// request.
    pub(in crate::lifecycle) fn new(limit: Option<Duration>, now: Instant) -> Self {
        Self { limit, since: Some(now), requests: 0 }
    }

    /// What to do at `now`, after `requests` requests since mounting.
    pub(in crate::lifecycle) fn next(&mut self, now: Instant, requests: u64) -> Step {
        let Some(limit) = self.limit else {
            return Step::AwaitRequest;
        };
        if requests != self.requests {
            self.requests = requests;
            self.since = Some(now);
        }
        match self.since {
            None => Step::AwaitRequest,
            Some(since) if now < since + limit => Step::CheckAt(since + limit),
            Some(_) => {
                self.since = None;
                Step::Release
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn releases_once_after_the_idle_time() {
        let start = Instant::now();
        let mut idle_time = IdleTime::new(Some(LIMIT), start);
        assert_eq!(idle_time.next(start, 0), Step::CheckAt(start + LIMIT));
        assert_eq!(idle_time.next(start + seconds(29), 0), Step::CheckAt(start + LIMIT));
        assert_eq!(idle_time.next(start + LIMIT, 0), Step::Release);
        for later in [30, 31, 60, 90, 100_000] {
            assert_eq!(idle_time.next(start + seconds(later), 0), Step::AwaitRequest);
        }
    }

    #[test]
    fn releases_again_only_after_new_requests() {
        let start = Instant::now();
        let mut idle_time = IdleTime::new(Some(LIMIT), start);
        assert_eq!(idle_time.next(start + LIMIT, 0), Step::Release);
        let late = start + seconds(5000);
        assert_eq!(idle_time.next(late, 0), Step::AwaitRequest);
        assert_eq!(idle_time.next(late, 1), Step::CheckAt(late + LIMIT));
        assert_eq!(idle_time.next(late + LIMIT, 1), Step::Release);
        // A request during the release.
        let done = late + seconds(32);
        assert_eq!(idle_time.next(done, 2), Step::CheckAt(done + LIMIT));
        assert_eq!(idle_time.next(done + LIMIT, 2), Step::Release);
        assert_eq!(idle_time.next(done + LIMIT, 2), Step::AwaitRequest);
    }

    #[test]
    fn a_mount_in_use_is_checked_once_per_idle_time_and_not_released() {
        let start = Instant::now();
        let mut idle_time = IdleTime::new(Some(LIMIT), start);
        let (mut now, mut requests) = (start, 0);
        for _ in 0..100 {
            requests += 1;
            assert_eq!(idle_time.next(now, requests), Step::CheckAt(now + LIMIT));
            now += LIMIT;
        }
        // The last request arrived at some time before this check.
        assert_eq!(idle_time.next(now, requests), Step::Release);
    }

    #[test]
    fn an_early_check_changes_nothing() {
        let start = Instant::now();
        let mut idle_time = IdleTime::new(Some(LIMIT), start);
        assert_eq!(idle_time.next(start, 7), Step::CheckAt(start + LIMIT));
        for second in 1..30 {
            assert_eq!(idle_time.next(start + seconds(second), 7), Step::CheckAt(start + LIMIT));
        }
        assert_eq!(idle_time.next(start + LIMIT, 7), Step::Release);
    }

    #[test]
    fn without_a_limit_nothing_is_checked_or_released() {
        let start = Instant::now();
        let mut idle_time = IdleTime::new(None, start);
        for (later, requests) in [(0, 0), (1, 5), (100_000, 5)] {
            assert_eq!(idle_time.next(start + seconds(later), requests), Step::AwaitRequest);
        }
    }
}
