//! Releasing memory (`Tree::release`, `--cache-idle`) returns it to the system and changes no byte
//! that is read later.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use archfs::formats::OpenOptions;
use archfs::stats::Stats;
use archfs::sync::Arc;
use archfs::vfs::{Cookie, FileKind, Ino, Scratch, Tree, View, ViewOptions};
use rustix::fs::{Advice, fadvise};
use serde_json::Value;

use crate::support::mount::Mounted;
use crate::support::{archfs, image, run, skip_without_mounts, tree, wait_until, work_directory};

/// Bytes that compress and differ in every page.
fn text(seed: usize, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 64);
    while bytes.len() < len {
        bytes.extend(
            format!("file {seed}, byte {}, and so on and on and on\n", bytes.len()).bytes(),
        );
    }
    bytes.truncate(len);
    bytes
}

/// Small files that share blocks, a file of several blocks, and a file whose block list has
/// checkpoints if blocks have 4 KiB.
fn source_directory(work: &Path) -> PathBuf {
    let directory = work.join("source");
    fs::create_dir_all(directory.join("sub")).unwrap();
    for number in 0..50 {
        fs::write(directory.join(format!("sub/{number}")), text(number, 2000)).unwrap();
    }
    fs::write(directory.join("some"), text(100, 900_000)).unwrap();
    fs::write(directory.join("many"), text(101, 10_000_000)).unwrap();
    directory
}

/// A tar of `directory`, made by a shell line.
fn compressed(directory: &Path, name: &str, line: &str) -> PathBuf {
    let target = directory.with_file_name(name);
    let mut shell = Command::new("sh");
    shell.args(["-ec", &format!("tar -C \"$1\" --sort=name -cf - . | {line} > \"$2\""), "sh"]);
    run(shell.arg(directory).arg(&target));
    target
}

/// Every kind of archive, and the options to open it.
fn archives(work: &Path) -> Vec<(&'static str, Vec<PathBuf>, bool)> {
    let directory = source_directory(work);
    let small = image::make(work, "small.sqfs", &directory, &["-comp", "gzip", "-b", "4096"]);
    let usual = image::make(work, "usual.sqfs", &directory, &["-comp", "zstd"]);
    let gzip = compressed(&directory, "source.tar.gz", "gzip -1 -c");
    let xz = compressed(&directory, "source.tar.xz", "xz -0 -T0 --block-size=1MiB -c");
    let outer = work.join("outer");
    fs::create_dir_all(&outer).unwrap();
    fs::copy(&usual, outer.join("inner.sqfs")).unwrap();
    fs::write(outer.join("beside"), text(200, 300_000)).unwrap();
    let nested = image::make(work, "nested.sqfs", &outer, &["-comp", "zstd"]);
    let nested_gzip = compressed(&outer, "nested.tar.gz", "gzip -1 -c");
    vec![
        ("an image", vec![usual.clone()], false),
        ("an image of small blocks", vec![small.clone()], false),
        ("a tar.gz", vec![gzip.clone()], false),
        ("a tar.xz", vec![xz.clone()], false),
        ("several", vec![small, xz, gzip, usual], false),
        ("an image in an image", vec![nested], true),
        ("an image in a tar.gz", vec![nested_gzip], true),
    ]
}

fn open(archives: &[PathBuf], recursive: bool) -> (Arc<dyn Tree>, Arc<Stats>) {
    let stats = Arc::new(Stats::default());
    let options = OpenOptions { recursive, stats: Arc::clone(&stats), ..OpenOptions::default() };
    (tree::open(archives, options).unwrap(), stats)
}

/// Memory of all caches in bytes: of metadata and of contents.
fn held(stats: &Stats) -> (u64, u64) {
    let totals = stats.totals();
    (totals.metadata.held_bytes, totals.data.held_bytes)
}

/// Reads a little at the start, middle and end of each file below `directory`, so that most decoded
/// blocks stay cached.
fn nibble(tree: &dyn Tree, directory: Ino, scratch: &mut Scratch) {
    let mut entries = Vec::new();
    let visit = &mut |entry: archfs::vfs::DirEntry<'_>| {
        entries.push((entry.ino, entry.kind));
        ControlFlow::Continue(())
    };
    tree.read_dir(directory, Cookie::START, visit).unwrap();
    for (ino, kind) in entries {
        if kind == FileKind::Directory {
            nibble(tree, ino, scratch);
            continue;
        }
        let size = tree.attr(ino).unwrap().size;
        for offset in [0, size / 2, size.saturating_sub(9)] {
            tree.read(ino, offset, 10, scratch).unwrap();
        }
    }
}

#[test]
fn reads_return_the_same_bytes_after_a_release() {
    let work = work_directory();
    for (what, archives, recursive) in archives(work.path()) {
        let (fresh, _) = open(&archives, recursive);
        let expected = tree::lines(&*fresh);
        assert!(expected.len() > 50, "{what}");
        let (tree, stats) = open(&archives, recursive);
        for _ in 0..2 {
            nibble(&*tree, Ino::ROOT, &mut Scratch::default());
            let (metadata, data) = held(&stats);
            assert!(data > 0 && (metadata > 0) != what.starts_with("a tar"), "{what}");
            // Blocks that are being decoded ahead may arrive after a release.
            wait_until("nothing is kept", || {
                tree.release();
                held(&stats) == (0, 0)
            });
            assert!(tree::lines(&*tree) == expected, "{what}");
        }
    }
}

