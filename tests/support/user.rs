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

/// Opens /dev/fuse to all users; dropping it restores the mode.
pub struct OpenDevice {
    before: fs::Permissions,
    // A lock among tests; the device itself works for every program.
    _lock: File,
}

impl OpenDevice {
    /// Waits until no other test has the device opened up.
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

/// An ordinary user with a home directory that has the program and the mount point `mount`.
pub struct User {
    pub uid: u32,
    pub home: PathBuf,
    pub mount_point: PathBuf,
    image: PathBuf,
    _clean_up: CleanUp,
}

impl User {
    /// The user `uid`, who must have a name for fusermount. Each test uses other users, so that
    /// each finds only its own records in /tmp/archfs-UID.
    pub fn new(stage: &Stage, uid: u32) -> Self {
        let home = stage.work.path().join(format!("home-{uid}"));
        fs::create_dir(&home).unwrap();
        for directory in [stage.work.path(), &home] {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
        }
        chown(&home, Some(uid), Some(uid)).unwrap();
        // The build directory may be accessible only to root.
        super::copy_program(&home.join("archfs"));
        let mount_point = home.join("mount");
        let (image, _clean_up) = (stage.image.clone(), CleanUp(mount_point.clone()));
        Self { uid, home, mount_point, image, _clean_up }
    }

    /// A bash script run as the user at home, with $ARCHFS and $IMAGE.
    pub fn bash(&self, script: &str) -> Command {
        self.bash_in_groups(script, "--clear-groups")
    }

    /// The same with an option of setpriv for the supplementary groups.
    pub fn bash_in_groups(&self, script: &str, groups: &str) -> Command {
        let mut command = Command::new("setpriv");
        let (uid, gid) = (format!("--reuid={}", self.uid), format!("--regid={}", self.uid));
        command.args([&uid, &gid, groups, "env", "--default-signal", "bash", "-c", script]);
        command.current_dir(&self.home).env("IMAGE", &self.image).env_remove("SLURM_TASK_PID");
        command.env("ARCHFS", self.home.join("archfs"));
        command
    }

    /// Runs a script as the user and returns its output.
    pub fn runs(&self, script: &str) -> Output {
        self.bash(script).output().unwrap()
    }

    /// The directory of archfs's records for the user.
    pub fn registry(&self) -> PathBuf {
        Path::new("/tmp").join(format!("archfs-{}", self.uid))
    }
}
