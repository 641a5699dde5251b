//! The statistics of a mount: as JSON and as one line, on request and when the mount ends.
//!
//! docs/STATS.md promises the keys of the JSON. `stats` counts.
//!
//! Invariants: nothing here ends or delays a mount, and every error is only a warning. The file is
//! complete or does not exist. Only an older report is overwritten: a mistyped name must not cost a
//! dataset. A value that is not known is null in the JSON and absent from the line.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result};
use crate::lifecycle::MountPlan;
use crate::os::directory::{Directory, parent_of};
use crate::os::kernel_file;
use crate::os::new_file::{NewFile, Readers};
use crate::stats::{
    Blocked, CacheCounts, Latencies, Operation, ReadaheadCounts, StageCounts, Stats, TogetherCounts,
};
use crate::sync::Arc;
use crate::units::{counted, format_duration, format_size};

const PREFIX: &str = ".archfs-stats-";

pub(super) struct Report {
    served: Served,
    stats: Arc<Stats>,
    file: Option<PathBuf>,
    is_summarized: bool,
    /// Whether the log is a file that the user named.
    has_log_file: bool,
    /// Whether a process that waited for the end has received the summary.
    is_received: bool,
}

impl Report {
    /// The report of a mount that serves from now on. Checks at once whether the file can be
    /// written: when the mount ends there may be no terminal to warn on.
    pub(super) fn begin(plan: &MountPlan, stats: Arc<Stats>) -> Self {
        let (archives, mount_point) = (plan.archives.clone(), plan.mount_point.clone());
        let served = Served { archives, mount_point, since: Instant::now() };
        let file = plan.stats_json.clone();
        let is_summarized = plan.is_summarized();
        let has_log_file = plan.log_file.is_some();
        if let Some(Err(error)) = file.as_deref().map(check_writable) {
            log::warn!("{error}; mounting anyway");
        }
        Self { served, stats, file, is_summarized, has_log_file, is_received: false }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.served, &self.stats)
    }

    /// Writes the file, and returns the statistics so far. Call this after unmounting, before
    /// answering the processes that wait for that.
    pub(super) fn write(&self) -> Snapshot {
        let snapshot = self.snapshot();
        if let Some(Err(error)) = self.file.as_deref().map(|file| write(file, &snapshot)) {
            log::warn!("{error}");
        }
        snapshot
    }

    /// Notes that a process that waited for the end has received the summary.
    pub(super) fn note_received(&mut self) {
        self.is_received = true;
    }

    /// Writes the file and logs the summary: into the user's log file, or where the user asked for
    /// it, unless a process that waited for the end has received it. Call this after unmounting,
    /// which must not wait for it, and when no more requests are counted: after the session, or
    /// just before exiting.
    pub(super) fn finish(&self) {
        let snapshot = self.write();
        if self.has_log_file || (self.is_summarized && !self.is_received) {
            crate::log::note(format_args!("{}", snapshot.summary()));
        }
    }
}

/// Checks that `write` would succeed now. Leaves nothing behind.
fn check_writable(path: &Path) -> Result<()> {
    let directory = open_directory(path)?;
    NewFile::create(&directory, PREFIX).map(drop).map_err(failed(path))
}

/// Writes `snapshot` to a new file first, so that no reader ever sees half of it.
///
/// The user's umask decides who can read the file. Unlike the log it names no file of the dataset,
/// and jobs are often monitored by another user of the same group.
fn write(path: &Path, snapshot: &Snapshot) -> Result<()> {
    let directory = open_directory(path)?;
    let name = path.file_name().unwrap_or_default();
    let write = &mut |file: &mut File| writeln!(file, "{}", snapshot.json());
    NewFile::replace(&directory, name, Readers::by_umask(), write).map(drop).map_err(failed(path))
}

