//! `run --private`, as root and as ordinary users, and mount points that are open connections, such
//! as /dev/fd/3.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::support;
use crate::support::mount::{is_mounted, listed};
use crate::support::stage::{Stage, Stopped, Talker, has_ended, processes_about, said, stage};
use crate::support::stale::one_at_a_time;
use crate::support::user::{OpenDevice, User};
use crate::support::{archfs, run, wait_until};

const PRIVATE: &str = "exec $ARCHFS run --private -q $IMAGE mount -- ";

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `check` as root and as an ordinary user, each with their own mount point.
fn as_both(stage: &Stage, uid: u32, check: impl Fn(&dyn Fn(&str) -> Command, &Path, &str)) {
    check(&|script| stage.bash(script), &stage.mount_point, "root");
    let _device = OpenDevice::new();
    let user = User::new(stage, uid);
    check(&|script| user.bash(script), &user.mount_point, "an ordinary user");
    // If run was killed, the daemon may still be exiting.
    wait_until("nothing is left", || !user.registry().exists());
}

#[test]
fn only_the_command_sees_a_private_mount() {
    let Some(stage) = stage() else { return };
    as_both(&stage, 3, |bash, mount_point, who| {
        let script = "sh -c 'cat mount/hello; echo x > written; grep -c $PWD/mount.fuse.archfs /proc/mounts; read x'";
        let mut run = Talker::start(&mut bash(&format!("{PRIVATE}{script}")));
        assert_eq!(run.line(), "hello, world", "{who}");
        assert_eq!(run.line(), "1", "{who}");
        assert!(
            !is_mounted(mount_point) && mount_point.is_dir(),
            "{who}: nothing is there for others"
        );
        assert_eq!(fs::read_dir(mount_point).unwrap().count(), 0, "{who}");
        assert_eq!(fs::read(mount_point.with_file_name("written")).unwrap(), b"x\n", "{who}");
        run.write("go\n");
        assert_eq!(run.end(), Some(0), "{who}");
        assert!(!mount_point.exists(), "{who}");
    });
}

#[test]
fn a_private_run_returns_the_status_of_its_command() {
    let Some(stage) = stage() else { return };
    as_both(&stage, 1, |bash, mount_point, who| {
        for (script, status) in [
            ("$IMAGE mount -- sh -c 'exit 7'", 7),
            ("$IMAGE mount -- sh -c 'kill -TERM $$'", 143),
            ("$IMAGE mount -- archfs-no-such-command", 127),
            ("$IMAGE mount -- /etc/passwd", 126),
            ("/no/such/file mount -- true", 121),
            ("/etc/passwd mount -- true", 123),
            ("$IMAGE /no/such/folder/mount -- true", 121),
            ("$IMAGE ./archfs/mount -- true", 121),
            ("$IMAGE mount", 122),
        ] {
            let output = bash(&format!("exec $ARCHFS run --private {script}")).output().unwrap();
            assert_eq!(output.status.code(), Some(status), "{who}, {script}: {}", said(&output));
            assert!(!mount_point.exists(), "{who}, {script}: {}", said(&output));
        }
    });
}

#[test]
fn a_private_command_keeps_its_user_group_and_capabilities() {
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 6);
    let secret = stage.work.path().join("secret");
    fs::write(&secret, "of the group\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&secret, Some(0), Some(60)).unwrap();
    let script = format!(
        "{PRIVATE}sh -c 'id -u; id -g; grep CapEff /proc/self/status; cat ../secret; cat mount/hello'"
    );
    let output = user.bash_in_groups(&script, "--groups=60").output().unwrap();
    let expected = "6\n6\nCapEff:\t0000000000000000\nof the group\nhello, world\n";
    assert_eq!(text(&output), expected, "{}", said(&output));
    let output = user.bash(&format!("{PRIVATE}cat ../secret")).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));

    // Root stays root.
    let output =
        run(&mut stage.bash(&format!("{PRIVATE}grep -E '^(Uid|CapEff)' /proc/self/status")));
    let plain = run(Command::new("grep").args(["-E", "^(Uid|CapEff)", "/proc/self/status"]));
    assert_eq!(text(&output), text(&plain));
}

