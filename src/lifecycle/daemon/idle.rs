//! When nobody has asked for anything for long enough.
//!
//! Owns the rule by which memory is given back. Pure: told how many requests came and what time it
//! is, it says what to do; `release` does it.
//! Invariant: there is at most one release after a request, and at most one look in the time that
//! must be quiet; after a release there is none until a request came.
//!
//! Requests leave no time behind, for a clock would cost each of them more than all else that is
//! counted. So what is known of the last one is that it came before a look at their number, and a
//! release follows it after once to twice the time.

use std::time::{Duration, Instant};

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lifecycle) enum Step {
    /// Look again at that time.
    Look(Instant),
    /// Give memory back, and look again at once.
    Release,
    /// Look again when a request came.
    AwaitRequest,
}

/// How quiet a mount is.
#[derive(Debug)]
pub(in crate::lifecycle) struct IdleTime {
    /// How long no request must come; `None` if however long is not long enough.
    time: Option<Duration>,
    /// Since when none came, as far as anybody looked; `None` from a release to the next request.
    since: Option<Instant>,
    requests: u64,
}

impl IdleTime {
    /// Mounted at `now`. What opening has left in memory counts as that of a request.
    pub(in crate::lifecycle) fn new(time: Option<Duration>, now: Instant) -> Self {
        Self { time, since: Some(now), requests: 0 }
    }

    /// What to do at `now`, when that many requests came since it was mounted.
    pub(in crate::lifecycle) fn next(&mut self, now: Instant, requests: u64) -> Step {
        let Some(time) = self.time else {
            return Step::AwaitRequest;
        };
        if requests != self.requests {
            self.requests = requests;
            self.since = Some(now);
        }
        match self.since {
            None => Step::AwaitRequest,
            Some(since) if now < since + time => Step::Look(since + time),
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

    const TIME: Duration = Duration::from_secs(30);

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn releases_once_after_the_time_without_a_request() {
        let start = Instant::now();
        let mut quiet = IdleTime::new(Some(TIME), start);
        assert_eq!(quiet.next(start, 0), Step::Look(start + TIME));
        assert_eq!(quiet.next(start + seconds(29), 0), Step::Look(start + TIME));
        assert_eq!(quiet.next(start + TIME, 0), Step::Release);
        for later in [30, 31, 60, 90, 100_000] {
            assert_eq!(quiet.next(start + seconds(later), 0), Step::AwaitRequest);
        }
    }

    #[test]
    fn releases_again_only_after_new_requests() {
        let start = Instant::now();
        let mut quiet = IdleTime::new(Some(TIME), start);
        assert_eq!(quiet.next(start + TIME, 0), Step::Release);
        let late = start + seconds(5000);
        assert_eq!(quiet.next(late, 0), Step::AwaitRequest);
        assert_eq!(quiet.next(late, 1), Step::Look(late + TIME));
        assert_eq!(quiet.next(late + TIME, 1), Step::Release);
        // A request while memory was being given back.
        let done = late + seconds(32);
        assert_eq!(quiet.next(done, 2), Step::Look(done + TIME));
        assert_eq!(quiet.next(done + TIME, 2), Step::Release);
        assert_eq!(quiet.next(done + TIME, 2), Step::AwaitRequest);
    }

    #[test]
    fn while_somebody_reads_there_is_one_look_in_the_time_and_no_release() {
        let start = Instant::now();
        let mut quiet = IdleTime::new(Some(TIME), start);
        let (mut now, mut requests) = (start, 0);
        for _ in 0..100 {
            requests += 1;
            assert_eq!(quiet.next(now, requests), Step::Look(now + TIME));
            now += TIME;
        }
        // The last request came at some time before this look.
        assert_eq!(quiet.next(now, requests), Step::Release);
    }

    #[test]
    fn a_look_for_another_reason_changes_nothing() {
        let start = Instant::now();
        let mut quiet = IdleTime::new(Some(TIME), start);
        assert_eq!(quiet.next(start, 7), Step::Look(start + TIME));
        for second in 1..30 {
            assert_eq!(quiet.next(start + seconds(second), 7), Step::Look(start + TIME));
        }
        assert_eq!(quiet.next(start + TIME, 7), Step::Release);
    }

    #[test]
    fn without_a_time_there_is_no_look_and_no_release() {
        let start = Instant::now();
        let mut quiet = IdleTime::new(None, start);
        for (later, requests) in [(0, 0), (1, 5), (100_000, 5)] {
            assert_eq!(quiet.next(start + seconds(later), requests), Step::AwaitRequest);
        }
    }
}
