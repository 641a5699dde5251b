//! Modes and owners in an archive: for which users they are enforced.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Output;

use super::{OWNER, Scene, as_user, assert_denied, done, out, said, scene};
use crate::support::mount::unmount;
use crate::support::{archfs, image, run};

/// A UID that owns no file.
const STRANGER: u32 = 1234;

/// An image with files of several owners and modes, readable by everyone.
fn archive(work: &Path) -> PathBuf {
    let source = work.join("modes");
    fs::create_dir(&source).unwrap();
    fs::set_permissions(&source, Permissions::from_mode(0o755)).unwrap();
    for (name, owner, mode) in [
        ("foreign", STRANGER, 0o600),
        ("open", STRANGER, 0o644),
        ("own", OWNER, 0o600),
        ("program", STRANGER, 0o700),
    ] {
        let path = source.join(name);
        fs::write(&path, format!("#!/bin/sh\necho {name}\n")).unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    let image = image::make(work, "modes.sqfs", &source, &["-comp", "zstd"]);
    fs::set_permissions(&image, Permissions::from_mode(0o644)).unwrap();
    image
}

/// > Modes and owners are shown as packed but not enforced on that user, who can also read files of
/// > other owners with mode 0600. A file without any execute bit cannot be executed.
#[test]
fn the_mounting_user_reads_all_files_and_executes_only_programs() {
    let Some(scene) = scene() else { return };
    let Scene { owner, stage, .. } = &scene;
    archive(stage.work.path());
    done(owner, "$ARCHFS mount -q --keep ../modes.sqfs mount");
    let shown = done(owner, "stat -c '%a %u %g' mount/foreign mount/program");
    assert_eq!(shown, "600 1234 1234\n700 1234 1234\n");
    assert_eq!(done(owner, "tail -n 1 mount/foreign"), "echo foreign\n");
    assert_eq!(done(owner, "mount/program"), "program\n");
    let tries = ["foreign", "open", "own"].map(|name| format!("mount/{name}"));
    assert_denied(owner, &tries);
    done(owner, "$ARCHFS unmount mount");
}

/// > With `-o allow_other` every user may enter, and the kernel enforces modes and owners
/// > (`default_permissions`).
///
/// > **`-o allow_other`** lets every user in, under the modes and owners in the archive.
#[test]
fn modes_and_owners_are_enforced_with_allow_other() {
    let Some(scene) = scene() else { return };
    let Scene { owner, other, stage, .. } = &scene;
    let image = archive(stage.work.path());
    let mut mount = archfs();
    mount.args(["mount", "-q", "--keep", "-o", "allow_other"]).arg(image).arg(&stage.mount_point);
    run(&mut mount);
    let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let line =
        mounts.lines().find(|line| line.contains(stage.mount_point.to_str().unwrap())).unwrap();
    assert!(line.contains("allow_other") && line.contains("default_permissions"), "{line}");
    let read = |name: &str| format!("tail -n 1 ../mount/{name}");
    for user in [owner, other] {
        assert_eq!(done(user, &read("open")), "echo open\n");
        assert_denied(user, &[read("foreign"), "../mount/program".into()]);
    }
    assert_eq!(done(owner, &read("own")), "echo own\n");
    assert_denied(other, &[read("own")]);
    unmount(&stage.mount_point);
}

/// Runs a script of the owner and then one of the other user, with `text` as /etc/fuse.conf, and
/// unmounts in any case.
fn with_configuration(scene: &Scene, text: &str, of_owner: &str, of_other: &str) -> Output {
    let line = format!(
        "{} && {}; status=$?; {} 2> /dev/null; exit $status",
        as_user(&scene.owner, of_owner),
        as_user(&scene.other, of_other),
        as_user(&scene.owner, "$ARCHFS unmount mount")
    );
    scene.where_configured(text, &line)
}

/// > An ordinary user needs `user_allow_other` in /etc/fuse.conf for `allow_other`.
#[test]
fn an_ordinary_user_needs_user_allow_other_for_allow_other() {
    let Some(scene) = scene() else { return };
    let mount = "$ARCHFS mount -q --keep -o allow_other $IMAGE mount";
    let read = format!("cat {}/hello", scene.owner.mount_point.display());
    let refused = with_configuration(&scene, "# nothing\n", mount, &read);
    assert_eq!(refused.status.code(), Some(4), "{}", said(&refused));
    assert!(said(&refused).contains("user_allow_other"), "{}", said(&refused));
    let allowed = with_configuration(&scene, "user_allow_other\n", mount, &read);
    assert_eq!(out(&allowed), "hello, world\n", "{}", said(&allowed));
    assert!(allowed.status.success() && !scene.owner.mount_point.exists(), "{}", said(&allowed));
}