#[test]
fn root_without_cap_sys_admin_gets_a_user_namespace() {
    let Some(stage) = stage() else { return };
    let script = format!("setpriv --bounding-set=-sys_admin bash -c '{PRIVATE}cat mount/hello'");
    let output = stage.bash(&script).output().unwrap();
    assert_eq!(text(&output), "hello, world\n", "{}", said(&output));
    assert!(stage.is_gone());
}

/// As in a container started by an ordinary user.
#[test]
fn root_without_cap_sys_admin_mounts_privately() {
    let Some(stage) = stage() else { return };
    let run = "$ARCHFS run $IMAGE mount -- cat mount/hello";
    for script in [
        format!("unshare --user --map-root-user bash -c '{run}'"),
        format!("setpriv --bounding-set=-sys_admin bash -c '{run}'"),
    ] {
        let output = stage.bash(&script).output().unwrap();
        assert_eq!(text(&output), "hello, world\n", "{script}: {}", said(&output));
        assert!(said(&output).contains("only the command sees"), "{}", said(&output));
        assert!(stage.is_gone(), "{script}");
    }
}

#[test]
fn a_private_mount_covers_an_existing_directory() {
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 7);
    // A directory where fusermount would not let the user mount.
    let mount_point = stage.work.path().join("theirs");
    fs::create_dir(&mount_point).unwrap();
    let script =
        format!("$ARCHFS run --private -q $IMAGE {0} -- cat {0}/hello", mount_point.display());
    for mut command in [stage.bash(&script), user.bash(&script)] {
        let output = command.output().unwrap();
        assert_eq!(text(&output), "hello, world\n", "{}", said(&output));
        assert!(mount_point.is_dir() && !is_mounted(&mount_point));
    }
}

#[test]
fn a_private_run_ends_above_a_mount_of_a_stopped_daemon() {
    let Some(stage) = stage() else { return };
    // Stopped long before it counts as idle, also on a busy machine.
    assert!(stage.mount(&["--keep", "-q", "--idle-timeout", "6s"]).status.success());
    let stopped = Stopped::and_forgotten(&stage);
    let image = stage.image.to_str().unwrap();
    let kill_the_daemon = "for it in $(pgrep -P $PPID); do [ $it = $$ ] || kill -KILL $it; done";
    for script in ["cat mount/hello; exit 7", &format!("{kill_the_daemon}; exit 7")] {
        let words = ["run", "--private", image, "mount", "--", "sh", "-c", script];
        let output = stage.ends(&words);
        assert_eq!(output.status.code(), Some(7), "{script}: {}", said(&output));
        assert!(is_mounted(&stage.mount_point), "{script}");
    }
    drop(stopped);
    run(archfs().args(["unmount", "--lazy"]).arg(&stage.mount_point));
}

#[test]
fn two_private_mounts_can_use_one_mount_point() {
    let Some(stage) = stage() else { return };
    as_both(&stage, 8, |bash, mount_point, who| {
        let start = || {
            let script = "sh -c 'cat mount/hello; read x; cat mount/folder/data | wc -c'";
            let mut run = Talker::start(&mut bash(&format!("{PRIVATE}{script}")));
            assert_eq!(run.line(), "hello, world", "{who}");
            run
        };
        let finish = |mut run: Talker| {
            run.write("go\n");
            assert_eq!(run.line(), "300000", "{who}");
            assert_eq!(run.end(), Some(0), "{who}");
        };
        let (first, second) = (start(), start());
        finish(first);
        assert!(mount_point.is_dir(), "{who}: it is in use");
        let third = start();
        finish(second);
        finish(third);
        assert!(!mount_point.exists(), "{who}");
    });
}

