//! How much memory the caches of a mount may use: the default, and changes at run time.
//!
//! The default is a quarter of the job's memory limit, at most 16 GiB. If the limit is at most 256
//! MiB, it is an eighth, because then the memory outside the cache takes more than another quarter.
//! It is never more than a third of the memory the job has left when the mount starts.

use crate::os::memory::{self, Headroom};
use crate::sync::{Arc, Mutex, Weak};
use crate::units::format_size;

/// The largest default, in bytes.
const DEFAULT_MAX: u64 = 16 << 30;

/// The default if no limit is known, in bytes. Also the threshold between a quarter and an eighth.
const DEFAULT_WITHOUT_LIMIT: u64 = 64 << 20;

/// The minimum, in bytes. With less, every read would decode its block again.
pub const LEAST: u64 = 4 << 20;

/// Memory that a mount in a small job needs in addition to its budget: the program and its threads
/// (docs/CACHE.md), in bytes.
const OVERHEAD: u64 = 16 << 20;

/// The default budget, in bytes.
pub fn default_bytes() -> u64 {
    share(memory::limit(), memory::headroom_at_start().map(|left| left.bytes))
}

/// The budget of a user who asked for `wanted` bytes. If the job or the node cannot hold that many,
/// it is less, and `warn` gets the sizes.
pub fn reduced_to_fit(wanted: u64, warn: impl FnOnce(&str)) -> u64 {
    let left = memory::headroom_at_start();
    let budget = fitting(wanted, left);
    if let Some(left) = left.filter(|_| budget < wanted) {
        warn(&format!(
            "--cache {}: {} {}; using {}",
            format_size(wanted),
            left.bound.leaves(),
            format_size(left.bytes),
            format_size(budget)
        ));
    }
    budget
}

fn fitting(wanted: u64, left: Option<Headroom>) -> u64 {
    left.map_or(wanted, |left| wanted.min(largest_within(left.bytes)))
}

fn share(limit: Option<u64>, left: Option<u64>) -> u64 {
    let share = match limit {
        None => DEFAULT_WITHOUT_LIMIT,
        Some(bytes) if bytes / 4 > DEFAULT_WITHOUT_LIMIT => (bytes / 4).min(DEFAULT_MAX),
        Some(bytes) => (bytes / 8).max(LEAST),
    };
    left.map_or(share, |left| share.min((left / 3).max(LEAST)))
}

/// The largest budget if `left` bytes are left: threads take up to a quarter.
pub fn largest_within(left: u64) -> u64 {
    (left / 4 * 3).saturating_sub(OVERHEAD).max(LEAST)
}

/// The fraction of its capacity that a cache may use: `now` of `whole` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fraction {
    now: u64,
    whole: u64,
}

impl Fraction {
    /// `now` of `whole` bytes.
    pub fn new(now: u64, whole: u64) -> Self {
        Self { now, whole }
    }

    /// This fraction of `capacity`, in bytes.
    pub fn of(self, capacity: u64) -> u64 {
        let scaled = u128::from(capacity) * u128::from(self.now) / u128::from(self.whole.max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

/// An owner of caches that can be resized while in use.
pub trait Resize: Send + Sync {
    /// Resizes its caches to this fraction of their original capacity.
    fn resize(&self, fraction: Fraction);
}

/// The caches of a mount, which are resized together.
#[derive(Clone, Default)]
pub struct Budget {
    /// Guards the caches. Held while they are resized, so that the newest size is applied last. No
    /// request takes it. `newest` is locked within it.
    members: Arc<Mutex<Vec<Weak<dyn Resize>>>>,
    /// Guards the newest size; `None` while the caches have their original size.
    newest: Arc<Mutex<Option<Fraction>>>,
}

impl Budget {
    /// Makes `member` follow the budget.
    pub fn add(&self, member: Weak<dyn Resize>) {
        self.members.lock().push(member);
    }

    /// Sets the size: `now` of the `whole` bytes that the caches were created with. `apply` makes
    /// it effective.
    pub fn set(&self, now: u64, whole: u64) {
        *self.newest.lock() = Some(Fraction { now, whole });
    }

    /// Resizes all caches to the newest size. Takes time if much memory is freed.
    pub fn apply(&self) {
        let members = self.members.lock();
        let newest = *self.newest.lock();
        if let Some(newest) = newest {
            members.iter().filter_map(Weak::upgrade).for_each(|member| member.resize(newest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory::Bound;

    #[test]
    fn a_fraction_of_any_capacity_neither_overflows_nor_divides_by_zero() {
        assert_eq!(Fraction { now: 1, whole: 8 }.of(80), 10);
        assert_eq!(Fraction { now: u64::MAX, whole: u64::MAX }.of(u64::MAX), u64::MAX);
        assert_eq!(Fraction { now: u64::MAX, whole: 0 }.of(2), u64::MAX);
        assert_eq!(Fraction { now: 0, whole: 7 }.of(100), 0);
    }

    #[test]
    fn defaults_to_a_quarter_or_an_eighth_of_a_small_limit() {
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
    fn defaults_to_at_most_a_third_of_the_memory_left() {
        assert_eq!(share(Some(1 << 30), Some(1000 << 20)), 256 << 20);
        assert_eq!(share(Some(1 << 30), Some(300 << 20)), 100 << 20);
        assert_eq!(share(Some(1 << 30), Some(0)), LEAST);
        assert_eq!(share(None, Some(9 << 20)), LEAST);
        assert_eq!(share(None, None), 64 << 20);
    }

    #[test]
    fn a_given_budget_is_reduced_to_what_the_job_or_the_node_can_hold() {
        for bound in [Bound::Node, Bound::ControlGroup] {
            let fitting = |wanted| fitting(wanted, Some(Headroom { bytes: 256 << 20, bound }));
            let most = largest_within(256 << 20);
            assert_eq!([most - 1, most, most + 1].map(fitting), [most - 1, most, most]);
            assert_eq!(fitting(400 << 40), most);
        }
        assert_eq!(fitting(400 << 40, None), 400 << 40);
    }

    #[test]
    fn the_largest_budget_leaves_room_for_threads() {
        assert_eq!(largest_within(256 << 20), 176 << 20);
        assert_eq!(largest_within(20 << 20), LEAST);
        assert_eq!(largest_within(0), LEAST);
    }
}
