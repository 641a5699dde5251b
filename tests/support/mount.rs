//! Mounts of archfs and of the kernel's SquashFS that are unmounted when a test ends, however it
//! ends.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{archfs, run};

/// A mount. Dropping it unmounts it.
pub struct Mounted {
    mount_point: PathBuf,
    how: How,
}

enum How {
    Archfs,
    Kernel,
}

impl Mounted {
    /// Runs `archfs mount --keep OPTIONS image mount_point`.
    pub fn archfs(image: &Path, mount_point: &Path, options: &[&str]) -> Self {
        run(archfs()
            .args(["mount", "--keep", "--quiet"])
            .args(options)
            .arg(image)
            .arg(mount_point));
        let mounted = Self { mount_point: mount_point.to_owned(), how: How::Archfs };
        check_direct_reads(&[image.to_owned()], options);
        mounted
    }

    /// The same for several archives, with an optional command prefix.
    pub fn several(
        before: &[&str],
        archives: &[PathBuf],
        mount_point: &Path,
        options: &[&str],
    ) -> Self {
        let words = before.iter().copied().chain([env!("CARGO_BIN_EXE_archfs")]);
        let words: Vec<_> = words.chain(["mount", "--keep", "--quiet"]).collect();
        run(Command::new(words[0]).args(&words[1..]).args(options).args(archives).arg(mount_point));
        let mounted = Self { mount_point: mount_point.to_owned(), how: How::Archfs };
        if before.is_empty() {
            check_direct_reads(archives, options);
        }
        mounted
    }

    /// The PID of the daemon.
    pub fn daemon(&self) -> u32 {
        daemon_of(&self.mount_point).expect("a daemon serves the mount").try_into().unwrap()
    }

    /// Mounts the image with the kernel's SquashFS on a loop device, or returns why that fails.
    pub fn kernel(image: &Path, mount_point: &Path) -> Result<Self, String> {
        fs::create_dir_all(mount_point).unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", "squashfs", "-o", "loop,ro"]).arg(image).arg(mount_point);
        let output = command.output().unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(Self { mount_point: mount_point.to_owned(), how: How::Kernel })
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.mount_point
    }
}

/// If ARCHFS_TEST_DIRECT names a file, reads everything by `run --direct`, which compares each
/// direct read with a mount of its own, and appends the number of direct reads to that file. So
/// all tests that read a mount also show that its archives can be read directly.
fn check_direct_reads(archives: &[PathBuf], options: &[&str]) {
    let Some(counts) = std::env::var_os("ARCHFS_TEST_DIRECT") else { return };
    let read_all = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/direct/read-all");
    let work = super::work_directory();
    let (mount_point, stats) = (work.path().join("mount"), work.path().join("stats"));
    let mut command = archfs();
    command.args(["run", "--direct", "--quiet", "--stats-json"]).arg(&stats);
    command.args(options).args(archives).arg(&mount_point);
    run(command.arg("--").arg(read_all).arg(&mount_point).env("ARCHFS_DIRECT", "check"));
    let stats: serde_json::Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
    let line = format!("{}\n", stats["direct_reads"].as_u64().unwrap());
    let mut counts = fs::File::options().append(true).open(counts).unwrap();
    counts.write_all(line.as_bytes()).unwrap();
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let quiet = |command: &mut Command| {
            command
                .arg(&self.mount_point)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .unwrap()
        };
        let done = match self.how {
            How::Archfs => {
                let limit = Duration::from_secs(if thread::panicking() { 0 } else { 2 });
                try_unmount(archfs().arg("unmount").arg(&self.mount_point), limit).is_ok()
            }
            How::Kernel => quiet(&mut Command::new("umount")).success(),
        };
        if !done && is_mounted(&self.mount_point) {
            // A failing test may still have files open.
            unmount_lazily(&self.mount_point);
        }
    }
}

/// Runs `archfs unmount`, which must succeed.
pub fn unmount(mount_point: &Path) {
    unmount_by(archfs().arg("unmount").arg(mount_point));
}

/// The same with a custom command.
pub fn unmount_by(command: &mut Command) {
    try_unmount(command, Duration::from_secs(10)).unwrap();
}

/// Retries `archfs unmount` for up to `limit` while it reports the mount in use. A test that forks
/// shares this process's open files with its child until the child calls exec.
fn try_unmount(command: &mut Command, limit: Duration) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    loop {
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let is_in_use = output.status.code() == Some(1) && stderr.contains(": in use");
        if output.status.success() {
            return Ok(());
        }
        if !is_in_use || Instant::now() >= deadline {
            return Err(format!("{command:?}: {}\n{stderr}", output.status));
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Detaches a mount even if files on it are open. Returns whether that worked.
fn unmount_lazily(mount_point: &Path) -> bool {
    let words: &[&str] = match rustix::process::geteuid().is_root() {
        true => &["umount", "-l"],
        false => &["fusermount3", "-u", "-z"],
    };
    let done = Command::new(words[0]).args(&words[1..]).arg(mount_point).status();
    done.is_ok_and(|status| status.success())
}

/// Unmounts `mount_point` when dropped, if it is mounted; for tests of `mount` itself.
pub struct CleanUp(pub PathBuf);

impl Drop for CleanUp {
    fn drop(&mut self) {
        while is_mounted(&self.0) {
            if !unmount_lazily(&self.0) {
                break;
            }
        }
    }
}

/// The entry of `archfs list --json` for the mount at `mount_point`.
pub fn listed(mount_point: &Path) -> Option<serde_json::Value> {
    let parent = fs::canonicalize(mount_point.parent()?).ok()?;
    let mount_point = parent.join(mount_point.file_name()?);
    let output = run(archfs().args(["list", "--json"]));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .find(|row| row["mountpoint"] == mount_point.to_str().unwrap())
}

/// The PID of the daemon of the mount at `mount_point`.
pub fn daemon_of(mount_point: &Path) -> Option<i32> {
    listed(mount_point)?["daemon"].as_i64()?.try_into().ok()
}

/// Whether `mount_point` is a mount point, including of a stale mount.
pub fn is_mounted(mount_point: &Path) -> bool {
    kind_of_mount(mount_point).is_some()
}

/// The file system type at `mount_point`. Only for paths that mountinfo does not escape.
pub fn kind_of_mount(mount_point: &Path) -> Option<String> {
    let parent = mount_point.parent().and_then(|parent| fs::canonicalize(parent).ok())?;
    let mount_point = parent.join(mount_point.file_name()?);
    let text = fs::read("/proc/thread-self/mountinfo").unwrap();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines()
        .filter(|line| line.split(' ').nth(4).is_some_and(|found| Path::new(found) == mount_point))
        .filter_map(|line| line.split(" - ").nth(1)?.split(' ').next())
        .next_back()
        .map(str::to_owned)
}