#[test]
fn a_private_mount_killed_at_once_leaves_at_most_an_empty_directory() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    as_both(&stage, 9, |bash, mount_point, who| {
        for is_there in [false, true] {
            if is_there {
                run(&mut bash("mkdir mount"));
            }
            let mut run =
                Talker::start(&mut bash(&format!("{PRIVATE}sh -c 'echo started; read x'")));
            assert_eq!(run.line(), "started");
            let parent = run.pid().as_raw_nonzero().get().to_string();
            let children = Command::new("pgrep").args(["-P", &parent]).output().unwrap();
            let pid = |line: &str| Pid::from_raw(line.parse().unwrap()).unwrap();
            let children: Vec<Pid> = text(&children).lines().map(pid).collect();
            assert_eq!(children.len(), 2, "the command and the daemon");
            run.signal(Signal::STOP);
            for &child in &children {
                kill_process(child, Signal::KILL).unwrap();
            }
            run.signal(Signal::KILL);
            assert_eq!(run.end(), None);
            wait_until("all have ended", || children.iter().all(|child| has_ended(*child)));
            assert!(!is_mounted(mount_point), "{who}");
            assert_eq!(fs::read_dir(mount_point).unwrap().count(), 0, "{who}");
            let cleared = support::run(&mut bash("$ARCHFS gc"));
            let named = said(&cleared).contains(mount_point.to_str().unwrap());
            assert_eq!(
                (named, mount_point.exists()),
                (!is_there, is_there),
                "{who}: {}",
                said(&cleared)
            );
        }
        run(&mut bash("rmdir mount"));
    });
}

#[test]
fn a_successful_private_mount_logs_a_summary_and_no_early_end() {
    let Some(stage) = stage() else { return };
    as_both(&stage, 10, |bash, _, who| {
        for _ in 0..25 {
            // Into a file, as in a batch job: the daemon writes to it as well.
            let run = "$ARCHFS run --private --stats $IMAGE mount -- cat mount/hello 2> said; \
                       cat said >&2";
            let output = bash(run).output().unwrap();
            assert!(!said(&output).contains("ended before"), "{who}: {}", said(&output));
            assert_eq!(said(&output).matches("served ").count(), 1, "{who}: {}", said(&output));
        }
    });
}

#[test]
fn killing_only_run_leaves_nothing_of_a_private_mount() {
    let Some(stage) = stage() else { return };
    as_both(&stage, 10, |bash, mount_point, who| {
        let script = "sh -c 'echo started; read x; cat mount/hello'";
        let mut run = Talker::start(&mut bash(&format!("{PRIVATE}{script}")));
        assert_eq!(run.line(), "started");
        run.signal(Signal::KILL);
        wait_until("run has ended", || run.has_ended());
        run.write("go\n");
        assert_eq!(run.line(), "hello, world", "{who}: the command keeps its files");
        wait_until("the directory is gone", || !mount_point.exists());
    });
}

#[test]
fn run_mounts_privately_without_fusermount() {
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 13);
    let script = "$ARCHFS run $IMAGE mount -- sh -c 'cat mount/hello; grep -c $PWD/mount.fuse.archfs /proc/mounts'";
    let mut command = Command::new("unshare");
    let hide = "cp -a /usr/bin \"$1\"/bin && rm \"$1\"/bin/fusermount* && \
                mount --bind \"$1\"/bin /usr/bin && shift && exec \"$@\"";
    command.args(["--mount", "sh", "-c", hide, "sh"]).arg(stage.work.path());
    let inner = user.bash(script);
    command.arg(inner.get_program()).args(inner.get_args()).current_dir(&user.home);
    command.env("ARCHFS", user.home.join("archfs")).env("IMAGE", &stage.image);
    let output = command.output().unwrap();
    assert_eq!(text(&output), "hello, world\n1\n", "{}", said(&output));
    assert!(said(&output).contains("fusermount3: not found on this node"), "{}", said(&output));
    assert!(!user.mount_point.exists());
}

