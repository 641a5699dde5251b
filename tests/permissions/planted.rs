//! What somebody put in the way beforehand, and what is written in records.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::mount::{CleanUp, is_mounted, kind_of_mount, unmount};
use super::support::stage::said;
use super::support::{archfs, run, tar, wait_until};
use super::{OTHER, OWNER, Scene, done, mode, names_in, out, scene};

/// Names that somebody made outside of the folder of the test; gone when this is dropped.
struct Planted(Vec<PathBuf>);

impl Drop for Planted {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// > Records are kept only in a folder of the user alone: `/tmp/archfs-UID`, else in /dev/shm or
/// > /var/tmp; where somebody is in the way in all three, mounting fails and says so.
#[test]
fn records_are_kept_only_in_a_folder_of_the_user_alone() {
    let Some(scene) = scene() else { return };
    let Scene { owner, other, .. } = &scene;
    let elsewhere = scene.folder_of(OTHER, "elsewhere", 0o777);
    let own = scene.folder_of(OWNER, "own", 0o700);
    let plant = |how: &str| {
        let folders = ["/tmp", "/dev/shm", "/var/tmp"];
        let all = folders.map(|folder| Path::new(folder).join(format!("archfs-{OWNER}")));
        for path in &all {
            assert!(fs::symlink_metadata(path).is_err(), "{} is there", path.display());
            let line = how.replace("PATH", path.to_str().unwrap());
            match how.starts_with("own ") {
                true => done(owner, &line[4..]),
                false => done(other, &line),
            };
        }
        Planted(all.into())
    };
    for how in [
        "mkdir -m 700 PATH",
        "mkdir -m 777 PATH",
        "touch PATH",
        "mkfifo -m 666 PATH",
        "ln -s ../elsewhere PATH",
        &format!("ln -s {} PATH", elsewhere.display()),
        &format!("ln -s {} PATH", own.display()),
        "own mkdir -m 777 PATH",
        "own mkdir -m 750 PATH",
    ] {
        let planted = plant(how);
        let before: Vec<_> = planted.0.iter().map(|path| mode(path)).collect();
        let refused = owner.runs("timeout 20 $ARCHFS mount -q --keep $IMAGE mount");
        assert_eq!(refused.status.code(), Some(1), "{how}: {}", said(&refused));
        let expected = format!("archfs: /tmp/archfs-{OWNER}: not a directory of yours alone");
        assert!(said(&refused).contains(&expected), "{how}: {}", said(&refused));
        assert!(said(&refused).contains("hint: "), "{how}: {}", said(&refused));
        assert!(!owner.place.exists(), "{how}");
        for line in ["list", "gc", "unmount mount"] {
            let output = owner.runs(&format!("timeout 20 $ARCHFS {line}"));
            assert!(matches!(output.status.code(), Some(0 | 1 | 5)), "{how}: {output:?}");
        }
        let after: Vec<_> = planted.0.iter().map(|path| mode(path)).collect();
        assert_eq!(before, after, "{how}");
        let within = planted.0.iter().filter(|path| path.is_dir());
        assert_eq!(within.map(|path| names_in(path).len()).sum::<usize>(), 0, "{how}");
    }
}

/// > Records are kept only in a folder of the user alone: `/tmp/archfs-UID`, else in /dev/shm or
/// > /var/tmp; where somebody is in the way in all three, mounting fails and says so.
#[test]
fn somebody_in_the_way_in_tmp_does_not_keep_a_user_from_mounting_and_sharing() {
    let Some(scene) = scene() else { return };
    let Scene { owner, other, .. } = &scene;
    let [tmp, shm, var] = ["/tmp", "/dev/shm", "/var/tmp"]
        .map(|folder| Path::new(folder).join(format!("archfs-{OWNER}")));
    for (taken, elsewhere) in [(vec![&tmp], &shm), (vec![&tmp, &shm], &var)] {
        let planted = Planted(taken.iter().map(|path| (*path).clone()).collect());
        for path in &taken {
            done(other, &format!("touch {}", path.display()));
        }
        done(owner, "$ARCHFS mount -q --keep $IMAGE mount");
        assert_eq!(mode(elsewhere), 0o700);
        // Also when it goes again.
        drop(planted);
        done(owner, "$ARCHFS mount -q --keep $IMAGE mount");
        assert!(done(owner, "$ARCHFS list").contains("; alive"));
        assert!(!taken.iter().any(|path| path.exists()));
        done(owner, "$ARCHFS unmount mount");
        wait_until("nothing is left", || !elsewhere.exists());
    }
}

/// > **A mount point** that exists is a directory of the user's own, or one that others of a group
/// > made where not everybody may write (`mount` ends with status 4 otherwise).
///
/// > Root, and a private mount, may use those of others, but not where everybody may make names,
/// > such as in /tmp. A link of somebody else in such a folder is never followed.
#[test]
fn a_mount_point_of_somebody_else_where_everybody_makes_names_is_refused() {
    let Some(scene) = scene() else { return };
    let Scene { owner, other, stage, .. } = &scene;
    let sticky = scene.sticky();
    done(owner, "mkdir dear");
    let point = sticky.join("point");
    let _clean_up = CleanUp(point.clone());
    for (plant, status, said_of_user) in [
        ("mkdir -m 777 PATH", 4, "a directory of somebody else"),
        ("ln -s DEAR PATH", 1, "a symbolic link of somebody else"),
        ("ln -s /nowhere PATH", 1, "a symbolic link of somebody else"),
        ("touch PATH", 1, "not a directory"),
        ("mkfifo PATH", 1, "not a directory"),
    ] {
        let dear = owner.home.join("dear");
        let plant = plant.replace("DEAR", dear.to_str().unwrap());
        done(other, &plant.replace("PATH", "../sticky/point"));
        let line = "timeout 20 $ARCHFS mount -q --keep $IMAGE";
        for output in [
            owner.runs(&format!("{line} ../sticky/point")),
            stage.bash(&format!("{line} sticky/point")).output().unwrap(),
        ] {
            assert_eq!(output.status.code(), Some(status), "{plant}: {}", said(&output));
            assert!(said(&output).contains(said_of_user), "{plant}: {}", said(&output));
        }
        let run = owner.runs("timeout 20 $ARCHFS run -q $IMAGE ../sticky/point -- true");
        assert!(!run.status.success(), "{plant}");
        assert!(!is_mounted(&point) && !is_mounted(&dear), "{plant}");
        assert!(fs::symlink_metadata(&point).is_ok() && dear.is_dir(), "it is not ours to remove");
        done(other, "rm -r ../sticky/point");
    }
    // Nor is a link of somebody else followed on the way there.
    done(other, &format!("ln -s {} ../sticky/way", owner.home.display()));
    for output in [
        owner.runs("$ARCHFS mount -q --keep $IMAGE ../sticky/way/mount"),
        stage.bash("$ARCHFS mount -q --keep $IMAGE sticky/way/mount").output().unwrap(),
    ] {
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("way is a symbolic link of somebody else"));
        assert!(!owner.place.exists());
    }
    // In a folder of the user root mounts for that user.
    done(owner, "mkdir mount");
    let line = format!("$ARCHFS mount -q --keep $IMAGE {}", owner.place.display());
    run(&mut stage.bash(&line));
    unmount(&owner.place);
    assert!(owner.place.exists());
    // Of a directory of somebody else that lets everybody in, its owner could make another.
    let lent = scene.folder_of(OTHER, "lent", 0o777);
    let _clean_up = CleanUp(lent.clone());
    let refused = owner.runs("$ARCHFS mount -q --keep $IMAGE ../lent");
    assert_eq!(refused.status.code(), Some(4), "{}", said(&refused));
    assert!(!is_mounted(&lent));
}

