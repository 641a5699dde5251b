//! mount(8), umount(8) and fstab use archfs as the helper for type fuse.archfs.
//!
//! Unit tests in src/cli/mount_helper.rs check how the arguments are translated.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::mount::{CleanUp, daemon_of, is_mounted};
use crate::support::skip::skip;
use crate::support::stage::said;
use crate::support::{archfs, image, run, skip_without_mounts, wait_until, work_directory};

/// Runs the test `name` again in a mount namespace with archfs in /usr/local/bin. mount(8) resets
/// PATH for the helpers it executes, so the shell of mount.fuse searches only the usual
/// directories. Returns whether that was done, so that the outer test is over.
fn ran_where_archfs_is_installed(name: &str) -> bool {
    const MARK: &str = "ARCHFS_IS_INSTALLED";
    if std::env::var_os(MARK).is_some() || skip_without_mounts() {
        return false;
    }
    let script = "mount -t tmpfs none /usr/local/bin && ln -s \"$0\" /usr/local/bin/archfs && \
                  exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_archfs")]);
    command
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("mount_helper::{name}")])
        .env(MARK, "");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", said(&output));
    true
}

/// Whether libfuse's helper is installed. If it is not, the test says so, and fails in CI.
fn has_mount_fuse() -> bool {
    let is_here = Path::new("/sbin/mount.fuse").exists();
    assert!(is_here || std::env::var_os("CI").is_none(), "CI must have fuse3");
    if !is_here {
        skip("no /sbin/mount.fuse (package fuse3)");
    }
    is_here
}

fn is_running(daemon: i32) -> bool {
    fs::read_to_string(format!("/proc/{daemon}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn options_of(mount_point: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let is_it = |line: &&str| line.split(' ').nth(1) == mount_point.to_str();
    mounts.lines().find(is_it).unwrap().split(' ').nth(3).unwrap().to_owned()
}

struct Scene {
    work: tempfile::TempDir,
    image: PathBuf,
    mount_point: PathBuf,
    _clean_up: CleanUp,
}

fn scene() -> Option<Scene> {
    if skip_without_mounts() {
        return None;
    }
    let work = work_directory();
    let image = image::small(work.path());
    let mount_point = work.path().join("mount");
    fs::create_dir(&mount_point).unwrap();
    let _clean_up = CleanUp(mount_point.clone());
    Some(Scene { work, image, mount_point, _clean_up })
}

/// Checks the mount, unmounts it with umount(8), and waits until the daemon has exited.
fn assert_mounted_until_umount(scene: &Scene, mounted: &Output) {
    assert!(mounted.status.success(), "{}", said(mounted));
    assert_eq!(said(mounted), "", "mount(8) says nothing where all went well");
    assert_eq!(fs::read(scene.mount_point.join("hello")).unwrap(), b"hello, world\n");
    assert!(options_of(&scene.mount_point).starts_with("ro,nosuid,nodev"));
    let daemon = daemon_of(&scene.mount_point).unwrap();
    assert!(is_running(daemon));
    run(Command::new("umount").arg(&scene.mount_point));
    assert!(!is_mounted(&scene.mount_point));
    wait_until("the daemon has ended", || !is_running(daemon));
}

#[test]
fn mount_and_umount_work_for_the_type_fuse_archfs() {
    if !has_mount_fuse()
        || ran_where_archfs_is_installed("mount_and_umount_work_for_the_type_fuse_archfs")
    {
        return;
    }
    let Some(scene) = scene() else { return };
    for options in [
        "allow_other",
        "ro,nosuid,nodev,_netdev,x-systemd.automount",
        "rw,suid,dev,noauto,nofail,allow_changes,comment=data",
    ] {
        let mut mount = Command::new("mount");
        mount.args(["-t", "fuse.archfs", "-o", options]).args([&scene.image, &scene.mount_point]);
        let mounted = mount.output().unwrap();
        assert!(mounted.status.success(), "{}", said(&mounted));
        let is_open = options_of(&scene.mount_point).contains("allow_other");
        assert_eq!(is_open, options == "allow_other");
        assert_mounted_until_umount(&scene, &mounted);
    }
    let mut mount = Command::new("mount");
    mount
        .args(["-t", "fuse.archfs", "-o", "no_such_word"])
        .args([&scene.image, &scene.mount_point]);
    let refused = mount.output().unwrap();
    assert!(!refused.status.success() && said(&refused).contains("no_such_word: no such option"));
    assert!(!is_mounted(&scene.mount_point));
}

#[test]
fn mount_all_and_mount_directory_use_the_fstab_line() {
    if !has_mount_fuse()
        || ran_where_archfs_is_installed("mount_all_and_mount_directory_use_the_fstab_line")
    {
        return;
    }
    let Some(scene) = scene() else { return };
    let fstab = scene.work.path().join("fstab");
    let (image, mount_point) = (scene.image.display(), scene.mount_point.display());
    let none = scene.work.path().join("none.sqfs");
    let lines = format!(
        "# archives\n{image} {mount_point} fuse.archfs defaults,subdir=/,_netdev,nofail,\
         x-systemd.requires=network.target,x-systemd.mount-timeout=30 0 0\n\
         {} {} fuse.archfs ro,nofail,noauto 0 0\n",
        none.display(),
        scene.work.path().display()
    );
    fs::write(&fstab, lines).unwrap();
    let all = || Command::new("mount").args(["--all", "-T"]).arg(&fstab).output().unwrap();
    let one =
        || Command::new("mount").arg("-T").arg(&fstab).arg(&scene.mount_point).output().unwrap();
    let first = all();
    let daemon = daemon_of(&scene.mount_point);
    // The existing mount is not changed.
    let again = all();
    assert!(again.status.success(), "{}", said(&again));
    assert_eq!(daemon_of(&scene.mount_point), daemon);
    assert_mounted_until_umount(&scene, &first);
    assert_mounted_until_umount(&scene, &one());
}

/// The arguments that util-linux passes to /sbin/mount.fuse.archfs, and those that mount.fuse
/// passes.
#[test]
fn archfs_is_its_own_mount_helper() {
    let Some(scene) = scene() else { return };
    let helper = scene.work.path().join("mount.fuse.archfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_archfs"), &helper).unwrap();
    let both = [&scene.image, &scene.mount_point];
    let mut direct = archfs();
    direct.args(both).args(["-o", "rw,dev,suid"]);
    let mut plain = archfs();
    plain.args(both);
    let mut from_mount = Command::new(&helper);
    from_mount.args(both).args(["-s", "-o", "rw,dev", "-t", "fuse.archfs"]);
    for mut command in [direct, plain, from_mount] {
        assert_mounted_until_umount(&scene, &command.output().unwrap());
    }
    // As mount --fake passes it.
    run(Command::new(&helper).args(both).args(["-f", "-o", "ro"]));
    assert!(!is_mounted(&scene.mount_point));
    // An unknown subcommand is not taken for an archive.
    let wrong = archfs().args(["mout", "a.sqfs", "b"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2), "{}", said(&wrong));
    let missing = archfs().args(["/no/such.sqfs"]).arg(&scene.mount_point).output().unwrap();
    assert!(said(&missing).contains("/no/such.sqfs: no such file"), "{}", said(&missing));
}
