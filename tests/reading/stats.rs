//! The statistics of a mount (`--stats-json`, the line in the log) match what was done with it.
//!
//! docs/STATS.md explains the keys.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::faulty::{Fault, Faulty};
use crate::support::mount::{CleanUp, is_mounted, unmount};
use crate::support::skip::skip;
use crate::support::{archfs, image, run, skip_without_user_mounts, source, work_directory};

/// Files of several sizes: empty, less than a page, several blocks, several requests.
const SIZES: [usize; 6] = [0, 1, 5000, 131_072, 300_000, 2_000_000];

struct Stage {
    archive: PathBuf,
    mount_point: PathBuf,
    stats: PathBuf,
    // In this order: unmounted before the directory is removed.
    _clean_up: CleanUp,
    work: tempfile::TempDir,
}

fn stage() -> Option<Stage> {
    if skip_without_user_mounts() {
        return None;
    }
    let work = work_directory();
    let source = work.path().join("source");
    fs::create_dir(&source).unwrap();
    for (number, size) in SIZES.into_iter().enumerate() {
        // Every second piece compresses, so that every block is decoded.
        let mut bytes = source::noise(number as u64 + 1, size);
        bytes.chunks_mut(512).step_by(2).for_each(|piece| piece.fill(b'x'));
        fs::write(source.join(number.to_string()), bytes).unwrap();
    }
    let archive = image::make(work.path(), "data.sqfs", &source, &["-comp", "zstd"]);
    let mount_point = work.path().join("mount");
    let stats = work.path().join("stats.json");
    Some(Stage { archive, _clean_up: CleanUp(mount_point.clone()), mount_point, stats, work })
}

impl Stage {
    fn mount(&self, options: &[&str], stats: &Path) -> Output {
        let mut mount = archfs();
        mount.args(["mount", "--keep", "--stats-json"]).arg(stats).args(options);
        run(mount.arg(&self.archive).arg(&self.mount_point))
    }

    fn unmount(&self) {
        unmount(&self.mount_point);
    }

    fn read_all(&self) {
        for (number, size) in SIZES.into_iter().enumerate() {
            assert_eq!(fs::read(self.mount_point.join(number.to_string())).unwrap().len(), size);
        }
    }

    fn written(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(&self.stats).unwrap()).unwrap()
    }
}

/// A number in `value`, by the path of keys.
fn number(value: &Value, path: &[&str]) -> u64 {
    let found = path.iter().fold(value, |value, name| &value[*name]);
    found.as_u64().unwrap_or_else(|| panic!("{path:?} is {found}"))
}

#[test]
fn a_live_mount_reports_the_same_numbers() {
    let Some(stage) = stage() else { return };
    stage.mount(&["-q"], &stage.stats);
    stage.read_all();
    let stats = |options: &[&str]| stats_of(&stage.mount_point, options);
    let live: Value = serde_json::from_str(&stats(&["--json"])).unwrap();
    let bytes = SIZES.iter().sum::<usize>();
    assert_eq!(number(&live, &["served_bytes"]), bytes as u64);
    let text = stats(&[]);
    let title = format!("data.sqfs at {}, mounted ", stage.mount_point.display());
    assert!(text.starts_with(&title), "{text}");
    assert!(text.contains("\n  total       5 files, 2.3 MiB, "), "{text}");
    stage.unmount();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&live), keys(&stage.written()));
    let gone = archfs().arg("stats").arg(&stage.mount_point).output().unwrap();
    assert_eq!(gone.status.code(), Some(5));
}

