//! Acts as an ordinary user, with a system account that is otherwise unused.
//!
//! Opens /dev/fuse to all users and restores its mode. Tests share that device, so one test at a
//! time has users.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::fs::{FlockOperation, flock};

use super::mount::CleanUp;
use super::stage::Stage;

/// /dev/fuse, open to everybody until this is dropped.
pub struct OpenDevice {
    before: fs::Permissions,
    // Locked; any program's use of the device itself is not affected.
    _lock: File,
}

impl OpenDevice {
    /// Waits until no other test has it open to everybody.
    pub fn new() -> Self {
        let lock = File::open("/dev/fuse").unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let before = fs::metadata("/dev/fuse").unwrap().permissions();
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
        Self { before, _lock: lock }
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        let _ = fs::set_permissions("/dev/fuse", self.before.clone());
    }
}

/// An ordinary user with a folder, in which the program and the place `mount` are.
pub struct User {
    pub uid: u32,
    pub home: PathBuf,
    pub mount_point: PathBuf,
    image: PathBuf,
    _clean_up: CleanUp,
}

impl User {
    /// The user `uid`; fusermount wants one with a name. Each test takes others, so that what it
    /// finds in /tmp/archfs-UID is its own.
    pub fn new(stage: &Stage, uid: u32) -> Self {
        let home = stage.work.path().join(format!("home-{uid}"));
        fs::create_dir(&home).unwrap();
        for folder in [stage.work.path(), &home] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
        chown(&home, Some(uid), Some(uid)).unwrap();
        // The program itself may lie where only root can go. Copied by another process: a child that
        // another test forks meanwhile would inherit what it is written through, and then it could
        // not be executed ("Text file busy").
        let copy = home.join("archfs");
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_archfs")).arg(copy).status();
        assert!(copied.unwrap().success());
        let mount_point = home.join("mount");
        let (image, _clean_up) = (stage.image.clone(), CleanUp(mount_point.clone()));
        Self { uid, home, mount_point, image, _clean_up }
    }

    /// bash with a script as the user at home, with $ARCHFS and $IMAGE.
    pub fn bash(&self, script: &str) -> Command {
        self.bash_in_groups(script, "--clear-groups")
    }

    /// The same, with an option of setpriv for the supplementary groups.
    pub fn bash_in_groups(&self, script: &str, groups: &str) -> Command {
        let mut command = Command::new("setpriv");
        let (uid, gid) = (format!("--reuid={}", self.uid), format!("--regid={}", self.uid));
        command.args([&uid, &gid, groups, "env", "--default-signal", "bash", "-c", script]);
        command.current_dir(&self.home).env("IMAGE", &self.image).env_remove("SLURM_TASK_PID");
        command.env("ARCHFS", self.home.join("archfs"));
        command
    }

    /// What a script of the user says and gives.
    pub fn runs(&self, script: &str) -> Output {
        self.bash(script).output().unwrap()
    }

    /// Where archfs keeps what it knows of the user's mounts.
    pub fn registry(&self) -> PathBuf {
        Path::new("/tmp").join(format!("archfs-{}", self.uid))
    }
}
