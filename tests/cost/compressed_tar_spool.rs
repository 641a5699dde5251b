//! Compressed tars of one giant frame or block, which are decoded once into a temporary file.
//!
//! The file is unlinked, private, limited and gone after the unmount. Mounts can be used and
//! unmounted while it still grows.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::cgroup::{Bound, Group};
use crate::support::mount::{CleanUp, is_mounted, unmount_by};
use crate::support::{archfs, pack, run, skip_without_mounts, source, wait_until, work_directory};

/// Number of files in the giant tar, and bytes of each.
const FILES: u64 = 25;
const FILE: usize = 8 << 20;

/// Contents of a file: repeated noise, so that it compresses well and each position differs from
/// its neighbors.
fn contents(number: u64) -> Vec<u8> {
    source::noise(number + 1, 64 << 10).repeat(FILE / (64 << 10))
}

/// A tar of 200 MiB in one frame or block, made once for all runs.
fn giant(program: &str) -> Option<PathBuf> {
    if skip_without_mounts() || !pack::is_there(program) {
        return None;
    }
    let line = match program {
        "xz" => "xz -0 -T1 -c",
        _ => "zstd -q -1 --single-thread -c",
    };
    Some(source::made_file(&format!("giant.tar.{program}"), |target| {
        let work = work_directory();
        for number in 0..FILES {
            fs::write(work.path().join(format!("f{number:02}")), contents(number)).unwrap();
        }
        let mut shell = Command::new("bash");
        let script = format!("tar -C $1 --sort=name -cf - . | {line} > $2");
        run(shell.args(["-ec", &script, "bash"]).arg(work.path()).arg(target));
    }))
}

/// A foreground mount with its own TMPDIR and cache directory.
struct Stage {
    archive: PathBuf,
    mount_point: PathBuf,
    temporary: PathBuf,
    _clean_up: CleanUp,
    work: tempfile::TempDir,
}

/// A daemon; killed when a test fails.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn stage(program: &str) -> Option<Stage> {
    let giant = giant(program)?;
    let work = work_directory();
    let archive = work.path().join("giant.tar.compressed");
    fs::hard_link(&giant, &archive).or_else(|_| fs::copy(&giant, &archive).map(|_| ())).unwrap();
    let temporary = work.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    let mount_point = work.path().join("mount");
    Some(Stage { archive, _clean_up: CleanUp(mount_point.clone()), mount_point, temporary, work })
}

impl Stage {
    fn archfs(&self) -> Command {
        let mut command = archfs();
        command.env("TMPDIR", &self.temporary).env("ARCHFS_CACHE", "64M");
        command
    }

