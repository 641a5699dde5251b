//! Processes that mount the same archives at the same mount point share one mount.
//!
//! Covers refusals, the last holder, `unmount` with several holders, and `wait`.

use std::fs;
use std::io::{Read, Write, pipe};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::support;
use crate::support::mount::{is_mounted, listed, unmount};
use crate::support::stage::{
    Stage, Talker, end, has_ended, processes_about, said, shell, stage, stage_as_user, stage_with,
    tell,
};
use crate::support::user::{OpenDevice, User};
use crate::support::{archfs, run, wait_until};

/// Capacity of a pipe (pipe(7)).
const PIPE: usize = 64 << 10;
const READY: &[u8] = b"ready\n";

/// PIDs of the holders of the mount, and whether it is kept.
fn holders(mount_point: &Path) -> (Vec<u64>, bool) {
    let row = listed(mount_point).expect("a mount");
    let holders = row["holders"].as_array().unwrap();
    let pids = holders.iter().map(|holder| holder["pid"].as_u64().unwrap()).collect();
    (pids, row["kept"].as_bool().unwrap())
}

/// Starts 64 of `command` at once and waits until each prints that it can read; then lets them
/// exit.
fn crowd(image: &Path, mount_point: &Path, what: &str, mut command: impl FnMut() -> Command) {
    let (reader, writer) = pipe().unwrap();
    let start = |_| {
        let mut command = command();
        command.stdin(Stdio::from(reader.try_clone().unwrap())).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut crowd: Vec<_> = (0..64).map(start).collect();
    let expected = "hello, world\n";
    for member in &mut crowd {
        let mut line = vec![0; expected.len()];
        member.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(line, expected.as_bytes(), "{what}");
    }
    let image = image.to_str().unwrap();
    assert_eq!(processes_about(&[image, "--daemon="]).len(), 1, "{what}: one daemon");
    drop((reader, writer));
    for mut member in crowd {
        assert!(member.wait().unwrap().success(), "{what}");
    }
    wait_until("the mount is gone", || !is_mounted(mount_point) && !mount_point.exists());
    wait_until("the daemon has ended", || processes_about(&[image, "--daemon="]).is_empty());
}

const MOUNT: &str = "$ARCHFS mount -q $IMAGE mount && cat mount/hello && read x; exit 0";
const RUN: &str = "$ARCHFS run -q $IMAGE mount -- sh -c 'cat mount/hello; read x; exit 0'";

#[test]
fn sixty_four_concurrent_mounts_share_one() {
    let Some(stage) = stage_as_user() else { return };
    for script in [MOUNT, RUN] {
        crowd(&stage.image, &stage.mount_point, script, || stage.bash(script));
    }
}

#[test]
fn sixty_four_concurrent_mounts_of_an_ordinary_user_share_one() {
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 4);
    for script in [MOUNT, RUN] {
        crowd(&stage.image, &user.mount_point, script, || user.bash(script));
    }
    assert!(!user.registry().exists(), "nothing is left");
}

