//! Links, files and records that an attacker planted in advance.

use std::fs::{self, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, mount};

use super::{OTHER, OWNER, Scene, done, mode, names_in, out, scene};
use crate::support::mount::{CleanUp, is_mounted, kind_of_mount, unmount};
use crate::support::stage::said;
use crate::support::{archfs, image, run, skip_without_mounts, tar, wait_until, work_directory};

/// Names planted outside the test's directory; removed when dropped.
struct Planted(Vec<PathBuf>);

impl Drop for Planted {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// > archfs keeps records only in a directory of the user that is closed to others:
/// > `/tmp/archfs-UID`, or `/tmp/archfs-UID-NAME` if another user has taken that name.
#[test]
fn records_are_kept_only_in_a_private_directory_of_the_user() {
    let Some(scene) = scene() else { return };
    let Scene { owner, other, .. } = &scene;
    let elsewhere = scene.directory_of(OTHER, "elsewhere", 0o777);
    let own = scene.directory_of(OWNER, "own", 0o700);
    let plant = |how: &str| {
        let directories = ["/tmp", "/dev/shm", "/var/tmp"];
        let all = directories.map(|directory| Path::new(directory).join(format!("archfs-{OWNER}")));
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
    let others = || {
        let prefix = format!("archfs-{OWNER}-");
        let names = fs::read_dir("/tmp").unwrap().map(|entry| entry.unwrap());
        names.filter(|name| name.file_name().to_str().unwrap().starts_with(&prefix)).count()
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
        // All processes of the user find the same directory.
        for _ in 0..2 {
            done(owner, "timeout 20 $ARCHFS mount -q --keep $IMAGE mount");
            assert_eq!(others(), 1, "{how}");
        }
        assert!(done(owner, "$ARCHFS list").contains("  alive  "), "{how}");
        done(owner, "timeout 20 $ARCHFS gc && cat mount/hello && timeout 20 $ARCHFS unmount mount");
        wait_until("nothing is left", || !owner.mount_point.exists() && others() == 0);
        done(owner, "timeout 20 $ARCHFS run -q --private $IMAGE mount -- cat mount/hello");
        wait_until("nothing is left of a private mount", || others() == 0);
        let after: Vec<_> = planted.0.iter().map(|path| mode(path)).collect();
        assert_eq!(before, after, "{how}");
        let within = planted.0.iter().filter(|path| path.is_dir());
        assert_eq!(within.map(|path| names_in(path).len()).sum::<usize>(), 0, "{how}");
    }
}

/// > **A mount point** that exists must belong to the user. archfs accepts one that another member
/// > of a group made, unless every user may write to it or to its parent. Otherwise `mount` exits
/// > with status 4.
///
/// > Root, and a private mount, may use directories of other users, except where every user may
/// > create names, such as in /tmp. A symbolic link of another user in such a directory is never
/// > followed.
#[test]
fn another_users_mount_point_in_a_shared_directory_is_refused() {
    let Some(scene) = scene() else { return };
    let Scene { owner, other, stage, .. } = &scene;
    let sticky = scene.sticky();
    done(owner, "mkdir dear");
    let point = sticky.join("point");
    let _clean_up = CleanUp(point.clone());
    for (plant, status, said_of_user) in [
        ("mkdir -m 777 PATH", 4, "a directory of another user"),
        ("ln -s DEAR PATH", 1, "a symbolic link of another user"),
        ("ln -s /nowhere PATH", 1, "a symbolic link of another user"),
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
    // A symbolic link of another user on the way is not followed either.
    done(other, &format!("ln -s {} ../sticky/way", owner.home.display()));
    for output in [
        owner.runs("$ARCHFS mount -q --keep $IMAGE ../sticky/way/mount"),
        stage.bash("$ARCHFS mount -q --keep $IMAGE sticky/way/mount").output().unwrap(),
    ] {
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("way is a symbolic link of another user"));
        assert!(!owner.mount_point.exists());
    }
    // In a user's directory root mounts for that user.
    done(owner, "mkdir mount");
    let line = format!("$ARCHFS mount -q --keep $IMAGE {}", owner.mount_point.display());
    run(&mut stage.bash(&line));
    unmount(&owner.mount_point);
    assert!(owner.mount_point.exists());
    // The owner of a world-writable directory could replace it.
    let lent = scene.directory_of(OTHER, "lent", 0o777);
    let _clean_up = CleanUp(lent.clone());
    let refused = owner.runs("$ARCHFS mount -q --keep $IMAGE ../lent");
    assert_eq!(refused.status.code(), Some(4), "{}", said(&refused));
    assert!(!is_mounted(&lent));
}

/// > Root follows no symbolic link of another user anywhere on the path of a mount point.
#[test]
fn root_follows_no_symlink_of_a_user_to_a_mount_point() {
    let Some(scene) = scene() else { return };
    let Scene { owner, other, stage, .. } = &scene;
    done(other, "$ARCHFS mount -q --keep $IMAGE mount");
    done(owner, &format!("mkdir dear; ln -s {} link", other.home.display()));
    done(owner, &format!("ln -s {} last; ln -s $PWD/dear dear-link", other.mount_point.display()));
    let home = owner.home.file_name().unwrap().to_str().unwrap();
    for (line, link) in [
        ("unmount HOME/link/mount", "HOME/link is"),
        ("unmount --lazy HOME/link/mount", "HOME/link is"),
        ("unmount HOME/last", "HOME/last: "),
        ("mount -q --keep $IMAGE HOME/dear-link/new", "HOME/dear-link is"),
        ("mount -q --keep $IMAGE HOME/dear-link", "HOME/dear-link: "),
        ("run -q $IMAGE HOME/dear-link/new -- true", "HOME/dear-link is"),
    ] {
        let line = line.replace("HOME", home);
        let refused = stage.bash(&format!("$ARCHFS {line}")).output().unwrap();
        assert!(!refused.status.success(), "{line}");
        let stderr = said(&refused);
        assert!(stderr.contains(&link.replace("HOME", home)), "{line}: {stderr}");
        assert!(stderr.contains("a symbolic link of another user"), "{line}: {stderr}");
    }
    assert_eq!(done(other, "cat mount/hello"), "hello, world\n");
    assert!(!is_mounted(&owner.home.join("dear")));
    assert_eq!(names_in(&owner.home.join("dear")).len(), 0);
    // Root's own links are followed, also in several steps and with `..`.
    run(&mut stage.bash(&format!(
        "ln -s {} one; ln -s one/../one/ two; $ARCHFS unmount $PWD/./two/mount",
        other.home.file_name().unwrap().to_str().unwrap()
    )));
    assert!(!is_mounted(&other.mount_point));
}

/// > Root enters no FUSE file system of another user on the way to a mount point.
#[test]
fn root_enters_no_fuse_file_system_of_a_user() {
    let Some(scene) = scene() else { return };
    let Scene { stage, .. } = &scene;
    let served = scene.directory_of(OWNER, "served", 0o755);
    // No daemon answers here, so a process that accesses it hangs.
    let device = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!(
        "fd={},rootmode=40000,user_id={OWNER},group_id={OWNER},allow_other",
        device.as_raw_fd()
    );
    let options = std::ffi::CString::new(options).unwrap();
    mount("odd", &served, "fuse.odd", MountFlags::NODEV, Some(options.as_c_str())).unwrap();
    let _clean_up = CleanUp(served);
    for line in
        ["unmount served/m", "mount -q --keep $IMAGE served/m", "run -q $IMAGE served/a/b -- true"]
    {
        let refused = stage.bash(&format!("timeout -k 1 20 $ARCHFS {line}")).output().unwrap();
        let stderr = said(&refused);
        assert!(!matches!(refused.status.code(), Some(0 | 124 | 137)), "{line}: {stderr}");
        let expected = format!("served is a FUSE file system of uid {OWNER} (fuse.odd)");
        assert!(stderr.contains(&expected), "{line}: {stderr}");
    }
    // `unmount` only names the mount point and does not access it.
    let refused = stage.bash("timeout -k 1 20 $ARCHFS unmount served").output().unwrap();
    assert_eq!(refused.status.code(), Some(5), "{}", said(&refused));
    drop(device);
}

/// > **Names in sticky directories**: a log that another user made or linked there is refused
/// > (status 1). `--stats-json` replaces no link, and no file except an earlier one of its own.
///
/// > A log may be a link of the user, /dev/null or a similar device.
#[test]
fn log_and_statistics_are_never_written_through_planted_files() {
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
        assert!(said(&refused).contains("another user may"), "{plant}: {}", said(&refused));
        assert!(!owner.mount_point.exists(), "{plant}");
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
    // The user's own links and those of the system are followed.
    done(owner, "touch log; ln -s $PWD/log ../sticky/own");
    for log in ["../sticky/own", "/dev/null", "log"] {
        done(owner, &format!("$ARCHFS mount -v --keep --log-file {log} $IMAGE mount"));
        done(owner, "$ARCHFS unmount mount");
    }
    wait_until("the log reports both", || {
        fs::read_to_string(owner.home.join("log")).unwrap().matches("served").count() == 2
    });
}

/// > An index replaces a link, not the target of the link.
#[test]
fn an_index_replaces_a_link_and_not_its_target() {
    let Some(scene) = scene() else { return };
    let Scene { owner, other, stage, .. } = &scene;
    let sticky = scene.sticky();
    let archive = sticky.join("data.tar");
    fs::write(&archive, tar::of(&[("hello", b"hello, world\n")])).unwrap();
    fs::set_permissions(&archive, Permissions::from_mode(0o644)).unwrap();
    done(owner, "echo dear > dear");
    let dear = owner.home.join("dear");
    // A link of another user in a sticky directory cannot be replaced, so the index is in the
    // cache.
    let beside = sticky.join("data.tar.archfs-index");
    done(other, &format!("ln -s {} {}", dear.display(), beside.display()));
    done(owner, "XDG_CACHE_HOME=$PWD/cache $ARCHFS index -q ../sticky/data.tar");
    assert_eq!(names_in(&owner.home.join("cache/archfs")).len(), 1);
    assert_eq!(fs::read_link(&beside).unwrap(), dear);
    // The user's own link, beside the user's own archive.
    done(other, "rm ../sticky/data.tar.archfs-index");
    chown(&archive, Some(OWNER), Some(OWNER)).unwrap();
    done(owner, "ln -s $PWD/dear ../sticky/data.tar.archfs-index");
    done(owner, "XDG_CACHE_HOME=$PWD/cache $ARCHFS index -q ../sticky/data.tar");
    assert!(fs::symlink_metadata(&beside).unwrap().is_file());
    assert_eq!(mode(&beside), 0o644, "as the archive, less what others could write");
    // Root replaces a planted link, not its target.
    fs::remove_file(&beside).unwrap();
    chown(&archive, Some(0), Some(0)).unwrap();
    done(other, &format!("ln -s {} {}", dear.display(), beside.display()));
    run(stage.bash("$ARCHFS index -q sticky/data.tar").env("HOME", stage.work.path()));
    assert_eq!(fs::metadata(&beside).unwrap().uid(), 0);
    assert_eq!(fs::read_to_string(&dear).unwrap(), "dear\n");
    assert_eq!(names_in(&sticky).len(), 2, "nothing is left of the writing");
}

/// A record of a mount, as archfs writes it (src/lifecycle/registry/record.rs).
fn record(process: &str, mount_point: &Path) -> String {
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    record_of(&node, process, mount_point)
}

fn record_of(node: &str, process: &str, mount_point: &Path) -> String {
    let text = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let line = text.lines().rfind(|line| line.split(' ').nth(4) == mount_point.to_str());
    let fields: Vec<&str> = line.map(|line| line.split(' ').collect()).unwrap_or_default();
    let (id, device) = (fields.first().unwrap_or(&"1"), fields.get(2).unwrap_or(&"0:1"));
    let text = format!(
        "archfs 2\nprocess {process}\nmount {id} {device}\ncreates yes\nending no \nnode {node}\njob -\nidentity x\n\
         archive /x\nmount-point {}\n",
        mount_point.display()
    );
    let sum = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
    format!("{text}end {sum:016x}\n")
}

/// > **`gc`, `unmount`, `list`** act only on mounts of type fuse.archfs of this user, whatever the
/// > records say. Root can also unmount those of other users.
#[test]
fn forged_records_never_affect_files_of_others() {
    let Some(scene) = scene() else { return };
    let Scene { owner, stage, .. } = &scene;
    let work = stage.work.path();
    // A mount of root, a mount of another type, and an empty directory of another user.
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    let foreign = work.join("tmpfs");
    fs::create_dir(&foreign).unwrap();
    let _clean_up = CleanUp(foreign.clone());
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&foreign));
    let empty = scene.directory_of(OWNER, "empty", 0o755);
    let numbers = fs::metadata(&empty).unwrap();