/// > **Names in sticky folders**: a log that somebody else made or linked there is refused (status
/// > 1), and `--stats-json` replaces no link and no file but an account.
///
/// > Links of one's own, /dev/null and the like may be logs.
#[test]
fn the_log_and_the_account_are_never_written_through_what_others_planted() {
    let Some(scene) = scene() else { return };
    let Scene { owner, other, .. } = &scene;
    let sticky = scene.sticky();
    done(owner, "echo dear > dear");
    for plant in [
        "ln -s DEAR PATH",
        "ln -s new PATH",
        "ln -s /dev/null PATH",
        "touch PATH; chmod 666 PATH",
        "mkfifo PATH; chmod 666 PATH",
        "ln -s DEAR PATH2; ln -s PATH2 PATH",
    ] {
        let dear = owner.home.join("dear");
        let path = sticky.join("name");
        let plant = plant.replace("DEAR", dear.to_str().unwrap());
        done(other, &plant.replace("PATH", path.to_str().unwrap()));
        let line = "timeout 20 $ARCHFS mount -v --keep";
        let refused = owner.runs(&format!("{line} --log-file ../sticky/name $IMAGE mount"));
        assert_eq!(refused.status.code(), Some(1), "{plant}: {}", said(&refused));
        assert!(said(&refused).contains("somebody else"), "{plant}: {}", said(&refused));
        assert!(!owner.place.exists(), "{plant}");
        let mounted = owner.runs(&format!("{line} --stats-json ../sticky/name $IMAGE mount"));
        assert!(mounted.status.success(), "{plant}: {}", said(&mounted));
        done(owner, "timeout 20 $ARCHFS unmount mount");
        assert_eq!(fs::read_to_string(dear).unwrap(), "dear\n", "{plant}");
        assert!(!sticky.join("new").exists(), "{plant}");
        if fs::symlink_metadata(&path).unwrap().is_file() {
            assert_eq!(fs::read(&path).unwrap(), b"", "{plant}");
            assert_eq!(fs::metadata(&path).unwrap().uid(), OTHER, "{plant}");
        }
        done(other, "rm -r ../sticky/name*");
    }
    // What is one's own, or the system's, is followed.
    done(owner, "touch log; ln -s $PWD/log ../sticky/own");
    for log in ["../sticky/own", "/dev/null", "log"] {
        done(owner, &format!("$ARCHFS mount -v --keep --log-file {log} $IMAGE mount"));
        done(owner, "$ARCHFS unmount mount");
    }
    wait_until("the log tells of both", || {
        fs::read_to_string(owner.home.join("log")).unwrap().matches("served").count() == 2
    });
}

