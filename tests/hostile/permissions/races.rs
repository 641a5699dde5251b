//! Paths that an attacker swaps while archfs mounts or unmounts.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::{OTHER, scene};
use crate::support::mount::CleanUp;
use crate::support::stage::Stage;
use crate::support::user::User;
use crate::support::{archfs, run};

/// How long each loop runs.
const TIME: Duration = Duration::from_secs(3);

/// A user who swaps a directory with a symbolic link as fast as possible.
struct Swapper(Child);

impl Swapper {
    fn start(user: &User, directory: &Path, trap: &Path) -> Self {
        // renameat2(2) with RENAME_EXCHANGE, so that the name always exists.
        let script = "import ctypes, os, sys\nname, trap = map(os.fsencode, sys.argv[1:])\n\
                      link = name + b'.link'\nos.symlink(trap, link)\n\
                      swap = ctypes.CDLL(None).renameat2\n\
                      while True: swap(-100, name, -100, link, 2)\n";
        let script = format!("exec /usr/bin/python3 -c \"{script}\" \"$1\" \"$2\"");
        let mut command = user.bash(&script);
        command.arg("bash").arg(directory).arg(trap).stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The mount points below `directory`.
fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    // Another test has a mount point that is not UTF-8.
    let text = fs::read("/proc/thread-self/mountinfo").unwrap();
    let text = String::from_utf8_lossy(&text);
    let mount_points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    mount_points.filter(|mount_point| mount_point.starts_with(directory)).collect()
}

/// Mounts and unmounts at `mount_point` repeatedly, and checks `trap` after each step.
fn play(stage: &Stage, mount_point: &Path, trap: &Path) -> (usize, usize) {
    let number = fs::metadata(trap).unwrap().ino();
    let (mut mounted, mut refused) = (0, 0);
    let until = Instant::now() + TIME;
    while Instant::now() < until {
        let line = "timeout 20 $ARCHFS mount -q --keep --threads 1 $IMAGE \"$MOUNT_POINT\"";
        for line in [line, "timeout 20 $ARCHFS unmount --lazy \"$MOUNT_POINT\""] {
            let mut command = stage.bash(line);
            let output = command.env("MOUNT_POINT", mount_point).output().unwrap();
            match output.status.success() {
                true => mounted += 1,
                false => refused += 1,
            }
            assert!(matches!(output.status.code(), Some(0 | 1 | 4 | 5)), "{output:?}");
            assert!(!mounts_below(trap).iter().any(|_| true), "it was mounted over");
            assert_eq!(fs::metadata(trap).unwrap().ino(), number, "it was removed");
        }
    }
    (mounted, refused)
}

/// Cleans up after a lost race and checks that this works.
fn clear(stage: &Stage) {
    for mount_point in mounts_below(stage.work.path()) {
        let _ = archfs().args(["unmount", "--lazy"]).arg(mount_point).output();
    }
    run(archfs().args(["gc", "-q"]));
    assert_eq!(mounts_below(stage.work.path()), Vec::<PathBuf>::new());
}

/// > Root opens the parent directory once, without following links, and mounts, unmounts and
/// > removes from there. A swapped directory or link can make that fail, but cannot redirect it.
#[test]
fn swapping_the_mount_point_for_a_link_never_redirects_root() {
    let Some(scene) = scene() else { return };
    let directory = scene.directory_of(OTHER, "theirs", 0o755);
    let (mount_point, trap) = (directory.join("point"), scene.stage.work.path().join("trap"));
    let _clean_up =
        [&trap, &mount_point, &directory.join("point.link")].map(|path| CleanUp(path.clone()));
    for made in [&mount_point, &trap] {
        fs::create_dir(made).unwrap();
    }
    std::os::unix::fs::chown(&mount_point, Some(OTHER), Some(OTHER)).unwrap();
    let swapper = Swapper::start(&scene.other, &mount_point, &trap);
    let (mounted, refused) = play(&scene.stage, &mount_point, &trap);
    drop(swapper);
    println!("mounted or unmounted {mounted} times, refused {refused} times");
    assert!(mounted > 0 && refused > 0, "{mounted} {refused}");
    clear(&scene.stage);
}