    let registry = owner.registry();
    let _planted = Planted(vec![registry.clone()]);
    fs::create_dir(&registry).unwrap();
    let gone = "2147483647:1";
    let own = format!("{}:1", std::process::id());
    let of_another_node = record_of("another-node", gone, &empty);
    let files = [
        ("0.mount", vec![0xff; 5000]),
        ("1.mount", record(gone, &stage.mount_point).into_bytes()),
        ("2.mount", record(&own, &stage.mount_point).into_bytes()),
        ("3.mount", record(gone, &foreign).into_bytes()),
        ("4.mount", record(gone, Path::new("../..")).into_bytes()),
        ("5.mount", record(gone, Path::new("/")).into_bytes()),
        // It claims that archfs created a directory that belongs to another user.
        ("6.mount", record(gone, &empty).into_bytes()),
        ("7.mount", record(gone, Path::new("/proc")).into_bytes()),
        // From another node that shares /tmp.
        ("8.mount", of_another_node.clone().into_bytes()),
        ("x.socket", b"no socket".to_vec()),
    ];
    for (name, bytes) in &files {
        fs::write(registry.join(name), bytes).unwrap();
    }
    symlink("/dev/zero", registry.join("y.socket")).unwrap();
    for path in names_in(&registry).iter().chain([&registry]) {
        std::os::unix::fs::lchown(path, Some(OWNER), Some(OWNER)).unwrap();
    }
    fs::set_permissions(&registry, Permissions::from_mode(0o700)).unwrap();
    let mount_point = stage.mount_point.display().to_string();
    let unmount = format!("unmount {mount_point}");
    let lazily = format!("unmount --lazy {mount_point}");
    for line in ["list", "list --json", "gc", &unmount, &lazily, "gc"] {
        let output = owner.runs(&format!("timeout 20 $ARCHFS {line}"));
        let expected = if line.starts_with("unmount") { 5 } else { 0 };
        assert_eq!(output.status.code(), Some(expected), "{line}: {}", said(&output));
        assert_eq!(out(&output), "", "{line}");
        stage.assert_readable();
        assert_eq!(kind_of_mount(&foreign).as_deref(), Some("tmpfs"), "{line}");
        assert_eq!(fs::metadata(&empty).unwrap().ino(), numbers.ino(), "{line}");
    }
    assert_eq!(fs::read(registry.join("8.mount")).unwrap(), of_another_node.as_bytes());
    // The user can still mount.
    done(owner, "$ARCHFS mount -q --keep $IMAGE mount && $ARCHFS unmount mount");