    /// Mounts and waits until files can be read.
    fn mount(&self) -> Daemon {
        let mut command = self.archfs();
        command.args(["mount", "--foreground", "--ready-fd", "1"]).arg(&self.archive);
        command.arg(&self.mount_point).stdout(Stdio::piped());
        command.stderr(File::create(self.work.path().join("said")).unwrap());
        let mut daemon = Daemon(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(daemon.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{}", self.said());
        daemon
    }

    fn said(&self) -> String {
        fs::read_to_string(self.work.path().join("said")).unwrap()
    }

    fn unmount(&self, daemon: &mut Daemon) {
        unmount_by(self.archfs().arg("unmount").arg(&self.mount_point));
        assert!(daemon.0.wait().unwrap().success());
        assert!(!is_mounted(&self.mount_point));
    }

    fn index(&self) -> PathBuf {
        self.work.path().join("giant.tar.compressed.archfs-index")
    }

    fn assert_file(&self, number: u64) {
        let found = fs::read(self.mount_point.join(format!("f{number:02}"))).unwrap();
        assert!(found == contents(number), "f{number:02} has other bytes");
    }

    fn failed(&self) -> Output {
        let output = self.archfs().arg("mount").arg(&self.archive).arg(&self.mount_point).output();
        let output = output.unwrap();
        assert!(!output.status.success() && !is_mounted(&self.mount_point));
        output
    }
}

/// Deleted files below `directory` that the daemon has open: mode and size.
fn deleted_files(daemon: &Daemon, directory: &Path) -> Vec<(u32, u64)> {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", daemon.0.id())).unwrap();
    let paths = descriptors.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| {
            fs::read_link(path).is_ok_and(|target| {
                let target = target.to_string_lossy().into_owned();
                target.starts_with(&*directory.to_string_lossy()) && target.ends_with(" (deleted)")
            })
        })
        .map(|path| fs::metadata(path).map(|found| (found.mode() & 0o7777, found.len())).unwrap())
        .collect()
}

#[test]
fn a_giant_frame_is_reported_once_and_kept_in_a_private_unlinked_file() {
    for program in ["zstd", "xz"] {
        let Some(stage) = stage(program) else { continue };
        let tmpfs = Tmpfs::new(&stage.temporary, "600m");
        let mut daemon = stage.mount();
        let stderr = stage.said();
        assert_eq!(stderr.matches("re-pack it for random access").count(), 1, "{stderr}");
        let labels = ["archfs: warning: ", "archfs: hint: "];
        assert_eq!(stderr.lines().count(), labels.len(), "{stderr}");
        assert!(
            stderr.lines().zip(labels).all(|(line, label)| line.starts_with(label)),
            "{stderr}"
        );
        assert_eq!(fs::read_dir(&stage.temporary).unwrap().count(), 0, "a name in TMPDIR");
        let files = deleted_files(&daemon, &stage.temporary);
        assert!(
            matches!(files.as_slice(), [(0o600, size)] if *size >= FILES * FILE as u64),
            "{files:?}"
        );
        for number in [FILES - 1, 0, 13] {
            stage.assert_file(number);
        }
        assert!(tmpfs.used() >= FILES * FILE as u64);
        stage.unmount(&mut daemon);
        assert_eq!(tmpfs.used(), 0, "the space was not given back");
    }
}

#[test]
fn the_temporary_file_is_gone_when_the_daemon_is_killed() {
    let Some(stage) = stage("zstd") else { return };
    let tmpfs = Tmpfs::new(&stage.temporary, "600m");
    let mut daemon = stage.mount();
    assert!(tmpfs.used() >= FILES * FILE as u64);
    kill_process(Pid::from_child(&daemon.0), Signal::KILL).unwrap();
    daemon.0.wait().unwrap();
    assert_eq!(fs::read_dir(&stage.temporary).unwrap().count(), 0);
    wait_until("the space is given back", || tmpfs.used() == 0);
    unmount_by(stage.archfs().arg("unmount").arg(&stage.mount_point));
}

#[test]
fn too_little_room_is_reported_with_the_limit_and_nothing_is_mounted() {
    let Some(stage) = stage("zstd") else { return };
    let _tmpfs = Tmpfs::new(&stage.temporary, "64m");
    let assert_refused = |when: &str| {
        let output = stage.failed();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{when}: {stderr}");
        let limit = format!("more than {} bytes", 32 << 20);
        assert!(stderr.contains(&limit), "{when}: {stderr}");
        assert!(stderr.contains(&format!("{}", stage.temporary.display())), "{when}: {stderr}");
        assert!(stderr.contains("hint: set TMPDIR"), "{when}: {stderr}");
        assert_eq!(fs::read_dir(&stage.temporary).unwrap().count(), 0);
    };
    assert_refused("without an index");
    // With an index the size is known before decoding.
    let mut index = archfs();
    run(index.args(["index", "--quiet"]).arg(&stage.archive));
    assert_refused("with an index");
}

/// A small file system, removed when dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn new(mount_point: &Path, size: &str) -> Self {
        let mut mount = Command::new("mount");
        run(mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(mount_point));
        Self(mount_point.to_owned())
    }

    /// Bytes used by its files, named or unlinked.
    fn used(&self) -> u64 {
        let found = rustix::fs::statvfs(&self.0).unwrap();
        (found.f_blocks - found.f_bfree) * found.f_frsize
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// > All temporary files of a mount share one limit.
#[test]
fn giant_frames_share_one_size_limit() {
    let Some(stage) = stage("zstd") else { return };
    // Half of it is enough for one file of 200 MiB.
    let _tmpfs = Tmpfs::new(&stage.temporary, "600m");
    let other = stage.work.path().join("other.tar.compressed");
    fs::copy(&stage.archive, &other).unwrap();
    let output = stage
        .archfs()
        .arg("mount")
        .arg(&stage.archive)
        .arg(&other)
        .arg(&stage.mount_point)
        .output();
    let output = output.unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && !is_mounted(&stage.mount_point), "{stderr}");
    assert!(stderr.contains("half of what was free"), "{stderr}");
    assert!(stderr.contains("hint: set TMPDIR"), "{stderr}");
    let mut daemon = stage.mount();
    stage.assert_file(3);
    stage.unmount(&mut daemon);
}