/// fusermount requires users in /etc/passwd, which a container may lack.
#[test]
fn run_mounts_privately_if_fusermount_refuses() {
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 54_321);
    let output = user.bash("$ARCHFS run $IMAGE mount -- cat mount/hello").output().unwrap();
    assert_eq!(text(&output), "hello, world\n", "{}", said(&output));
    assert!(said(&output).contains("only the command sees"), "{}", said(&output));
    assert!(!user.mount_point.exists());
}

/// A user namespace has its own limit on nested user namespaces.
#[test]
fn forbidden_namespaces_are_reported_with_a_remedy() {
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 33);
    let mut command = Command::new("unshare");
    // The UIDs are mapped from outside. The process, now root, gains its capabilities by exec.
    let limit = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let map = "echo started >&2; read x; exec sh -c \"$LIMIT\" sh \"$@\"";
    command.args(["--user", "sh", "-c", map, "sh"]).env("LIMIT", limit);
    let inner = user.bash("$ARCHFS run --private $IMAGE mount -- true");
    command.arg(inner.get_program()).args(inner.get_args()).current_dir(&user.home);
    command.env("ARCHFS", user.home.join("archfs")).env("IMAGE", &stage.image);
    let mut within = Talker::complaining(command.stdin(Stdio::piped()));
    assert_eq!(within.line(), "started");
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{}/{map}", within.pid()), "0 0 65536").unwrap();
    }
    within.write("go\n");
    within.line_with("cannot create a namespace to mount in");
    assert!(within.line().starts_with("archfs: hint: ask for fusermount3"));
    assert_eq!(within.end(), Some(124));
    assert!(!user.mount_point.exists());
}

/// Mounts like a container runtime and returns the connection.
fn mounted_by_another_process(mount_point: &Path, kind: &str) -> OwnedFd {
    fs::create_dir(mount_point).unwrap();
    let device: OwnedFd = File::options().read(true).write(true).open("/dev/fuse").unwrap().into();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    mount("somebody", mount_point, kind, flags, Some(options.as_c_str())).unwrap();
    device
}

/// A bash script that inherits the connection as descriptor 3.
fn with_connection(stage: &Stage, connection: OwnedFd, script: &str) -> Command {
    let mut command = stage.bash(&format!("exec 3<&0 </dev/null; {script}"));
    command.stdin(Stdio::from(connection));
    command
}

#[test]
fn a_foreground_daemon_serves_an_inherited_connection() {
    let Some(stage) = stage() else { return };
    // Apptainer and Singularity call the program of --fusemount in the first way.
    for line in ["mount $IMAGE /dev/fd/3 -f", "mount --foreground $IMAGE /dev/fd/7 7<&3"] {
        let connection = mounted_by_another_process(&stage.mount_point, "fuse");
        let line = format!("exec $ARCHFS {line}");
        // All other copies of the connection are closed, so that the failure of a daemon is
        // noticed.
        let mut daemon = with_connection(&stage, connection, &line).spawn().unwrap();
        stage.assert_readable();
        let size = run(Command::new("wc").arg("-c").arg(stage.mount_point.join("folder/data")));
        assert!(text(&size).starts_with("300000 "), "{size:?}");
        unmount(&stage.mount_point, UnmountFlags::NOFOLLOW).unwrap();
        assert_eq!(daemon.wait().unwrap().code(), Some(0), "{line}");
        fs::remove_dir(&stage.mount_point).unwrap();
    }
    // A runtime that also ends the program.
    let connection = mounted_by_another_process(&stage.mount_point, "fuse");
    let line = "exec $ARCHFS mount --grace 1s $IMAGE /dev/fd/3 -f";
    let mut daemon = with_connection(&stage, connection, line).spawn().unwrap();
    stage.assert_readable();
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
    unmount(&stage.mount_point, UnmountFlags::NOFOLLOW).unwrap();
}

