//! When a mount starts and ends: with a script, a command, a signal, an unmount or the death of its
//! daemon.
//!
//! Also exit statuses and ordinary users. No failure leaves a mount behind.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::support;
use crate::support::mount::{CleanUp, is_mounted, kind_of_mount, unmount, unmount_by};
use crate::support::skip::skip;
use crate::support::stage::{has_ended, said, shell, stage, tell};
use crate::support::stale::one_at_a_time;
use crate::support::user::OpenDevice;
use crate::support::{archfs, image, run, tar, wait_until};

#[test]
fn a_mount_ends_with_its_script() {
    let Some(stage) = stage() else { return };
    let mut script = shell(stage.work.path());
    assert_eq!(tell(&mut script, "$ARCHFS mount -q small.sqfs mount"), "done 0\n");
    stage.assert_readable();
    drop(script.stdin.take());
    script.wait().unwrap();
    wait_until("the mount and its directory are gone", || stage.is_gone());
}

#[test]
fn a_mount_ends_when_its_script_is_killed() {
    let Some(stage) = stage() else { return };
    let mut script = shell(stage.work.path());
    assert_eq!(tell(&mut script, "$ARCHFS mount -q small.sqfs mount"), "done 0\n");
    script.kill().unwrap();
    script.wait().unwrap();
    wait_until("the mount and its directory are gone", || stage.is_gone());
}

#[test]
fn an_ended_caller_gets_no_mount() {
    let Some(stage) = stage() else { return };
    // A background process becomes `archfs mount` after the script has ended. Its parent is then
    // init or a subreaper.
    let script = "exec 3<&0; (read line <&3; exec \"$ARCHFS\" mount small.sqfs mount) &";
    let mut shell = Command::new("setsid");
    shell.args(["--wait", "bash", "-c", script]).current_dir(stage.work.path());
    shell.env("ARCHFS", env!("CARGO_BIN_EXE_archfs")).env_remove("SLURM_TASK_PID");
    shell.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    // `wait` would close it.
    let stdin = shell.stdin.take().unwrap();
    shell.wait().unwrap();
    drop(stdin);
    let mut text = String::new();
    shell.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("the calling process has already exited"), "{text}");
    assert!(stage.is_gone());
}

#[test]
fn the_job_task_holds_the_mount_of_an_ended_caller() {
    let Some(stage) = stage() else { return };
    let mut task = shell(stage.work.path());
    let line = "SLURM_TASK_PID=$$ bash -c '$ARCHFS mount small.sqfs mount; true' 2> said";
    assert_eq!(tell(&mut task, line), "done 0\n");
    let line = fs::read_to_string(stage.work.path().join("said")).unwrap();
    let expected = format!("until process {} (bash) exits", task.id());
    assert!(line.starts_with("archfs: note: mounted ") && line.contains(&expected), "{line}");
    stage.assert_readable();
    drop(task.stdin.take());
    task.wait().unwrap();
    wait_until("the mount is gone", || stage.is_gone());
}

/// ssh to another node and `sbatch --export` to another job pass the variable on.
#[test]
fn a_process_outside_this_job_holds_no_mount() {
    let Some(stage) = stage() else { return };
    let mut foreign = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let mut script = shell(stage.work.path());
    let line = format!("SLURM_TASK_PID={} $ARCHFS mount small.sqfs mount 2> said", foreign.id());
    assert_eq!(tell(&mut script, &line), "done 0\n");
    let line = fs::read_to_string(stage.work.path().join("said")).unwrap();
    assert!(line.contains(&format!("until process {} (bash) exits", script.id())), "{line}");
    drop(script.stdin.take());
    script.wait().unwrap();
    wait_until("the mount is gone", || stage.is_gone());
    drop(foreign.stdin.take());
    foreign.wait().unwrap();
}

#[test]
fn until_pid_and_keep_set_the_lifetime() {
    let Some(stage) = stage() else { return };
    let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let pid = other.id().to_string();
    assert!(stage.mount(&["--until-pid", &pid]).status.success());
    stage.assert_readable();
    drop(other.stdin.take());
    other.wait().unwrap();
    wait_until("the mount is gone", || stage.is_gone());

    let gone = stage.mount(&["--until-pid", &pid]);
    assert_eq!(gone.status.code(), Some(1), "{}", said(&gone));

    let mut script = shell(stage.work.path());
    assert_eq!(tell(&mut script, "$ARCHFS mount -q --keep small.sqfs mount"), "done 0\n");
    drop(script.stdin.take());
    script.wait().unwrap();
    stage.assert_readable();
    run(archfs().arg("umount").arg(&stage.mount_point));
    assert!(stage.is_gone(), "unmount returns when all is gone");
}

