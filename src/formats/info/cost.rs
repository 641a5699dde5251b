//! What reading files decodes.
//!
//! Owns the mean and the percentiles over all regular files, and the estimate for files that would
//! be packed anew; leaves what one file costs to each format.
//! Invariant: the costs are of reading a whole file with nothing in a cache, and exact.

use crate::formats::bytes::{index, length};

/// Bytes that may be decoded to read a small file of an image made for reading at random, unless
/// told otherwise: less would hardly be faster, and smaller blocks compress a good deal worse.
/// (docs/PACK.md has the figures.)
pub const READ_COST: u64 = 32 << 10;

/// What reading one file decodes, bytes: of all regular files, the empty ones too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The mean.
    pub mean: u64,
    /// 99 of 100 files cost no more.
    pub p99: u64,
    /// The most that a file costs.
    pub worst: u64,
}

/// An estimate: what the same files would cost in an image made for reading them at random.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageEstimate {
    /// The read cost to ask for, bytes.
    pub read_cost: u64,
    /// What reading a mean file would then decode, bytes, at most.
    pub mean: u64,
}

/// The costs of files, as they are found.
#[derive(Debug, Default)]
pub(in crate::formats) struct Costs {
    decoded: Vec<u64>,
    packed: u64,
    bytes: u64,
}

impl Costs {
    /// Counts a file of `size` bytes; reading it decodes `decoded`. Tells which number it has.
    pub(in crate::formats) fn add(&mut self, size: u64, decoded: u64) -> usize {
        self.decoded.push(decoded);
        self.bytes = self.bytes.saturating_add(size);
        let small = if size > 0 { size.max(READ_COST) } else { 0 };
        self.packed = self.packed.saturating_add(small);
        self.decoded.len().saturating_sub(1)
    }

    /// Adds `decoded` bytes to the cost of file number `file`.
    pub(in crate::formats) fn more(&mut self, file: usize, decoded: u64) {
        if let Some(cost) = self.decoded.get_mut(file) {
            *cost = cost.saturating_add(decoded);
        }
    }

    /// The sums.
    pub(in crate::formats) fn finish(mut self) -> (Cost, ImageEstimate) {
        let count = length(self.decoded.len());
        let mean = |sum: u64| sum.checked_div(count).unwrap_or(0);
        let sum = self.decoded.iter().fold(0_u64, |sum, cost| sum.saturating_add(*cost));
        let worst = self.decoded.iter().copied().max().unwrap_or(0);
        // The smallest cost that 99 of 100 files do not exceed.
        let nth = index(count.saturating_mul(99).div_ceil(100).saturating_sub(1));
        let p99 = match nth < self.decoded.len() {
            true => *self.decoded.select_nth_unstable(nth).1,
            false => 0,
        };
        // A block holds no more than there is.
        let packed = mean(self.packed).min(self.bytes);
        (Cost { mean: mean(sum), p99, worst }, ImageEstimate { read_cost: READ_COST, mean: packed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_hundred_files_the_second_most_expensive_is_the_percentile() {
        let mut costs = Costs::default();
        for cost in (1..=100).rev() {
            costs.add(1 << 20, cost * 1000);
        }
        let (cost, packed) = costs.finish();
        assert_eq!(cost, Cost { mean: 50_500, p99: 99_000, worst: 100_000 });
        assert_eq!(packed.mean, 1 << 20);
    }

    #[test]
    fn one_file_is_all_of_them_and_none_costs_nothing() {
        let mut costs = Costs::default();
        let file = costs.add(100, 7);
        costs.more(file, 3);
        let (cost, packed) = costs.finish();
        assert_eq!(cost, Cost { mean: 10, p99: 10, worst: 10 });
        assert_eq!(packed.mean, 100, "there is no more to decode");
        assert_eq!(Costs::default().finish().0, Cost::default());
    }
}
