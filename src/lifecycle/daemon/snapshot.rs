//! The statistics of a mount at one moment, as JSON and as one line.
//!
//! docs/STATS.md promises the keys of the JSON. `stats` counts, and `report` decides when and where
//! to print.
//! Invariant: a value that is not known is null in the JSON and absent from the line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::os::kernel_file;
use crate::stats::{CacheCounts, Latencies, Operation, StageCounts, Stats};
use crate::units::{counted, format_duration, format_size};

/// A mount, and since when it is served.
#[derive(Clone, Debug)]
pub(in crate::lifecycle) struct Served {
    pub(in crate::lifecycle) archives: Vec<PathBuf>,
    pub(in crate::lifecycle) mount_point: PathBuf,
    pub(in crate::lifecycle) since: Instant,
}

/// The statistics of a mount. Each field is a key of the JSON and has its unit in its name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Snapshot {
    mountpoint: String,
    archives: Vec<String>,
    /// Time since 1970.
    started_seconds: f64,
    uptime_seconds: f64,
    /// User and system time of the whole process, opening included.
    cpu_seconds: f64,
    /// Peak resident memory of the whole process; `None` if the kernel does not report it.
    peak_memory_bytes: Option<u64>,
    /// By operation, and `total`.
    requests: BTreeMap<&'static str, u64>,
    /// Faults of the archive or of reading it. The log has each of them.
    faults: u64,
    /// Reads at the start of a file.
    files_started: u64,
    /// File contents that readers received.
    served_bytes: u64,
    /// Reads of `run --direct` that needed no request, and the bytes that they returned.
    direct_reads: u64,
    direct_bytes: u64,
    /// How much of the archives is copied to this node; `None` without `--stage`.
    staged: Option<StageCounts>,
    /// Reads from the archives, including those of opening.
    archive_reads: u64,
    archive_bytes: u64,
    archive_read_ns: u64,
    lookup_latency: Percentiles,
    read_latency: Percentiles,
    metadata_cache: CacheCounts,
    data_cache: CacheCounts,
    /// Current budget of both caches.
    cache_budget_bytes: u64,
    /// How often both caches were emptied because the mount was idle.
    cache_releases: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Percentiles {
    p50_ns: Option<u64>,
    p90_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: Option<u64>,
    /// All of them together.
    total_ns: u64,
}

impl Snapshot {
    /// The values in `stats` and those of this process, now.
    pub(in crate::lifecycle) fn take(served: &Served, stats: &Stats) -> Self {
        let totals = stats.totals();
        let uptime = served.since.elapsed();
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let by_operation = Operation::ALL.map(|one| (one.name(), totals.requests(one)));
        let text = |path: &Path| path.to_string_lossy().into_owned();
        Self {
            mountpoint: text(&served.mount_point),
            archives: served.archives.iter().map(|archive| text(archive)).collect(),
            started_seconds: rounded(started.saturating_sub(uptime)),
            uptime_seconds: rounded(uptime),
            cpu_seconds: rounded(cpu_time()),
            peak_memory_bytes: peak_memory(),
            requests: by_operation.into_iter().chain([("total", totals.all_requests())]).collect(),
            faults: totals.faults,
            files_started: totals.files_started,
            served_bytes: totals.bytes,
            direct_reads: totals.direct.reads,
            direct_bytes: totals.direct.bytes,
            staged: totals.staged,
            archive_reads: totals.archive_reads,
            archive_bytes: totals.archive_bytes,
            archive_read_ns: totals.archive_read_ns,
            lookup_latency: Percentiles::of(&totals.lookups),
            read_latency: Percentiles::of(&totals.reads),
            metadata_cache: totals.metadata,
            data_cache: totals.data,
            cache_budget_bytes: totals.budget,
            cache_releases: totals.releases,
        }
    }

