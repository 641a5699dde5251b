//! Latency histograms and their percentiles.
//!
//! Invariant: recording takes no lock and allocates nothing, and any number of threads may record
//! at once.
//!
//! Buckets are log-linear: each power of two of nanoseconds has 16 of equal width. A bucket stands
//! for its middle, so a percentile is off by at most 1/32 (3.2 %). That holds below 2^40 ns (18
//! minutes). Longer durations share the last bucket, but `longest` is always exact. A histogram
//! takes 4.7 KB.

use std::time::Duration;

use crate::sync::{AtomicU64, Ordering};

/// Buckets per power of two, and its logarithm. Durations below that many nanoseconds have a bucket
/// each.
const PARTS: usize = 1 << PARTS_BITS;
const PARTS_BITS: u32 = 4;

/// The longest duration with a bucket of its own, in nanoseconds.
const LONGEST: u64 = (1 << LONGEST_BITS) - 1;
const LONGEST_BITS: u32 = 40;

const BUCKETS: usize = (LONGEST_BITS - PARTS_BITS + 1) as usize * PARTS;

/// A histogram that several threads record into.
#[derive(Debug)]
pub(super) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    longest: AtomicU64,
    sum: AtomicU64,
}

impl Histogram {
    pub(super) fn record(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanoseconds)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(nanoseconds, Ordering::Relaxed);
        // Nearly always false, and then the cache line is not written.
        if nanoseconds > self.longest.load(Ordering::Relaxed) {
            self.longest.fetch_max(nanoseconds, Ordering::Relaxed);
        }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        let [longest, sum] = [const { AtomicU64::new(0) }; 2];
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], longest, sum }
    }
}

/// A snapshot of recorded durations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    buckets: Box<[u64; BUCKETS]>,
    longest: u64,
    sum: u64,
}

impl Latencies {
    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The duration that `percent` of them do not exceed, off by at most 1/32; `None` if empty.
    pub fn percentile(&self, percent: u64) -> Option<Duration> {
        let rank = self.count().saturating_mul(percent).div_ceil(100).max(1);
        let mut passed = 0;
        let found = self.buckets.iter().position(|count| {
            passed += count;
            passed >= rank
        })?;
        Some(Duration::from_nanos(middle(found).min(self.longest)))
    }

    /// The longest duration, exact; `None` if empty.
    pub fn longest(&self) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.longest))
    }

    /// All durations together, exact up to 584 years.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    pub(super) fn add(&mut self, histogram: &Histogram) {
        for (sum, count) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *sum += count.load(Ordering::Relaxed);
        }
        self.longest = self.longest.max(histogram.longest.load(Ordering::Relaxed));
        self.sum = self.sum.wrapping_add(histogram.sum.load(Ordering::Relaxed));
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self { buckets: Box::new([0; BUCKETS]), longest: 0, sum: 0 }
    }
}

/// The bucket of a duration in nanoseconds.
fn bucket(nanoseconds: u64) -> usize {
    let value = nanoseconds.min(LONGEST);
    let shift = (value | 1).ilog2().saturating_sub(PARTS_BITS);
    // The highest PARTS_BITS + 1 bits. Except for the shortest durations the first of them is set.
    let parts = usize::try_from(value >> shift).unwrap_or(0);
    shift as usize * PARTS + parts
}

/// The middle of a bucket, in nanoseconds.
fn middle(bucket: usize) -> u64 {
    let shift = (bucket / PARTS).saturating_sub(1);
    let parts = bucket - shift * PARTS;
    ((parts as u64) << shift) + ((1 << shift) - 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudorandom numbers from a seed (xorshift64).
    fn noise(seed: u64) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(seed), |&last| {
            let mut next = last ^ (last << 13);
            next ^= next >> 7;
            Some(next ^ (next << 17))
        })
    }

    fn latencies(values: &[u64]) -> Latencies {
        let histogram = Histogram::default();
        for value in values {
            histogram.record(Duration::from_nanos(*value));
        }
        let mut sum = Latencies::default();
        sum.add(&histogram);
        sum
    }

    #[test]
    fn percentiles_are_those_of_a_sorted_list_within_a_thirty_second() {
        for seed in 1..50 {
            // Of all magnitudes: 1 ns to 18 minutes.
            let mut noise = noise(seed * 0x9e37_79b9);
            let count = noise.next().unwrap() % 3000 + 1;
            let value = || {
                let (shift, value) = (noise.next()? % 40, noise.next()?);
                Some((value % (1 << 40)) >> shift)
            };
            let mut values: Vec<u64> =
                std::iter::from_fn(value).take(usize::try_from(count).unwrap()).collect();
            let found = latencies(&values);
            values.sort_unstable();
            for percent in 1..=100 {
                let rank = (values.len() * percent).div_ceil(100).max(1);
                let exact = values[rank - 1];
                let reported = found.percentile(percent as u64).unwrap().as_nanos() as u64;
                assert!(
                    reported.abs_diff(exact) * 32 <= exact,
                    "seed {seed}: {reported} for {exact}"
                );
            }
            assert_eq!(found.longest().unwrap().as_nanos(), u128::from(*values.last().unwrap()));
            assert_eq!(found.count(), values.len() as u64);
        }
    }

    #[test]
    fn every_duration_has_a_bucket_near_it() {
        let powers = (0..64).map(|power| 1_u64 << power);
        for value in powers.flat_map(|power| [power - 1, power, power + power / 3]) {
            let near = middle(bucket(value));
            let exact = value.min(LONGEST);
            assert!(near.abs_diff(exact) * 32 <= exact, "{near} for {value}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!((bucket(0), bucket(15), bucket(16)), (0, 15, 16));
    }

    #[test]
    fn an_empty_histogram_has_no_percentile() {
        let none = latencies(&[]);
        assert_eq!((none.percentile(50), none.longest(), none.count()), (None, None, 0));
        let one = latencies(&[0]);
        assert_eq!(one.percentile(99), Some(Duration::ZERO));
    }

    #[test]
    fn the_longest_is_exact_beyond_the_last_bucket() {
        let two = latencies(&[1, 1 << 50]);
        assert_eq!(two.longest(), Some(Duration::from_nanos(1 << 50)));
        let reported = two.percentile(100).unwrap().as_nanos() as u64;
        assert!(reported.abs_diff(LONGEST) * 32 <= LONGEST, "{reported}");
    }
}
