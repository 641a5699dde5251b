//! What happened between two readings of the counters of a mount, and what limits its readers.

use crate::lifecycle::Snapshot;

/// What happened in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Interval {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) files: u64,
    /// Returned to readers.
    pub(super) bytes: u64,
    pub(super) direct_reads: u64,
    pub(super) reads: u64,
    pub(super) lookups: u64,
    pub(super) faults: u64,
    /// Time that reads took, of all readers together.
    pub(super) read_ns: u64,
    pub(super) archive_ns: u64,
    pub(super) archive_bytes: u64,
    pub(super) decode_ns: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
}

/// Parts of the time that reads take; together 1, or all 0 without reads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Shares {
    pub(super) storage: f64,
    pub(super) decoding: f64,
    /// All else: the requests themselves.
    pub(super) requests: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bottleneck {
    Idle,
    /// The readers: archfs has less than one read to answer at a time.
    Readers,
    Storage,
    Decoding,
    Requests,
}

impl Interval {
    /// What happened from `earlier` to `later`, or since the start of the mount if `earlier` is of
    /// another one.
    pub(super) fn between(earlier: Option<&Snapshot>, later: &Snapshot) -> Self {
        let is_same = |earlier: &&Snapshot| {
            // A new mount at the same path starts later. The clock may have been set a little.
            (earlier.started_seconds - later.started_seconds).abs() < 1.0
                && earlier.uptime_seconds <= later.uptime_seconds
        };
        let nothing = Snapshot::default();
        let earlier = earlier.filter(is_same).unwrap_or(&nothing);
        let grown = |count: fn(&Snapshot) -> u64| count(later).saturating_sub(count(earlier));
        Self {
            seconds: (later.uptime_seconds - earlier.uptime_seconds).max(0.0),
            cpu_seconds: (later.cpu_seconds - earlier.cpu_seconds).max(0.0),
            files: grown(|reading| reading.files_started),
            bytes: grown(|reading| reading.served_bytes + reading.direct_bytes),
            direct_reads: grown(|reading| reading.direct_reads),
            reads: grown(|reading| reading.requests("read")),
            lookups: grown(|reading| reading.requests("lookup")),
            faults: grown(|reading| reading.faults),
            read_ns: grown(|reading| reading.read_latency.total_ns),
            archive_ns: grown(|reading| reading.archive_read_ns),
            archive_bytes: grown(|reading| reading.archive_bytes),
            decode_ns: grown(|reading| {
                reading.data_cache.decode_ns + reading.metadata_cache.decode_ns
            }),
            hits: grown(|reading| reading.data_cache.hits),
            misses: grown(|reading| reading.data_cache.loads + reading.data_cache.waits),
        }
    }

    pub(super) fn rate(&self, count: u64) -> f64 {
        if self.seconds > 0.0 { count as f64 / self.seconds } else { 0.0 }
    }

    /// How many reads were in progress on average.
    pub(super) fn reads_at_a_time(&self) -> f64 {
        self.rate(self.read_ns) / 1e9
    }

    /// How much of the data the cache found; `None` if nothing was looked up.
    pub(super) fn found(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| self.hits as f64 / all as f64)
    }

    /// How the time of reads divides. Readahead reads and decodes while no reader waits, so its
    /// work may be more than the time of the reads; then the work is divided.
    pub(super) fn shares(&self) -> Shares {
        let [archive, decode, reads] =
            [self.archive_ns, self.decode_ns, self.read_ns].map(|time| time as f64);
        let all = reads.max(archive + decode);
        if self.reads == 0 || all <= 0.0 {
            return Shares::default();
        }
        let (storage, decoding) = (archive / all, decode / all);
        Shares { storage, decoding, requests: (1.0 - storage - decoding).max(0.0) }
    }

    pub(super) fn bottleneck(&self) -> Bottleneck {
        let Shares { storage, decoding, requests } = self.shares();
        if self.reads == 0 {
            Bottleneck::Idle
        } else if self.reads_at_a_time() < 0.5 {
            Bottleneck::Readers
        } else if requests > storage.max(decoding) {
            Bottleneck::Requests
        } else if storage >= decoding {
            Bottleneck::Storage
        } else {
            Bottleneck::Decoding
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::Percentiles;

    #[test]
    fn counters_that_are_missing_are_zero() {
        let json = r#"{"mountpoint":"/m","requests":{"read":3},"read_latency":{"p50_ns":null}}"#;
        let found = Snapshot::parse(json).unwrap();
        assert_eq!((found.requests("read"), found.requests("lookup")), (3, 0));
        assert_eq!(found.read_latency, Percentiles::default());
        assert!(Snapshot::parse("no JSON").is_err());
    }

    #[test]
    fn an_interval_is_the_difference_of_two_readings_of_one_mount() {
        let at = |started: f64, uptime: f64, bytes: u64| Snapshot {
            started_seconds: started,
            uptime_seconds: uptime,
            served_bytes: bytes,
            ..Snapshot::default()
        };
        let between = |earlier: &Snapshot, later: &Snapshot| {
            let interval = Interval::between(Some(earlier), later);
            (interval.seconds, interval.bytes)
        };
        assert_eq!(between(&at(7.0, 10.0, 100), &at(7.002, 12.0, 150)), (2.0, 50));
        // Another mount at the same place.
        assert_eq!(between(&at(7.0, 10.0, 100), &at(18.0, 1.0, 30)), (1.0, 30));
        let first = Interval::between(None, &at(7.0, 10.0, 100));
        assert_eq!((first.seconds, first.rate(first.bytes)), (10.0, 10.0));
        assert_eq!(Interval::default().rate(5), 0.0);
    }

    #[test]
    fn the_bottleneck_is_what_takes_the_time() {
        let of = |read: u64, archive: u64, decode: u64| {
            let second = 1_000_000_000;
            Interval {
                seconds: 10.0,
                reads: 5,
                read_ns: read * second,
                archive_ns: archive * second,
                decode_ns: decode * second,
                ..Interval::default()
            }
        };
        for (interval, bottleneck) in [
            (Interval::default(), Bottleneck::Idle),
            (of(4, 4, 0), Bottleneck::Readers),
            (of(20, 12, 3), Bottleneck::Storage),
            (of(20, 3, 12), Bottleneck::Decoding),
            (of(20, 3, 6), Bottleneck::Requests),
            // With readahead.
            (of(6, 4, 30), Bottleneck::Decoding),
        ] {
            assert_eq!(interval.bottleneck(), bottleneck, "{interval:?}");
            let Shares { storage, decoding, requests } = interval.shares();
            let sum = storage + decoding + requests;
            assert!(interval.reads == 0 || (sum - 1.0).abs() < 1e-9, "{interval:?}");
        }
    }
}
