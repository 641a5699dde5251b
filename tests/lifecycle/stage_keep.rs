//! `--stage-keep`: copies that stay for the next mount.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::mount::{CleanUp, listed, unmount};
use crate::support::stage::said;
use crate::support::stale::one_at_a_time;
use crate::support::{archfs, run, skip_without_mounts, source, tar, wait_until, work_directory};
use crate::test_server::{Reply, TestServer};

/// A server that counts what it sends, and takes its time.
struct SlowServer {
    server: TestServer,
    bytes: Arc<AtomicU64>,
    version: Arc<AtomicU64>,
}

impl SlowServer {
    /// Serves the files of `directory`.
    fn start(directory: &Path) -> Self {
        let (bytes, version) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)));
        let (sent, now, directory) =
            (Arc::clone(&bytes), Arc::clone(&version), directory.to_owned());
        let server = TestServer::start(move |request| {
            thread::sleep(Duration::from_millis(3));
            let Ok(file) = fs::read(directory.join(request.path.trim_start_matches('/'))) else {
                return Reply::status(404);
            };
            let etag = format!("\"{}\"", now.load(Ordering::Relaxed));
            let reply = Reply::part(request, &file).with("ETag", &etag);
            sent.fetch_add(reply.body.len() as u64, Ordering::Relaxed);
            reply
        });
        Self { server, bytes, version }
    }

    fn url(&self, name: &str) -> String {
        self.server.url(&format!("/{name}"))
    }

    /// Bytes that it has sent.
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Makes the files another version, with the same bytes.
    fn set_version(&self, version: u64) {
        self.version.store(version, Ordering::Relaxed);
    }
}

/// An archive at a URL, and a directory for copies on a disk.
struct Work {
    mount_point: PathBuf,
    disk: PathBuf,
    tree: PathBuf,
    server: SlowServer,
    // In this order: unmounted before the directory is removed.
    _clean_up: CleanUp,
    directory: tempfile::TempDir,
}

impl Work {
    fn new() -> Self {
        let directory = work_directory();
        let work = directory.path();
        let (mount_point, disk, tree) = (work.join("mount"), work.join("disk"), work.join("tree"));
        fs::create_dir(&disk).unwrap();
        fs::create_dir(&tree).unwrap();
        for number in 0..60 {
            let bytes = source::noise(number, 50_000 + 1000 * number as usize);
            fs::write(tree.join(number.to_string()), bytes).unwrap();
        }
        tar::pack(&work.join("data.tar"), &tree);
        let server = SlowServer::start(work);
        Self { _clean_up: CleanUp(mount_point.clone()), mount_point, disk, tree, server, directory }
    }

    fn mount(&self, options: &[&str]) -> Output {
        let stage = format!("--stage={}", self.disk.display());
        let mut command = archfs();
        command.env("XDG_CACHE_HOME", self.directory.path().join("cache"));
        command.args(["mount", "--keep", "-v", &stage]).args(options);
        run(command.arg(self.server.url("data.tar")).arg(&self.mount_point))
    }

    fn unmount(&self) {
        unmount(&self.mount_point);
    }

    /// Waits until the copy is complete.
    fn fill(&self) {
        wait_until("it is complete", || {
            let staged = listed(&self.mount_point).unwrap()["staged"].clone();
            staged["copied_bytes"] == staged["total_bytes"]
        });
    }

    fn assert_same(&self) {
        run(Command::new("diff").arg("-r").arg(&self.tree).arg(&self.mount_point));
    }

    /// The file with the bytes of the copy.
    fn copy(&self) -> PathBuf {
        let all = fs::read_dir(self.directory_of_copies()).unwrap().map(|it| it.unwrap().path());
        let copies: Vec<_> = all.filter(|path| path.extension().is_none()).collect();
        assert_eq!(copies.len(), 1);
        copies[0].clone()
    }

    fn directory_of_copies(&self) -> PathBuf {
        let uid = rustix::process::geteuid().as_raw();
        self.disk.join(format!("archfs-stage-{uid}"))
    }

    fn is_empty(directory: &Path) -> bool {
        fs::read_dir(directory).unwrap().next().is_none()
    }
}

#[test]
fn the_next_mount_fetches_only_what_is_missing_or_damaged() {
    let _one = one_at_a_time();
    if skip_without_mounts() {
        return;
    }
    let work = Work::new();
    work.mount(&["--stage-keep=1G"]);
    work.fill();
    work.assert_same();
    work.unmount();
    let (directory, copy) = (work.directory_of_copies(), work.copy());
    assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
    assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    // The first byte is asked for at each opening.
    let fetched = || {
        let before = work.server.bytes();
        work.mount(&["--stage-keep=1G"]);
        work.fill();
        work.assert_same();
        work.unmount();
        work.server.bytes() - before
    };
    assert_eq!(fetched(), 1);
    // A bit, and a hole.
    let file = OpenOptions::new().read(true).write(true).open(&copy).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1_000_000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 1_000_000).unwrap();
    assert_eq!(fetched(), 1 + (16 << 10));
    file.set_len(file.metadata().unwrap().size() - 100_000).unwrap();
    let missing = fetched();
    // The end of a tar is zeros, as a hole is.
    assert!((80_000..4_000_000).contains(&missing), "{missing}");
    assert_eq!(fetched(), 1);
    // Another version is another copy.
    work.server.set_version(2);
    assert!(fetched() > 4_000_000);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 4);
    run(archfs().args(["gc", "--stage"]).arg(&work.disk));
    assert!(Work::is_empty(&work.disk));
}

