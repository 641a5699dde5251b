//! The counters of a mount as its daemon reports them, and what happened between two readings.
//!
//! Invariant: a counter that an older daemon does not report is 0.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::error::{Error, Kind, Result};
use crate::stats::{ReadaheadCounts, StageCounts};

/// The keys that are presented; docs/STATS.md explains them.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(super) struct Reading {
    pub(super) mountpoint: String,
    pub(super) archives: Vec<String>,
    pub(super) started_seconds: f64,
    pub(super) uptime_seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) peak_memory_bytes: Option<u64>,
    pub(super) requests: BTreeMap<String, u64>,
    pub(super) faults: u64,
    pub(super) files_started: u64,
    pub(super) served_bytes: u64,
    pub(super) direct_reads: u64,
    pub(super) direct_bytes: u64,
    pub(super) staged: Option<StageCounts>,
    pub(super) readahead: Option<ReadaheadCounts>,
    pub(super) archive_reads: u64,
    pub(super) archive_bytes: u64,
    pub(super) archive_read_ns: u64,
    pub(super) lookup_latency: Latency,
    pub(super) read_latency: Latency,
    pub(super) metadata_cache: Cache,
    pub(super) data_cache: Cache,
    pub(super) cache_budget_bytes: u64,
    pub(super) cache_releases: u64,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(super) struct Latency {
    pub(super) p50_ns: Option<u64>,
    pub(super) p90_ns: Option<u64>,
    pub(super) p99_ns: Option<u64>,
    pub(super) max_ns: Option<u64>,
    pub(super) total_ns: u64,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(super) struct Cache {
    pub(super) hits: u64,
    pub(super) loads: u64,
    pub(super) waits: u64,
    pub(super) evictions: u64,
    pub(super) loaded_bytes: u64,
    pub(super) decode_ns: u64,
    pub(super) held_bytes: u64,
}

impl Reading {
    /// Parses the JSON of a daemon.
    pub(super) fn parse(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|error| {
            Error::new(Kind::Io, "invalid answer from the daemon").with_source(error)
        })
    }

    /// The number of requests of that name.
    pub(super) fn requests(&self, name: &str) -> u64 {
        self.requests.get(name).copied().unwrap_or_default()
    }

    /// What happened since `earlier`, or since the start of the mount if that is another mount.
    pub(super) fn since(&self, earlier: Option<&Self>) -> Interval {
        let is_same = |earlier: &&Self| {
            // A new mount at the same path starts later. The clock may have been set a little.
            (earlier.started_seconds - self.started_seconds).abs() < 1.0
                && earlier.uptime_seconds <= self.uptime_seconds
        };
        let nothing = Self::default();
        let earlier = earlier.filter(is_same).unwrap_or(&nothing);
        let grown = |count: &dyn Fn(&Self) -> u64| count(self).saturating_sub(count(earlier));
        Interval {
            seconds: (self.uptime_seconds - earlier.uptime_seconds).max(0.0),
            cpu_seconds: (self.cpu_seconds - earlier.cpu_seconds).max(0.0),
            files: grown(&|reading| reading.files_started),
            bytes: grown(&|reading| reading.served_bytes + reading.direct_bytes),
            direct_reads: grown(&|reading| reading.direct_reads),
            reads: grown(&|reading| reading.requests("read")),
            lookups: grown(&|reading| reading.requests("lookup")),
            faults: grown(&|reading| reading.faults),
            read_ns: grown(&|reading| reading.read_latency.total_ns),
            archive_ns: grown(&|reading| reading.archive_read_ns),
            archive_bytes: grown(&|reading| reading.archive_bytes),
            decode_ns: grown(&|reading| {
                reading.data_cache.decode_ns + reading.metadata_cache.decode_ns
            }),
            hits: grown(&|reading| reading.data_cache.hits),
            misses: grown(&|reading| reading.data_cache.loads + reading.data_cache.waits),
        }
    }
}

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
    /// Reading the archive.
    pub(super) storage: f64,
    pub(super) decoding: f64,
    /// All else: the requests themselves.
    pub(super) requests: f64,
}

/// What limits the readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bottleneck {
    /// Nothing was read through FUSE.
    Idle,
    /// The readers: archfs has less than one read to answer at a time.
    Readers,
    Storage,
    Decoding,
    /// The requests themselves.
    Requests,
}

impl Interval {
    /// `count` in a second.
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

    /// What limits the readers.
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

    fn reading(json: &str) -> Reading {
        Reading::parse(json).unwrap()
    }

    #[test]
    fn counters_that_are_missing_are_zero() {
        let found =
            reading(r#"{"mountpoint":"/m","requests":{"read":3},"read_latency":{"p50_ns":null}}"#);
        assert_eq!((found.requests("read"), found.requests("lookup")), (3, 0));
        assert_eq!(found.read_latency, Latency::default());
        assert!(Reading::parse("no JSON").is_err());
    }

    #[test]
    fn an_interval_is_the_difference_of_two_readings_of_one_mount() {
        let at = |started: f64, uptime: f64, bytes: u64| Reading {
            started_seconds: started,
            uptime_seconds: uptime,
            served_bytes: bytes,
            ..Reading::default()
        };
        let between = |earlier: &Reading, later: &Reading| {
            let interval = later.since(Some(earlier));
            (interval.seconds, interval.bytes)
        };
        assert_eq!(between(&at(7.0, 10.0, 100), &at(7.002, 12.0, 150)), (2.0, 50));
        // Another mount at the same place.
        assert_eq!(between(&at(7.0, 10.0, 100), &at(18.0, 1.0, 30)), (1.0, 30));
        let first = at(7.0, 10.0, 100).since(None);
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