#[test]
fn another_archive_or_view_at_the_mount_point_is_refused() {
    let Some(stage) = stage_as_user() else { return };
    let other = stage.work.path().join("other.sqfs");
    fs::copy(&stage.image, &other).unwrap();
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    let refused = |words: &[&str], archive: &Path, status: i32| {
        let mut command = archfs();
        command.args(words).arg(archive).arg(&stage.mount_point);
        if words[0] == "run" {
            command.args(["--", "true"]);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{words:?}: {}", said(&output));
        stage.assert_readable();
        said(&output)
    };
    for (word, status) in [("mount", 1), ("run", 121)] {
        let text = refused(&[word], &other, status);
        assert!(text.contains("small.sqfs (fuse.archfs) is mounted here"), "{text}");
        let text = refused(&[word, "--subdir", "folder"], &stage.image, status);
        assert!(text.contains("with other options") && text.contains("--subdir"), "{text}");
    }
    let text = refused(&["mount", "--foreground"], &other, 1);
    assert!(text.contains("small.sqfs (fuse.archfs) is mounted here"), "{text}");
    // The same bytes and name, but another file.
    fs::rename(&other, &stage.image).unwrap();
    let text = refused(&["mount"], &stage.image, 1);
    assert!(text.contains("has changed since it was mounted"), "{text}");
}

#[test]
fn equivalent_command_lines_share_a_mount() {
    let Some(stage) = stage_as_user() else { return };
    let work = stage.work.path();
    symlink("small.sqfs", work.join("link.sqfs")).unwrap();
    symlink("mount", work.join("link")).unwrap();
    symlink(".", work.join("here")).unwrap();
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    let daemon = stage.daemon();
    for arguments in [
        "small.sqfs mount",
        "./small.sqfs mount/",
        "link.sqfs mount",
        "small.sqfs link",
        "here/link.sqfs here/link/.",
        "--cache 1M --threads 3 --grace 1s small.sqfs mount",
        "--until-pid $$ small.sqfs mount",
        "--keep small.sqfs mount",
    ] {
        let output = stage.bash(&format!("$ARCHFS mount {arguments}; exit $?")).output().unwrap();
        assert!(output.status.success(), "{arguments}: {}", said(&output));
        assert!(said(&output).contains("archfs: note: sharing "), "{arguments}: {}", said(&output));
        assert_eq!(stage.daemon(), daemon);
    }
    wait_until("the scripts are forgotten", || holders(&stage.mount_point) == (vec![], true));
}

#[test]
fn the_mount_ends_with_the_last_script() {
    for first in [0, 1] {
        let Some(stage) = stage_as_user() else { return };
        let mut scripts = [(); 2].map(|()| shell(stage.work.path()));
        for script in &mut scripts {
            assert_eq!(tell(script, "$ARCHFS mount -q small.sqfs mount"), "done 0\n");
        }
        let mut expected = scripts.each_ref().map(|script| u64::from(script.id()));
        let [left, right] = scripts;
        let (leaves, stays) = if first == 0 { (left, right) } else { (right, left) };
        let last = u64::from(stays.id());
        expected.sort_unstable();
        assert_eq!(holders(&stage.mount_point), (expected.to_vec(), false));
        end(leaves);
        wait_until("one is left", || holders(&stage.mount_point).0 == [last]);
        stage.assert_readable();
        end(stays);
        wait_until("the mount is gone", || stage.is_gone());
    }
}

/// A command that runs until it reads a line.
fn long_run(stage: &Stage) -> Talker {
    let mut run =
        Talker::start(&mut stage.bash(
            "exec $ARCHFS run -q $IMAGE mount -- sh -c 'echo started; read x; cat mount/hello'",
        ));
    assert_eq!(run.line(), "started");
    run
}

fn finish(mut run: Talker) {
    run.write("go\n");
    assert_eq!(run.line(), "hello, world");
    assert_eq!(run.end(), Some(0));
}

#[test]
fn the_mount_ends_with_the_last_run() {
    for first in [0, 1] {
        let Some(stage) = stage_as_user() else { return };
        let (left, right) = (long_run(&stage), long_run(&stage));
        let (leaves, stays) = if first == 0 { (left, right) } else { (right, left) };
        finish(leaves);
        stage.assert_readable();
        finish(stays);
        assert!(stage.is_gone(), "run returns when it is gone");
    }
}

#[test]
fn scripts_and_runs_share_a_mount_in_any_order() {
    let Some(stage) = stage_as_user() else { return };
    let mut script = shell(stage.work.path());
    assert_eq!(tell(&mut script, "$ARCHFS mount -q small.sqfs mount"), "done 0\n");
    finish(long_run(&stage));
    stage.assert_readable();
    let run = long_run(&stage);
    let caller = u64::from(script.id());
    end(script);
    wait_until("the script is forgotten", || !holders(&stage.mount_point).0.contains(&caller));
    stage.assert_readable();
    finish(run);
    assert!(stage.is_gone(), "run returns when it is gone");
    // Here run is the parent of the daemon, and the script joins.
    let run = long_run(&stage);
    let mut script = shell(stage.work.path());
    assert_eq!(tell(&mut script, "$ARCHFS mount -q small.sqfs mount"), "done 0\n");
    finish(run);
    stage.assert_readable();
    end(script);
    wait_until("the mount is gone", || stage.is_gone());
}

#[test]
fn the_next_mount_joins_a_lingering_daemon() {
    let Some(stage) = stage_as_user() else { return };
    let linger = "$ARCHFS mount -q --linger 1h small.sqfs mount; exit $?";
    run(&mut stage.bash(linger));
    wait_until("the mount has no holder", || holders(&stage.mount_point) == (vec![], false));
    stage.assert_readable();
    let daemon = stage.daemon();
    finish(long_run(&stage));
    let joined = run(&mut stage.bash("$ARCHFS mount small.sqfs mount; exit $?"));
    assert!(said(&joined).contains("sharing"), "{}", said(&joined));
    assert_eq!(stage.daemon(), daemon);
    kill_process(daemon, Signal::TERM).unwrap();
    wait_until("the mount is gone", || stage.is_gone());

    let before = Instant::now();
    run(&mut stage.bash("$ARCHFS mount -q --linger 1s small.sqfs mount; exit $?"));
    wait_until("the mount is gone", || stage.is_gone());
    assert!(before.elapsed() >= Duration::from_secs(1));
}

#[test]
fn keep_applies_when_joining_a_mount() {
    let Some(stage) = stage_as_user() else { return };
    let mut script = shell(stage.work.path());
    assert_eq!(tell(&mut script, "$ARCHFS mount -q small.sqfs mount"), "done 0\n");
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    end(script);
    wait_until("the script is forgotten", || holders(&stage.mount_point) == (vec![], true));
    stage.assert_readable();
    unmount(&stage.mount_point);
    assert!(stage.is_gone());
}

#[test]
fn joining_a_mount_that_just_ended_mounts_again() {
    let Some(stage) = stage_as_user() else { return };
    for keep in ["--keep", ""] {
        assert!(stage.mount(&["--keep", "-q"]).status.success());
        let ended = stage.daemon();
        // The pipe for its ready line is full, so it blocks between taking the lease and using it.
        let (mut reader, mut writer) = pipe().unwrap();
        writer.write_all(&[b'-'; PIPE]).unwrap();
        let line = format!("$ARCHFS mount {keep} --ready-fd 1 $IMAGE mount || exit; read x");
        let mut command = stage.bash(&line);
        let mut joins = Talker::complaining(command.stdin(Stdio::piped()).stdout(writer));
        // The command holds the write end of the pipe.
        drop(command);
        wait_until("it has a lease", || holders(&stage.mount_point).0.len() == 1);
        kill_process(ended, Signal::INT).unwrap();
        wait_until("the mount is gone", || stage.is_gone());
        let mut written = [0; PIPE + READY.len()];
        reader.read_exact(&mut written).unwrap();
        assert!(written.ends_with(READY));
        joins.line_with("mounted ");
        stage.assert_readable();
        assert_ne!(stage.daemon(), ended);
        assert_eq!(holders(&stage.mount_point).1, !keep.is_empty());
        joins.write("\n");
        assert_eq!(joins.end(), Some(0));
        if !keep.is_empty() {
            unmount(&stage.mount_point);
        }
        wait_until("the mount is gone", || stage.is_gone());
        // It reported ready only once.
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
    }
}

#[test]
fn a_foreground_mount_joins_and_leaves_a_shared_mount() {
    let Some(stage) = stage_as_user() else { return };
    let mut script = shell(stage.work.path());
    assert_eq!(tell(&mut script, "$ARCHFS mount -q small.sqfs mount"), "done 0\n");
    let foreground = || {
        // With default signal handling, even if the tests were started with signals ignored.
        let mut joined =
            Talker::start(&mut stage.bash("exec $ARCHFS mount -f --ready-fd 1 $IMAGE mount"));
        assert_eq!(joined.line(), "ready");
        assert!(holders(&stage.mount_point).0.contains(&pid_of(&joined)));
        joined
    };
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let joined = foreground();
        joined.signal(signal);
        assert_eq!(joined.end(), Some(0), "{signal:?}");
        stage.assert_readable();
    }
    // It holds the mount like any other process, and the mount ends with it.
    let joined = foreground();
    end(script);
    wait_until("the script is forgotten", || holders(&stage.mount_point).0 == [pid_of(&joined)]);
    stage.assert_readable();
    run(archfs().args(["unmount", "--lazy"]).arg(&stage.mount_point));
    assert_eq!(joined.end(), Some(0));
}

