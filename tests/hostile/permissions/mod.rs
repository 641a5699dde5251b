//! Access by other users of the node, and archives and directories made by an attacker.
//!
//! Tests "Permissions" and "Who can do what" of docs/SEMANTICS.md: `others` read access, `modes`
//! enforced modes, `inert` what has no effect, `planted` files planted in advance, `points` owners
//! of mount points, `races` swapped paths, `served` another user's FUSE file system, `helper` the
//! choice of fusermount, `terminal` names with escape sequences. Each test has /dev/fuse and a node
//! with its users to itself.

mod acls;
mod helper;
mod inert;
mod modes;
mod others;
mod planted;
mod points;
mod races;
mod served;
mod terminal;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::node::{self, OTHER, OWNER};
use crate::support::stage::{Stage, said, stage};
use crate::support::user::{OpenDevice, User};

/// An image, its user, another user, and the device for them.
struct Scene {
    owner: User,
    other: User,
    stage: Stage,
    // Dropped last.
    _device: OpenDevice,
}

/// `None` if this machine cannot mount.
fn scene() -> Option<Scene> {
    let stage = node::enter().and_then(|()| stage())?;
    let _device = OpenDevice::new();
    let (owner, other) = (User::new(&stage, OWNER), User::new(&stage, OTHER));
    Some(Scene { owner, other, stage, _device })
}

impl Scene {
    /// A directory like /tmp: every user may create names and may not touch those of others.
    fn sticky(&self) -> PathBuf {
        let directory = self.stage.work.path().join("sticky");
        if !directory.exists() {
            fs::create_dir(&directory).unwrap();
        }
        fs::set_permissions(&directory, Permissions::from_mode(0o1777)).unwrap();
        directory
    }

    /// Runs `script` as root in the test's directory, in a mount namespace where /etc/fuse.conf has
    /// the contents `text`.
    fn where_configured(&self, text: &str, script: &str) -> Output {
        let work = self.stage.work.path();
        fs::write(work.join("fuse.conf"), text).unwrap();
        let line = format!("mount --bind fuse.conf /etc/fuse.conf || exit 9\n{script}");
        let mut command = Command::new("unshare");
        command.args(["--mount", "bash", "-c", &line]).current_dir(work);
        command.env("IMAGE", &self.stage.image).env("LC_ALL", "C").env_remove("SLURM_TASK_PID");
        command.output().unwrap()
    }

    /// A directory of user `id` in the test's directory.
    fn directory_of(&self, id: u32, name: &str, mode: u32) -> PathBuf {
        let directory = self.stage.work.path().join(name);
        fs::create_dir(&directory).unwrap();
        chown(&directory, Some(id), Some(id)).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(mode)).unwrap();
        directory
    }
}

/// The words with which a script of root runs `script` as `user` at home.
fn as_user(user: &User, script: &str) -> String {
    let (uid, home) = (user.uid, user.home.display());
    format!(
        "(cd {home} && ARCHFS={home}/archfs setpriv --reuid={uid} --regid={uid} --clear-groups \
         bash -c '{script}')"
    )
}

/// Runs a script that must succeed.
fn done(user: &User, script: &str) -> String {
    let output = user.runs(script);
    assert!(output.status.success(), "{script}: {}{}", out(&output), said(&output));
    out(&output)
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Checks that the system denies all of these to the user.
fn assert_denied(user: &User, scripts: &[String]) {
    for script in scripts {
        let output = user.runs(&format!("LC_ALL=C; export LC_ALL; {script}"));
        assert!(!output.status.success(), "{script}: {}", out(&output));
        assert!(said(&output).contains("Permission denied"), "{script}: {}", said(&output));
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn names_in(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The daemon of the user's only mount, from the user's `list`.
fn daemon_of(user: &User) -> i64 {
    let row: serde_json::Value = serde_json::from_str(&done(user, "$ARCHFS list --json")).unwrap();
    row["daemon"].as_i64().unwrap()
}
