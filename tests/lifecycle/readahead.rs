//! `--readahead`: what is read of an archive far away that no program has asked for yet.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use fuser::FopenFlags;
use serde_json::Value;

use crate::support::faulty::Faulty;
use crate::support::mount::Mounted;
use crate::support::page_cache::IdlePagesStay;
use crate::support::skip::skip;
use crate::support::{archfs, run, skip_without_mounts, tar, wait_until, work_directory};

/// Bytes of a file, and of its part of the tar.
const FILE: u64 = 100_000;
const MEMBER: u64 = 512 + FILE.next_multiple_of(512);

/// Files of a directory.
const CLASS: u64 = 200;

fn path_of(number: u64) -> String {
    format!("{:04}/{number:06}", number / CLASS)
}

/// A tar of `files` files, each of which begins with its number.
fn archive(directory: &Path, files: u64) -> PathBuf {
    let path = directory.join("data.tar");
    let out = File::create(&path).unwrap();
    for number in 0..files {
        let at = number * MEMBER;
        out.write_all_at(&tar::header(&path_of(number), b'0', "", FILE), at).unwrap();
        out.write_all_at(&number.to_le_bytes(), at + 512).unwrap();
    }
    out.set_len(files * MEMBER + 1024).unwrap();
    // In the first test, most of the time would go into the scan.
    run(archfs().args(["index", "--quiet"]).arg(&path));
    path
}

/// Numbers in an order that looks random.
fn shuffled(numbers: std::ops::Range<u64>) -> Vec<u64> {
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_unstable_by_key(|number| (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    numbers
}

/// Reads these files from four threads.
fn read(mount_point: &Path, numbers: &[u64]) {
    let next = AtomicUsize::new(0);
    let worker = || {
        while let Some(number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
            let found = fs::read(mount_point.join(path_of(*number))).unwrap();
            assert_eq!(found.len() as u64, FILE);
            assert_eq!(found[..8], number.to_le_bytes(), "{number}");
            assert!(found[8..].iter().all(|byte| *byte == 0), "{number}");
        }
    };
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(worker))));
}

fn readahead(mounted: &Mounted) -> Value {
    let output = run(archfs().args(["stats", "--json"]).arg(mounted.path()));
    serde_json::from_slice::<Value>(&output.stdout).unwrap()["readahead"].clone()
}

/// How far away the archives are.
const LATENCY: Duration = Duration::from_millis(1);

/// An archive far away, and its mount.
struct Distant {
    mounted: Mounted,
    storage: Faulty,
    _work: tempfile::TempDir,
}

impl Distant {
    fn new(files: u64, open_flags: FopenFlags, options: &[&str]) -> Self {
        let work = work_directory();
        let archive = archive(work.path(), files);
        let storage = Faulty::distant(&archive, &work.path().join("far"), LATENCY, open_flags);
        let index = format!("--index={}.archfs-index", archive.display());
        let options = [&[index.as_str(), "--no-name-readahead"], options].concat();
        let mounted = Mounted::archfs(storage.file(), &work.path().join("mount"), &options);
        Self { mounted, storage, _work: work }
    }

    /// Reads these files. Returns how many bytes were read of the archive for each of theirs.
    fn fetched(&self, numbers: &[u64]) -> f64 {
        let before = self.storage.bytes();
        read(self.mounted.path(), numbers);
        // What was begun is fetched after the last reader as well.
        let mut last = self.storage.bytes();
        loop {
            thread::sleep(Duration::from_millis(100));
            let now = self.storage.bytes();
            if now == last {
                break;
            }
            last = now;
        }
        (last - before) as f64 / (numbers.len() as u64 * FILE) as f64
    }
}

// Without the flag, each open makes the kernel drop the pages of the file.
const CACHED: FopenFlags = FopenFlags::FOPEN_KEEP_CACHE;
const UNCACHED: FopenFlags = FopenFlags::FOPEN_DIRECT_IO;

#[test]
fn a_shuffled_epoch_is_read_ahead_and_nothing_is_read_twice() {
    if skip_without_mounts() {
        return;
    }
    let _idle_pages_stay = IdlePagesStay::new();
    for open_flags in [CACHED, UNCACHED] {
        let files = 1000;
        let distant = Distant::new(files, open_flags, &[]);
        let fetched = distant.fetched(&shuffled(0..files));
        // The scan of the tar has left its reads in a copy.
        let least = if open_flags == CACHED { 0.94 } else { 0.8 };
        assert!((least..=1.1).contains(&fetched), "{open_flags:?}: {fetched}");
        let counts = readahead(&distant.mounted);
        assert_eq!(counts["state"], "complete", "{counts}");
        let total = files * MEMBER;
        let ahead = counts["fetched_bytes"].as_u64().unwrap();
        assert!((total / 4..=total + total / 10).contains(&ahead), "{counts}");
        assert!(counts["used_bytes"].as_u64().unwrap() >= ahead / 10 * 9, "{counts}");
    }
}

