//! Decides whether the page cache keeps the parts of the archives that were served.
//!
//! `storage::ArchiveCache` says why they are dropped. They are dropped where archives and served
//! data do not both fit into what the job may use, which changes while the job runs. The size of
//! the data follows from what was read and served so far, because a compressed image serves more
//! than it has. As long as another daemon of this user serves the same archive, the pages stay:
//! that daemon has its own mount to fill from them.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::Service;
use crate::lifecycle::{ArchiveCacheChoice, MountPlan, registry};
use crate::os::memory::{self, Headroom};
use crate::stats::Stats;
use crate::storage::{ArchiveCache, FileStorage, NearCopy, Storage};
use crate::sync::Arc;
use crate::units::format_size;

/// Time between two decisions while there are requests, and while there are none.
const INTERVAL: Duration = Duration::from_secs(10);
const IDLE_INTERVAL: Duration = Duration::from_secs(60);

/// How much must have been read of the archives before it says how large their data are: this part
/// of them, or this many bytes.
const SAMPLE_PART: u64 = 16;
const SAMPLE_BYTES: u64 = 64 << 20;

/// The largest ratio of data to archives that is assumed. Holes and zeros exceed it.
const EXPANSION_MAX: u64 = 16;

/// The part of the needed memory that must be left in addition before dropped pages are kept again,
/// so that the decision does not alternate.
const MARGIN_PART: u64 = 8;

/// Bytes of archives that were read, and of files that were served.
#[derive(Clone, Copy, Debug, Default)]
struct Transfer {
    read: u64,
    served: u64,
}

/// The pages of the archives of a mount.
pub(super) struct ArchiveCachePolicy {
    choice: ArchiveCacheChoice,
    switch: Arc<ArchiveCache>,
    files: Vec<Arc<FileStorage>>,
    /// The archives as the records of mounts name them.
    archives: Vec<PathBuf>,
    /// Size of those that are not only in memory anyway, in bytes.
    bytes: u64,
    /// The copy on a disk that the archives are read through, until its pages are dropped.
    copy: Option<Arc<NearCopy>>,
    stats: Arc<Stats>,
    /// What was read before the first request, to scan the archives.
    before: Transfer,
    /// The number of requests at the last decision.
    requests: u64,
    decide_at: Instant,
}

impl ArchiveCachePolicy {
    pub(super) fn new(
        plan: &MountPlan,
        files: &[Arc<FileStorage>],
        switch: Arc<ArchiveCache>,
        copy: Option<&Arc<NearCopy>>,
        stats: Arc<Stats>,
    ) -> Self {
        let on_storage = files.iter().filter(|file| !file.is_in_memory());
        let bytes = on_storage.map(|file| file.len()).fold(0, u64::saturating_add);
        let (choice, archives, files) = (plan.archive_cache, Vec::new(), files.to_vec());
        let copy = copy.filter(|copy| !copy.is_in_memory()).cloned();
        let before = Transfer::of(&stats);
        // No count yet, so the mount is not idle at the first decision.
        let (requests, decide_at) = (u64::MAX, Instant::now());
        Self { choice, switch, files, archives, bytes, copy, stats, before, requests, decide_at }
    }

    /// Decides for the first time. `archives` are those of the record, so that no other decision
    /// has to look for them on a file system that may not answer.
    pub(super) fn begin(&mut self, archives: Vec<PathBuf>) {
        self.archives = archives;
        self.update(Instant::now());
    }

    fn decide(&mut self) {
        let headroom = memory::headroom();
        let data = data_bytes(self.bytes, Transfer::of(&self.stats).since(self.before));
        let needed = self.bytes.saturating_add(data);
        let exceeds = exceeds(needed, headroom, self.switch.drops());
        self.switch.set_has_room(!exceeds);
        // Direct readers have no other copy in memory.
        let is_read_directly = self.stats.direct_reads() > 0;
        let drops = exceeds && !is_read_directly && !registry::is_served_by_others(&self.archives);
        if drops != self.switch.drops() {
            self.switch.set_drops(drops);
            if drops {
                self.files.iter().for_each(|file| file.drop_read_around());
            }
            let needed = format_size(needed);
            match (drops, headroom) {
                (true, Some(Headroom { bytes, bound })) => log::info!(
                    "dropping served pages of the archives from the page cache: archives and \
                     served data take up to {needed}, but {} {}",
                    bound.leaves(),
                    format_size(bytes)
                ),
                _ => log::info!("keeping served pages of the archives in the page cache"),
            }
        }
    }

