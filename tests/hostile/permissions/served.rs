//! FUSE file systems of another user, whose daemon can claim any owner and mode for a file.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use super::{OTHER, Scene, as_user, out, scene};
use crate::support::stage::said;

/// Runs `before` as the other user, then `script` while the owner serves an image of `source` to
/// all users at $SERVED. This happens in a mount namespace whose /etc/fuse.conf allows it. No
/// directory on the path belongs to the owner.
fn beside_served(scene: &Scene, before: &str, source: &Path, script: &str) -> String {
    let (owner, other) = (&scene.owner, &scene.other);
    let served = scene.sticky().join("served");
    let lines = [
        "set -e".to_owned(),
        "end() { for it in */mount sticky/served; do umount -l $it 2> /dev/null || true; done; }"
            .to_owned(),
        "trap end EXIT".to_owned(),
        as_user(other, before),
        format!("mksquashfs {} served.sqfs -quiet -no-progress", source.display()),
        as_user(owner, "$ARCHFS mount -q --keep -o allow_other ../served.sqfs ../sticky/served"),
        format!("export SERVED={}", served.display()),
        as_user(other, script),
        as_user(owner, "$ARCHFS unmount ../sticky/served"),
    ];
    let output = scene.where_configured("user_allow_other\n", &lines.join("\n"));
    assert!(output.status.success(), "{}{}", out(&output), said(&output));
    out(&output)
}

/// > **FUSE file systems of others**: their daemon can claim any owner for a file, so no file there
/// > counts as the user's own or as root's.
#[test]
fn a_helper_with_a_forged_owner_on_a_fuse_mount_is_not_run() {
    let Some(scene) = scene() else { return };
    let source = scene.stage.work.path().join("source");
    let marks = scene.directory_of(OTHER, "marks", 0o777);
    let helper = source.join("fusermount3");
    fs::create_dir(&source).unwrap();
    fs::write(&helper, format!("#!/bin/sh\n: > {}/ran\nexit 1\n", marks.display())).unwrap();
    fs::set_permissions(&helper, Permissions::from_mode(0o4755)).unwrap();
    let script = "\
        stat -c \"%u %a\" $SERVED/fusermount3; PATH=$SERVED:$PATH; \
        $ARCHFS mount -q --keep $IMAGE mount && cat mount/hello && $ARCHFS unmount mount";
    assert_eq!(beside_served(&scene, "true", &source, script), "0 4755\nhello, world\n");
    assert!(!marks.join("ran").exists());
}

/// Forged records could name any mount and any daemon.
#[test]
fn a_record_directory_with_a_forged_owner_on_a_fuse_mount_is_not_used() {
    let Some(scene) = scene() else { return };
    let source = scene.stage.work.path().join("source");
    let made_up = source.join(format!("archfs-{OTHER}"));
    fs::create_dir_all(&made_up).unwrap();
    for mount_point in [&source, &made_up] {
        chown(mount_point, Some(OTHER), Some(OTHER)).unwrap();
    }
    fs::set_permissions(&made_up, Permissions::from_mode(0o700)).unwrap();
    // The names of records contain the mount namespace.
    let before = format!(
        "$ARCHFS mount -q --keep $IMAGE mount && cp /tmp/archfs-{OTHER}/*.mount {} && \
         $ARCHFS unmount mount",
        made_up.display()
    );
    let script = format!(
        "export TMPDIR=$SERVED; ls $SERVED/archfs-{OTHER} | wc -l; \
         $ARCHFS mount -q --keep $IMAGE mount && cat mount/hello && $ARCHFS unmount mount"
    );
    assert_eq!(beside_served(&scene, &before, &source, &script), "1\nhello, world\n");
}

/// Its daemon could replace it at any time.
#[test]
fn an_index_with_a_forged_owner_on_a_fuse_mount_is_not_used() {
    let Some(scene) = scene() else { return };
    let source = scene.stage.work.path().join("source");
    fs::create_dir(&source).unwrap();
    chown(&source, Some(OTHER), Some(OTHER)).unwrap();
    let index = source.join("index");
    let before = format!(
        "tar -cf data.tar archfs && $ARCHFS index -q --index {0} data.tar && \
         $ARCHFS ls --index {0} data.tar 2>&1",
        index.display()
    );
    let script = "stat -c %u $SERVED/index; $ARCHFS ls --index $SERVED/index data.tar 2>&1";
    let stderr = beside_served(&scene, &before, &source, script);
    let expected = format!(
        "archfs\n{OTHER}\n\
         archfs: warning: {}/sticky/served/index: not used: it is on a FUSE file system of another user; made again\n",
        scene.stage.work.path().display()
    );
    assert!(stderr.starts_with(&expected), "{stderr}");
}