/// > An index replaces a link and not what it leads to.
#[test]
fn an_index_replaces_a_link_and_not_what_it_leads_to() {
    let Some(scene) = scene() else { return };
    let Scene { owner, other, stage, .. } = &scene;
    let sticky = scene.sticky();
    let archive = sticky.join("data.tar");
    fs::write(&archive, tar::of(&[("hello", b"hello, world\n")])).unwrap();
    fs::set_permissions(&archive, Permissions::from_mode(0o644)).unwrap();
    done(owner, "echo dear > dear");
    let dear = owner.home.join("dear");
    // Somebody else's, in a folder where it can not be replaced: the cache has it.
    let beside = sticky.join("data.tar.archfs-index");
    done(other, &format!("ln -s {} {}", dear.display(), beside.display()));
    done(owner, "XDG_CACHE_HOME=$PWD/cache $ARCHFS index -q ../sticky/data.tar");
    assert_eq!(names_in(&owner.home.join("cache/archfs")).len(), 1);
    assert_eq!(fs::read_link(&beside).unwrap(), dear);
    // One's own.
    done(other, "rm ../sticky/data.tar.archfs-index");
    done(owner, "ln -s $PWD/dear ../sticky/data.tar.archfs-index");
    done(owner, "XDG_CACHE_HOME=$PWD/cache $ARCHFS index -q ../sticky/data.tar");
    assert!(fs::symlink_metadata(&beside).unwrap().is_file());
    assert_eq!(mode(&beside), 0o644, "as the archive, less what others could write");
    // Root replaces what somebody planted, and not what that leads to.
    fs::remove_file(&beside).unwrap();
    done(other, &format!("ln -s {} {}", dear.display(), beside.display()));
    run(stage.bash("$ARCHFS index -q sticky/data.tar").env("HOME", stage.work.path()));
    assert_eq!(fs::metadata(&beside).unwrap().uid(), 0);
    assert_eq!(fs::read_to_string(&dear).unwrap(), "dear\n");
    assert_eq!(names_in(&sticky).len(), 2, "nothing is left of the writing");
}

/// A record of a mount, as archfs writes them (src/lifecycle/registry/record.rs).
fn record(daemon: &str, place: &Path) -> String {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = text.lines().rfind(|line| line.split(' ').nth(4) == place.to_str()).unwrap();
    let fields: Vec<&str> = line.split(' ').collect();
    let (id, device) = (fields[0], fields[2]);
    let place = place.display();
    format!("daemon {daemon}\nmount {id} {device}\nidentity x\narchive /x\nplace {place}\n")
}

