//! Which directories can be mount points, and which users can unmount there.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};

use super::{OTHER, Scene, done, out, said, scene};
use crate::support::mount::{CleanUp, is_mounted, unmount};
use crate::support::stage::Talker;
use crate::support::{archfs, run, wait_until};

/// A supplementary group shared by users of a project.
const PROJECT: u32 = 60;

/// > **A mount point** that exists must belong to the user. archfs accepts one that another member
/// > of a group made, unless every user may write to it or to its parent. Otherwise `mount` exits
/// > with status 4.
#[test]
fn a_group_members_directory_is_a_mount_point_unless_world_writable() {
    let Some(scene) = scene() else { return };
    let Scene { owner, .. } = &scene;
    let project = scene.directory_of(OTHER, "project", 0o775);
    let point = project.join("point");
    fs::create_dir(&point).unwrap();
    let _clean_up = CleanUp(point.clone());
    for made in [&project, &point] {
        chown(made, Some(OTHER), Some(PROJECT)).unwrap();
    }
    let group = format!("--groups={PROJECT}");
    let script = "$ARCHFS mount -q --keep $IMAGE ../project/point && \
                  cat ../project/point/hello && $ARCHFS unmount ../project/point";
    // The modes of the parent and of the directory.
    for (above, own, is_fine) in
        [(0o775, 0o775, true), (0o775, 0o777, false), (0o777, 0o775, false)]
    {
        fs::set_permissions(&project, Permissions::from_mode(above)).unwrap();
        fs::set_permissions(&point, Permissions::from_mode(own)).unwrap();
        let output = owner.bash_in_groups(script, &group).output().unwrap();
        if is_fine {
            assert_eq!(out(&output), "hello, world\n", "{}", said(&output));
        } else {
            assert_eq!(output.status.code(), Some(4), "{above:o} {own:o}: {}", said(&output));
            assert!(said(&output).contains("a directory of another user"), "{}", said(&output));
        }
        assert!(!is_mounted(&point) && point.exists(), "{above:o} {own:o}");
    }
    done(owner, "mkdir own && $ARCHFS mount -q --keep $IMAGE own && $ARCHFS unmount own");
    assert!(owner.home.join("own").exists());
}

/// > Root, and a private mount, may use directories of other users, except where every user may
/// > create names, such as in /tmp.
#[test]
fn root_and_private_mounts_use_others_directories_unless_in_a_shared_parent() {
    let Some(scene) = scene() else { return };
    let Scene { owner, stage, .. } = &scene;
    let theirs = scene.directory_of(OTHER, "theirs", 0o755);
    let sticky = scene.sticky().join("theirs");
    fs::create_dir(&sticky).unwrap();
    chown(&sticky, Some(OTHER), Some(OTHER)).unwrap();
    let _clean_up = [CleanUp(theirs.clone()), CleanUp(sticky.clone())];
    let mount = |mount_point: &str| format!("$ARCHFS mount -q --keep $IMAGE {mount_point}");
    let private = |mount_point: &str| {
        format!("$ARCHFS run --private -q $IMAGE {mount_point} -- cat {mount_point}/hello")
    };
    run(&mut stage.bash(&format!("{} && $ARCHFS unmount theirs", mount("theirs"))));
    for output in
        [stage.bash(&private("theirs")).output().unwrap(), owner.runs(&private("../theirs"))]
    {
        assert_eq!(out(&output), "hello, world\n", "{}", said(&output));
    }
    for output in [
        stage.bash(&mount("sticky/theirs")).output().unwrap(),
        stage.bash(&private("sticky/theirs")).output().unwrap(),
        owner.runs(&private("../sticky/theirs")),
    ] {
        assert!(!output.status.success() && out(&output).is_empty(), "{}", said(&output));
        assert!(said(&output).contains("a directory of another user"), "{}", said(&output));
    }
    assert!(theirs.is_dir() && sticky.is_dir() && !is_mounted(&theirs) && !is_mounted(&sticky));
}

/// > **`gc`, `unmount`, `list`** act only on mounts of type fuse.archfs of this user, whatever the
/// > records say. Root can also unmount those of other users.
#[test]
fn only_root_unmounts_mounts_of_others() {
    let Some(scene) = scene() else { return };
    let Scene { owner, other, .. } = &scene;
    done(owner, "$ARCHFS mount -q --keep $IMAGE mount");
    let mount_point = owner.mount_point.display();
    let refused = other.runs(&format!("$ARCHFS unmount {mount_point}"));
    assert_eq!(refused.status.code(), Some(5), "{}", said(&refused));
    assert!(!out(&run(archfs().arg("list"))).contains(owner.mount_point.to_str().unwrap()));
    run(archfs().args(["gc", "-q"]));
    assert_eq!(done(owner, "cat mount/hello"), "hello, world\n");
    // It is held by a command of its user, so root leaves it alone.
    let holds = "$ARCHFS run -q $IMAGE mount -- sh -c 'echo started; read x; cat mount/hello'";
    let mut holder = Talker::start(&mut owner.bash(holds));
    assert_eq!(holder.line(), "started");
    let held = archfs().arg("unmount").arg(&owner.mount_point).output().unwrap();
    assert!(said(&held).contains("still held by process") && is_mounted(&owner.mount_point));
    let held = archfs().arg("unmount").arg(&owner.mount_point).output().unwrap();
    assert_eq!(held.status.code(), Some(1), "{}", said(&held));
    holder.write("\n");
    assert_eq!(holder.line(), "hello, world");
    assert_eq!(holder.end(), Some(0));
    assert!(!is_mounted(&owner.mount_point));
    done(owner, "$ARCHFS mount -q --keep $IMAGE mount");
    unmount(&owner.mount_point);
    assert!(!is_mounted(&owner.mount_point));
    wait_until("its daemon has cleared up", || {
        !owner.mount_point.exists() && !owner.registry().exists()
    });
}