#[test]
fn a_job_that_reads_one_class_fetches_nothing_else() {
    if skip_without_mounts() {
        return;
    }
    let _idle_pages_stay = IdlePagesStay::new();
    let distant = Distant::new(100 * CLASS, CACHED, &[]);
    let fetched = distant.fetched(&shuffled(37 * CLASS..38 * CLASS));
    assert!(fetched <= 1.02, "{fetched}");
    let counts = readahead(&distant.mounted);
    assert_eq!(counts["state"], "active", "{counts}");
    assert!(counts["fetched_bytes"].as_u64().unwrap() > CLASS * FILE / 4, "{counts}");
}

#[test]
fn a_job_that_reads_a_tenth_at_random_fetches_at_most_three_times_that() {
    if skip_without_mounts() {
        return;
    }
    let _idle_pages_stay = IdlePagesStay::new();
    let files = 20_000;
    let distant = Distant::new(files, CACHED, &[]);
    let fetched = distant.fetched(&shuffled(0..files)[..files as usize / 10]);
    assert!((1.5..=3.0).contains(&fetched), "{fetched}");
}

#[test]
fn without_readahead_only_what_programs_read_is_fetched() {
    if skip_without_mounts() {
        return;
    }
    let _idle_pages_stay = IdlePagesStay::new();
    let distant = Distant::new(1000, CACHED, &["--readahead=off"]);
    let fetched = distant.fetched(&shuffled(0..500));
    assert!(fetched <= 1.05, "{fetched}");
    assert_eq!(readahead(&distant.mounted)["state"], "off");
}

#[test]
fn all_of_an_archive_is_read_without_a_reader() {
    if skip_without_mounts() {
        return;
    }
    let _idle_pages_stay = IdlePagesStay::new();
    for open_flags in [CACHED, UNCACHED] {
        let distant = Distant::new(1000, open_flags, &["--readahead=all"]);
        wait_until("all is read", || readahead(&distant.mounted)["state"] == "complete");
        let before = distant.storage.bytes();
        assert!(before >= 1000 * MEMBER, "{before}");
        read(distant.mounted.path(), &shuffled(0..1000));
        assert_eq!(distant.storage.bytes(), before, "{open_flags:?}");
    }
}

/// An archive that is in memory is not read once more.
#[test]
fn where_no_program_waits_nothing_is_read_ahead() {
    if skip_without_mounts() {
        return;
    }
    let _idle_pages_stay = IdlePagesStay::new();
    let work = work_directory();
    let archive = archive(work.path(), 1000);
    fs::read(&archive).unwrap();
    let mounted = Mounted::archfs(&archive, &work.path().join("mount"), &[]);
    read(mounted.path(), &shuffled(0..200));
    let counts = readahead(&mounted);
    assert_eq!(counts["fetched_bytes"], 0, "{counts}");
}

/// Some network file systems switch the kernel's readahead off, and with it all advice.
#[test]
fn a_file_is_read_ahead_in_order_where_the_kernel_does_not() {
    if skip_without_mounts() {
        return;
    }
    let _idle_pages_stay = IdlePagesStay::new();
    for open_flags in [CACHED, UNCACHED] {
        let work = work_directory();
        let path = work.path().join("one.tar");
        let len = 64_u64 << 20;
        let out = File::create(&path).unwrap();
        out.write_all_at(&tar::header("large", b'0', "", len), 0).unwrap();
        out.set_len(512 + len + 1024).unwrap();
        let storage = Faulty::distant(&path, &work.path().join("far"), LATENCY, open_flags);
        let device = fs::metadata(storage.file()).unwrap().dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let readahead = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        if let Err(error) = fs::write(&readahead, "0") {
            return skip(&format!("{readahead}: {error}"));
        }
        let mounted = Mounted::archfs(storage.file(), &work.path().join("mount"), &[]);
        let mut dd = Command::new("dd");
        dd.args(["bs=128K", "status=none", "of=/dev/null"]);
        run(dd.arg(format!("if={}", mounted.path().join("large").display())));
        let most = storage.most_in_flight();
        // dd alone would read one after the other.
        assert!(most >= 2, "{open_flags:?}: {most} reads at once");
        assert!(storage.bytes() <= len + (4 << 20), "{}", storage.bytes());
    }
}
