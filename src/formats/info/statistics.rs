//! Statistics over the files of an archive: their sizes, how many bytes are decoded to read them,
//! and whether reads in random order are slow.

use std::fmt;

use serde::Serialize;

use crate::formats::bytes::{index, length};
use crate::units::format_size;

/// Number of classes: one for empty files, and one for each number of digits.
const CLASSES: usize = 65;

/// A histogram of file sizes. Class n holds the sizes with n binary digits; class 0 holds empty
/// files. Sums saturate at 2^64 - 1.
#[derive(Clone, Debug)]
pub struct Sizes {
    files: [u64; CLASSES],
    bytes: [u64; CLASSES],
    largest: u64,
}

impl Sizes {
    /// Counts a file of `size` bytes.
    pub(crate) fn add(&mut self, size: u64) {
        let class = index(u64::BITS.saturating_sub(size.leading_zeros()));
        if let (Some(files), Some(bytes)) = (self.files.get_mut(class), self.bytes.get_mut(class)) {
            *files = files.saturating_add(1);
            *bytes = bytes.saturating_add(size);
        }
        self.largest = self.largest.max(size);
    }

    /// For each class: the number of binary digits, the number of files, and their bytes. A size of
    /// `n` digits is at least 2^(n-1) and less than 2^n.
    pub fn classes(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        let sums = self.files.iter().zip(&self.bytes);
        (0..).zip(sums).map(|(digits, (&files, &bytes))| (digits, files, bytes))
    }

    /// Number of files.
    pub fn files(&self) -> u64 {
        self.files.iter().fold(0, |sum, files| sum.saturating_add(*files))
    }

    /// Size of all files together, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Mean size of a file, bytes.
    pub fn mean(&self) -> u64 {
        self.bytes().checked_div(self.files()).unwrap_or(0)
    }

    /// Size of the largest file, bytes.
    pub fn largest(&self) -> u64 {
        self.largest
    }
}

impl Default for Sizes {
    fn default() -> Self {
        Self { files: [0; CLASSES], bytes: [0; CLASSES], largest: 0 }
    }
}

/// Default read cost of `archfs pack`, bytes: how much may be decoded to read a small file. Less
/// would hardly be faster, and smaller blocks compress much worse (see docs/PACK.md).
pub const READ_COST: u64 = 32 << 10;

/// Bytes decoded to read one file, over all regular files, including empty ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// The mean.
    pub mean: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The maximum.
    pub worst: u64,
}

/// The estimated cost of the same files in an image made for random reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ImageEstimate {
    /// The read cost to request, bytes.
    pub read_cost: u64,
    /// Upper bound of the mean bytes decoded per file.
    pub mean: u64,
}

/// Collects the cost of each file: of reading all of it with an empty cache.
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

/// A read of a small file decompresses what holds many. `slow_reads` of a format knows it from what
/// opening has read anyway. `info` computes the exact cost, for which it reads all inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlowReads {
    /// Bytes that it decompresses.
    decoded: u64,
    /// Files in them on average.
    files: u64,
}

impl SlowReads {
    /// Reads are slow from that many bytes and that many files on. A read of a file in an image of
    /// mksquashfs with its default block size, 128 KiB, is below.
    const BYTES: u64 = 512 << 10;
    const FILES: u64 = 16;

    /// An archive that decompresses to less is in the cache soon.
    const TOTAL: u64 = 64 << 20;

    /// For `count` parts of `decoded` bytes each that hold `files` files together.
    pub(crate) fn of_parts(decoded: u64, count: u64, files: u64) -> Option<Self> {
        let files = files.checked_div(count)?;
        let is_slow = decoded >= Self::BYTES
            && files >= Self::FILES
            && decoded.saturating_mul(count) >= Self::TOTAL;
        is_slow.then_some(Self { decoded, files })
    }
}

impl fmt::Display for SlowReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { decoded, files } = self;
        let decoded = format_size(*decoded);
        write!(
            f,
            "reads in random order are slow: each decompresses {decoded}, which holds about {files} \
             files"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_is_in_the_class_of_its_digits() {
        let mut sizes = Sizes::default();
        for size in [0, 1, 2, 3, 4, 1023, 1024, u64::MAX] {
            sizes.add(size);
        }
        let found: Vec<_> = sizes.classes().filter(|&(_, files, _)| files > 0).collect();
        assert_eq!(
            found,
            [
                (0, 1, 0),
                (1, 1, 1),
                (2, 2, 5),
                (3, 1, 4),
                (10, 1, 1023),
                (11, 1, 1024),
                (64, 1, u64::MAX)
            ]
        );
        assert_eq!((sizes.files(), sizes.bytes(), sizes.largest()), (8, u64::MAX, u64::MAX));
    }

    #[test]
    fn the_mean_of_nothing_is_nothing() {
        assert_eq!(Sizes::default().mean(), 0);
    }

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

    #[test]
    fn parts_are_slow_if_they_are_large_and_hold_many_files() {
        let (bytes, files) = (SlowReads::BYTES, SlowReads::FILES);
        let count = SlowReads::TOTAL / bytes;
        let slow = Some(SlowReads { decoded: bytes, files });
        assert_eq!(SlowReads::of_parts(bytes, count, files * count), slow);
        assert_eq!(SlowReads::of_parts(bytes - 1, count + 1, files * (count + 1)), None);
        assert_eq!(SlowReads::of_parts(bytes, count, files * count - 1), None);
        assert_eq!(SlowReads::of_parts(bytes, count - 1, files * count), None);
        assert_eq!(SlowReads::of_parts(bytes, 0, files), None);
    }
}
