//! The counters in the text format of OpenMetrics 1.0, which Prometheus and the text-file collector
//! of its node exporter read.
//!
//! Invariant: each metric family appears once, with a sample for each mount, as the format
//! requires.

use std::fmt::{Display, Write};

use crate::lifecycle::{Percentiles, Snapshot};
use crate::stats::{CacheCounts, StageCounts};

/// The text for `readings`.
pub(super) fn text(readings: &[Snapshot]) -> String {
    let mut text = Text { text: String::new(), readings };
    text.gauge("uptime_seconds", "seconds", "Time since the mount began to serve", |reading| {
        reading.uptime_seconds
    });
    text.counter("cpu_seconds", "seconds", "User and system time of the daemon", |reading| {
        reading.cpu_seconds
    });
    text.family("peak_memory_bytes", "gauge", "bytes", "Peak resident memory of the daemon");
    text.samples("peak_memory_bytes", |reading| match reading.peak_memory_bytes {
        Some(bytes) => vec![(String::new(), bytes)],
        None => Vec::new(),
    });
    text.family("requests", "counter", "", "Requests of the kernel by operation");
    text.samples("requests_total", |reading| {
        let requests = reading.requests.iter().filter(|(name, _)| *name != "total");
        requests.map(|(name, count)| (label("operation", name), *count)).collect()
    });
    text.counter("faults", "", "Requests that failed because of the archive", |reading| {
        reading.faults
    });
    text.counter("files_started", "", "Reads of the first bytes of a file", |reading| {
        reading.files_started
    });
    text.counter("served_bytes", "bytes", "Bytes of files handed to the kernel", |reading| {
        reading.served_bytes
    });
    text.counter("direct_reads", "", "Reads of run --direct without a request", |reading| {
        reading.direct_reads
    });
    text.counter("direct_bytes", "bytes", "Bytes of those reads", |reading| reading.direct_bytes);
    type Bytes = fn(StageCounts) -> u64;
    let staging: [(_, _, Bytes); 2] = [
        ("staged_bytes", "Bytes of the archives that --stage has copied", |staged| staged.copied),
        ("stage_bytes", "Bytes of the archives that --stage copies", |staged| staged.total),
    ];
    for (name, help, bytes) in staging {
        text.family(name, "gauge", "bytes", help);
        text.samples(name, |reading| {
            reading.staged.map(|staged| (String::new(), bytes(staged))).into_iter().collect()
        });
    }
    let readahead = |reading: &Reading| reading.readahead.unwrap_or_default();
    text.counter("readahead_bytes", "bytes", "Bytes read ahead of programs", |reading| {
        readahead(reading).fetched
    });
    text.counter("readahead_used_bytes", "bytes", "Bytes of these that programs used", |reading| {
        readahead(reading).used
    });
    text.counter("archive_reads", "", "Reads from the archives", |reading| reading.archive_reads);
    text.counter("archive_bytes", "bytes", "Bytes of those reads", |reading| reading.archive_bytes);
    text.counter("archive_read_seconds", "seconds", "Time of those reads", |reading| {
        seconds(reading.archive_read_ns)
    });
    text.latency("lookup", |reading| &reading.lookup_latency);
    text.latency("read", |reading| &reading.read_latency);
    text.caches();
    text.gauge("cache_budget_bytes", "bytes", "Budget of both caches", |reading| {
        reading.cache_budget_bytes
    });
    text.counter("cache_releases", "", "Times that an idle mount freed both caches", |reading| {
        reading.cache_releases
    });
    text.text + "# EOF\n"
}

struct Text<'r> {
    text: String,
    readings: &'r [Snapshot],
}