/// Opens the directory of the file, which must be missing, empty or start like JSON. Refuses a link
/// as well: it may be /dev/stderr, whose target must be appended to, not replaced.
fn open_directory(path: &Path) -> Result<Directory> {
    let directory = Directory::open(parent_of(path)).map_err(failed(path))?;
    let refused = || {
        let context =
            format!("{}: not overwritten, because it is not a statistics file", path.display());
        Err(Error::new(Kind::InvalidInput, context))
    };
    let name = path.file_name().unwrap_or_default();
    match directory.metadata(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(directory),
        Err(error) => return Err(failed(path)(error)),
        Ok(found) if !found.is_file() => return refused(),
        Ok(_) => {}
    }
    // Another process may just have put something else there. A pipe would wait for its writer.
    let file = directory.open_file(name).map_err(failed(path))?;
    let mut first = Vec::new();
    if file.metadata().map_err(failed(path))?.is_file() {
        file.take(1).read_to_end(&mut first).map_err(failed(path))?;
        if matches!(first.as_slice(), b"" | b"{") {
            return Ok(directory);
        }
    }
    refused()
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    |error| Error::io(format!("{}: cannot write", path.display()), error)
}

/// A mount, and since when it is served.
#[derive(Clone, Debug)]
struct Served {
    archives: Vec<PathBuf>,
    mount_point: PathBuf,
    since: Instant,
}

/// The statistics of a mount. Each field is a key of the JSON and has its unit in its name.
///
/// A counter that an older daemon does not report is 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "docs/STATS.md explains the keys")]
pub struct Snapshot {
    pub mountpoint: String,
    pub archives: Vec<String>,
    /// Time since 1970.
    pub started_seconds: f64,
    pub uptime_seconds: f64,
    /// User and system time of the whole process, opening included.
    pub cpu_seconds: f64,
    /// Peak resident memory of the whole process; `None` if the kernel does not report it.
    pub peak_memory_bytes: Option<u64>,
    /// By operation, and `total`.
    pub requests: BTreeMap<String, u64>,
    /// Faults of the archive or of reading it. The log has each of them.
    pub faults: u64,
    /// Requests that have waited for long.
    pub blocked: Blocked,
    /// Reads at the start of a file.
    pub files_started: u64,
    /// File contents that readers received.
    pub served_bytes: u64,
    /// Reads of `run --direct` that needed no request, and the bytes that they returned.
    pub direct_reads: u64,
    pub direct_bytes: u64,
    /// How much of the archives is copied to this node; `None` without `--stage`.
    pub staged: Option<StageCounts>,
    /// What was read ahead of programs in the background.
    pub readahead: Option<ReadaheadCounts>,
    /// What the nodes of the job read for each other; `None` if they do not.
    pub together: Option<TogetherCounts>,
    /// Reads from the archives, including those of opening.
    pub archive_reads: u64,
    pub archive_bytes: u64,
    pub archive_read_ns: u64,
    pub lookup_latency: Percentiles,
    pub read_latency: Percentiles,
    pub metadata_cache: CacheCounts,
    pub data_cache: CacheCounts,
    /// Current budget of both caches.
    pub cache_budget_bytes: u64,
    /// How often both caches were emptied because the mount was idle.
    pub cache_releases: u64,
}

/// Latencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "docs/STATS.md explains the keys")]
pub struct Percentiles {
    pub p50_ns: Option<u64>,
    pub p90_ns: Option<u64>,
    pub p99_ns: Option<u64>,
    pub max_ns: Option<u64>,
    /// All of them together.
    pub total_ns: u64,
}

