//! The part of the job's cache budget that this daemon may use.
//!
//! All daemons of a job that use the default budget share it equally. When another daemon starts,
//! each frees memory at once. When one ends, the others wait a moment before they take its part,
//! because it frees its memory last.
//!
//! The daemon's loop never waits for memory to be freed: a thread does that.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;

use super::Service;
use crate::cache::{self, Budget};
use crate::lifecycle::registry::Peers;
use crate::stats::Stats;
use crate::sync::Arc;

/// How long the number of daemons must not change before a daemon takes more.
const SETTLE: Duration = Duration::from_secs(1);

/// The part of `total` bytes for each of `daemons`: at least `floor`, or all of `total` if that is
/// less.
fn share(total: u64, daemons: usize, floor: u64) -> u64 {
    let daemons = u64::try_from(daemons.max(1)).unwrap_or(u64::MAX);
    (total / daemons).max(floor.min(total))
}

pub(super) struct BudgetShare {
    /// Budget of the job, or of this mount if it is not shared, bytes.
    total: u64,
    now: u64,
    budget: Budget,
    stats: Arc<Stats>,
    /// `None` if the budget is not shared.
    peers: Option<Peers>,
    /// When to count the daemons again.
    settles: Option<Instant>,
    /// Descriptor that watched the peers, closed only when the process ends.
    _closed_last: Option<OwnedFd>,
}

impl BudgetShare {
    /// The share of `total` bytes, the budget of the job, among `peers`; all of it if there are
    /// none.
    pub(super) fn join(
        total: u64,
        budget: Budget,
        stats: Arc<Stats>,
        peers: Option<Peers>,
    ) -> Self {
        stats.set_budget(total);
        let settles = peers.is_some().then(|| Instant::now() + SETTLE);
        let mut share =
            Self { total, now: total, budget, stats, peers, settles, _closed_last: None };
        share.count();
        share
    }

    pub(super) fn watched(&self) -> Option<PollFd<'_>> {
        self.peers.as_ref().map(|peers| PollFd::new(peers.changes(), PollFlags::IN))
    }

    /// Watches the peers in `directory`, to which the record of this daemon may have moved.
    pub(super) fn renew_watch(&mut self, directory: &Path, now: Instant) {
        if self.peers.as_mut().is_some_and(|peers| peers.renew_watch(directory)) {
            // Changes before the new watch were not reported.
            self.settles = Some(now + SETTLE);
            self.count();
        }
    }

    /// Leaves this share to the other daemons, because nothing is mounted any more. Files that are
    /// still open are served with little memory.
    pub(super) fn leave(&mut self) {
        if let Some(peers) = self.peers.take() {
            self._closed_last = Some(peers.stop());
            self.set(cache::LEAST.min(self.total));
        }
    }

    fn count(&mut self) {
        let daemons = self.peers.as_ref().map_or(1, Peers::count);
        let share = share(self.total, daemons, cache::LEAST);
        if share < self.now || (share > self.now && self.settles.is_none()) {
            self.set(share);
        }
    }

    fn set(&mut self, bytes: u64) {
        self.now = bytes;
        self.budget.set(bytes, self.total);
        self.stats.set_budget(bytes);
        let budget = self.budget.clone();
        if thread::Builder::new().name("budget".into()).spawn(move || budget.apply()).is_err() {
            self.budget.apply();
        }
    }
}

impl Service for BudgetShare {
    fn update(&mut self, now: Instant) -> Option<Instant> {
        if self.peers.as_ref()?.take_changes() {
            self.settles = Some(now + SETTLE);
            self.count();
        } else if self.settles.is_some_and(|settles| now >= settles) {
            self.settles = None;
            self.count();
        }
        self.settles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_share_equally_and_none_has_too_little_to_work_with() {
        assert_eq!(share(256 << 20, 1, 4 << 20), 256 << 20);
        assert_eq!(share(256 << 20, 8, 4 << 20), 32 << 20);
        assert_eq!(share(256 << 20, 0, 4 << 20), 256 << 20);
        assert_eq!(share(256 << 20, 1000, 4 << 20), 4 << 20);
        assert_eq!(share(1 << 20, 2, 4 << 20), 1 << 20);
        assert_eq!(share(0, 1, 4), 0);
    }
}
