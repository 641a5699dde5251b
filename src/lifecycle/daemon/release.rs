//! Frees the cached memory of a mount while it is idle.
//!
//! Invariants: memory is released at most once after a request, and requests are counted at most
//! once per idle time. After a release nothing is counted until the next request. The daemon never
//! waits for a release, because freeing a gigabyte takes a tenth of a second and it may have to
//! unmount at any moment. A request may wait for its heap (`heap`), but for nothing else. A request
//! during a release may go unnoticed until the next one.

use std::thread;
use std::time::{Duration, Instant};

use super::Service;
use crate::failpoint;
use crate::os::heap;
use crate::stats::Stats;
use crate::sync::{Arc, AtomicBool, Ordering, Weak};
use crate::units::{format_duration, format_size};
use crate::vfs::Tree;

pub(super) struct Release {
    /// Weak, because the tree ends with the session, not with the daemon.
    tree: Weak<dyn Tree>,
    stats: Arc<Stats>,
    idle_time: IdleTime,
    /// Whether a thread releases memory now.
    is_running: Arc<AtomicBool>,
    /// Idle time before a release; `None` for never.
    idle: Option<Duration>,
}

impl Release {
    /// Releases `tree` after `stats` counted no request for `idle`. `wake` must make the daemon
    /// call `update` soon.
    pub(super) fn new(
        tree: &Arc<dyn Tree>,
        stats: &Arc<Stats>,
        idle: Option<Duration>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        stats.alarm.connect(Box::new(wake));
        let idle_time = IdleTime::new(idle, Instant::now());
        let is_running = Arc::default();
        Self { tree: Arc::downgrade(tree), stats: Arc::clone(stats), idle_time, is_running, idle }
    }

    /// Starts a thread that releases memory, unless one is running or none can be started.
    fn release(&self) {
        if self.is_running.swap(true, Ordering::Acquire) {
            return;
        }
        let (tree, stats) = (Weak::clone(&self.tree), Arc::clone(&self.stats));
        let (is_running, idle) = (Arc::clone(&self.is_running), self.idle.unwrap_or_default());
        let work = move || {
            release(&tree, &stats, idle);
            // Pairs with the swap in `Release::release`.
            is_running.store(false, Ordering::Release);
        };
        if thread::Builder::new().name("release".into()).spawn(work).is_err() {
            self.is_running.store(false, Ordering::Release);
        }
    }
}

impl Service for Release {
    fn update(&mut self, now: Instant) -> Option<Instant> {
        match self.idle_time.next(now, self.stats.requests()) {
            IdleStep::CheckAt(time) => Some(time),
            IdleStep::AwaitRequest => None,
            IdleStep::Release => {
                // Set first, and the requests are counted again afterward: a request during the
                // release may fill a cache that was already emptied.
                self.stats.alarm.set(1);
                self.release();
                self.update(Instant::now())
            }
        }
    }
}

fn release(tree: &Weak<dyn Tree>, stats: &Stats, idle: Duration) {
    let cached = || {
        let totals = stats.totals();
        totals.metadata.held_bytes.saturating_add(totals.data.held_bytes)
    };
    failpoint::panic_at("release");
    let before = cached();
    if let Some(tree) = tree.upgrade() {
        tree.release();
    }
    heap::trim();
    stats.count_release();
    let (freed, idle) = (format_size(before.saturating_sub(cached())), format_duration(idle));
    log::info!("no request for {idle}: freed {freed} of cached blocks");
}

/// What to do for an idle mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleStep {
    CheckAt(Instant),
    /// Free memory, and check again at once.
    Release,
    /// Check again after the next request.
    AwaitRequest,
}