#[test]
fn a_background_daemon_serves_an_inherited_connection() {
    let Some(stage) = stage() else { return };
    let connection = mounted_by_another_process(&stage.mount_point, "fuse");
    let line = "$ARCHFS mount -q $IMAGE /dev/fd/3 && exec 3<&- && cat mount/hello; exit $?";
    let output = run(&mut with_connection(&stage, connection, line));
    assert_eq!(text(&output), "hello, world\n");
    // The process that mounted must unmount; the end of the script changes nothing.
    stage.assert_readable();
    let image = stage.image.to_str().unwrap();
    let daemon = match processes_about(&[image, "--daemon="])[..] {
        [one] => Pid::from_raw(one).unwrap(),
        ref several => panic!("{several:?}"),
    };
    unmount(&stage.mount_point, UnmountFlags::NOFOLLOW).unwrap();
    wait_until("the daemon has ended", || has_ended(daemon));
    fs::remove_dir(&stage.mount_point).unwrap();
}

/// As archfs itself does, but without a record that names the daemon.
#[test]
fn wait_and_unmount_handle_an_inherited_connection_of_a_stopped_daemon() {
    let Some(stage) = stage() else { return };
    let connection = mounted_by_another_process(&stage.mount_point, "fuse.archfs");
    let line = "$ARCHFS mount -q --keep $IMAGE /dev/fd/3";
    run(&mut with_connection(&stage, connection, line));
    let image = stage.image.to_str().unwrap();
    let daemon = match processes_about(&[image, "--daemon="])[..] {
        [one] => Pid::from_raw(one).unwrap(),
        ref several => panic!("{several:?}"),
    };
    assert_eq!(stage.ends(&["wait", "--timeout", "20s", "mount"]).status.code(), Some(0));
    let stopped = Stopped::new(daemon);
    assert_eq!(listed(&stage.mount_point).unwrap()["state"], "unknown");
    let output = stage.ends(&["wait", "--timeout", "1s", "mount"]);
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    let output = stage.ends(&["unmount", "--lazy", "mount"]);
    assert!(output.status.success() && !is_mounted(&stage.mount_point), "{}", said(&output));
    drop(stopped);
    wait_until("the daemon has ended", || has_ended(daemon));
}

#[test]
fn a_descriptor_that_is_not_a_fuse_connection_is_refused() {
    let Some(stage) = stage() else { return };
    for (line, what) in [
        ("/dev/fd/99", "descriptor not open"),
        ("/dev/fd/99 -f", "descriptor not open"),
        ("/dev/fd/3 -f 3</dev/null", "/dev/fd/3"),
        ("/dev/fd/3 3</dev/null", "/dev/fd/3"),
        ("/dev/fd/3 -f 3< <(read x)", "/dev/fd/3"),
        ("/dev/fd/x", "/dev/fd"),
        ("/dev/fd/-1", "/dev/fd"),
        // Opened, but not mounted.
        ("/dev/fd/3 -f 3<>/dev/fuse", "cannot start to serve"),
        ("/dev/fd/3 3<>/dev/fuse", "cannot start to serve"),
    ] {
        let script = format!("exec timeout 10 $ARCHFS mount --keep $IMAGE {line}");
        let script = if line.contains("-f") { script.replace("--keep", "") } else { script };
        let output = stage.bash(&script).output().unwrap();
        let status = if what == "/dev/fd" { 2 } else { 1 };
        assert_eq!(output.status.code(), Some(status), "{line}: {}", said(&output));
        assert!(said(&output).contains(what), "{line}: {}", said(&output));
    }
    let image = stage.image.to_str().unwrap();
    wait_until("no daemon is left", || processes_about(&[image, "--daemon="]).is_empty());
    // Private mounts on descriptors do not exist either.
    let output = archfs().arg("run").arg(&stage.image).args(["/dev/fd/99", "--", "true"]).output();
    assert_eq!(output.unwrap().status.code(), Some(122));
}
