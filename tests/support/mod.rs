//! What all tests share: source trees, images of them, mounts that always go, snapshots of both.
//!
//! Owns the rule on skipping: a test that cannot mount reports that, and fails where CI is set.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its own part of this")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::fs::Access;
use skip::skip;

pub mod cgroup;
pub mod faulty;
pub mod image;
pub mod kernel;
pub mod mount;
pub mod node;
pub mod pack;
pub mod page_cache;
pub mod relay;
pub mod skip;
pub mod snapshot;
pub mod source;
pub mod stage;
pub mod tar;
pub mod tree;
pub mod turn;
pub mod user;

/// The program under test.
pub fn archfs() -> Command {
    Command::new(env!("CARGO_BIN_EXE_archfs"))
}

/// Where trees that take long to make are kept from run to run.
pub fn cache_directory() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// A directory of this test alone, removed at its end.
pub fn work_directory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("archfs-test-").tempdir().expect("a temporary directory")
}

/// Whether this machine lets tests mount as root. If not, the test is reported as skipped; with CI
/// set it fails.
pub fn can_mount() -> bool {
    turn::take();
    let is_root = rustix::process::geteuid().is_root();
    let has_device = Path::new("/dev/fuse").exists();
    if is_root && has_device {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "CI must mount: needs root and /dev/fuse");
    skip("mounting needs root and /dev/fuse");
    false
}

/// Whether the user who runs the tests can mount: an ordinary user does so through fusermount3. If
/// not, the test is reported as skipped; with CI set it fails.
pub fn can_mount_as_user() -> bool {
    turn::take();
    if rustix::process::geteuid().is_root() {
        return can_mount();
    }
    let device = rustix::fs::access("/dev/fuse", Access::READ_OK | Access::WRITE_OK);
    let helper = Command::new("fusermount3").arg("--version").output();
    let reason = match (device, helper) {
        (Ok(()), Ok(_)) => return true,
        (Err(error), _) => format!("mounting needs /dev/fuse: {error}"),
        (_, Err(error)) => format!("mounting as a user needs fusermount3: {error}"),
    };
    assert!(std::env::var_os("CI").is_none(), "CI must mount: {reason}");
    skip(&reason);
    false
}

/// Copies the program to `copy`. `cp` does it, because a child forked by another test would inherit
/// a descriptor open for writing, and executing the copy would fail ("Text file busy").
pub fn copy_program(copy: &Path) {
    run(Command::new("cp").arg(env!("CARGO_BIN_EXE_archfs")).arg(copy));
}

/// Runs `command`, which must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Waits until `condition` holds, at most half a minute: tests run beside each other, and on busy
/// machines. What is waited for needs the processors, too.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "waited half a minute until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