/// How long a mount has been idle. Does no I/O and reads no clock: it gets the time and the number
/// of requests, and returns what to do.
///
/// Requests record no time, because reading a clock would cost each of them more than all the other
/// counters together. All that is known of the last request is that it came before a check of the
/// count. So a release follows the last request after one to two idle times.
#[derive(Debug)]
struct IdleTime {
    /// Idle time before a release; `None` for never.
    limit: Option<Duration>,
    /// Start of the idle time, as far as known; `None` from a release to the next request.
    since: Option<Instant>,
    requests: u64,
}

impl IdleTime {
    /// The state of a mount made at `now`. Memory used by opening counts like memory used by a
    /// request.
    fn new(limit: Option<Duration>, now: Instant) -> Self {
        Self { limit, since: Some(now), requests: 0 }
    }

    fn next(&mut self, now: Instant, requests: u64) -> IdleStep {
        let Some(limit) = self.limit else {
            return IdleStep::AwaitRequest;
        };
        if requests != self.requests {
            self.requests = requests;
            self.since = Some(now);
        }
        match self.since {
            None => IdleStep::AwaitRequest,
            Some(since) if now < since + limit => IdleStep::CheckAt(since + limit),
            Some(_) => {
                self.since = None;
                IdleStep::Release
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
        assert_eq!(idle_time.next(start, 0), IdleStep::CheckAt(start + LIMIT));
        assert_eq!(idle_time.next(start + seconds(29), 0), IdleStep::CheckAt(start + LIMIT));
        assert_eq!(idle_time.next(start + LIMIT, 0), IdleStep::Release);
        for later in [30, 31, 60, 90, 100_000] {
            assert_eq!(idle_time.next(start + seconds(later), 0), IdleStep::AwaitRequest);
        }
    }

    #[test]
    fn releases_again_only_after_new_requests() {
        let start = Instant::now();
        let mut idle_time = IdleTime::new(Some(LIMIT), start);
        assert_eq!(idle_time.next(start + LIMIT, 0), IdleStep::Release);
        let late = start + seconds(5000);
        assert_eq!(idle_time.next(late, 0), IdleStep::AwaitRequest);
        assert_eq!(idle_time.next(late, 1), IdleStep::CheckAt(late + LIMIT));
        assert_eq!(idle_time.next(late + LIMIT, 1), IdleStep::Release);
        // A request during the release.
        let done = late + seconds(32);
        assert_eq!(idle_time.next(done, 2), IdleStep::CheckAt(done + LIMIT));
        assert_eq!(idle_time.next(done + LIMIT, 2), IdleStep::Release);
        assert_eq!(idle_time.next(done + LIMIT, 2), IdleStep::AwaitRequest);
    }

    #[test]
    fn a_mount_in_use_is_checked_once_per_idle_time_and_not_released() {
        let start = Instant::now();
        let mut idle_time = IdleTime::new(Some(LIMIT), start);
        let (mut now, mut requests) = (start, 0);
        for _ in 0..100 {
            requests += 1;
            assert_eq!(idle_time.next(now, requests), IdleStep::CheckAt(now + LIMIT));
            now += LIMIT;
        }
        // The last request arrived at some time before this check.
        assert_eq!(idle_time.next(now, requests), IdleStep::Release);
    }

    #[test]
    fn an_early_check_changes_nothing() {
        let start = Instant::now();
        let mut idle_time = IdleTime::new(Some(LIMIT), start);
        assert_eq!(idle_time.next(start, 7), IdleStep::CheckAt(start + LIMIT));
        for second in 1..30 {
            assert_eq!(
                idle_time.next(start + seconds(second), 7),
                IdleStep::CheckAt(start + LIMIT)
            );
        }
        assert_eq!(idle_time.next(start + LIMIT, 7), IdleStep::Release);
    }

    #[test]
    fn without_a_limit_nothing_is_checked_or_released() {
        let start = Instant::now();
        let mut idle_time = IdleTime::new(None, start);
        for (later, requests) in [(0, 0), (1, 5), (100_000, 5)] {
            assert_eq!(idle_time.next(start + seconds(later), requests), IdleStep::AwaitRequest);
        }
    }
}
