//! After some lookups, archfs reads all names of a mount ahead, in another process.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::mount::{daemon_of, is_mounted};
use crate::support::stage::{Stage, has_ended, processes_about, said, stage_with};
use crate::support::stale::one_at_a_time;
use crate::support::{archfs, tar, wait_until};

/// The least number of lookups before names are read ahead.
const LOOKUPS_MIN: u64 = 256;

fn path_of(number: usize, per_directory: usize) -> String {
    format!("d{:05}/f{number:07}", number / per_directory)
}

/// A tar of `count` empty files in directories.
fn tar_of(directory: &Path, count: usize, per_directory: usize) -> PathBuf {
    let mut bytes = Vec::new();
    for number in 0..count {
        bytes.extend(tar::member(&path_of(number, per_directory), b'0', "", b""));
    }
    bytes.extend([0; 1024]);
    let path = directory.join("names.tar");
    fs::write(&path, bytes).unwrap();
    path
}

/// A mount of `count` files with these options.
fn mounted(count: usize, per_directory: usize, options: &[&str]) -> Option<Stage> {
    let stage = stage_with(|work| tar_of(work, count, per_directory))?;
    let log = format!("--log-file={}", stage.work.path().join("log").display());
    let output = stage.mount(&[&["-v", "--keep", &log], options].concat());
    assert!(output.status.success(), "{}", said(&output));
    Some(stage)
}

fn log(stage: &Stage) -> String {
    fs::read_to_string(stage.work.path().join("log")).unwrap_or_default()
}

/// Requests that the daemon counted.
fn requests(stage: &Stage, operation: &str) -> u64 {
    let output = archfs().args(["stats", "--json"]).arg(&stage.mount_point).output().unwrap();
    let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    stats["requests"][operation].as_u64().unwrap()
}

/// Looks files up by their paths, without a listing.
fn look_up(stage: &Stage, numbers: impl IntoIterator<Item = usize>, per_directory: usize) {
    for number in numbers {
        let path = stage.mount_point.join(path_of(number, per_directory));
        assert_eq!(fs::symlink_metadata(path).unwrap().len(), 0);
    }
}

/// The processes that read names of this mount.
fn listers(stage: &Stage) -> Vec<i32> {
    processes_about(&["read-names", stage.mount_point.to_str().unwrap()])
}

#[test]
fn after_some_lookups_the_kernel_has_all_names() {
    const FILES: usize = 6000;
    let Some(stage) = mounted(FILES, 100, &[]) else { return };
    // Every 20th file: some of each directory.
    look_up(&stage, (0..FILES).step_by(20), 100);
    wait_until("the names are read", || log(&stage).contains("read 6060 names ahead"));
    let before = requests(&stage, "lookup");
    assert!((LOOKUPS_MIN..500).contains(&before), "{before}");
    look_up(&stage, 0..FILES, 100);
    assert_eq!(requests(&stage, "lookup"), before, "every name was in the kernel");
    assert_eq!(listers(&stage), [0; 0]);
    let daemon = stage.daemon();
    let unmounted = stage.ends(&["unmount", stage.mount_point.to_str().unwrap()]);
    assert!(unmounted.status.success(), "{}", said(&unmounted));
    wait_until("the daemon has ended", || has_ended(daemon));
}

#[test]
fn a_directory_that_was_listed_before_is_read_again_with_attributes() {
    const FILES: usize = 6000;
    let Some(stage) = mounted(FILES, 3000, &[]) else { return };
    // As ImageFolder does: names without attributes, which the kernel keeps.
    let listed = fs::read_dir(stage.mount_point.join("d00001")).unwrap().count();
    assert_eq!(listed, 3000);
    look_up(&stage, 0..300, 3000);
    wait_until("the names are read", || log(&stage).contains("read 6002 names ahead"));
    let before = requests(&stage, "lookup");
    look_up(&stage, 0..FILES, 3000);
    assert_eq!(requests(&stage, "lookup"), before, "every name was in the kernel");
}