#[test]
fn the_numbers_match_the_requests() {
    let Some(stage) = stage() else { return };
    let mut reads = Vec::new();
    for passes in [1, 3] {
        stage.mount(&["--quiet"], &stage.stats);
        assert!(!stage.stats.exists(), "the file is written at the end");
        for _ in 0..passes {
            stage.read_all();
        }
        assert!(fs::symlink_metadata(stage.mount_point.join("not there")).is_err());
        stage.unmount();
        let stats = stage.written();
        fs::remove_file(&stage.stats).unwrap();
        let bytes: usize = SIZES.iter().sum();
        assert_eq!(number(&stats, &["served_bytes"]), bytes as u64, "{stats}");
        let not_empty = SIZES.iter().filter(|size| **size > 0).count();
        assert!(number(&stats, &["requests", "read"]) >= not_empty as u64, "{stats}");
        assert_eq!(number(&stats, &["files_started"]), not_empty as u64, "{stats}");
        assert_eq!(number(&stats, &["requests", "lookup"]), SIZES.len() as u64 + 1, "{stats}");
        assert_eq!(number(&stats, &["faults"]), 0, "{stats}");
        let [p50, p90, p99, max] = ["p50_ns", "p90_ns", "p99_ns", "max_ns"]
            .map(|key| number(&stats["read_latency"], &[key]));
        assert!(0 < p50 && p50 <= p90 && p90 <= p99 && p99 <= max, "{stats}");
        assert!(number(&stats["read_latency"], &["total_ns"]) >= max, "{stats}");
        assert!(number(&stats, &["archive_read_ns"]) > 0, "{stats}");
        assert!(number(&stats, &["data_cache", "decode_ns"]) > 0, "{stats}");
        assert!(number(&stats, &["data_cache", "loads"]) >= 16, "{stats}");
        assert!(number(&stats, &["data_cache", "loaded_bytes"]) >= bytes as u64, "{stats}");
        assert!(number(&stats, &["metadata_cache", "hits"]) > 0, "{stats}");
        let archive_bytes = number(&stats, &["archive_bytes"]);
        assert!(archive_bytes >= bytes as u64 / 2, "{stats}");
        assert!(number(&stats, &["archive_reads"]) > 16, "{stats}");
        assert!(number(&stats, &["peak_memory_bytes"]) > 1 << 20, "{stats}");
        assert_eq!(stats["archives"][0], stage.archive.to_str().unwrap());
        assert_eq!(stats["mountpoint"], stage.mount_point.to_str().unwrap());
        reads.push(number(&stats, &["requests", "read"]));
    }
    assert_eq!(reads[0], reads[1], "further passes come from the page cache");
}

/// The output of `archfs stats OPTIONS MOUNTPOINT`.
fn stats_of(mount_point: &Path, options: &[&str]) -> String {
    let output = run(archfs().arg("stats").args(options).arg(mount_point));
    String::from_utf8(output.stdout).unwrap()
}

/// The archive hangs for most of the life of the mount, then a mount decodes one block after another.
#[test]
fn the_bottleneck_is_what_readers_wait_for() {
    let Some(stage) = stage() else { return };
    let storage = Faulty::new(&stage.archive, &stage.work.path().join("storage"));
    let hung = stage.work.path().join("hung");
    let _clean_up = CleanUp(hung.clone());
    let begun = Instant::now();
    run(archfs().args(["mount", "--keep", "-q"]).arg(storage.file()).arg(&hung));
    storage.set(Fault::Hanging);
    let path = hung.join("5");
    let reader = thread::spawn(move || fs::read(path).unwrap().len());
    // Longer than all else took, however busy the machine is.
    thread::sleep(begun.elapsed() * 4 + Duration::from_secs(1));
    storage.set(Fault::None);
    assert_eq!(reader.join().unwrap(), SIZES[5]);
    let text = stats_of(&hung, &[]);
    assert!(text.contains("\n  Storage is the bottleneck: "), "{text}");
    unmount(&hung);

    let text: Vec<u8> =
        source::noise(1, 24 << 20).into_iter().map(|byte| b'a' + byte % 16).collect();
    let source = stage.work.path().join("text");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("text"), text).unwrap();
    let options = ["-comp", "xz", "-b", "1M"];
    let slow = image::make(stage.work.path(), "slow.sqfs", &source, &options);
    run(archfs().args(["mount", "--keep", "-q"]).args([&slow, &stage.mount_point]));
    assert_eq!(fs::read(stage.mount_point.join("text")).unwrap().len(), 24 << 20);
    let text = stats_of(&stage.mount_point, &[]);
    assert!(text.contains("\n  Decoding is the bottleneck: "), "{text}");
}

