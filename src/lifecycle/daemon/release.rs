//! Frees the cached memory of a mount while it is idle.
//!
//! `idle` decides when.
//! Invariants: the daemon never waits for a release, because freeing a gigabyte takes a tenth of a
//! second and it may have to unmount at any moment. A request may wait for its heap (`heap`), but
//! for nothing else. A request during a release may go unnoticed until the next one.

use std::thread;
use std::time::{Duration, Instant};

use crate::failpoint;
use crate::lifecycle::daemon::idle::{IdleTime, Step};
use crate::os::heap;
use crate::stats::Stats;
use crate::sync::{Arc, AtomicBool, Ordering, Weak};
use crate::units::{format_duration, format_size};
use crate::vfs::Tree;

/// Releases the caches of a mount when it is idle.
pub(in crate::lifecycle) struct Release {
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
    pub(in crate::lifecycle) fn new(
        tree: &Arc<dyn Tree>,
        stats: &Arc<Stats>,
        idle: Option<Duration>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        stats.connect_alarm(Box::new(wake));
        let idle_time = IdleTime::new(idle, Instant::now());
        let is_running = Arc::default();
        Self { tree: Arc::downgrade(tree), stats: Arc::clone(stats), idle_time, is_running, idle }
    }

    /// Does what is due at `now`. Returns when to call it again; `None` if the alarm wakes the
    /// daemon.
    pub(in crate::lifecycle) fn update(&mut self, now: Instant) -> Option<Instant> {
        match self.idle_time.next(now, self.stats.requests()) {
            Step::CheckAt(time) => Some(time),
            Step::AwaitRequest => None,
            Step::Release => {
                // Set first, and the requests are counted again afterward: a request during the
                // release may fill a cache that was already emptied.
                self.stats.set_alarm();
                self.release();
                self.update(Instant::now())
            }
        }
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