    // Root does not treat a mount of another type or user as its own either.
    done(owner, "$ARCHFS mount -q --keep $IMAGE mount");
    let roots = Path::new("/tmp/archfs-0");
    let wrong = Planted(["7.mount", "8.mount"].map(|name| roots.join(name)).into());
    for (path, mount_point) in wrong.0.iter().zip([&foreign, &owner.mount_point]) {
        fs::write(path, record(gone, mount_point)).unwrap();
    }
    run(archfs().args(["gc", "-q"]));
    assert_eq!(kind_of_mount(&foreign).as_deref(), Some("tmpfs"));
    assert_eq!(done(owner, "cat mount/hello"), "hello, world\n");
    assert!(!out(&run(archfs().arg("list"))).contains(owner.mount_point.to_str().unwrap()));
    chown(&empty, Some(0), Some(0)).unwrap();
    done(owner, "$ARCHFS unmount mount");
}

/// As under `sudo -E`.
#[test]
fn root_ignores_file_paths_in_another_users_variables() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let directory = work.path();
    let [log, stats, index] = ["log", "stats", "index"].map(|name| directory.join(name));
    let image = image::small(directory);
    let mount = |user: Option<&str>, options: &[&str]| {
        let mount_point = directory.join("roots");
        let _clean_up = CleanUp(mount_point.clone());
        let mut command = archfs();
        command.env_remove("SUDO_UID").envs(user.map(|user| ("SUDO_UID", user)));
        command.env("ARCHFS_LOG_FILE", &log).env("ARCHFS_STATS_JSON", &stats);
        command.env("ARCHFS_INDEX", &index).args(["mount", "--keep"]).args(options);
        let output = run(command.arg(&image).arg(&mount_point));
        unmount(&mount_point);
        said(&output)
    };
    let stderr = mount(Some("1000"), &[]);
    for name in ["ARCHFS_LOG_FILE", "ARCHFS_STATS_JSON", "ARCHFS_INDEX"] {
        assert_eq!(
            stderr.matches(&format!("{name}: ignored, because root")).count(),
            1,
            "{stderr}"
        );
    }
    assert!(!log.exists() && !stats.exists() && !index.exists());
    for (user, options) in [
        (None, vec![]),
        (Some("0"), vec![]),
        (Some("1000"), vec![format!("--stats-json={}", stats.display())]),
    ] {
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        mount(user, &options);
        wait_until("the numbers are written", || stats.exists());
        fs::remove_file(&stats).unwrap();
    }
}
