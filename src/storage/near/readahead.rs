//! What a copy notes of its readers, and reports of what was fetched ahead of them.

use std::ops::Range;
use std::time::Instant;

use super::demand::Demand;
use super::granules::GRANULE;
use super::{FillScope, NearCopy};
use crate::remote::Requester;
use crate::stats::{ReadaheadCounts, ReadaheadState};
use crate::sync::{Arc, Ordering};

impl NearCopy {
    /// Whether the next read is to be looked at closely: it may show that readers wait.
    pub(in crate::storage) fn is_sampling(&self) -> bool {
        self.first_waits.is_sampling() && !self.has_waited.load(Ordering::Relaxed)
    }

    /// Notes that a reader has read `range` of the archive with this number by itself, and whether
    /// it waited for storage. If it `is_sampled`, that is certain.
    pub(in crate::storage) fn note_read_of(
        self: &Arc<Self>,
        number: usize,
        range: &Range<u64>,
        waited: bool,
        is_sampled: bool,
    ) {
        if !self.has_waited.load(Ordering::Relaxed) {
            if is_sampled && !self.first_waits.note(waited) {
                return;
            }
            if !is_sampled {
                if waited && !self.first_waits.is_sampling() {
                    self.first_waits.begin();
                }
                return;
            }
        }
        let start = self.start(number);
        let range = start.saturating_add(range.start)..start.saturating_add(range.end);
        let is_new = self.granules.add(&range) > 0;
        self.note_read(range, Requester::Reader, is_new, waited);
    }

    /// Notes that `requester` has read `range`. `is_new` says whether it was not fetched before.
    pub(super) fn note_read(
        self: &Arc<Self>,
        range: Range<u64>,
        requester: Requester,
        is_new: bool,
        waited: bool,
    ) {
        let Some(unused) = &self.unused else { return };
        if !self.is_served.load(Ordering::Relaxed) {
            return;
        }
        let used = unused.remove(&range);
        if used > 0 {
            self.used.fetch_add(used * GRANULE, Ordering::Relaxed);
        }
        let is_first = waited
            && !self.has_waited.load(Ordering::Relaxed)
            && !self.has_waited.swap(true, Ordering::Relaxed);
        if is_first && self.scope != FillScope::Announced {
            log::info!("{}: programs wait for storage, so archfs reads ahead of them", self.name);
        }
        if !is_new && used == 0 && !waited {
            return;
        }
        // One read more or less makes no difference, so no reader waits for another one here.
        let Some(mut schedule) = self.schedule.try_lock() else { return };
        if waited {
            schedule.note_request(requester, Instant::now());
        }
        if let Some(demand) = &mut schedule.demand
            && (is_new || used > 0)
        {
            demand.note(range);
        }
        let has_room_again = used > 0 && schedule.is_full();
        if has_room_again || schedule.demand.as_ref().is_some_and(Demand::is_look_due) {
            self.wake(schedule);
        }
    }

    /// Bytes that were fetched ahead of readers and that none of them has used.
    pub(super) fn unused_bytes(&self) -> u64 {
        let [fetched, used] = [&self.ahead, &self.used].map(|count| count.load(Ordering::Relaxed));
        fetched.saturating_sub(used)
    }

    /// Counts reads as those of programs from now on: the archives are open.
    pub(in crate::storage) fn serve(&self) {
        self.is_served.store(true, Ordering::Relaxed);
        self.schedule.lock().is_served = true;
    }

    /// How much was fetched ahead of readers.
    pub fn readahead(&self) -> ReadaheadCounts {
        let [fetched, used] = [&self.ahead, &self.used].map(|count| count.load(Ordering::Relaxed));
        let state = match self.scope {
            FillScope::Announced => ReadaheadState::Off,
            _ if self.is_complete() => ReadaheadState::Complete,
            _ if self.schedule.lock().is_full() => ReadaheadState::Full,
            FillScope::Demanded { .. } if !self.has_waited.load(Ordering::Relaxed) => {
                ReadaheadState::NotNeeded
            }
            FillScope::Demanded { .. } | FillScope::Everything => ReadaheadState::Active,
        };
        ReadaheadCounts { state, fetched, used: used.min(fetched) }
    }
}
