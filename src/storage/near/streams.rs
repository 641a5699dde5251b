//! How many pieces the fill fetches at once beside readers.
//!
//! It uses as many streams as the source serves without making each much slower. If they share the
//! bandwidth of the source, more would only take it from the readers.

use std::time::{Duration, Instant};

/// Largest number of bytes that is fetched with one read: one or a few stripes of a parallel file
/// system. With 4 MiB, as many streams would need twice the memory, and were no faster.
pub(super) const PIECE: u64 = 2 << 20;

/// How much the fill fetches with its first reads. Readers wait for the first batch, and their
/// answers may queue behind the fill's: on NFS at 5 ms, whole pieces delayed that batch by a third.
/// The first epoch takes as long either way.
pub(super) const FIRST_PIECE: u64 = PIECE / 8;

/// Streams of the fill, that is, pieces fetched at once: beside readers at first and at least, and
/// alone. A single stream gets only a fraction of a parallel file system's bandwidth.
const STREAMS_FIRST: f64 = 4.0;
const STREAMS_MIN: f64 = 2.0;
pub(super) const STREAMS_ALONE: f64 = 16.0;

/// Beside readers, there is one stream more while each is at least this fast, compared with the
/// fastest, and one less if each is slower than that.
const RATE_TO_ADD: f64 = 0.5;
const RATE_TO_REMOVE: f64 = 0.25;

/// What other nodes own is fetched in bursts of this time, because each wakes the threads.
const BURST: Duration = Duration::from_millis(20);

/// The time that may be made up for if threads wake late.
const LATE_MAX: Duration = Duration::from_millis(100);

/// How much slower streams are added than removed. Readers wait for the first batches of a job, and
/// later find most of what they need.
const SLOWER: f64 = 12.0;

/// The weight of a new rate in the one to compare with, if the source became slower as a whole. The
/// fewest streams tell that.
const RATE_WEIGHT: f64 = 0.1;

/// The shortest piece whose rate counts, in bytes: of shorter ones the latency is most.
const RATED_MIN: u64 = PIECE / 2;

/// The streams of a fill beside readers.
#[derive(Debug)]
pub(super) struct Streams {
    count: f64,
    /// The rate of a stream without others, as far as it is known, in bytes per second.
    best_rate: f64,
}

impl Default for Streams {
    fn default() -> Self {
        Self { count: STREAMS_FIRST, best_rate: 0.0 }
    }
}

impl Streams {
    /// How many there are. A part of one is for a piece that is not whole.
    pub(super) fn beside_readers(&self) -> f64 {
        self.count
    }

    /// Notes that a piece of `len` bytes was fetched in `time`.
    pub(super) fn note_piece(&mut self, len: u64, time: Duration) {
        if len >= RATED_MIN && !time.is_zero() {
            self.rate(len as f64 / time.as_secs_f64());
        }
    }

    /// Adapts the streams beside readers to the rate of one, in bytes per second.
    fn rate(&mut self, rate: f64) {
        if self.count == STREAMS_MIN {
            self.best_rate += (rate - self.best_rate) * RATE_WEIGHT;
        }
        self.best_rate = self.best_rate.max(rate);
        // Divided, because as many streams report as there are.
        let step = 1.0 / self.count;
        if rate >= RATE_TO_ADD * self.best_rate {
            self.count = (self.count + step / SLOWER).min(STREAMS_ALONE);
        } else if rate < RATE_TO_REMOVE * self.best_rate {
            self.count = (self.count - step).max(STREAMS_MIN);
        }
    }
}

/// How fast the fill fetches from other nodes, so that the job's own communication has room.
#[derive(Debug)]
pub(super) struct Pace {
    /// In bytes per second.
    rate: f64,
    /// When the next piece may begin.
    free_at: Option<Instant>,
}