#[test]
fn environment_variables_replace_options() {
    let Some(stage) = stage() else { return };
    let mut mount = archfs();
    mount.args(["mount", "--keep", "-q"]).arg(&stage.image).arg(&stage.mount_point);
    mount.env("ARCHFS_SUBDIR", "folder").env("ARCHFS_CACHE", "1M").env("ARCHFS_THREADS", "3");
    run(&mut mount);
    assert!(stage.mount_point.join("data").exists());
    let threads = format!("/proc/{}/task", stage.daemon().as_raw_nonzero());
    let answering = || {
        let names = fs::read_dir(&threads).unwrap().filter(|entry| {
            let comm = entry.as_ref().unwrap().path().join("comm");
            fs::read_to_string(comm).is_ok_and(|name| name.starts_with("fuser-"))
        });
        names.count()
    };
    // The mount is ready before every thread has set its name.
    wait_until("all threads have names", || answering() >= 3);
    assert_eq!(answering(), 3);
}

#[test]
fn an_existing_mount_point_stays_with_its_contents() {
    let Some(stage) = stage() else { return };
    fs::create_dir(&stage.mount_point).unwrap();
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    stage.assert_readable();
    unmount(&stage.mount_point);
    assert!(!is_mounted(&stage.mount_point) && stage.mount_point.is_dir());
}

#[test]
fn run_returns_the_status_of_its_command_and_leaves_nothing() {
    let Some(stage) = stage() else { return };
    for (command, status) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["archfs-no-such-command"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let output = stage.run(command);
        assert_eq!(output.status.code(), Some(status), "{command:?}: {}", said(&output));
        assert!(stage.is_gone(), "{command:?}");
    }
    let output = stage.run(&["sh", "-c", "cat \"$ARCHFS_MOUNTPOINT\"/hello"]);
    assert_eq!(output.stdout, b"hello, world\n");
}

#[test]
fn run_distinguishes_its_own_failures_from_those_of_the_command() {
    let Some(stage) = stage() else { return };
    let status = |arguments: &[&str]| {
        let output = archfs().arg("run").args(arguments).output().unwrap();
        output.status.code().unwrap()
    };
    let (image, mount_point) = (stage.image.to_str().unwrap(), stage.mount_point.to_str().unwrap());
    assert_eq!(status(&["/no/such/file", mount_point, "--", "true"]), 121);
    assert_eq!(status(&["/etc/passwd", mount_point, "--", "true"]), 123);
    assert_eq!(status(&[image, mount_point]), 122, "no command");
    assert_eq!(status(&["--no-such-option", image, mount_point, "--", "true"]), 122);
    assert_eq!(status(&["-odirect_io", image, mount_point, "--", "true"]), 122);
    assert_eq!(status(&[image, "/no/such/folder/mount", "--", "true"]), 121);
    assert!(stage.is_gone());
}

#[test]
fn run_forwards_signals_and_unmounts() {
    let Some(stage) = stage() else { return };
    let mut archfs = archfs();
    // The command handles SIGTERM and exits with its own status, which `run` must return.
    let script = "trap 'echo got it; exit 9' TERM; echo started; while :; do sleep 0.01; done";
    archfs.arg("run").arg(&stage.image).arg(&stage.mount_point).args(["--", "sh", "-c", script]);
    let mut run = archfs.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "started");
    stage.assert_readable();
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "got it");
    assert_eq!(run.wait().unwrap().code(), Some(9));
    assert!(stage.is_gone());
}

#[test]
fn a_killed_run_leaves_no_mount() {
    let Some(stage) = stage() else { return };
    let mut archfs = archfs();
    archfs.arg("run").arg(&stage.image).arg(&stage.mount_point).args([
        "--",
        "sh",
        "-c",
        "echo started; read x",
    ]);
    let mut run = archfs.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "started");
    run.kill().unwrap();
    run.wait().unwrap();
    wait_until("the mount is gone", || stage.is_gone());
}

#[test]
fn each_signal_to_the_daemon_unmounts() {
    let Some(stage) = stage() else { return };
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        assert!(stage.mount(&["--keep", "-q"]).status.success());
        stage.assert_readable();
        kill_process(stage.daemon(), signal).unwrap();
        wait_until("the mount is gone", || stage.is_gone());
    }
}