    /// Drops what is there of a copy on a disk. Done again until the copy is complete.
    fn drop_copy(&mut self) {
        let Some(copy) = self.copy.take() else { return };
        if !copy.is_complete() {
            self.copy = Some(Arc::clone(&copy));
        }
        // Not on the thread that serves holders and unmounts: it waits for the disk.
        let work = move || {
            if let Err(error) = copy.drop_pages() {
                log::warn!("--stage: cannot write the copy to the disk: {error}");
            }
        };
        if let Err(error) = thread::Builder::new().name("drop".into()).spawn(work) {
            log::warn!("--stage: cannot start a thread: {error}");
        }
    }
}

impl Service for ArchiveCachePolicy {
    /// Decides again if that is due.
    fn update(&mut self, now: Instant) -> Option<Instant> {
        let is_automatic = self.choice == ArchiveCacheChoice::Auto && self.bytes > 0;
        if now >= self.decide_at {
            let requests = self.stats.uses();
            let is_idle = requests == self.requests;
            self.requests = requests;
            self.decide_at = now + if is_idle { IDLE_INTERVAL } else { INTERVAL };
            match is_automatic {
                true => self.decide(),
                false => self.switch.set_drops(self.choice == ArchiveCacheChoice::Drop),
            }
            if self.switch.drops() {
                self.drop_copy();
            }
        }
        let has_copy = self.copy.is_some() && self.switch.drops();
        (is_automatic || has_copy).then_some(self.decide_at)
    }
}

impl Transfer {
    fn of(stats: &Stats) -> Self {
        let totals = stats.totals();
        Self { read: totals.archive_bytes, served: totals.bytes }
    }

    fn since(self, before: Self) -> Self {
        Self {
            read: self.read.saturating_sub(before.read),
            served: self.served.saturating_sub(before.served),
        }
    }
}

/// The size of all data in `archives` bytes of archives, in bytes, if the rest is like what was
/// transferred. It is at least that of the archives: readers of small parts get less than was read.
fn data_bytes(archives: u64, transfer: Transfer) -> u64 {
    let Transfer { read, served } = transfer;
    if read == 0 || read < (archives / SAMPLE_PART).min(SAMPLE_BYTES) {
        return archives;
    }
    let scaled = u128::from(archives) * u128::from(served) / u128::from(read);
    let most = archives.saturating_mul(EXPANSION_MAX);
    u64::try_from(scaled).unwrap_or(u64::MAX).clamp(archives, most)
}

/// Whether `needed` bytes, the archives and all their data, do not fit into memory. If pages are
/// dropped already, a margin must be left as well.
fn exceeds(needed: u64, headroom: Option<Headroom>, drops: bool) -> bool {
    let margin = if drops { needed / MARGIN_PART } else { 0 };
    headroom.is_some_and(|left| needed.saturating_add(margin) > left.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory::Bound;

    #[test]
    fn served_pages_are_dropped_if_archives_and_data_do_not_fit() {
        let left = |bytes| Some(Headroom { bytes, bound: Bound::ControlGroup });
        assert!(!exceeds(200, left(200), false));
        assert!(exceeds(200, left(199), false));
        assert!(!exceeds(u64::MAX, left(u64::MAX), false));
        assert!(!exceeds(u64::MAX, None, true), "no limit is known");
    }

    #[test]
    fn pages_are_kept_again_only_if_a_margin_is_left() {
        let left = |bytes| Some(Headroom { bytes, bound: Bound::Node });
        assert!(exceeds(800, left(899), true));
        assert!(!exceeds(800, left(900), true));
        assert!(exceeds(u64::MAX, left(u64::MAX - 1), true));
    }

    #[test]
    fn the_size_of_the_data_follows_from_what_was_served() {
        let data = |archives, read, served| data_bytes(archives, Transfer { read, served });
        assert_eq!(data(1600, 0, 0), 1600, "nothing was read");
        assert_eq!(data(1600, 99, 300), 1600, "too little was read");
        assert_eq!(data(1600, 100, 300), 4800);
        assert_eq!(data(1600, 100, 1600), 1600 * EXPANSION_MAX);
        assert_eq!(data(1600, 100, 1601), 1600 * EXPANSION_MAX, "the limit");
        assert_eq!(data(1600, 400, 100), 1600, "parts of blocks");
        let archives = 1 << 40;
        assert_eq!(data(archives, SAMPLE_BYTES - 1, 2 * SAMPLE_BYTES), archives);
        assert_eq!(data(archives, SAMPLE_BYTES, 2 * SAMPLE_BYTES), 2 * archives);
        assert_eq!(data(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
    }
}
