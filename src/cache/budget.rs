//! How much memory the caches of a mount may use: by default, and while they serve.
//!
//! The default is a quarter of what the job may use, at most 16 GiB; an eighth where that is so
//! little that what the cache does not count is more than another quarter. It is never more than a
//! third of what the job has left at the start of the mount.

use std::fmt;

use crate::memory::{self, Bound};
use crate::sync::{Arc, Mutex, Weak};

/// The largest default, bytes.
const MOST: u64 = 16 << 30;

/// The default where nothing is known, and the least that a job with room for it gets, bytes.
const USUAL: u64 = 64 << 20;

/// The least there is, bytes: with less every block would be decoded for each read of it.
pub const LEAST: u64 = 4 << 20;

/// What a mount takes on top of its budget in a small job: the program, and its threads
/// (docs/CACHE.md); bytes.
const ON_TOP: u64 = 16 << 20;

/// The default budget, bytes.
pub fn default_bytes() -> u64 {
    share(memory::limit(), memory::headroom_at_start().map(|left| left.bytes))
}

/// The largest budget that the control group of this job can hold now, bytes, and its limit;
/// `None` where no group limits it.
pub fn most_bytes() -> Option<(u64, u64)> {
    let left = memory::headroom_at_start().filter(|left| left.bound == Bound::ControlGroup)?;
    memory::limit().map(|limit| (largest_within(left.bytes), limit))
}

fn share(limit: Option<u64>, left: Option<u64>) -> u64 {
    let share = match limit {
        None => USUAL,
        Some(bytes) if bytes / 4 > USUAL => (bytes / 4).min(MOST),
        Some(bytes) => (bytes / 8).max(LEAST),
    };
    left.map_or(share, |left| share.min((left / 3).max(LEAST)))
}

/// The largest budget where `left` bytes are left: threads take up to a quarter.
pub fn largest_within(left: u64) -> u64 {
    (left / 4 * 3).saturating_sub(ON_TOP).max(LEAST)
}

/// The part of its capacity that a cache may use: `now` of `whole` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    now: u64,
    whole: u64,
}

impl Part {
    /// `now` of `whole` bytes.
    pub fn new(now: u64, whole: u64) -> Self {
        Self { now, whole }
    }

    /// That part of `capacity`, bytes.
    pub fn of(self, capacity: u64) -> u64 {
        let scaled = u128::from(capacity) * u128::from(self.now) / u128::from(self.whole.max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

/// Something whose caches can become smaller and larger while they serve.
pub trait Resize: Send + Sync {
    /// Lets its caches use this part of the capacity they were made with.
    fn resize(&self, part: Part);
}

/// The caches of a mount, which become smaller and larger together.
#[derive(Clone, Default)]
pub struct Budget {
    /// Guards the caches; held while they are resized, so that the newest size is set last. No
    /// request takes it. `part` is taken within.
    members: Arc<Mutex<Vec<Weak<dyn Resize>>>>,
    /// Guards the newest size; `None` while the caches have the one they were made with.
    part: Arc<Mutex<Option<Part>>>,
}

impl Budget {
    /// Has `member` follow the budget from now on.
    pub fn add(&self, member: Weak<dyn Resize>) {
        self.members.lock().push(member);
    }

    /// Sets the size: `now` of the `whole` bytes that the caches were made with. It counts once
    /// `apply` has returned.
    pub fn set(&self, now: u64, whole: u64) {
        *self.part.lock() = Some(Part { now, whole });
    }

    /// Gives all caches the newest size. Takes time where much is freed.
    pub fn apply(&self) {
        let members = self.members.lock();
        let part = *self.part.lock();
        if let Some(part) = part {
            members.iter().filter_map(Weak::upgrade).for_each(|member| member.resize(part));
        }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budget({:?})", *self.part.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_any_capacity_neither_overflows_nor_divides_by_zero() {
        assert_eq!(Part { now: 1, whole: 8 }.of(80), 10);
        assert_eq!(Part { now: u64::MAX, whole: u64::MAX }.of(u64::MAX), u64::MAX);
        assert_eq!(Part { now: u64::MAX, whole: 0 }.of(2), u64::MAX);
        assert_eq!(Part { now: 0, whole: 7 }.of(100), 0);
    }

    #[test]
    fn takes_a_quarter_or_of_little_an_eighth() {
        let share = |limit| share(limit, limit);
        assert_eq!(share(Some(8 << 30)), 2 << 30);
        assert_eq!(share(Some((256 << 20) + 4)), (64 << 20) + 1);
        assert_eq!(share(Some(256 << 20)), 32 << 20);
        assert_eq!(share(Some(64 << 20)), 8 << 20);
        assert_eq!(share(Some(1 << 20)), 4 << 20);
        assert_eq!(share(Some(1 << 50)), 16 << 30);
        assert_eq!(share(None), 64 << 20);
    }

    #[test]
    fn takes_at_most_a_third_of_what_others_leave() {
        assert_eq!(share(Some(1 << 30), Some(1000 << 20)), 256 << 20);
        assert_eq!(share(Some(1 << 30), Some(300 << 20)), 100 << 20);
        assert_eq!(share(Some(1 << 30), Some(0)), LEAST);
        assert_eq!(share(None, Some(9 << 20)), LEAST);
        assert_eq!(share(None, None), 64 << 20);
    }

    #[test]
    fn the_largest_budget_leaves_room_for_threads() {
        assert_eq!(largest_within(256 << 20), 176 << 20);
        assert_eq!(largest_within(20 << 20), LEAST);
        assert_eq!(largest_within(0), LEAST);
    }
}