fn pid_of(talker: &Talker) -> u64 {
    u64::try_from(talker.pid().as_raw_nonzero().get()).unwrap()
}

#[test]
fn the_next_waiting_process_mounts_when_the_first_is_killed() {
    let Some(stage) = stage_with(|work| support::tar::slow_archive(work, 100)) else { return };
    let name = stage.image.to_str().unwrap();
    let mut first = stage.bash("exec $ARCHFS mount -q $IMAGE mount").spawn().unwrap();
    wait_until("a daemon is at work", || processes_about(&[name, "--daemon="]).len() == 1);
    let daemon = processes_about(&[name, "--daemon="]);
    let mut second = Talker::complaining(&mut stage.bash("exec $ARCHFS mount --keep $IMAGE mount"));
    second.line_with("waiting for another process to mount here");
    first.kill().unwrap();
    first.wait().unwrap();
    let line = second.line_with("mounted ");
    assert!(line.ends_with("until unmount"), "{line}");
    assert_eq!(second.end(), Some(0));
    let now = processes_about(&[name, "--daemon="]);
    assert!(now.len() == 1 && now != daemon, "{daemon:?} {now:?}");
    assert!(stage.mount_point.join("zeros").exists());
}

#[test]
fn unmount_releases_the_callers_lease_and_names_other_holders() {
    let Some(stage) = stage_as_user() else { return };
    let mut scripts = [(); 3].map(|()| shell(stage.work.path()));
    for script in &mut scripts {
        assert_eq!(tell(script, "$ARCHFS mount -q small.sqfs mount"), "done 0\n");
    }
    let [mut first, mut second, third] = scripts;
    let unmount = "$ARCHFS unmount mount 2> said";
    let said_there = || fs::read_to_string(stage.work.path().join("said")).unwrap();
    assert_eq!(tell(&mut first, unmount), "done 0\n");
    let text = said_there();
    let names = [&second, &third].map(|script| format!("{} (bash)", script.id()));
    assert!(text.contains("still held by processes "), "{text}");
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
    assert!(!text.contains(&first.id().to_string()), "{text}");
    stage.assert_readable();
    // It no longer has a lease.
    assert_eq!(tell(&mut first, unmount), "done 1\n");
    let text = said_there();
    assert!(text.contains("mount: held by processes ") && text.contains("--lazy"), "{text}");
    stage.assert_readable();
    // The last holder but one exits, the last one calls unmount.
    end(third);
    wait_until("one is left", || holders(&stage.mount_point).0 == [u64::from(second.id())]);
    assert_eq!(tell(&mut second, unmount), "done 0\n");
    assert!(stage.is_gone(), "unmount returns when all is gone");
    end(first);
    end(second);

    let held = long_run(&stage);
    let foreign = archfs().arg("unmount").arg(&stage.mount_point).output().unwrap();
    assert_eq!(foreign.status.code(), Some(1), "{}", said(&foreign));
    let name = format!("{} (archfs)", held.pid());
    assert!(said(&foreign).contains(&name), "{}", said(&foreign));
    run(archfs().args(["unmount", "--lazy"]).arg(&stage.mount_point));
    assert!(stage.is_gone());
    let mut held = held;
    held.write("go\n");
    assert_eq!(held.end(), Some(1), "cat finds no mount");
}

