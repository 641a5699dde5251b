//! What all tests share: source trees, images of them, mounts that are always unmounted, snapshots
//! of both.
//!
//! A test that cannot mount is reported as skipped. With CI set it fails.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its own part of this")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::fs::Access;
use skip::skip;

pub mod cgroup;
pub mod faulty;
pub mod file_attr;
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
pub mod stale;
pub mod tar;
pub mod tree;
pub mod turn;
pub mod user;

/// The program under test.
pub fn archfs() -> Command {
    Command::new(env!("CARGO_BIN_EXE_archfs"))
}

/// The directory that keeps trees from run to run, because they take long to make.
pub fn cache_directory() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// Shell commands that give a mount namespace a /dev with few devices, without /dev/fuse. They need
/// a directory $WORK.
pub const HIDE_DEVICE: &str = "mkdir $WORK/dev; mount -t tmpfs none $WORK/dev; mkdir $WORK/dev/shm; chmod 1777 $WORK/dev/shm; \
     cp -a /dev/null /dev/zero /dev/urandom /dev/fd $WORK/dev; mount --move $WORK/dev /dev; rmdir $WORK/dev";

/// A private directory of this test, removed at its end.
pub fn work_directory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("archfs-test-").tempdir().expect("a temporary directory")
}

/// Returns true, and reports the test as skipped, if this machine does not let tests mount as root.
/// With CI set, the test fails instead.
pub fn skip_without_mounts() -> bool {
    turn::take();
    let is_root = rustix::process::geteuid().is_root();
    let has_device = Path::new("/dev/fuse").exists();
    if is_root && has_device {
        return false;
    }
    assert!(std::env::var_os("CI").is_none(), "CI must mount: needs root and /dev/fuse");
    skip("mounting needs root and /dev/fuse");
    true
}

/// Returns true, and reports the test as skipped, if the user who runs the tests cannot mount. An
/// ordinary user mounts through fusermount3. With CI set, the test fails instead.
pub fn skip_without_user_mounts() -> bool {
    turn::take();
    if rustix::process::geteuid().is_root() {
        return skip_without_mounts();
    }
    let device = rustix::fs::access("/dev/fuse", Access::READ_OK | Access::WRITE_OK);
    let helper = Command::new("fusermount3").arg("--version").output();
    let reason = match (device, helper) {
        (Ok(()), Ok(_)) => return false,
        (Err(error), _) => format!("mounting needs /dev/fuse: {error}"),
        (_, Err(error)) => format!("mounting as a user needs fusermount3: {error}"),
    };
    assert!(std::env::var_os("CI").is_none(), "CI must mount: {reason}");
    skip(&reason);
    true
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

/// Waits until `condition` holds, at most half a minute. Tests run beside each other and on busy
/// machines, and the processes they wait for also need CPU time.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "waited half a minute until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