#[test]
fn a_watch_shows_rates_until_the_mount_ends() {
    let Some(stage) = stage() else { return };
    stage.mount(&["-q"], &stage.stats);
    let mut watch = archfs();
    watch.args(["stats", "--watch", "--interval", "1s"]).arg(&stage.mount_point);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut line = || lines.next().unwrap().unwrap();
    assert!(line().contains(": 0 B/s, 0.0 files/s, no reads; "));
    stage.read_all();
    // Perhaps the files were read during two looks.
    let rates = [line(), line()].map(|line| {
        let rate = line.split_once(" files/s").unwrap().0.rsplit(' ').next().unwrap().to_owned();
        rate.parse::<f64>().unwrap()
    });
    let sum: f64 = rates.iter().sum();
    assert!((2.0..=6.0).contains(&sum), "5 files in about a second: {rates:?}");
    stage.unmount();
    while lines.next().is_some() {}
    assert!(watch.wait().unwrap().success());
    // None is left, or none of this name ever was.
    let none = archfs().args(["stats", "--watch"]).arg(&stage.mount_point).output().unwrap();
    assert_eq!(none.status.code(), Some(5));
    stage.mount(&["-q"], &stage.stats);
    assert_eq!(stats_of(&stage.mount_point, &["-w", "--count", "1"]).lines().count(), 1);
    // A terminal gets bars, each in place of the one before.
    let mut script = Command::new("script");
    let line = "stty cols 80 rows 30; $ARCHFS stats -w --interval 1s --count 2 \"$MOUNT_POINT\"";
    script.args(["-qec", line, "/dev/null"]).env("ARCHFS", env!("CARGO_BIN_EXE_archfs"));
    let shown = run(script.env("MOUNT_POINT", &stage.mount_point)).stdout;
    let shown = String::from_utf8(shown).unwrap();
    assert_eq!(shown.matches("  storage     .....").count(), 2, "{shown}");
    assert!(shown.contains("\x1b[2K"), "{shown}");
}

/// The parsers of Prometheus' Python client, as the reference for the format.
#[test]
fn a_parser_of_openmetrics_reads_the_numbers() {
    const PARSES: &str = "\
import json, sys
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics
text = sys.stdin.read()
# The collector of text files uses the older format.
assert len(list(parser.text_string_to_metric_families(text))) > 20
for family in openmetrics.text_string_to_metric_families(text):
    assert family.documentation and family.type != 'unknown', family
    for sample in family.samples:
        print(json.dumps([sample.name, sample.labels, sample.value]))
";
    let python = Path::new("/usr/bin/python3");
    let has_parser = Command::new(python).args(["-c", "import prometheus_client"]).output();
    if !has_parser.is_ok_and(|output| output.status.success()) {
        return skip("prometheus_client is not installed");
    }
    let Some(stage) = stage() else { return };
    let other = stage.work.path().join("other\"mount\"");
    let _clean_up = CleanUp(other.clone());
    stage.mount(&["-q"], &stage.stats);
    run(archfs().args(["mount", "--keep", "-q"]).args([&stage.archive, &other]));
    stage.read_all();
    let both = [&stage.mount_point, &other];
    let text = run(archfs().args(["stats", "--openmetrics"]).args(both)).stdout;
    let mut parser = Command::new(python);
    parser.args(["-c", PARSES]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = parser.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&text).unwrap();
    let parsed = child.wait_with_output().unwrap();
    assert!(parsed.status.success(), "{}", String::from_utf8_lossy(&text));
    let samples: Vec<Value> = String::from_utf8(parsed.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let value = |name: &str, mount_point: &Path, key: &str, label: &str| {
        let sample = samples.iter().find(|sample| {
            sample[0] == name
                && sample[1]["mountpoint"] == mount_point.to_str().unwrap()
                && (key.is_empty() || sample[1][key] == label)
        });
        sample.unwrap_or_else(|| panic!("{name} {label}"))[2].as_f64().unwrap()
    };
    let bytes = SIZES.iter().sum::<usize>() as f64;
    assert_eq!(value("archfs_served_bytes_total", &stage.mount_point, "", ""), bytes);
    assert_eq!(value("archfs_served_bytes_total", &other, "", ""), 0.0);
    let live: Value = serde_json::from_str(&stats_of(&stage.mount_point, &["--json"])).unwrap();
    let p99 = value("archfs_read_latency_seconds", &stage.mount_point, "quantile", "0.99");
    let expected = number(&live["read_latency"], &["p99_ns"]) as f64 / 1e9;
    assert!((p99 - expected).abs() < 1e-9, "{p99} {expected}");
    for (name, keys) in [
        ("archfs_read_latency_seconds_count", ["requests", "read"]),
        ("archfs_cache_loads_total", ["data_cache", "loads"]),
    ] {
        let (key, label) = if name.contains("cache") { ("cache", "data") } else { ("", "") };
        let found = value(name, &stage.mount_point, key, label);
        assert_eq!(found, number(&live, &keys) as f64, "{name}");
    }
}

#[test]
fn run_prints_a_chart_if_asked_for() {
    let Some(stage) = stage() else { return };
    let ran = |options: &[&str], variable: &str| {
        let mut run = archfs();
        run.arg("run").args(options).args([&stage.archive, &stage.mount_point]);
        run.args(["--", "cat"]).arg(stage.mount_point.join("5")).env("ARCHFS_STATS", variable);
        let output = run.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, chart) = ran(&["--stats=chart"], "");
    assert_eq!(status, Some(0));
    let line = format!("data.sqfs at {}, was mounted for ", stage.mount_point.display());
    assert!(chart.starts_with(&line) && !chart.contains("served"), "{chart}");
    assert!(chart.contains("\n  total       1 file, 1.9 MiB, "), "{chart}");
    assert_eq!(ran(&[], "chart").1.lines().count(), chart.lines().count());
    assert_eq!(ran(&["--quiet"], "chart").1, "");
    for (variable, is_line) in [("line", true), ("1", true), ("no", false), ("0", false)] {
        assert_eq!(ran(&[], variable).1.contains("note: served data.sqfs"), is_line, "{variable}");
    }
    assert_eq!(ran(&["--stats=bars"], "").0, Some(122));
}

#[test]
fn damage_is_counted_and_logged() {
    let Some(stage) = stage() else { return };
    // In the middle of the largest file, whose blocks are most of the image.
    let mut bytes = fs::read(&stage.archive).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 300_000].fill(0xff);
    fs::write(&stage.archive, bytes).unwrap();
    let log = stage.work.path().join("log");
    stage.mount(&["--log-file", log.to_str().unwrap()], &stage.stats);
    assert!(fs::read(stage.mount_point.join("5")).is_err());
    stage.unmount();
    assert!(number(&stage.written(), &["faults"]) > 0, "{}", stage.written());
    let log = fs::read_to_string(log).unwrap();
    let last = log.lines().last().unwrap();
    let (_, last) = last.split_once(' ').unwrap();
    assert!(last.starts_with("archfs: note: served data.sqfs at "), "{log}");
    assert!(last.contains(" fault"), "{log}");
}