impl Pace {
    /// At most `rate` bytes per second, which is not 0.
    pub(super) fn new(rate: u64) -> Self {
        Self { rate: rate as f64, free_at: None }
    }

    /// Until when to wait at `now`, if at all.
    pub(super) fn wait(&self, now: Instant) -> Option<Instant> {
        self.free_at.filter(|&at| now < at).map(|at| at + BURST)
    }

    /// Notes that `len` bytes are fetched from `now` on.
    pub(super) fn take(&mut self, len: u64, now: Instant) {
        let from = self.free_at.map_or(now, |at| at.max(now.checked_sub(LATE_MAX).unwrap_or(now)));
        self.free_at = Some(from + self.time_of(len));
    }

    /// Notes that `len` bytes were there already. Of bytes that were not taken, it allows no more
    /// than a late thread may make up for.
    pub(super) fn give_back(&mut self, len: u64) {
        let time = self.time_of(len);
        self.free_at = self.free_at.and_then(|at| at.checked_sub(time));
    }

    fn time_of(&self, len: u64) -> Duration {
        /// A year, if the rate is so low that nothing is fetched anyway.
        const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);
        Duration::try_from_secs_f64(len as f64 / self.rate).unwrap_or(NEVER).min(NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_other_nodes_are_no_faster_than_their_rate() {
        // A piece takes 2 s, and then 2 ms.
        for (rate, most) in [(PIECE / 2, 10), (PIECE * 500, 10_000)] {
            let (start, mut pace) = (Instant::now(), Pace::new(rate));
            let mut now = start;
            let mut waits = 0;
            for _ in 0..most {
                while let Some(until) = pace.wait(now) {
                    // Threads wake late.
                    now = until + Duration::from_millis(10);
                    waits += 1;
                }
                pace.take(PIECE, now);
            }
            let passed = (now - start + LATE_MAX).as_secs_f64() * rate as f64 / PIECE as f64;
            assert!((passed / f64::from(most) - 1.0).abs() < 0.15, "{passed} of {most}");
            assert!(waits <= 1 + passed as u64 * PIECE * 100 / rate, "{waits}");
            // A pause does not allow more afterwards.
            now += Duration::from_secs(60);
            assert_eq!(pace.wait(now), None);
            pace.take(rate, now);
            pace.take(rate, now);
            let until = now + 2 * Duration::from_secs(1) - LATE_MAX + BURST;
            assert_eq!(pace.wait(now), Some(until));
            // What was there already did not come from another node.
            pace.give_back(rate);
            assert_eq!(pace.wait(now), Some(until - Duration::from_secs(1)));
        }
    }

    /// A source whose streams share a bandwidth, and one on which each is as fast as alone.
    #[test]
    fn there_are_as_many_streams_beside_readers_as_do_not_slow_each_other_down() {
        let latency = 0.02;
        let transfer = PIECE as f64 / 200e6;
        let streams = |time: fn(f64, f64, f64) -> f64| {
            let mut known = Streams::default();
            for _ in 0..5000 {
                let streams = known.count.floor();
                known.rate(PIECE as f64 / time(latency, transfer, streams));
            }
            known.count
        };
        let shared = streams(|latency, transfer, streams| latency + streams * transfer);
        assert!((4.0..11.0).contains(&shared), "{shared}");
        let separate = streams(|latency, transfer, _| latency + transfer);
        assert!((separate - STREAMS_ALONE).abs() < 0.1, "{separate}");
        let contended = streams(|_, transfer, streams| streams * streams * transfer);
        assert!((STREAMS_MIN..7.0).contains(&contended), "{contended}");
    }

    #[test]
    fn a_source_that_becomes_slower_as_a_whole_keeps_its_streams() {
        let mut known = Streams::default();
        for rate in [1e9, 1e7] {
            for _ in 0..5000 {
                known.rate(rate);
            }
            assert!(known.count > STREAMS_ALONE - 0.1, "{rate}: {}", known.count);
        }
    }
}
