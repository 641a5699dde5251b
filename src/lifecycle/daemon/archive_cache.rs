//! Decides whether the page cache keeps the parts of the archives that were served.
//!
//! `storage::ArchiveCache` says why they are dropped. They are dropped where archives and served
//! data do not both fit into what the job may use, which changes while the job runs. As long as
//! another daemon of this user serves the same archive, they stay: that daemon has its own mount to
//! fill from them.

use std::cell::OnceCell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::lifecycle::{MountPlan, share};
use crate::os::memory::{self, Headroom};
use crate::stats::Stats;
use crate::storage::{self, ArchiveCache, FileStorage, Storage};
use crate::sync::Arc;
use crate::units::format_size;

/// Time between two decisions while there are requests, and while there are none.
const INTERVAL: Duration = Duration::from_secs(10);
const IDLE_INTERVAL: Duration = Duration::from_secs(60);

/// What the user wants to happen with served pages of the archives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArchiveCacheChoice {
    /// They stay if archives and served data both fit into memory.
    #[default]
    Auto,
    /// They stay.
    Keep,
    /// They are dropped.
    Drop,
}

/// The pages of the archives of a mount.
pub(in crate::lifecycle) struct ArchiveCachePolicy {
    choice: ArchiveCacheChoice,
    switch: Arc<ArchiveCache>,
    plan: MountPlan,
    /// The archives as the records of mounts name them. Looking them up takes a request of the file
    /// system for each archive, so it waits for the first decision that needs them.
    archives: OnceCell<Vec<PathBuf>>,
    /// Size of those that are not only in memory anyway, in bytes.
    bytes: u64,
    stats: Arc<Stats>,
    /// The number of requests at the last decision.
    requests: u64,
    decide_at: Instant,
}

impl ArchiveCachePolicy {
    /// The pages of `files`, which are served from now on.
    pub(in crate::lifecycle) fn new(
        plan: &MountPlan,
        files: &[Arc<FileStorage>],
        stats: Arc<Stats>,
    ) -> Self {
        let switch = Arc::new(ArchiveCache::default());
        storage::serve(files, &switch);
        let on_storage = files.iter().filter(|file| !file.is_in_memory());
        let bytes = on_storage.map(|file| file.len()).fold(0, u64::saturating_add);
        let (choice, plan, archives) = (plan.archive_cache, plan.clone(), OnceCell::new());
        // No count yet, so the mount is not idle at the first decision.
        let (requests, decide_at) = (u64::MAX, Instant::now());
        Self { choice, switch, plan, archives, bytes, stats, requests, decide_at }
    }

    /// Decides again if that is due at `now`. Returns when to call this again.
    pub(in crate::lifecycle) fn update(&mut self, now: Instant) -> Option<Instant> {
        if self.choice != ArchiveCacheChoice::Auto || self.bytes == 0 {
            self.switch.set_drops(self.choice == ArchiveCacheChoice::Drop);
            return None;
        }
        if now >= self.decide_at {
            let requests = self.stats.requests();
            let is_idle = requests == self.requests;
            self.requests = requests;
            self.decide_at = now + if is_idle { IDLE_INTERVAL } else { INTERVAL };
            self.decide();
        }
        Some(self.decide_at)
    }

    fn decide(&self) {
        let headroom = memory::headroom();
        let archives = || self.archives.get_or_init(|| share::real_paths(&self.plan));
        let drops = exceeds(self.bytes, headroom) && !share::is_served_by_others(archives());
        if drops != self.switch.drops() {
            self.switch.set_drops(drops);
            let twice = format_size(self.bytes.saturating_mul(2));
            match (drops, headroom) {
                (true, Some(Headroom { bytes, bound })) => log::info!(
                    "dropping served pages of the archives from the page cache: archives and \
                     served data take up to {twice}, but {} {}",
                    bound.leaves(),
                    format_size(bytes)
                ),
                _ => log::info!("keeping served pages of the archives in the page cache"),
            }
        }
    }
}

/// Whether archives of `bytes` and what is served of them do not both fit into memory. Served data
/// has at least the size of the archives once everything was read.
fn exceeds(bytes: u64, headroom: Option<Headroom>) -> bool {
    headroom.is_some_and(|left| bytes.saturating_mul(2) > left.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory::Bound;

    #[test]
    fn served_pages_are_dropped_if_archives_do_not_fit_twice() {
        let left = |bytes| Some(Headroom { bytes, bound: Bound::ControlGroup });
        assert!(!exceeds(100, left(200)));
        assert!(exceeds(100, left(199)));
        assert!(!exceeds(u64::MAX / 2, left(u64::MAX)));
        assert!(!exceeds(u64::MAX, None), "no limit is known");
    }
}