/// > **`gc`, `unmount`, `list`** touch and show mounts of type fuse.archfs of this user alone,
/// > whatever the records say; `unmount` as root those of others, too.
#[test]
fn records_that_are_wrong_make_nobody_touch_what_is_not_his() {
    let Some(scene) = scene() else { return };
    let Scene { owner, stage, .. } = &scene;
    let work = stage.work.path();
    // A mount of root's, one of another kind, and an empty folder of somebody else.
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    let foreign = work.join("tmpfs");
    fs::create_dir(&foreign).unwrap();
    let _clean_up = CleanUp(foreign.clone());
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&foreign));
    let empty = scene.folder_of(OWNER, "empty", 0o755);
    let numbers = fs::metadata(&empty).unwrap();

    let registry = owner.registry();
    let _planted = Planted(vec![registry.clone()]);
    fs::create_dir(&registry).unwrap();
    let gone = "2147483647:1";
    let own = format!("{}:1", std::process::id());
    let files = [
        ("0.record", vec![0xff; 5000]),
        ("1.record", record(gone, &stage.place).into_bytes()),
        ("2.record", record(&own, &stage.place).into_bytes()),
        ("3.record", record(gone, &foreign).into_bytes()),
        ("4.record", b"daemon 1:1\nmount 1 0:1\nidentity x\nplace ../..\n".to_vec()),
        ("5.record", b"daemon 1:1\nmount 1 0:1\nidentity x\nplace /\n".to_vec()),
        // Made by archfs, it says, and it is another one, or another's name.
        ("1-1.made", empty.to_str().unwrap().into()),
        ("x.made", b"/proc\0".to_vec()),
        ("x.making", stage.place.to_str().unwrap().into()),
        ("x.lock", Vec::new()),
        ("x.socket", b"no socket".to_vec()),
    ];
    for (name, bytes) in &files {
        fs::write(registry.join(name), bytes).unwrap();
    }
    symlink("/dev/zero", registry.join("6.socket")).unwrap();
    for path in names_in(&registry).iter().chain([&registry]) {
        std::os::unix::fs::lchown(path, Some(OWNER), Some(OWNER)).unwrap();
    }
    fs::set_permissions(&registry, Permissions::from_mode(0o700)).unwrap();
    let place = stage.place.display().to_string();
    let unmount = format!("unmount {place}");
    let lazily = format!("unmount --lazy {place}");
    for line in ["list", "list --json", "gc", &unmount, &lazily, "gc"] {
        let output = owner.runs(&format!("timeout 20 $ARCHFS {line}"));
        let expected = if line.starts_with("unmount") { 5 } else { 0 };
        assert_eq!(output.status.code(), Some(expected), "{line}: {}", said(&output));
        assert_eq!(out(&output), "", "{line}");
        stage.assert_readable();
        assert_eq!(kind_of_mount(&foreign).as_deref(), Some("tmpfs"), "{line}");
        assert_eq!(fs::metadata(&empty).unwrap().ino(), numbers.ino(), "{line}");
    }
    // And the user can still mount.
    done(owner, "$ARCHFS mount -q --keep $IMAGE mount && $ARCHFS unmount mount");

    // Nor does root take a mount of another kind, or of another user, for its own.
    done(owner, "$ARCHFS mount -q --keep $IMAGE mount");
    let roots = Path::new("/tmp/archfs-0");
    let wrong = Planted(["7.record", "8.record"].map(|name| roots.join(name)).into());
    for (path, place) in wrong.0.iter().zip([&foreign, &owner.place]) {
        fs::write(path, record(gone, place)).unwrap();
    }
    run(archfs().args(["gc", "-q"]));
    assert_eq!(kind_of_mount(&foreign).as_deref(), Some("tmpfs"));
    assert_eq!(done(owner, "cat mount/hello"), "hello, world\n");
    assert!(!out(&run(archfs().arg("list"))).contains(owner.place.to_str().unwrap()));
    chown(&empty, Some(0), Some(0)).unwrap();
    done(owner, "$ARCHFS unmount mount");
}