#[test]
fn few_lookups_a_small_archive_or_the_option_start_no_process() {
    let cases: [(usize, usize, &[&str]); 3] =
        [(6000, 250, &[]), (240, 240, &[]), (2000, 2000, &["--no-name-readahead"])];
    for (files, looked_up, options) in cases {
        let Some(stage) = mounted(files, 2000, options) else { return };
        look_up(&stage, 0..looked_up, 2000);
        let end = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end {
            assert_eq!(listers(&stage), [0; 0], "{files} {looked_up} {options:?}");
        }
        assert!(!log(&stage).contains("ahead"), "{}", log(&stage));
        assert!(requests(&stage, "lookup") >= looked_up as u64);
    }
}

/// A mount whose names are being read by a process that is stopped.
fn with_stopped_lister() -> Option<(Stage, Pid)> {
    // Enough names that the process can be stopped before it is done.
    let stage = mounted(150_000, 500, &["--cache=16M"])?;
    look_up(&stage, 0..150_000 / 32 + 300, 500);
    let lister = wait_for_lister(&stage);
    kill_process(lister, Signal::STOP).unwrap();
    wait_until("it has stopped", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", lister.as_raw_nonzero())).unwrap();
        stat.rsplit(") ").next().is_some_and(|fields| fields.starts_with('T'))
    });
    assert!(!log(&stage).contains("names ahead"), "it was too fast: {}", log(&stage));
    Some((stage, lister))
}

fn wait_for_lister(stage: &Stage) -> Pid {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        if let Some(&found) = listers(stage).first() {
            return Pid::from_raw(found).unwrap();
        }
    }
    panic!("no process reads names: {}", log(stage));
}

#[test]
fn reading_names_does_not_keep_a_mount_busy() {
    let Some((stage, lister)) = with_stopped_lister() else { return };
    let daemon = stage.daemon();
    let unmounted = stage.ends(&["unmount", stage.mount_point.to_str().unwrap()]);
    assert!(unmounted.status.success(), "{}", said(&unmounted));
    assert!(stage.is_gone());
    wait_until("both have ended", || has_ended(daemon) && has_ended(lister));
}

#[test]
fn the_process_ends_with_a_daemon_that_is_killed() {
    let _one = one_at_a_time();
    let Some((stage, lister)) = with_stopped_lister() else { return };
    let daemon = Pid::from_raw(daemon_of(&stage.mount_point).unwrap()).unwrap();
    kill_process(daemon, Signal::KILL).unwrap();
    wait_until("the daemon has ended", || has_ended(daemon));
    kill_process(lister, Signal::CONT).unwrap();
    wait_until("the lister has ended", || has_ended(lister));
    let gc = stage.ends(&["gc"]);
    assert!(gc.status.success(), "{}", said(&gc));
    assert!(!is_mounted(&stage.mount_point));
}

#[test]
fn only_directories_of_the_mount_are_listed() {
    let Some(stage) = mounted(1000, 10, &["--no-name-readahead"]) else { return };
    let names_on = |directory: &Path, device: u64| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut command = archfs();
        command.arg("read-names").arg(directory).arg(device.to_string());
        let output = command.stdin(OwnedFd::from(theirs)).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        drop(command);
        let mut number = [0; 8];
        ours.read_exact(&mut number).unwrap();
        u64::from_ne_bytes(number)
    };
    let work = stage.work.path();
    let (inside, outside) =
        [&stage.mount_point, work].map(|path: &Path| fs::metadata(path).unwrap().dev()).into();
    assert_eq!(names_on(&stage.mount_point, inside), 1100);
    assert_eq!(names_on(&stage.mount_point, outside), 0, "another file system is mounted there");
    // The mount point, but nothing in it.
    assert_eq!(names_on(work, outside), fs::read_dir(work).unwrap().count() as u64);
    assert_eq!(names_on(&stage.mount_point.join("d00000/f0000000"), inside), 0, "a file");
    assert_eq!(names_on(&work.join("missing"), outside), 0);
}
