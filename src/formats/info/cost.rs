//! How many bytes are decoded to read files: the mean and percentiles over all regular files.
//!
//! Invariant: costs are exact, for reading a whole file with an empty cache.

use crate::formats::bytes::{index, length};

/// Default read cost of `archfs pack`, bytes: how much may be decoded to read a small file. Less
/// would hardly be faster, and smaller blocks compress much worse (see docs/PACK.md).
pub const READ_COST: u64 = 32 << 10;

/// Bytes decoded to read one file, over all regular files, including empty ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The mean.
    pub mean: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The maximum.
    pub worst: u64,
}

/// The estimated cost of the same files in an image made for random reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageEstimate {
    /// The read cost to request, bytes.
    pub read_cost: u64,
    /// Upper bound of the mean bytes decoded per file.
    pub mean: u64,
}

/// Collects the cost of each file.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    decoded: Vec<u64>,
    packed: u64,
    bytes: u64,
}

impl Costs {
    /// Adds a file of `size` bytes; reading it decodes `decoded` bytes. Returns its number.
    pub(crate) fn add(&mut self, size: u64, decoded: u64) -> usize {
        self.decoded.push(decoded);
        self.bytes = self.bytes.saturating_add(size);
        let small = if size > 0 { size.max(READ_COST) } else { 0 };
        self.packed = self.packed.saturating_add(small);
        self.decoded.len().saturating_sub(1)
    }

    /// Adds `decoded` bytes to the cost of file number `file`.
    pub(crate) fn add_to(&mut self, file: usize, decoded: u64) {
        if let Some(cost) = self.decoded.get_mut(file) {
            *cost = cost.saturating_add(decoded);
        }
    }

    /// The statistics of all files.
    pub(crate) fn finish(mut self) -> (Cost, ImageEstimate) {
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
        // A block holds no more than all files together.
        let packed = mean(self.packed).min(self.bytes);
        (Cost { mean: mean(sum), p99, worst }, ImageEstimate { read_cost: READ_COST, mean: packed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_p99_of_a_hundred_files_is_the_second_largest_cost() {
        let mut costs = Costs::default();
        for cost in (1..=100).rev() {
            costs.add(1 << 20, cost * 1000);
        }
        let (cost, packed) = costs.finish();
        assert_eq!(cost, Cost { mean: 50_500, p99: 99_000, worst: 100_000 });
        assert_eq!(packed.mean, 1 << 20);
    }

    #[test]
    fn one_file_sets_all_statistics_and_no_file_costs_nothing() {
        let mut costs = Costs::default();
        let file = costs.add(100, 7);
        costs.add_to(file, 3);
        let (cost, packed) = costs.finish();
        assert_eq!(cost, Cost { mean: 10, p99: 10, worst: 10 });
        assert_eq!(packed.mean, 100, "there is no more to decode");
        assert_eq!(Costs::default().finish().0, Cost::default());
    }
}