impl Text<'_> {
    /// Begins a family; an empty `unit` is none.
    fn family(&mut self, name: &str, kind: &str, unit: &str, help: &str) {
        let _ = writeln!(self.text, "# TYPE archfs_{name} {kind}");
        if !unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT archfs_{name} {unit}");
        }
        let _ = writeln!(self.text, "# HELP archfs_{name} {help}.");
    }

    /// Adds samples of `name`, each with labels besides the mount point.
    fn samples<V: Display>(&mut self, name: &str, values: impl Fn(&Snapshot) -> Vec<(String, V)>) {
        for reading in self.readings {
            for (labels, value) in values(reading) {
                self.sample(reading, name, &labels, value);
            }
        }
    }

    fn sample(&mut self, reading: &Snapshot, name: &str, labels: &str, value: impl Display) {
        let mount_point = label("mountpoint", &reading.mountpoint);
        let comma = if labels.is_empty() { "" } else { "," };
        let _ = writeln!(self.text, "archfs_{name}{{{mount_point}{comma}{labels}}} {value}");
    }

    fn gauge<V: Display>(
        &mut self,
        name: &str,
        unit: &str,
        help: &str,
        value: impl Fn(&Snapshot) -> V,
    ) {
        self.family(name, "gauge", unit, help);
        self.samples(name, |reading| vec![(String::new(), value(reading))]);
    }

    fn counter<V: Display>(
        &mut self,
        name: &str,
        unit: &str,
        help: &str,
        value: impl Fn(&Snapshot) -> V,
    ) {
        self.family(name, "counter", unit, help);
        let total = format!("{name}_total");
        self.samples(&total, |reading| vec![(String::new(), value(reading))]);
    }

    /// The latency of the requests `operation`.
    fn latency(&mut self, operation: &str, latency: impl Fn(&Snapshot) -> &Percentiles) {
        let name = format!("{operation}_latency_seconds");
        let help = format!("Time from a {operation} request to its reply");
        self.family(&name, "summary", "seconds", &help);
        // All samples of a mount together, as the format requires.
        for reading in self.readings {
            let Percentiles { p50_ns, p90_ns, p99_ns, total_ns, .. } = latency(reading);
            for (quantile, time) in [("0.5", p50_ns), ("0.9", p90_ns), ("0.99", p99_ns)] {
                if let Some(time) = time {
                    self.sample(reading, &name, &label("quantile", quantile), seconds(*time));
                }
            }
            let count = reading.requests(operation);
            self.sample(reading, &format!("{name}_count"), "", count);
            self.sample(reading, &format!("{name}_sum"), "", seconds(*total_ns));
        }
    }

    fn caches(&mut self) {
        type Count = (&'static str, &'static str, &'static str, fn(&CacheCounts) -> u64);
        const COUNTS: [Count; 5] = [
            ("cache_hits", "", "Blocks found in a cache", |cache| cache.hits),
            ("cache_loads", "", "Blocks read and decoded", |cache| cache.loads),
            ("cache_waits", "", "Blocks that another thread was loading", |cache| cache.waits),
            ("cache_evictions", "", "Blocks evicted to make room", |cache| cache.evictions),
            ("cache_loaded_bytes", "bytes", "Decoded bytes of the loads", |cache| {
                cache.loaded_bytes
            }),
        ];
        for (name, unit, help, count) in COUNTS {
            self.family(name, "counter", unit, help);
            let total = format!("{name}_total");
            self.samples(&total, |reading| both(reading, count).to_vec());
        }
        let help = "Time of the loads without reading the archive";
        self.family("cache_decode_seconds", "counter", "seconds", help);
        self.samples("cache_decode_seconds_total", |reading| {
            both(reading, |cache| seconds(cache.decode_ns)).to_vec()
        });
        self.family("cache_held_bytes", "gauge", "bytes", "Current memory of a cache");
        self.samples("cache_held_bytes", |reading| {
            both(reading, |cache| cache.held_bytes).to_vec()
        });
    }
}

/// A value of each cache, with its label.
fn both<V>(reading: &Snapshot, value: impl Fn(&CacheCounts) -> V) -> [(String, V); 2] {
    [("data", &reading.data_cache), ("metadata", &reading.metadata_cache)]
        .map(|(name, cache)| (label("cache", name), value(cache)))
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