#[test]
fn concurrent_unmount_and_mount_end_with_a_readable_mount_or_none() {
    let Some(stage) = stage_as_user() else { return };
    for _ in 0..10 {
        assert!(stage.mount(&["--keep", "-q"]).status.success());
        let asks =
            |words: &str| stage.bash(&format!("exec $ARCHFS {words} mount")).spawn().unwrap();
        let mut both = [asks("mount -q --keep $IMAGE"), asks("unmount")];
        for asking in &mut both {
            assert!(asking.wait().unwrap().success());
        }
        // Mounted again, left to the other process, or unmounted last. A mount that `unmount` has
        // left to the other process may end only when that process has returned its lease.
        if fs::read(stage.mount_point.join("hello")).is_ok() {
            let status = archfs().arg("unmount").arg(&stage.mount_point).status().unwrap();
            assert!(matches!(status.code(), Some(0 | 5)), "{status}");
        }
        wait_until("nothing is mounted", || stage.is_gone());
    }
}

/// A mount survives if a cleaner of /tmp removes its record.
#[test]
fn gc_leaves_the_socket_of_a_live_mount_whose_record_was_removed() {
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 5);
    let mounted = user.runs("$ARCHFS mount -q --keep $IMAGE mount");
    assert!(mounted.status.success(), "{}", said(&mounted));
    let files = || fs::read_dir(user.registry()).unwrap().map(|file| file.unwrap().path());
    let with = |end: &str| files().find(|path| path.extension() == Some(end.as_ref()));
    let (record, socket) = (with("mount").unwrap(), with("socket").unwrap());
    fs::remove_file(&record).unwrap();
    let cleared = user.runs("$ARCHFS gc");
    assert!(cleared.status.success(), "{}", said(&cleared));
    assert_eq!(said(&cleared), "archfs: note: nothing to clear on this node\n");
    assert!(socket.exists() && is_mounted(&user.mount_point));
    let unmounted = user.runs("cat mount/hello && $ARCHFS unmount mount");
    assert!(unmounted.status.success(), "{}", said(&unmounted));
    wait_until("nothing is left", || !user.registry().exists() && !user.mount_point.exists());
}

