//! The statistics of a mount (`--stats-json`, the line in the log) match what was done with it.
//!
//! docs/STATS.md explains the keys.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::mount::{CleanUp, is_mounted, unmount};
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
    let stats = |options: &[&str]| {
        let output = run(archfs().arg("stats").args(options).arg(&stage.mount_point));
        String::from_utf8(output.stdout).unwrap()
    };
    let live: Value = serde_json::from_str(&stats(&["--json"])).unwrap();
    let bytes = SIZES.iter().sum::<usize>();
    assert_eq!(number(&live, &["served_bytes"]), bytes as u64);
    assert!(stats(&[]).contains(&format!("\nserved_bytes {bytes}\n")));
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
        assert_eq!(number(&stats, &["requests", "lookup"]), SIZES.len() as u64 + 1, "{stats}");
        assert_eq!(number(&stats, &["faults"]), 0, "{stats}");
        let [p50, p90, p99, max] = ["p50_ns", "p90_ns", "p99_ns", "max_ns"]
            .map(|key| number(&stats["read_latency"], &[key]));
        assert!(0 < p50 && p50 <= p90 && p90 <= p99 && p99 <= max, "{stats}");
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
    for (option, is_summarised) in [
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
        assert_eq!(stderr.contains(summary), is_summarised, "{option:?}: {stderr}");
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
            usize::from(is_summarised),
            "{option:?}: {stderr}"
        );
    }
}