#[test]
fn a_mount_in_use_is_detached_and_open_files_stay_readable() {
    let Some(stage) = stage() else { return };
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    let mut file = File::open(stage.mount_point.join("folder/data")).unwrap();
    let busy = archfs().arg("unmount").arg(&stage.mount_point).output().unwrap();
    assert_eq!(busy.status.code(), Some(1));
    assert!(said(&busy).contains("in use") && said(&busy).contains("hint: "), "{}", said(&busy));
    let daemon = stage.daemon();
    run(archfs().args(["unmount", "--lazy"]).arg(&stage.mount_point));
    assert!(stage.is_gone());
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert!(bytes == support::source::noise(1, 300_000));
    drop(file);
    wait_until("the daemon has ended", || has_ended(daemon));
}

#[test]
fn a_daemon_asked_to_exit_serves_open_files() {
    let Some(stage) = stage() else { return };
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    let file = File::open(stage.mount_point.join("folder/data")).unwrap();
    let daemon = stage.daemon();
    kill_process(daemon, Signal::TERM).unwrap();
    kill_process(daemon, Signal::CONT).unwrap();
    // The unmount retries several times during this.
    let until = Instant::now() + Duration::from_millis(700);
    while Instant::now() < until {
        stage.assert_readable();
    }
    drop(file);
    wait_until("the mount is gone", || stage.is_gone());
    wait_until("the daemon has ended", || has_ended(daemon));
}

#[test]
fn the_grace_period_ends_a_daemon_with_open_files() {
    let Some(stage) = stage() else { return };
    assert!(stage.mount(&["--keep", "-q", "--grace", "1s"]).status.success());
    let mut file = File::open(stage.mount_point.join("folder/data")).unwrap();
    let daemon = stage.daemon();
    kill_process(daemon, Signal::TERM).unwrap();
    wait_until("the daemon has ended", || has_ended(daemon));
    assert!(stage.is_gone());
    assert!(file.read_to_end(&mut Vec::new()).is_err(), "no daemon answers any more");
}

#[test]
fn an_interrupt_or_a_second_signal_ends_a_daemon_with_open_files() {
    let Some(stage) = stage() else { return };
    for signals in [&[Signal::INT][..], &[Signal::TERM, Signal::TERM], &[Signal::TERM, Signal::HUP]]
    {
        assert!(stage.mount(&["--keep", "-q"]).status.success());
        let file = File::open(stage.mount_point.join("folder/data")).unwrap();
        let daemon = stage.daemon();
        for &signal in signals {
            kill_process(daemon, signal).unwrap();
        }
        // Two signals of one kind merge if the second arrives before the first is handled.
        wait_until("the daemon has ended", || {
            let _ = kill_process(daemon, signals[signals.len() - 1]);
            has_ended(daemon)
        });
        assert!(stage.is_gone(), "{signals:?}");
        drop(file);
    }
}

#[test]
fn unmount_and_the_next_mount_clear_a_stale_mount() {
    let _one = one_at_a_time();
    let Some(stage) = stage() else { return };
    for clear in ["unmount", "mount", "run"] {
        assert!(stage.mount(&["--keep", "-q"]).status.success());
        kill_process(stage.daemon(), Signal::KILL).unwrap();
        wait_until("the mount is dead", || {
            // The kernel's cache would answer stat(2).
            rustix::fs::statvfs(&stage.mount_point).is_err_and(|error| error == Errno::NOTCONN)
        });
        match clear {
            "unmount" => {
                unmount(&stage.mount_point);
            }
            "mount" => {
                let output = stage.mount(&["--keep"]);
                assert!(output.status.success(), "{}", said(&output));
                assert!(said(&output).contains("clearing a stale mount"), "{}", said(&output));
                stage.assert_readable();
                unmount(&stage.mount_point);
            }
            _ => assert!(stage.run(&["true"]).status.success()),
        }
        assert!(stage.is_gone(), "{clear}");
    }
}

#[test]
fn an_old_daemon_leaves_a_new_mount_at_its_mount_point_alone() {
    let Some(stage) = stage() else { return };
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    let file = File::open(stage.mount_point.join("folder/data")).unwrap();
    let old = stage.daemon();
    run(archfs().args(["unmount", "--lazy"]).arg(&stage.mount_point));
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    // The old daemon still serves its open file. A signal and its exit must not affect the new
    // mount.
    kill_process(old, Signal::TERM).unwrap();
    drop(file);
    wait_until("the old daemon has ended", || has_ended(old));
    stage.assert_readable();
    unmount(&stage.mount_point);
    assert!(stage.is_gone());
}