fn waiting(path: &Path, options: &[&str]) -> std::process::Child {
    let mut command = archfs();
    command.arg("wait").arg(path).args(options).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn wait_returns_when_files_can_be_read() {
    let Some(stage) = stage() else { return };
    let directory = stage.work.path().join("not/yet");
    let mount_point = directory.join("mount");
    let _clean_up = support::mount::CleanUp(mount_point.clone());
    let waiters: Vec<_> = (0..8).map(|_| waiting(&mount_point, &["--timeout", "1m"])).collect();
    let over = waiting(&mount_point, &["--timeout", "1s"]).wait_with_output().unwrap();
    assert_eq!(over.status.code(), Some(6), "{}", said(&over));
    fs::create_dir_all(&directory).unwrap();
    run(archfs().args(["mount", "--keep", "-q"]).arg(&stage.image).arg(&mount_point));
    for waiter in waiters {
        let output = waiter.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }
    run(archfs().arg("wait").arg(&mount_point));
    unmount(&mount_point);

    fs::create_dir(&stage.mount_point).unwrap();
    let waiter = waiting(&stage.mount_point, &["--timeout", "1m"]);
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&stage.mount_point));
    let output: Output = waiter.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    assert!(said(&output).contains("none (tmpfs) is mounted here"), "{}", said(&output));
}

#[test]
fn a_zombie_holder_counts_as_ended() {
    let Some(stage) = stage_as_user() else { return };
    let mut script = shell(stage.work.path());
    assert_eq!(tell(&mut script, "$ARCHFS mount -q small.sqfs mount"), "done 0\n");
    let daemon = stage.daemon();
    // It is not reaped before the end of this test.
    script.kill().unwrap();
    wait_until("the mount is gone", || stage.is_gone());
    wait_until("the daemon has ended", || has_ended(daemon));
    script.wait().unwrap();
}