#[test]
fn a_subdirectory_view_is_released_with_its_archive() {
    let work = work_directory();
    let directory = source_directory(work.path());
    let archive = image::make(work.path(), "data.sqfs", &directory, &["-comp", "zstd"]);
    let (whole, stats) = open(&[archive], false);
    let options = ViewOptions { subdir: Some(b"sub".to_vec()), ..ViewOptions::default() };
    let tree = View::apply(whole, &options).unwrap();
    nibble(&*tree, Ino::ROOT, &mut Scratch::default());
    assert!(held(&stats).1 > 0);
    tree.release();
    assert_eq!(held(&stats), (0, 0));
}

#[test]
fn a_release_does_not_disturb_readers() {
    let work = work_directory();
    for (what, archives, recursive) in archives(work.path()) {
        let (tree, _) = open(&archives, recursive);
        let expected = tree::lines(&*tree);
        thread::scope(|scope| {
            let readers: Vec<_> =
                (0..3).map(|_| scope.spawn(|| tree::lines(&*tree) == expected)).collect();
            while readers.iter().any(|reader| !reader.is_finished()) {
                tree.release();
                thread::yield_now();
            }
            for reader in readers {
                assert!(reader.join().unwrap(), "{what}");
            }
        });
    }
}

const BLOCK: usize = 128 << 10;
const BLOCKS: usize = 512;
const PAGE: usize = 4096;

/// A mount of a file with `BLOCKS` blocks that compress.
struct Stage {
    bytes: Vec<u8>,
    file: File,
    daemon: u32,
    mounted: Mounted,
    _work: tempfile::TempDir,
}

impl Stage {
    fn new() -> Option<Self> {
        if skip_without_mounts() {
            return None;
        }
        let work = work_directory();
        let directory = work.path().join("source");
        fs::create_dir(&directory).unwrap();
        let bytes = text(1, BLOCK * BLOCKS);
        fs::write(directory.join("file"), &bytes).unwrap();
        let archive = image::make(work.path(), "data.sqfs", &directory, &["-comp", "zstd"]);
        // Large enough that no shard of the cache evicts.
        let options = ["--cache", "1G", "--cache-idle", "1s"];
        let mounted = Mounted::archfs(&archive, &work.path().join("mount"), &options);
        let file = File::open(mounted.path().join("file")).unwrap();
        // The kernel requests only what is read here.
        fadvise(&file, 0, None, Advice::Random).unwrap();
        Some(Self { bytes, file, daemon: mounted.daemon(), mounted, _work: work })
    }

    /// Reads page `nth` of each block. A block that was read in part stays cached.
    fn read(&self, nth: usize) {
        let mut page = [0; PAGE];
        for block in 0..BLOCKS {
            let at = block * BLOCK + nth * PAGE;
            self.file.read_exact_at(&mut page, at as u64).unwrap();
            assert!(page == self.bytes[at..at + PAGE], "page {nth} of block {block}");
        }
    }

    /// Resident memory of the daemon, in bytes.
    fn resident(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    }

    /// A number from the statistics of the live mount.
    fn stat(&self, path: &[&str]) -> u64 {
        let output = run(archfs().args(["stats", "--json"]).arg(self.mounted.path()));
        let stats: Value = serde_json::from_slice(&output.stdout).unwrap();
        path.iter().fold(&stats, |value, name| &value[*name]).as_u64().unwrap()
    }
}

#[test]
fn an_idle_mount_returns_its_memory_and_stays_readable() {
    let Some(stage) = Stage::new() else { return };
    let decoded = BLOCK * BLOCKS;
    let start = stage.resident();
    let mut pages = 0..BLOCK / PAGE - 1;
    for times in 1..3 {
        // On a busy machine the mount may go without a request long enough to release memory during
        // this. The kernel does not request cached pages again, so each attempt reads other pages.
        let most = loop {
            stage.read(pages.next().expect("the memory is never that of all blocks"));
            let now = stage.resident();
            if now > start + decoded / 4 * 3 {
                break now;
            }
        };
        // Only the kernel is asked, because asking the daemon could count as a request.
        let deadline = Instant::now() + Duration::from_secs(60);
        while stage.resident() > start + decoded / 4 {
            assert!(Instant::now() < deadline, "{} bytes, {start} at first", stage.resident());
            thread::yield_now();
        }
        eprintln!("{start} bytes at first, {most} at most, {} when idle", stage.resident());
        // It is counted when memory is released, which the kernel may show earlier.
        wait_until("it is counted", || stage.stat(&["cache_releases"]) >= times);
    }
    stage.read(BLOCK / PAGE - 1);
}