impl Snapshot {
    /// The values in `stats` and those of this process, now.
    fn take(served: &Served, stats: &Stats) -> Self {
        let totals = stats.totals();
        let uptime = served.since.elapsed();
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let by_operation = Operation::ALL.map(|(one, name)| (name, totals.requests(one)));
        let requests = by_operation.into_iter().chain([("total", totals.all_requests())]);
        let text = |path: &Path| path.to_string_lossy().into_owned();
        Self {
            mountpoint: text(&served.mount_point),
            archives: served.archives.iter().map(|archive| text(archive)).collect(),
            started_seconds: rounded(started.saturating_sub(uptime)),
            uptime_seconds: rounded(uptime),
            cpu_seconds: rounded(cpu_time()),
            peak_memory_bytes: peak_memory(),
            requests: requests.map(|(name, count)| (name.to_owned(), count)).collect(),
            faults: totals.faults,
            blocked: stats.blocked(),
            files_started: totals.files_started,
            served_bytes: totals.bytes,
            direct_reads: totals.direct.reads,
            direct_bytes: totals.direct.bytes,
            staged: totals.staged,
            readahead: totals.readahead,
            together: totals.together,
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

    /// Parses the JSON of a daemon.
    pub fn parse(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|error| {
            Error::new(Kind::Io, "invalid answer from the daemon").with_source(error)
        })
    }

    /// The number of requests of that name.
    pub fn requests(&self, name: &str) -> u64 {
        self.requests.get(name).copied().unwrap_or_default()
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
        let mut parts = vec![
            counted(self.requests("lookup"), "lookup"),
            counted(self.requests("read"), "read"),
            format!("{} returned", format_size(self.served_bytes)),
        ];
        if self.direct_reads > 0 {
            let reads = counted(self.direct_reads, "direct read");
            parts.push(format!("{reads} of {}", format_size(self.direct_bytes)));
        }
        if let Some(StageCounts { copied, total }) = self.staged {
            parts.push(format!("{} of {} staged", format_size(copied), format_size(total)));
        }
        parts.extend(self.readahead.map(|counts| counts.to_string()));
        parts.extend(self.together.as_ref().map(ToString::to_string));
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
            parts.push(counted(self.faults, "fault"));
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

fn peak_memory() -> Option<u64> {
    kernel_file::own_memory("VmHWM")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use serde_json::Value;

    use super::*;

    fn served(archives: &[&str]) -> Served {
        let archives = archives.iter().map(PathBuf::from).collect();
        Served { archives, mount_point: "/dev/shm/data".into(), since: Instant::now() }
    }

    fn snapshot() -> Snapshot {
        Snapshot::take(&served(&["/a"]), &Stats::default())
    }

    #[test]
    fn replaces_an_older_report_and_leaves_no_temporary_file() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("stats.json");
        for _ in 0..2 {
            check_writable(&path).unwrap();
            write(&path, &snapshot()).unwrap();
            assert!(fs::read_to_string(&path).unwrap().ends_with("}\n"));
        }
        assert_eq!(fs::read_dir(work.path()).unwrap().count(), 1);
    }

    #[test]
    fn overwrites_nothing_else() {
        let work = tempfile::tempdir().unwrap();
        let dataset = work.path().join("data.sqfs");
        fs::write(&dataset, "hsqs").unwrap();
        let link = work.path().join("link");
        symlink(work.path().join("log"), &link).unwrap();
        for path in [&dataset, &link, work.path(), Path::new("/dev/null")] {
            assert!(check_writable(path).is_err() && write(path, &snapshot()).is_err());
        }
        assert_eq!(fs::read(&dataset).unwrap(), b"hsqs");
    }

    #[test]
    fn a_missing_directory_is_reported_at_the_start() {
        let work = tempfile::tempdir().unwrap();
        let error = check_writable(&work.path().join("none/stats.json")).unwrap_err();
        assert!(error.to_string().contains("none/stats.json: cannot write"), "{error}");
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
        stats.staged.watch(Box::new(|| StageCounts { copied: 1, total: 2 }));
        stats.readahead.watch(Box::new(ReadaheadCounts::default));
        stats.together.watch(Box::new(TogetherCounts::default));
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
        assert!(line.starts_with(start) && line.ends_with(", 3 faults"), "{line}");
        assert!(!line.contains("memory"), "{line}");
    }
}
