//! A private node for a test: its own /tmp and /dev/shm, and two ordinary users who exist nowhere
//! else.
//!
//! The calling thread has its own mount namespace, which the programs it starts inherit. Read
//! mounts from /proc/thread-self/mountinfo, because other threads have another namespace.

use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind,
    mount_change, move_mount, open_tree,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The UIDs of the users, each with a group of the same number that has no other member.
pub const OWNER: u32 = 47_011;
pub const OTHER: u32 = 47_012;

/// Moves the calling thread to a private node; `None` if this machine cannot mount.
pub fn enter() -> Option<()> {
    (!super::skip_without_mounts()).then(make)
}

#[expect(unsafe_code, reason = "rustix has no safe call that leaves a namespace")]
fn make() {
    // SAFETY: unsharing affects only the mount namespace, the root and the working directory of
    // this thread. No descriptor is closed.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }.expect("a mount namespace");
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).expect("a private mount namespace");
    // The program under test may be below one of these.
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = Path::new(env!("CARGO_BIN_EXE_archfs")).parent().expect("a directory");
    for directory in ["/tmp", "/dev/shm"] {
        let kept = [project, target].map(|path| (path, detached(path)));
        mount("tmpfs", directory, "tmpfs", MountFlags::empty(), c"mode=1777").expect("a tmpfs");
        for (path, tree) in kept.iter().filter(|(path, _)| path.starts_with(directory)) {
            fs::create_dir_all(path).unwrap();
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            move_mount(tree, "", CWD, *path, flags).expect("the project");
        }
    }
    let accounts = [("owner", OWNER), ("other", OTHER)];
    let users = accounts.map(|(name, id)| format!("archfs-{name}:x:{id}:{id}::/tmp:/bin/sh\n"));
    let groups = accounts.map(|(name, id)| format!("archfs-{name}:x:{id}:\n"));
    for (file, lines) in [("/etc/passwd", users), ("/etc/group", groups)] {
        let text = fs::read_to_string(file).unwrap() + &lines.concat();
        let copy = Path::new("/dev/shm/accounts");
        fs::write(copy, text).unwrap();
        fs::set_permissions(copy, Permissions::from_mode(0o644)).unwrap();
        mount_bind(copy, file).expect("the accounts");
        fs::remove_file(copy).unwrap();
    }
}

/// The directory, to be mounted elsewhere.
fn detached(path: &Path) -> OwnedFd {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, flags).expect("the project")
}
