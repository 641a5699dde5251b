//! Sets of granules: those that a near copy has, and those that were fetched ahead of readers.
//!
//! Invariant: a granule that a copy has stays there, so a reader that finds one needs no lock.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::os::memory_file::SharedBits;
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::units::Size;

/// Size of a granule in bytes, the unit in which the copy is filled. Readers of small files get
/// little more from the source than they want, and the set for 100 GB takes 800 kB.
pub(super) const GRANULE: u64 = 16 << 10;

/// A set of granules. All ranges are in bytes of the copy.
#[derive(Debug)]
pub(super) struct Granules {
    bits: Arc<SharedBits>,
    count: u64,
    missing: AtomicU64,
}

impl Granules {
    /// The set for a copy of `len` bytes, empty.
    pub(super) fn new(len: u64) -> Result<Self> {
        let count = len.div_ceil(GRANULE);
        let bits = SharedBits::new(count)
            .map_err(|error| Error::io(format!("cannot copy {}", Size(len)), error))?;
        Ok(Self { bits: Arc::new(bits), count, missing: AtomicU64::new(count) })
    }

    /// The bits, one for each granule.
    pub(super) fn bits(&self) -> &Arc<SharedBits> {
        &self.bits
    }

    /// Tells other processes that the copy is not valid any more.
    pub(super) fn make_void(&self) {
        self.bits.make_void();
    }

    /// The size of all granules, in bytes.
    pub(super) fn len(&self) -> u64 {
        self.count.saturating_mul(GRANULE)
    }

    /// Whether all granules are there.
    pub(super) fn is_full(&self) -> bool {
        self.missing.load(Ordering::Acquire) == 0
    }

    /// Whether all granules with bytes of `range` are there.
    pub(super) fn has(&self, range: &Range<u64>) -> bool {
        masks(&granules(range)).all(|(word, mask)| self.bits.word(word) & mask == mask)
    }

    /// Adds the granules with bytes of `range`. Returns how many are new.
    pub(super) fn add(&self, range: &Range<u64>) -> u64 {
        let mut added = 0;
        for (word, mask) in masks(&granules(range)) {
            if self.bits.word(word) & mask != mask {
                added += u64::from(self.bits.set(word, mask).count_ones());
            }
        }
        self.missing.fetch_sub(added, Ordering::AcqRel);
        added
    }

    /// Removes the granules with bytes of `range`. Returns how many were in the set.
    pub(super) fn remove(&self, range: &Range<u64>) -> u64 {
        let mut removed = 0;
        for (word, mask) in masks(&granules(range)) {
            if self.bits.word(word) & mask != 0 {
                removed += u64::from(self.bits.clear(word, mask).count_ones());
            }
        }
        self.missing.fetch_add(removed, Ordering::AcqRel);
        removed
    }

    /// The share of the granules of `range` that are in the set, from 0 to 1. Of a long range, a
    /// sample is counted.
    pub(super) fn share(&self, range: &Range<u64>) -> f64 {
        /// Words of a sample.
        const SAMPLE: u64 = 8 << 10;
        let all = granules(range);
        let stride = (all.end - all.start) / (64 * SAMPLE) + 1;
        let step = usize::try_from(stride).unwrap_or(usize::MAX);
        let counted = masks(&all).step_by(step).map(|(word, mask)| {
            [self.bits.word(word) & mask, mask].map(|bits| u64::from(bits.count_ones()))
        });
        let [found, of] =
            counted.fold([0, 0], |[sum, total], [found, of]| [sum + found, total + of]);
        found as f64 / of.max(1) as f64
    }

    /// The first bytes of `range` whose granules are alike, and whether those are there. An empty
    /// range has none.
    pub(super) fn first_run(&self, range: &Range<u64>) -> (Range<u64>, bool) {
        let all = granules(range);
        let is_there = self.has(&(range.start..range.start.saturating_add(1)));
        let end = self.next(is_there, all.start..all.end).unwrap_or(all.end);
        let end = end.saturating_mul(GRANULE).min(range.end);
        (range.start..end.max(range.start), is_there)
    }

    /// The start of the first missing granule that starts at or after `offset`.
    pub(super) fn first_missing(&self, offset: u64) -> Option<u64> {
        Some(self.next(true, offset.div_ceil(GRANULE)..self.count)? * GRANULE)
    }

    /// The first granule of `range` that is missing if `is_there`, else the first that is there.
    fn next(&self, is_there: bool, range: Range<u64>) -> Option<u64> {
        masks(&range).find_map(|(number, mask)| {
            let word = self.bits.word(number);
            let found = if is_there { !word } else { word } & mask;
            (found != 0).then(|| number as u64 * 64 + u64::from(found.trailing_zeros()))
        })
    }
}

/// The numbers of the granules with bytes of `range`.
fn granules(range: &Range<u64>) -> Range<u64> {
    let start = range.start / GRANULE;
    start..range.end.div_ceil(GRANULE).max(start)
}

/// The words with these granules, each with a mask of them.
fn masks(granules: &Range<u64>) -> impl Iterator<Item = (usize, u64)> + use<> {
    let Range { start, end } = *granules;
    let words = if start < end { start / 64..end.div_ceil(64) } else { 0..0 };
    words.map(move |word| {
        let first = word * 64;
        let from = start.saturating_sub(first);
        let to = (end - first).min(64);
        let mask = (u64::MAX << from) & (u64::MAX >> (64 - to));
        (usize::try_from(word).unwrap_or(usize::MAX), mask)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_list_of_flags() {
        let count = 200;
        let len = count * GRANULE - 5;
        let set = Granules::new(len).unwrap();
        let mut flags = vec![false; count as usize];
        let mut random = 1_u64;
        let mut below = |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % limit
        };
        for _ in 0..300 {
            let start = below(len);
            let range = start..(start + 1 + below(5 * GRANULE)).min(len);
            let numbers = (range.start / GRANULE) as usize..=((range.end - 1) / GRANULE) as usize;
            assert_eq!(set.has(&range), numbers.clone().all(|number| flags[number]));
            let (run, is_there) = set.first_run(&range);
            let alike =
                numbers.clone().take_while(|number| flags[*number] == flags[*numbers.start()]);
            let end = (numbers.start() + alike.count()) as u64 * GRANULE;
            assert_eq!((run, is_there), (start..end.min(range.end), flags[*numbers.start()]));
            let next = start.div_ceil(GRANULE) as usize;
            let missing = (next..flags.len()).find(|number| !flags[*number]);
            assert_eq!(set.first_missing(start), missing.map(|number| number as u64 * GRANULE));
            if below(3) == 0 {
                set.add(&range);
                flags[numbers].fill(true);
            }
            assert!(!set.is_full());
        }
        set.add(&(0..len));
        assert!(set.is_full() && set.has(&(0..len)));
        assert_eq!(set.first_missing(0), None);
    }

    #[test]
    fn an_empty_copy_is_full() {
        let set = Granules::new(0).unwrap();
        assert!(set.is_full() && set.has(&(0..0)));
        assert_eq!(set.first_run(&(0..0)).0, 0..0);
        assert_eq!(set.first_missing(0), None);
        Granules::new(u64::MAX).err().unwrap();
    }
}