#[test]
fn unmount_touches_only_mounts_of_archfs() {
    let Some(stage) = stage() else { return };
    let status = |path: &Path| {
        let output = archfs().arg("unmount").arg(path).output().unwrap();
        (output.status.code(), said(&output))
    };
    let (code, text) = status(&stage.mount_point);
    assert_eq!(code, Some(5), "{text}");
    fs::create_dir(&stage.mount_point).unwrap();
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&stage.mount_point));
    let (code, text) = status(&stage.mount_point);
    assert_eq!(code, Some(5));
    assert!(text.contains("none (tmpfs) is mounted here"), "{text}");
    assert_eq!(kind_of_mount(&stage.mount_point).as_deref(), Some("tmpfs"));
}

#[test]
fn umount_ends_the_daemon_and_removes_the_directory() {
    let Some(stage) = stage() else { return };
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    run(Command::new("umount").arg(&stage.mount_point));
    wait_until("the directory is gone", || stage.is_gone());
}

#[test]
fn a_covered_mount_is_unmounted_once_uncovered() {
    let Some(stage) = stage() else { return };
    let mut script = shell(stage.work.path());
    assert_eq!(tell(&mut script, "$ARCHFS mount -q small.sqfs mount"), "done 0\n");
    let daemon = stage.daemon();
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&stage.mount_point));
    drop(script.stdin.take());
    script.wait().unwrap();
    assert_eq!(
        kind_of_mount(&stage.mount_point).as_deref(),
        Some("tmpfs"),
        "not ours to take away"
    );
    run(Command::new("umount").arg(&stage.mount_point));
    wait_until("the mount and its directory are gone", || stage.is_gone());
    wait_until("the daemon has ended", || has_ended(daemon));
}

#[test]
fn an_orphan_can_unmount() {
    let Some(stage) = stage() else { return };
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    let orphan =
        "setsid sh -c '(while kill -0 $$; do :; done; \"$0\" unmount \"$1\") &' \"$0\" \"$1\"";
    run(Command::new("sh")
        .args(["-c", orphan, env!("CARGO_BIN_EXE_archfs")])
        .arg(&stage.mount_point));
    wait_until("the mount is gone", || stage.is_gone());
}

#[test]
fn a_missing_descriptor_is_reported_before_mounting() {
    let Some(stage) = stage() else { return };
    let output = stage.mount(&["--keep", "--ready-fd", "99"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("--ready-fd 99"), "{}", said(&output));
    assert!(stage.is_gone());
}

#[test]
fn any_path_can_be_a_mount_point() {
    use std::os::unix::ffi::OsStrExt;
    let Some(stage) = stage() else { return };
    for name in [&b"a b"[..], b"a,b\\c", b"new\nline", b"\xff\xfe", b"-x", b"tab\there#1"] {
        let mount_point = stage.work.path().join(std::ffi::OsStr::from_bytes(name));
        let _clean_up = CleanUp(mount_point.clone());
        let image =
            stage.work.path().join(std::ffi::OsStr::from_bytes(name)).with_extension("sqfs");
        fs::copy(&stage.image, &image).unwrap();
        run(archfs().args(["mount", "--keep", "-q", "--"]).arg(&image).arg(&mount_point));
        assert!(mount_point.join("hello").exists(), "{name:?}");
        unmount_by(archfs().arg("unmount").arg("--").arg(&mount_point));
        assert!(!mount_point.exists(), "{name:?}");
    }
}

#[test]
fn foreground_reports_ready_and_exits_on_a_signal() {
    let Some(stage) = stage() else { return };
    let mut archfs = archfs();
    archfs
        .args(["mount", "--foreground", "--ready-fd", "1"])
        .arg(&stage.image)
        .arg(&stage.mount_point);
    let mut daemon = archfs.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    stage.assert_readable();
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
    assert!(stage.is_gone());
}

#[test]
fn a_quiet_mount_still_reports_missing_files() {
    let Some(stage) = stage() else { return };
    let archive = stage.work.path().join("cut.tar");
    let whole = tar::of(&[("a", &[b'a'; 700]), ("b", &[b'b'; 700])]);
    fs::write(&archive, &whole[..512 + 1024 + 512 + 512]).unwrap();
    let mut run = archfs();
    run.args(["run", "-q", "--partial"])
        .args([&archive, &stage.mount_point])
        .args(["--", "ls"])
        .arg(&stage.mount_point);
    let output = run.output().unwrap();
    assert_eq!(output.stdout, b"a\n");
    assert!(said(&output).contains("cut off: \"b\""), "{}", said(&output));
}

/// Otherwise the mount would exist without anyone knowing.
#[test]
fn a_mount_is_undone_if_it_cannot_be_reported() {
    let Some(stage) = stage() else { return };
    for (options, others) in [("--keep", false), ("", false), ("--keep", true)] {
        let mut other = others.then(|| shell(stage.work.path()));
        if let Some(other) = &mut other {
            assert_eq!(tell(other, "$ARCHFS mount -q small.sqfs mount"), "done 0\n");
        }
        let script =
            format!("$ARCHFS mount -q {options} --ready-fd 9 $IMAGE mount 9>/dev/full; echo $?");
        let output = stage.bash(&script).output().unwrap();
        assert_eq!(output.stdout, b"1\n", "{options}: {}", said(&output));
        assert!(said(&output).contains("cannot write to --ready-fd"), "{}", said(&output));
        if let Some(mut other) = other {
            stage.assert_readable();
            drop(other.stdin.take());
            other.wait().unwrap();
            wait_until("the mount is gone", || stage.is_gone());
        }
        assert!(stage.is_gone(), "{options}");
    }
}

#[test]
fn a_failure_after_mounting_leaves_nothing() {
    let Some(stage) = stage() else { return };
    let mut archfs = archfs();
    archfs
        .args(["mount", "--foreground", "--ready-fd", "99"])
        .arg(&stage.image)
        .arg(&stage.mount_point);
    let output = archfs.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("--ready-fd 99"), "{}", said(&output));
    assert!(stage.is_gone());
}

