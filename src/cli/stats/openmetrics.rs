//! The counters in the text format of OpenMetrics 1.0, which Prometheus and the text-file collector
//! of its node exporter read.
//!
//! Invariant: each metric family appears once, with a sample for each mount, as the format
//! requires.

use std::fmt::{Display, Write};

use crate::lifecycle::{Percentiles, Snapshot};
use crate::stats::CacheCounts;

/// A metric family: its name, kind, unit (empty for none), help, and its samples of one mount.
struct Family(Text, Text, Text, Text, Samples);

type Text = &'static str;
type Samples = fn(&Snapshot) -> Vec<Sample>;

/// A value: what follows the name of the family, labels besides the mount point, and the number.
type Sample = (&'static str, String, String);

const FAMILIES: [Family; 28] = [
    gauge("uptime_seconds", "seconds", "Time since the mount began to serve", |it| {
        one(it.uptime_seconds)
    }),
    counter("cpu_seconds", "seconds", "User and system time of the daemon", |it| {
        one(it.cpu_seconds)
    }),
    gauge("peak_memory_bytes", "bytes", "Peak resident memory of the daemon", |it| {
        it.peak_memory_bytes.map(one).unwrap_or_default()
    }),
    counter("requests", "", "Requests of the kernel by operation", requests),
    counter("faults", "", "Requests that failed because of the archive", |it| one(it.faults)),
    gauge("blocked_requests", "", "Requests that have waited for more than a second", |it| {
        one(it.blocked.requests)
    }),
    counter("files_started", "", "Reads of the first bytes of a file", |it| one(it.files_started)),
    counter("served_bytes", "bytes", "Bytes of files handed to the kernel", |it| {
        one(it.served_bytes)
    }),
    counter("direct_reads", "", "Reads of run --direct without a request", |it| {
        one(it.direct_reads)
    }),
    counter("direct_bytes", "bytes", "Bytes of those reads", |it| one(it.direct_bytes)),
    gauge("staged_bytes", "bytes", "Bytes of the archives that --stage has copied", |it| {
        it.staged.map(|staged| one(staged.copied)).unwrap_or_default()
    }),
    gauge("stage_bytes", "bytes", "Bytes of the archives that --stage copies", |it| {
        it.staged.map(|staged| one(staged.total)).unwrap_or_default()
    }),
    counter("readahead_bytes", "bytes", "Bytes read ahead of programs", |it| {
        it.readahead.map(|ahead| one(ahead.fetched)).unwrap_or_default()
    }),
    counter("readahead_used_bytes", "bytes", "Bytes of these that programs used", |it| {
        it.readahead.map(|ahead| one(ahead.used)).unwrap_or_default()
    }),
    counter("archive_reads", "", "Reads from the archives", |it| one(it.archive_reads)),
    counter("archive_bytes", "bytes", "Bytes of those reads", |it| one(it.archive_bytes)),
    counter("archive_read_seconds", "seconds", "Time of those reads", |it| {
        one(seconds(it.archive_read_ns))
    }),
    latency("lookup_latency_seconds", "Time from a lookup request to its reply", |it| {
        quantiles(&it.lookup_latency, it.requests("lookup"))
    }),
    latency("read_latency_seconds", "Time from a read request to its reply", |it| {
        quantiles(&it.read_latency, it.requests("read"))
    }),
    counter("cache_hits", "", "Blocks found in a cache", |it| both(it, |cache| cache.hits)),
    counter("cache_loads", "", "Blocks read and decoded", |it| both(it, |cache| cache.loads)),
    counter("cache_waits", "", "Blocks that another thread was loading", |it| {
        both(it, |cache| cache.waits)
    }),
    counter("cache_evictions", "", "Blocks evicted to make room", |it| {
        both(it, |cache| cache.evictions)
    }),
    counter("cache_loaded_bytes", "bytes", "Decoded bytes of the loads", |it| {
        both(it, |cache| cache.loaded_bytes)
    }),
    counter(
        "cache_decode_seconds",
        "seconds",
        "Time of the loads without reading the archive",
        |it| both(it, |cache| seconds(cache.decode_ns)),
    ),
    gauge("cache_held_bytes", "bytes", "Current memory of a cache", |it| {
        both(it, |cache| cache.held_bytes)
    }),
    gauge("cache_budget_bytes", "bytes", "Budget of both caches", |it| one(it.cache_budget_bytes)),
    counter("cache_releases", "", "Times that an idle mount freed both caches", |it| {
        one(it.cache_releases)
    }),
];

const fn gauge(name: Text, unit: Text, help: Text, samples: Samples) -> Family {
    Family(name, "gauge", unit, help, samples)
}

const fn counter(name: Text, unit: Text, help: Text, samples: Samples) -> Family {
    Family(name, "counter", unit, help, samples)
}

const fn latency(name: Text, help: Text, samples: Samples) -> Family {
    Family(name, "summary", "seconds", help, samples)
}

pub(super) fn text(readings: &[Snapshot]) -> String {
    let mut text = String::new();
    for Family(name, kind, unit, help, samples) in FAMILIES {
        let _ = writeln!(text, "# TYPE archfs_{name} {kind}");
        if !unit.is_empty() {
            let _ = writeln!(text, "# UNIT archfs_{name} {unit}");
        }
        let _ = writeln!(text, "# HELP archfs_{name} {help}.");
        for reading in readings {
            let mount_point = label("mountpoint", &reading.mountpoint);
            for (suffix, labels, value) in samples(reading) {
                let suffix = if kind == "counter" { "_total" } else { suffix };
                let comma = if labels.is_empty() { "" } else { "," };
                let _ =
                    writeln!(text, "archfs_{name}{suffix}{{{mount_point}{comma}{labels}}} {value}");
            }
        }
    }
    text + "# EOF\n"
}

fn one(value: impl Display) -> Vec<Sample> {
    vec![("", String::new(), value.to_string())]
}

fn requests(reading: &Snapshot) -> Vec<Sample> {
    let requests = reading.requests.iter().filter(|(name, _)| *name != "total");
    requests.map(|(name, count)| ("", label("operation", name), count.to_string())).collect()
}

/// The samples of a latency of `count` requests.
fn quantiles(latency: &Percentiles, count: u64) -> Vec<Sample> {
    let Percentiles { p50_ns, p90_ns, p99_ns, total_ns, .. } = *latency;
    let quantiles = [("0.5", p50_ns), ("0.9", p90_ns), ("0.99", p99_ns)];
    let sample = |(quantile, time): (&str, Option<u64>)| {
        Some(("", label("quantile", quantile), seconds(time?).to_string()))
    };
    let mut samples: Vec<_> = quantiles.into_iter().filter_map(sample).collect();
    samples.push(("_count", String::new(), count.to_string()));
    samples.push(("_sum", String::new(), seconds(total_ns).to_string()));
    samples
}

fn both<V: Display>(reading: &Snapshot, value: impl Fn(&CacheCounts) -> V) -> Vec<Sample> {
    [("data", &reading.data_cache), ("metadata", &reading.metadata_cache)]
        .map(|(name, cache)| ("", label("cache", name), value(cache).to_string()))
        .into()
}

fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_has_a_sample_for_each_mount() {
        let at = |mountpoint: &str| Snapshot {
            mountpoint: mountpoint.into(),
            requests: [("read".to_owned(), 3), ("total".to_owned(), 3)].into(),
            ..Snapshot::default()
        };
        let text = text(&[at("/a"), at("/b\"\\\n")]);
        let requests = "# TYPE archfs_requests counter\n\
                        # HELP archfs_requests Requests of the kernel by operation.\n\
                        archfs_requests_total{mountpoint=\"/a\",operation=\"read\"} 3\n\
                        archfs_requests_total{mountpoint=\"/b\\\"\\\\\\n\",operation=\"read\"} 3\n";
        assert!(text.contains(requests), "{text}");
        assert!(!text.contains("quantile") && text.ends_with("# EOF\n"), "{text}");
    }
}