    /// One JSON object on one line.
    pub fn json(&self) -> String {
        // Fails only for keys that are not text and for types that fail by themselves.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// One line for a person: `served data.sqfs at /dev/shm/data for 2h 3m: ...`.
    pub fn summary(&self) -> String {
        let archives = match self.archives.as_slice() {
            [one] => Path::new(one).file_name().unwrap_or_default().to_string_lossy().into_owned(),
            several => format!("{} archives", several.len()),
        };
        let uptime =
            format_duration(Duration::try_from_secs_f64(self.uptime_seconds).unwrap_or_default());
        let requests =
            |operation: Operation| self.requests.get(operation.name()).copied().unwrap_or_default();
        let mut parts = vec![
            counted(requests(Operation::Lookup), "lookup"),
            counted(requests(Operation::Read), "read"),
            format!("{} returned", format_size(self.served_bytes)),
        ];
        if self.direct_reads > 0 {
            let reads = counted(self.direct_reads, "direct read");
            parts.push(format!("{reads} of {}", format_size(self.direct_bytes)));
        }
        if let Some(StageCounts { copied, total }) = self.staged {
            parts.push(format!("{} of {} staged", format_size(copied), format_size(total)));
        }
        if let Some(hits) = self.data_cache.hits_per_thousand() {
            let (whole, tenths) = (hits / 10, hits % 10);
            parts.push(format!("{whole}.{tenths}% of blocks found in the cache"));
        }
        if let (Some(p50), Some(p99)) = (self.read_latency.p50_ns, self.read_latency.p99_ns) {
            let [p50, p99] = [p50, p99].map(|time| format_duration(Duration::from_nanos(time)));
            parts.push(format!("read latency p50 {p50}, p99 {p99}"));
        }
        if let Some(peak) = self.peak_memory_bytes {
            parts.push(format!("peak memory {}", format_size(peak)));
        }
        if self.faults > 0 {
            parts.push(format!("{}, see the log", counted(self.faults, "fault")));
        }
        format!("served {archives} at {} for {uptime}: {}", self.mountpoint, parts.join(", "))
    }
}

impl Percentiles {
    fn of(latencies: &Latencies) -> Self {
        let nanoseconds =
            |time: Option<Duration>| time.and_then(|time| u64::try_from(time.as_nanos()).ok());
        Self {
            p50_ns: nanoseconds(latencies.percentile(50)),
            p90_ns: nanoseconds(latencies.percentile(90)),
            p99_ns: nanoseconds(latencies.percentile(99)),
            max_ns: nanoseconds(latencies.longest()),
            total_ns: nanoseconds(Some(latencies.sum())).unwrap_or(u64::MAX),
        }
    }
}

/// Seconds, to the millisecond.
fn rounded(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

/// CPU time of all threads of this process.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// Peak resident memory, bytes.
fn peak_memory() -> Option<u64> {
    kernel_file::own_memory("VmHWM")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn served(archives: &[&str]) -> Served {
        let archives = archives.iter().map(PathBuf::from).collect();
        Served { archives, mount_point: "/dev/shm/data".into(), since: Instant::now() }
    }

    /// The keys of an object and of the objects in it, joined by dots.
    fn keys(value: &Value, before: &str, found: &mut Vec<String>) {
        for (key, value) in value.as_object().unwrap() {
            let path = format!("{before}{key}");
            match value {
                Value::Object(_) => keys(value, &format!("{path}."), found),
                _ => found.push(path),
            }
        }
    }

    #[test]
    fn the_json_keys_match_the_document() {
        let stats = Stats::default();
        stats.watch_staging(Box::new(|| StageCounts { copied: 1, total: 2 }));
        let json = Snapshot::take(&served(&["/a.sqfs"]), &stats).json();
        let mut found = Vec::new();
        keys(&serde_json::from_str(&json).unwrap(), "", &mut found);
        found.sort();
        let document = include_str!("../../../docs/STATS.md");
        let (_, document) = document.split_once("\n## Keys\n").unwrap();
        let row = |line: &str| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned());
        let mut promised: Vec<String> = document.lines().filter_map(row).collect();
        promised.sort();
        assert_eq!(found, promised);
    }

    #[test]
    fn unknown_values_are_null_and_left_out() {
        let snapshot = Snapshot::take(&served(&["/x/a.sqfs"]), &Stats::default());
        let json: Value = serde_json::from_str(&snapshot.json()).unwrap();
        assert_eq!(json["read_latency"]["p99_ns"], Value::Null);
        assert_eq!(json["requests"]["total"], 0);
        assert_eq!(json["staged"], Value::Null);
        assert!(json["peak_memory_bytes"].as_u64().unwrap() > 1 << 20, "{json}");
        assert!(json["cpu_seconds"].as_f64().unwrap() > 0.0, "{json}");
        let line = snapshot.summary();
        assert!(line.starts_with("served a.sqfs at /dev/shm/data for "), "{line}");
        assert!(line.contains(": 0 lookups, 0 reads, 0 B returned, "), "{line}");
        assert!(!line.contains("latency") && !line.contains("fault"), "{line}");
    }

    #[test]
    fn the_summary_shows_the_counts() {
        let stats = Stats::default();
        for _ in 0..3 {
            let read = stats.begin(Operation::Read);
            read.hand_out(0, 1 << 20);
            read.meet_fault();
        }
        let snapshot = Snapshot {
            data_cache: CacheCounts { hits: 7, loads: 2, waits: 1, ..CacheCounts::default() },
            peak_memory_bytes: None,
            uptime_seconds: 7384.2,
            ..Snapshot::take(&served(&["/a", "/b"]), &stats)
        };
        let line = snapshot.summary();
        let start = "served 2 archives at /dev/shm/data for 2h 3m: 0 lookups, 3 reads, 3.0 MiB \
                     returned, 70.0% of blocks found in the cache, read latency p50 ";
        assert!(line.starts_with(start) && line.ends_with(", 3 faults, see the log"), "{line}");
        assert!(!line.contains("memory"), "{line}");
    }
}