/// > **Names in sticky directories**: a log that another user made or linked there is refused
/// > (status 1). `--stats-json` replaces no link, and no file except an earlier one of its own.
#[test]
fn an_unwritable_statistics_file_is_only_a_warning() {
    let Some(stage) = stage() else { return };
    let dataset = fs::read(&stage.archive).unwrap();
    let no_directory = stage.work.path().join("none/stats.json");
    for (mount_point, why) in [
        (&no_directory, "none/stats.json: cannot write"),
        (&stage.archive, "data.sqfs: not overwritten"),
    ] {
        let output = stage.mount(&[], mount_point);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(why) && stderr.contains("mounting anyway"), "{stderr}");
        stage.read_all();
        stage.unmount();
    }
    assert_eq!(fs::read(&stage.archive).unwrap(), dataset);
}

#[test]
fn run_writes_statistics_with_the_mode_of_the_umask() {
    let Some(stage) = stage() else { return };
    for (umask, mode) in [("022", 0o644), ("077", 0o600)] {
        let script = format!("umask {umask}; exec \"$0\" run \"$1\" \"$2\" -- cat \"$2/1\"");
        let mut shell = Command::new("bash");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_archfs")]).arg(&stage.archive);
        let ran = run(shell.arg(&stage.mount_point).env("ARCHFS_STATS_JSON", &stage.stats));
        assert_eq!(ran.stdout, b"x");
        assert!(!is_mounted(&stage.mount_point));
        assert_eq!(number(&stage.written(), &["served_bytes"]), 1);
        assert_eq!(fs::metadata(&stage.stats).unwrap().permissions().mode() & 0o777, mode);
    }
}

#[test]
fn the_end_of_a_mount_is_summed_up_only_if_asked_for() {
    let Some(stage) = stage() else { return };
    for (option, is_summarized) in [
        (None, false),
        (Some("--stats"), true),
        (Some("--verbose"), true),
        (Some("--quiet"), false),
    ] {
        let stderr = stage.work.path().join("said");
        let mut mount = archfs();
        mount.args(["mount", "--foreground", "--ready-fd", "1"]).args(option);
        mount.arg(&stage.archive).arg(&stage.mount_point).stderr(File::create(&stderr).unwrap());
        let mut daemon = mount.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        stage.unmount();
        assert!(daemon.wait().unwrap().success());
        let stderr = fs::read_to_string(&stderr).unwrap();
        let summary = "archfs: note: served data.sqfs at ";
        assert_eq!(stderr.contains(summary), is_summarized, "{option:?}: {stderr}");
        let run = archfs()
            .arg("run")
            .args(option)
            .args([&stage.archive, &stage.mount_point])
            .args(["--", "true"])
            .output()
            .unwrap();
        let stderr = String::from_utf8(run.stderr).unwrap();
        assert_eq!(
            stderr.matches(summary).count(),
            usize::from(is_summarized),
            "{option:?}: {stderr}"
        );
    }
}
