//! Giving the memory of a mount's caches back to the system while nobody reads.
//!
//! Owns doing it and learning of the next request; leaves when that is to `quiet`, and what can go
//! to the tree. Invariants: no request waits for it but for its heap (`trim`), and none that comes
//! meanwhile is missed for longer than until the next.

use std::time::{Duration, Instant};

use super::quiet::{Quiet, Step};
use super::trim::trim;
use crate::stats::Stats;
use crate::sync::{Arc, Weak};
use crate::units::{show_duration, show_size};
use crate::vfs::Tree;

/// The caches of a mount, and when they were asked last.
pub(super) struct Release {
    /// It ends with the session, not with the daemon.
    tree: Weak<dyn Tree>,
    stats: Arc<Stats>,
    quiet: Quiet,
    /// How long no request must come; `None` for no release ever.
    idle: Option<Duration>,
}

impl Release {
    /// Releases `tree` when no request was counted in `stats` for `idle`. `wake` has the daemon
    /// call `attend` soon.
    pub(super) fn new(
        tree: &Arc<dyn Tree>,
        stats: &Arc<Stats>,
        idle: Option<Duration>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        stats.connect_alarm(Box::new(wake));
        let quiet = Quiet::new(idle, Instant::now());
        Self { tree: Arc::downgrade(tree), stats: Arc::clone(stats), quiet, idle }
    }

    /// Does what is due at `now`; tells when to come again, if not only once woken.
    pub(super) fn attend(&mut self, now: Instant) -> Option<Instant> {
        match self.quiet.next(now, self.stats.requests()) {
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

    fn release(&self) {
        let held = || {
            let totals = self.stats.totals();
            totals.metadata.held_bytes.saturating_add(totals.data.held_bytes)
        };
        let before = held();
        if let Some(tree) = self.tree.upgrade() {
            tree.release();
        }
        trim();
        self.stats.count_release();
        let freed = show_size(before.saturating_sub(held()));
        let idle = show_duration(self.idle.unwrap_or_default());
        log::info!("no request for {idle}: {freed} of cached blocks given back");
    }
}