/// > A temporary file in a tmpfs counts as memory of the job, as a staged copy does.
#[test]
fn a_temporary_file_in_memory_is_refused_if_the_job_has_no_room() {
    let Some(stage) = stage("zstd") else { return };
    let Some(group) = Group::new(Bound::Memory) else { return };
    group.set(192 << 20);
    let _tmpfs = Tmpfs::new(&stage.temporary, "600m");
    for is_indexed in [false, true] {
        if is_indexed {
            run(archfs().args(["index", "--quiet"]).arg(&stage.archive));
        }
        let line = format!(
            "TMPDIR={} {} mount {} {}",
            stage.temporary.display(),
            env!("CARGO_BIN_EXE_archfs"),
            stage.archive.display(),
            stage.mount_point.display()
        );
        let output = group.run(&line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(group.killed(), 0, "{stderr}");
        assert!(!output.status.success() && !is_mounted(&stage.mount_point), "{stderr}");
        assert!(stderr.contains("of memory") && stderr.contains("is in memory"), "{stderr}");
        assert!(stderr.contains("the limit of the job leaves"), "{stderr}");
    }
}

#[test]
fn a_saved_index_mounts_before_decoding_is_done() {
    let Some(stage) = stage("xz") else { return };
    run(stage.archfs().args(["index", "--quiet"]).arg(&stage.archive));
    assert!(stage.index().exists());
    let mut daemon = stage.mount();
    let so_far = deleted_files(&daemon, &stage.temporary);
    assert!(
        matches!(so_far.as_slice(), [(0o600, size)] if *size < FILES * FILE as u64),
        "all was decoded before it was ready: {so_far:?}"
    );
    // The last file needs everything before it decoded.
    stage.assert_file(FILES - 1);
    stage.assert_file(0);
    stage.unmount(&mut daemon);
}

#[test]
fn unmounting_does_not_wait_for_decoding() {
    let Some(stage) = stage("xz") else { return };
    run(stage.archfs().args(["index", "--quiet"]).arg(&stage.archive));
    let mut daemon = stage.mount();
    stage.unmount(&mut daemon);

    // A signal does not wait either, while a reader waits for the last byte.
    let mut daemon = stage.mount();
    let last = File::open(stage.mount_point.join(format!("f{:02}", FILES - 1))).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || last.read_exact_at(&mut [0; 10], FILE as u64 - 10));
        kill_process(Pid::from_child(&daemon.0), Signal::TERM).unwrap();
        wait_until("the mount is gone", || !is_mounted(&stage.mount_point));
        // The read may succeed or fail, but must not hang.
        let _ = reader.join().unwrap();
    });
    daemon.0.wait().unwrap();
    assert_eq!(fs::read_dir(&stage.temporary).unwrap().count(), 0);
}

#[test]
fn the_temporary_directory_must_exist() {
    let Some(stage) = stage("zstd") else { return };
    fs::remove_dir(&stage.temporary).unwrap();
    let output = stage.failed();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&format!("{}", stage.temporary.display())), "{stderr}");
    assert!(stderr.contains("hint: set TMPDIR"), "{stderr}");
}