#[test]
fn mount_closes_its_output_while_the_daemon_runs() {
    let Some(stage) = stage() else { return };
    // `output` waits for the end of both pipes, which a daemon that inherited them would never
    // close.
    let output = stage.mount(&["--keep"]);
    assert!(output.status.success() && output.stdout.is_empty());
    stage.assert_readable();
}

#[test]
fn the_daemon_inherits_no_descriptor() {
    let Some(stage) = stage() else { return };
    let mut script = shell(stage.work.path());
    tell(&mut script, "exec 9>kept 8<small.sqfs");
    assert_eq!(tell(&mut script, "$ARCHFS mount -q small.sqfs mount"), "done 0\n");
    let directory = format!("/proc/{}/fd", stage.daemon().as_raw_nonzero());
    // A descriptor that is closed in the meantime, such as the connection to a caller that has
    // exited, has no link any more.
    let open: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .filter_map(|fd| fs::read_link(fd.unwrap().path()).ok())
        .collect();
    assert!(!open.iter().any(|file| file.ends_with("kept")), "{open:?}");
    // One for metadata, one for contents of files, one for reads ahead of readers (docs/CACHE.md).
    assert_eq!(open.iter().filter(|file| file.ends_with("small.sqfs")).count(), 3, "{open:?}");
    drop(script.stdin.take());
    script.wait().unwrap();
    wait_until("the mount is gone", || stage.is_gone());
}

