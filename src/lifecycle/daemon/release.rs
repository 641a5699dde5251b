//! Giving the memory of a mount's caches back to the system while nobody reads.
//!
//! Owns doing it and learning of the next request; leaves when that is to `quiet`, and what can go
//! to the tree. Invariants: the daemon never waits for it, since a gigabyte takes a tenth of a
//! second and unmounting may come first at any moment; no request waits for it but for its heap
//! (`heap`), and none that comes meanwhile is missed for longer than until the next.

use std::thread;
use std::time::{Duration, Instant};

use crate::failpoint;
use crate::heap;
use crate::lifecycle::daemon::idle::{IdleTime, Step};
use crate::stats::Stats;
use crate::sync::{Arc, AtomicBool, Ordering, Weak};
use crate::units::{show_duration, show_size};
use crate::vfs::Tree;

/// The caches of a mount, and when they were asked last.
pub(in crate::lifecycle) struct Release {
    /// It ends with the session, not with the daemon.
    tree: Weak<dyn Tree>,
    stats: Arc<Stats>,
    idle_time: IdleTime,
    /// Whether a thread is at it.
    is_under_way: Arc<AtomicBool>,
    /// How long no request must come; `None` for no release ever.
    idle: Option<Duration>,
}

impl Release {
    /// Releases `tree` when no request was counted in `stats` for `idle`. `wake` has the daemon
    /// call `attend` soon.
    pub(in crate::lifecycle) fn new(
        tree: &Arc<dyn Tree>,
        stats: &Arc<Stats>,
        idle: Option<Duration>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        stats.connect_alarm(Box::new(wake));
        let idle_time = IdleTime::new(idle, Instant::now());
        let is_under_way = Arc::default();
        Self { tree: Arc::downgrade(tree), stats: Arc::clone(stats), idle_time, is_under_way, idle }
    }

    /// Does what is due at `now`; tells when to come again, if not only once woken.
    pub(in crate::lifecycle) fn attend(&mut self, now: Instant) -> Option<Instant> {
        match self.idle_time.next(now, self.stats.requests()) {
            Step::Look(at) => Some(at),
            Step::AwaitRequest => None,
            Step::Release => {
                // Set before, and the requests counted again afterwards: one that comes meanwhile
                // may fill a cache that was emptied already.
                self.stats.set_alarm();
                self.release();
                self.attend(Instant::now())
            }
        }
    }

    /// Starts a thread that does it, unless one still is at it or none can be had.
    fn release(&self) {
        if self.is_under_way.swap(true, Ordering::Acquire) {
            return;
        }
        let (tree, stats) = (Weak::clone(&self.tree), Arc::clone(&self.stats));
        let (is_under_way, idle) = (Arc::clone(&self.is_under_way), self.idle.unwrap_or_default());
        let work = move || {
            release(&tree, &stats, idle);
            // Pairs with the swap.
            is_under_way.store(false, Ordering::Release);
        };
        if thread::Builder::new().name("release".into()).spawn(work).is_err() {
            self.is_under_way.store(false, Ordering::Release);
        }
    }
}

fn release(tree: &Weak<dyn Tree>, stats: &Stats, idle: Duration) {
    let held = || {
        let totals = stats.totals();
        totals.metadata.held_bytes.saturating_add(totals.data.held_bytes)
    };
    failpoint::panic_at("release");
    let before = held();
    if let Some(tree) = tree.upgrade() {
        tree.release();
    }
    heap::trim();
    stats.count_release();
    let (freed, idle) = (show_size(before.saturating_sub(held())), show_duration(idle));
    log::info!("no request for {idle}: {freed} of cached blocks given back");
}