#[test]
fn a_copy_is_free_when_run_returns() {
    if skip_without_mounts() {
        return;
    }
    let work = Work::new();
    let stage = format!("--stage={}", work.disk.display());
    let mut fetched = 0;
    for round in 0..8 {
        let mut command = archfs();
        command.env("XDG_CACHE_HOME", work.directory.path().join("cache"));
        command.args(["run", "--stage-wait", "--stage-keep=1G", &stage]);
        command.arg(work.server.url("data.tar")).arg(&work.mount_point);
        run(command.args(["--", "cat"]).arg(work.mount_point.join("7")));
        if round > 0 {
            // Only the beginning is asked for, to compare it.
            let more = work.server.bytes() - fetched;
            assert!(more < 1 << 20, "round {round}: {more} bytes");
        }
        fetched = work.server.bytes();
        work.copy();
    }
}

#[test]
fn a_copy_in_use_stays_and_the_oldest_makes_room() {
    let _one = one_at_a_time();
    if skip_without_mounts() {
        return;
    }
    let work = Work::new();
    work.mount(&["--stage-keep=1G"]);
    work.fill();
    let second = work.directory.path().join("second");
    let _clean_up = CleanUp(second.clone());
    let stage = format!("--stage={}", work.disk.display());
    let mut command = archfs();
    command.args(["mount", "--keep", "-v", &stage, "--stage-keep=1G"]);
    let output = run(command.arg(work.server.url("data.tar")).arg(&second));
    assert!(said(&output).contains("another mount uses the copy"), "{}", said(&output));
    let gc = run(archfs().args(["gc", "--stage"]).arg(&work.disk));
    assert!(said(&gc).contains("1 copy in use"), "{}", said(&gc));
    unmount(&second);
    work.unmount();
    work.copy();
    // Less than the archive.
    work.server.set_version(2);
    let output = work.mount(&["--stage-keep=1M"]);
    assert!(said(&output).contains("the copy is removed with the mount"), "{}", said(&output));
    work.unmount();
    work.copy();
    work.server.set_version(3);
    let size = fs::metadata(work.directory.path().join("data.tar")).unwrap().size();
    work.mount(&[&format!("--stage-keep={}", size + 100_000)]);
    work.fill();
    work.unmount();
    work.copy();
    // Another user has taken the name.
    run(archfs().args(["gc", "--stage"]).arg(&work.disk));
    std::os::unix::fs::symlink("/", work.directory_of_copies()).unwrap();
    let output = work.mount(&["--stage-keep=1G"]);
    assert!(said(&output).contains("not a directory that only you can enter"), "{}", said(&output));
    work.unmount();
    fs::remove_file(work.directory_of_copies()).unwrap();
    assert!(Work::is_empty(&work.disk));
}

#[test]
fn a_copy_that_cannot_stay_leaves_nothing_behind() {
    if skip_without_mounts() {
        return;
    }
    let work = Work::new();
    let output = work.mount(&["--stage-keep=1M"]);
    assert!(said(&output).contains("the copy is removed with the mount"), "{}", said(&output));
    assert!(Work::is_empty(&work.disk));
    work.unmount();
    // Other users could exchange the directory of the copies.
    fs::set_permissions(&work.disk, PermissionsExt::from_mode(0o777)).unwrap();
    let output = work.mount(&["--stage-keep=1G"]);
    assert!(said(&output).contains("other users can replace"), "{}", said(&output));
    assert!(Work::is_empty(&work.disk));
    work.unmount();
    fs::set_permissions(&work.disk, PermissionsExt::from_mode(0o1777)).unwrap();
    work.mount(&["--stage-keep=1G"]);
    work.unmount();
    work.copy();
}

/// 100 rounds with ARCHFS_LONG_TESTS.
#[test]
fn after_a_kill_at_any_moment_no_wrong_byte_is_believed() {
    let _one = one_at_a_time();
    if skip_without_mounts() {
        return;
    }
    let work = Work::new();
    let rounds = if std::env::var_os("ARCHFS_LONG_TESTS").is_some() { 100 } else { 12 };
    let mut resumed = 0;
    for round in 0..rounds {
        let before = work.server.bytes();
        work.mount(&["--stage-keep=1G"]);
        let pid = listed(&work.mount_point).unwrap()["daemon"].to_string();
        // From the first bytes to some time after the last.
        thread::sleep(Duration::from_micros(round * round * 7919 % 60_000));
        run(Command::new("kill").args(["-9", &pid]));
        run(archfs().arg("unmount").arg(&work.mount_point));
        if round % 4 == 3 {
            // What no checksum is for must not be believed: part of it is overwritten.
            let copy = File::options().write(true).open(work.copy()).unwrap();
            copy.write_all_at(&[round as u8; 5000], 100_000 * round % 4_000_000).unwrap();
        }
        let after = work.server.bytes();
        work.mount(&["--stage-keep=1G"]);
        work.assert_same();
        work.fill();
        work.assert_same();
        work.unmount();
        let all = fs::metadata(work.directory.path().join("data.tar")).unwrap().size();
        resumed += u64::from(after - before > 100_000 && work.server.bytes() - after < all);
        run(archfs().args(["gc", "--quiet", "--stage"]).arg(&work.disk));
        assert!(Work::is_empty(&work.disk));
    }
    assert!(resumed > 0, "no copy was continued");
}