#[test]
fn later_errors_are_written_to_the_log() {
    let Some(stage) = stage() else { return };
    let image = image::damaged(stage.work.path());
    let log = stage.work.path().join("log");
    let error_line =
        format!("archfs: error: {}: dir/file: damaged data block (zstd)", image.display());
    let hint = format!("archfs: hint: run `archfs verify {}` to list", image.display());
    for verbosity in ["-q", "-v"] {
        let mut mount = archfs();
        mount.args(["mount", "--keep", verbosity, "--log-file"]);
        run(mount.args([&log, &image, &stage.mount_point]));
        let error = fs::read(stage.mount_point.join("dir/file")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        run(archfs().arg("unmount").arg(&stage.mount_point));
        let text = fs::read_to_string(&log).unwrap();
        assert!(text.contains(&error_line), "{text}");
        assert_eq!(text.matches(&hint).count(), 1, "{text}");
        assert_eq!(text.contains("inode"), verbosity == "-v", "{text}");
        assert_eq!(text.contains("data block at 0x"), verbosity == "-v", "{text}");
        assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_file(&log).unwrap();
    }
}

/// An ordinary user mounts through fusermount.
#[test]
fn an_ordinary_user_mounts_and_other_users_have_no_access() {
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let home = stage.work.path().join("home");
    fs::create_dir(&home).unwrap();
    for directory in [stage.work.path(), &home] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    }
    // The build directory may be accessible only to root.
    let program = home.join("archfs");
    support::copy_program(&program);
    let mount_point = home.join("mount");
    let _clean_up = CleanUp(mount_point.clone());
    let as_user = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(arguments);
        command.current_dir(&home).output().unwrap()
    };
    let image = stage.image.to_str().unwrap();
    let mounted = as_user(&["./archfs", "mount", "--keep", image, "mount"]);
    assert!(mounted.status.success(), "{}", said(&mounted));
    assert_eq!(as_user(&["cat", "mount/hello"]).stdout, b"hello, world\n");
    assert!(fs::read(mount_point.join("hello")).is_err(), "not even root");
    assert_eq!(kind_of_mount(&mount_point).as_deref(), Some("fuse.archfs"));
    let held = "exec 9<mount/hello; ./archfs unmount mount; echo $?";
    let busy = as_user(&["sh", "-c", held]);
    assert_eq!(busy.stdout, b"1\n", "{}", said(&busy));
    assert!(said(&busy).contains("mount: in use"), "{}", said(&busy));
    let unmounted = as_user(&["./archfs", "unmount", "mount"]);
    assert!(unmounted.status.success(), "{}", said(&unmounted));
    assert!(!mount_point.exists());

    let ran = as_user(&["./archfs", "run", image, "mount", "--", "cat", "mount/hello"]);
    assert_eq!(ran.stdout, b"hello, world\n", "{}", said(&ran));
    assert!(!mount_point.exists());

    // fusermount refuses a mount point in another user's directory, with a reason.
    fs::create_dir(stage.work.path().join("roots")).unwrap();
    let refused = as_user(&["./archfs", "mount", "--keep", image, "../roots"]);
    assert_eq!(refused.status.code(), Some(4), "{}", said(&refused));
    assert!(said(&refused).contains("hint: "), "{}", said(&refused));

    // Root's mount is not theirs, so it stays.
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    let foreign = as_user(&["./archfs", "unmount", stage.mount_point.to_str().unwrap()]);
    assert_eq!(foreign.status.code(), Some(5), "{}", said(&foreign));
    stage.assert_readable();
}

#[test]
fn a_missing_device_is_reported_with_a_remedy() {
    let Some(stage) = stage() else { return };
    for (hide, code) in [
        ("mount --bind /dev/null /dev/fuse", 4),
        ("mount -t tmpfs none /dev && mknod /dev/null c 1 3", 4),
    ] {
        let script = format!("{hide} && exec \"$0\" \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_archfs"), "mount"]);
        let output =
            command.arg("--keep").args([&stage.image, &stage.mount_point]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{hide}: {}", said(&output));
        assert!(said(&output).contains("hint: "), "{}", said(&output));
        assert!(stage.is_gone(), "{hide}");
    }
}

/// As under an emulator: /proc/self/exe, by which the daemon is started, is then the loader.
#[test]
fn a_daemon_started_as_another_program_is_reported() {
    let Some(stage) = stage() else { return };
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut mapped = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let Some(loader) = mapped.find(|path| path.contains("/ld-linux")) else {
        skip("this program has no loader");
        return;
    };
    for (how, status) in [("mount", 1), ("run", 121)] {
        let mut archfs = Command::new(loader);
        archfs.arg(env!("CARGO_BIN_EXE_archfs")).arg(how).args([&stage.image, &stage.mount_point]);
        let output = archfs.args(["--", "true"].iter().take(if how == "run" { 2 } else { 0 }));
        let output = output.output().unwrap();
        let stderr = said(&output);
        assert_eq!(output.status.code(), Some(status), "{stderr}");
        assert!(stderr.contains("the daemon exited with status 127"), "{stderr}");
        assert!(stage.is_gone());
    }
}

#[test]
fn a_mount_over_the_working_directory_says_how_to_see_it() {
    let Some(stage) = stage() else { return };
    let script = "mkdir mount; cd mount; $ARCHFS mount $IMAGE . 2> ../told; ls; cd .; ls hello
                  cd ..; $ARCHFS mount -q $IMAGE mount; cat told";
    let output = stage.bash(script).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("hello\n"), "{text}");
    let told = "archfs: note: the shell's working directory is the mount point\n\
                archfs: hint: run `cd .` in it to see the files\n";
    assert!(text.ends_with(told), "{text}");
    assert_eq!(text.matches("working directory").count(), 1, "{text}");
}
