//! Signals that do not end a mount, the grace period, and Slurm's signals.
//!
//! `mounting.rs` and `leases.rs` cover signals that end a mount, `commands.rs` those that `run`
//! passes on.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::mount::listed;
use crate::support::stage::{Stage, Talker, has_ended, said, stage, stage_as_user};
use crate::support::{archfs, run, wait_until};

/// Every signal that ends a process by default, except SIGKILL, those that ask archfs to exit,
/// program faults, and the two real-time signals that glibc reserves.
fn others() -> Vec<i32> {
    let named = [
        libc::SIGQUIT,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGPIPE,
        libc::SIGALRM,
        libc::SIGSTKFLT,
        libc::SIGXCPU,
        libc::SIGXFSZ,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGIO,
        libc::SIGPWR,
    ];
    named.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX()).collect()
}

fn send(process: Pid, signal: i32) {
    run(Command::new("kill").arg(format!("-{signal}")).arg(process.to_string()));
}

/// The signals in `field` of /proc/PID/status.
fn signals_in(field: &str, process: Pid) -> Vec<i32> {
    signals_of(field, Path::new(&format!("/proc/{process}"))).unwrap()
}

/// As `signals_in`, for the directory of a process or a thread; `None` if it has ended.
fn signals_of(field: &str, task: &Path) -> Option<Vec<i32>> {
    let status = fs::read_to_string(task.join("status")).ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix(field))?;
    let mask = u64::from_str_radix(mask.trim_start_matches(':').trim(), 16).unwrap();
    Some((1..=64).filter(|signal| mask >> (signal - 1) & 1 == 1).collect())
}

/// Sends each of the signals and checks that the process is alive and its mount readable
/// afterward.
fn survives_all(stage: &Stage, daemon: Pid) {
    for signal in others() {
        send(daemon, signal);
        stage.assert_readable();
        assert!(!has_ended(daemon), "signal {signal}");
    }
    // A process that handled or blocked the signals would have received them by now.
    assert!(signals_in("SigPnd", daemon).is_empty());
    wait_until("no signal is pending", || signals_in("ShdPnd", daemon).is_empty());
    stage.assert_readable();
    assert_eq!(stage.daemon(), daemon);
}

/// A program that starts archfs with all signals blocked.
const BLOCKS_ALL: &str = "\
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.valid_signals()))
os.execv(sys.argv[1], sys.argv[1:])
";

fn blocking(words: &[&str], stage: &Stage) -> Command {
    let mut python = Command::new("env");
    python.args(["--default-signal", "python3", "-c", BLOCKS_ALL, env!("CARGO_BIN_EXE_archfs")]);
    python.args(words).arg(&stage.image).arg(&stage.mount_point).env_remove("SLURM_TASK_PID");
    python
}

const FOREGROUND: [&str; 5] = ["mount", "--foreground", "-q", "--ready-fd", "1"];

/// A ready `archfs mount --foreground`.
fn foreground(command: &mut Command) -> Talker {
    let mut daemon = Talker::start(command);
    assert_eq!(daemon.line(), "ready");
    daemon
}

#[test]
fn no_other_signal_ends_a_mount() {
    let Some(stage) = stage_as_user() else { return };
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    let daemon = stage.daemon();
    survives_all(&stage, daemon);
    kill_process(daemon, Signal::TERM).unwrap();
    wait_until("the mount is gone", || stage.is_gone());
}

#[test]
fn no_other_signal_ends_a_mount_in_the_foreground() {
    let Some(stage) = stage_as_user() else { return };
    let mut command = archfs();
    let daemon = foreground(command.args(FOREGROUND).arg(&stage.image).arg(&stage.mount_point));
    survives_all(&stage, daemon.pid());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0));
    assert!(stage.is_gone());
}

#[test]
fn no_other_signal_ends_the_daemon_of_run() {
    let Some(stage) = stage_as_user() else { return };
    let mut run = Talker::start(
        archfs().args(["run", "-q"]).arg(&stage.image).arg(&stage.mount_point).args(["--", "cat"]),
    );
    run.write("started\n");
    assert_eq!(run.line(), "started");
    survives_all(&stage, stage.daemon());
    assert_eq!(run.end(), Some(0));
    assert!(stage.is_gone());
}

/// Prints each signal that it receives, one at a time.
const NAMES_SIGNALS: &str = "\
import os, signal
expected = set(signal.valid_signals()) - {signal.SIGCHLD}
signal.pthread_sigmask(signal.SIG_BLOCK, expected)
print('started', flush=True)
while True:
    got = int(signal.sigwait(expected))
    print('got', got, flush=True)
    if got == signal.SIGTERM:
        break
";

#[test]
fn run_forwards_every_other_signal() {
    for private in [&[][..], &["--private"]] {
        let Some(stage) = stage() else { return };
        let mut command = archfs();
        command.args(["run", "-q"]).args(private).arg(&stage.image).arg(&stage.mount_point);
        let mut run = Talker::start(command.args(["--", "python3", "-c", NAMES_SIGNALS]));
        assert_eq!(run.line(), "started");
        for signal in others().into_iter().chain([libc::SIGTERM]) {
            send(run.pid(), signal);
            assert_eq!(run.line(), format!("got {signal}"));
        }
        assert_eq!(run.end(), Some(0));
        assert!(stage.is_gone());
    }
}

/// Starts archfs with SIGUSR1 pending.
const WAITS_FOR_A_SIGNAL: &str = "\
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print('blocked', flush=True)
while signal.SIGUSR1 not in signal.sigpending():
    pass
os.execv(sys.argv[1], sys.argv[1:])
";

#[test]
fn run_forwards_a_signal_received_before_its_command_starts() {
    let Some(stage) = stage_as_user() else { return };
    let command = "import signal; print('got', int(signal.sigwait({signal.SIGUSR1})), flush=True)";
    let mut python = Command::new("python3");
    python.args(["-c", WAITS_FOR_A_SIGNAL, env!("CARGO_BIN_EXE_archfs"), "run", "-q"]);
    python.arg(&stage.image).arg(&stage.mount_point).args(["--", "python3", "-c", command]);
    let mut run = Talker::start(&mut python);
    assert_eq!(run.line(), "blocked");
    send(run.pid(), libc::SIGUSR1);
    assert_eq!(run.line(), "got 10");
    assert_eq!(run.end(), Some(0));
    assert!(stage.is_gone());
}

#[test]
fn signals_reach_a_daemon_even_if_its_caller_blocked_all() {
    let Some(stage) = stage_as_user() else { return };
    let daemon = foreground(&mut blocking(&FOREGROUND, &stage));
    assert!(signals_in("SigBlk", daemon.pid()).is_empty());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0));
    assert!(stage.is_gone());
    let mounted = blocking(&["mount", "--keep", "-q"], &stage).output().unwrap();
    assert!(mounted.status.success(), "{}", said(&mounted));
    assert!(signals_in("SigBlk", stage.daemon()).is_empty());
    kill_process(stage.daemon(), Signal::TERM).unwrap();
    wait_until("the mount is gone", || stage.is_gone());
}

/// Prints the blocked signals, then exits when it reads a line. Python, because shells change the
/// signal mask.
const NAMES_BLOCKED: &str = "\
import signal, sys
print(*(int(it) for it in signal.pthread_sigmask(signal.SIG_BLOCK, [])), flush=True)
sys.stdin.readline()
sys.exit(4)
";

#[test]
fn run_unblocks_signals_and_its_command_inherits_the_callers_mask() {
    let Some(stage) = stage_as_user() else { return };
    let mut command = blocking(&["run", "-q", "--grace", "0"], &stage);
    let mut run = Talker::start(command.args(["--", "python3", "-c", NAMES_BLOCKED]));
    let blocked: Vec<i32> = run.line().split(' ').map(|signal| signal.parse().unwrap()).collect();
    for signal in others().into_iter().chain([libc::SIGTERM, libc::SIGHUP, libc::SIGINT]) {
        assert!(blocked.contains(&signal), "{signal}");
    }
    assert!(signals_in("SigBlk", run.pid()).is_empty());
    stage.assert_readable();
    // The command does not receive it, and the grace period ends at once.
    run.signal(Signal::TERM);
    wait_until("the mount is gone", || stage.is_gone());
    run.write("go\n");
    assert_eq!(run.end(), Some(4));
}

/// A command that ignores requests to exit, and reads an open file to its end on demand.
const STUBBORN: &str = "trap '' TERM HUP; exec 9<\"$ARCHFS_MOUNTPOINT\"/folder/data; \
                        echo started; read x; wc -c <&9; exit 6";

fn stubborn(stage: &Stage, options: &[&str]) -> Talker {
    let mut command = Command::new("env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_archfs"), "run", "-q"]).args(options);
    command.arg(&stage.image).arg(&stage.mount_point).args(["--", "sh", "-c", STUBBORN]);
    let mut run = Talker::start(command.env_remove("SLURM_JOB_ID"));
    assert_eq!(run.line(), "started");
    run
}

#[test]
fn the_grace_period_of_run_ends_the_mount_of_a_running_command() {
    for signal in [Signal::TERM, Signal::HUP] {
        let Some(stage) = stage_as_user() else { return };
        let mut run = stubborn(&stage, &["--grace", "1s"]);
        let (daemon, before) = (stage.daemon(), Instant::now());
        run.signal(signal);
        wait_until("the mount is gone", || stage.is_gone());
        assert!(before.elapsed() >= Duration::from_millis(990), "{:?}", before.elapsed());
        assert!(!run.has_ended() && !has_ended(daemon));
        // The open file is still served, and run returns the status of the command.
        run.write("go\n");
        assert_eq!(run.line(), "300000");
        assert_eq!(run.end(), Some(6));
        wait_until("the daemon has ended", || has_ended(daemon));
    }
}

#[test]
fn the_grace_period_ends_a_private_mount_of_a_running_command() {
    let Some(stage) = stage() else { return };
    let mut run = stubborn(&stage, &["--private", "--grace", "1s"]);
    let mounts = format!("/proc/{}/mountinfo", run.pid());
    let mount_point = format!(" {} ", stage.mount_point.display());
    assert!(fs::read_to_string(&mounts).unwrap().contains(&mount_point));
    let before = Instant::now();
    run.signal(Signal::TERM);
    wait_until("the mount is gone", || {
        !fs::read_to_string(&mounts).unwrap().contains(&mount_point)
    });
    assert!(before.elapsed() >= Duration::from_millis(990), "{:?}", before.elapsed());
    wait_until("the directory is gone", || stage.is_gone());
    assert!(!run.has_ended());
    run.write("go\n");
    assert_eq!(run.line(), "300000");
    assert_eq!(run.end(), Some(6));
}

#[test]
fn an_interrupt_or_a_second_signal_ends_the_grace_period_of_run() {
    for second in [Signal::INT, Signal::HUP] {
        let Some(stage) = stage_as_user() else { return };
        let mut command = archfs();
        command.args(["run", "-q", "--grace", "1h"]).arg(&stage.image).arg(&stage.mount_point);
        // bash handles a signal between two commands only when read(2) returns.
        let script = "trap '' HUP; trap 'echo interrupted' INT; trap 'echo asked' TERM; echo started; \
                      until read -t 1 x || [ $? -le 128 ]; do :; done; exit 6";
        let mut run = Talker::start(command.args(["--", "bash", "-c", script]));
        assert_eq!(run.line(), "started");
        // A single interrupt is for the command.
        run.signal(Signal::INT);
        assert_eq!(run.line(), "interrupted");
        stage.assert_readable();
        run.signal(Signal::TERM);
        // Of signals that arrive together, `run` handles the one with the lower number first.
        assert_eq!(run.line(), "asked");
        stage.assert_readable();
        run.signal(second);
        wait_until("the mount is gone", || stage.is_gone());
        assert!(!run.has_ended());
        run.write("go\n");
        assert_eq!(run.end(), Some(6));
    }
}

#[test]
fn a_mount_with_other_holders_survives_the_grace_period_of_run() {
    let Some(stage) = stage_as_user() else { return };
    let other = Talker::start(
        archfs().args(["run", "-q"]).arg(&stage.image).arg(&stage.mount_point).args(["--", "cat"]),
    );
    wait_until("the mount can be read", || stage.mount_point.join("hello").exists());
    let mut run = stubborn(&stage, &["--grace", "0"]);
    let pid = run.pid().as_raw_nonzero().get();
    let holds = || {
        let listed = listed(&stage.mount_point).unwrap();
        listed["holders"].as_array().unwrap().iter().any(|holder| holder["pid"] == pid)
    };
    assert!(holds());
    run.signal(Signal::TERM);
    wait_until("it has given its lease back", || !holds());
    stage.assert_readable();
    run.write("go\n");
    assert_eq!(run.line(), "300000");
    assert_eq!(run.end(), Some(6));
    stage.assert_readable();
    assert_eq!(other.end(), Some(0));
    wait_until("the mount is gone", || stage.is_gone());
}

/// A shell named like the Slurm process that starts and signals the tasks of a step.
fn slurmstepd(stage: &Stage) -> Command {
    let path = stage.work.path().join("slurmstepd");
    let copied = Command::new("cp").arg("/bin/bash").arg(&path).status();
    assert!(copied.unwrap().success());
    let mut command = Command::new(path);
    command.current_dir(stage.work.path()).env("ARCHFS", env!("CARGO_BIN_EXE_archfs"));
    command.env("IMAGE", &stage.image).env("SLURM_JOB_ID", "1").env_remove("SLURM_TASK_PID");
    command
}

/// Starts `task` as a Slurm step would, and runs the lines written to it.
fn step(stage: &Stage, task: &str) -> Talker {
    let script = format!(
        "set -m; {task} </dev/null & task=$!; while read -r line; do eval \"$line\"; done; wait"
    );
    Talker::start(slurmstepd(stage).args(["-c", &script]))
}

/// Signals that `scancel --signal` may send while the job continues.
const NOT_THE_END: &str = "for signal in TERM INT HUP TERM INT HUP; do kill -$signal $task; done";

/// Whether the daemon has received all signals sent to it: it answers requests afterward.
fn assert_works_on(stage: &Stage) {
    for _ in 0..3 {
        stage.assert_readable();
        assert!(listed(&stage.mount_point).is_some());
    }
}

/// On the node of the batch script, which is named to the step, and on another node of the job.
#[test]
fn a_mount_step_survives_scancel_signal_and_ends_with_the_job() {
    let Some(stage) = stage_as_user() else { return };
    for end in ["TERM", "HUP", "INT"] {
        for knows_script in [true, false] {
            let script = Talker::start(&mut Command::new("cat"));
            let until = format!("--until-pid {}", script.pid());
            let until = if knows_script { &until } else { "" };
            let task = format!(
                "$ARCHFS mount --foreground -q --grace 0 {until} --ready-fd 1 $IMAGE mount"
            );
            let mut step = step(&stage, &task);
            assert_eq!(step.line(), "ready");
            let daemon = stage.daemon();
            step.write(&format!("{NOT_THE_END}; echo sent\n"));
            assert_eq!(step.line(), "sent");
            assert_works_on(&stage);
            step.write(&format!("kill -CONT $task; kill -{end} $task\n"));
            wait_until("the mount is gone", || stage.is_gone());
            wait_until("the daemon has ended", || has_ended(daemon));
            step.end();
            script.end();
        }
    }
}

/// Only the thread that handles SIGCONT before SIGTERM unblocks them, each for a moment.
#[test]
fn in_a_job_all_threads_block_the_signals_of_slurm() {
    const SLURM: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGCONT];
    let all_block = |process: Pid| {
        let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
        // A thread may have ended in the meantime.
        let mut masks = threads.filter_map(|thread| signals_of("SigBlk", &thread.ok()?.path()));
        masks.all(|blocked| SLURM.iter().all(|signal| blocked.contains(signal)))
    };
    let Some(stage) = stage_as_user() else { return };
    let task = "$ARCHFS run -q $IMAGE mount -- bash -c \
                'echo $PPID; grep SigBlk /proc/self/status; until [ -e done ]; do sleep 0.01; done'";
    let mut step = step(&stage, task);
    let run = Pid::from_raw(step.line().parse().unwrap()).unwrap();
    assert_eq!(step.line(), "SigBlk:\t0000000000000000", "of the command");
    // Threads that `run` started before are short.
    wait_until("all threads of run block them", || all_block(run));
    // With threads that read.
    stage.assert_readable();
    assert!(all_block(stage.daemon()));
    fs::write(stage.work.path().join("done"), "").unwrap();
    assert_eq!(step.end(), Some(0));
}

/// The daemon closes the descriptors that it inherited. If it closed this one, its thread for signals
/// would poll a closed descriptor without end, or one with the same number, and handle no signal.
#[test]
fn in_a_job_a_daemon_keeps_the_descriptor_for_its_signals() {
    let Some(stage) = stage_as_user() else { return };
    let mut mount = archfs();
    mount.env("SLURM_JOB_ID", "1").args(["mount", "-q", "--keep", "--job-step", "never"]);
    run(mount.args(["--grace", "0"]).arg(&stage.image).arg(&stage.mount_point));
    let daemon = stage.daemon();
    let open = fs::read_dir(format!("/proc/{}/fd", daemon.as_raw_nonzero())).unwrap();
    let mut targets = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    assert!(targets.any(|target| target.as_os_str() == "anon_inode:[signalfd]"));
    kill_process(daemon, Signal::TERM).unwrap();
    wait_until("the mount is gone", || stage.is_gone());
}

#[test]
fn a_user_signal_ends_a_mount_step() {
    let Some(stage) = stage_as_user() else { return };
    let mut step = step(&stage, "$ARCHFS mount --foreground -q --ready-fd 1 $IMAGE mount");
    assert_eq!(step.line(), "ready");
    kill_process(stage.daemon(), Signal::TERM).unwrap();
    wait_until("the mount is gone", || stage.is_gone());
    assert_eq!(step.end(), Some(0));
}

#[test]
fn sigcont_alone_ends_no_mount_step() {
    let Some(stage) = stage_as_user() else { return };
    let mut step = step(&stage, "$ARCHFS mount --foreground -q --ready-fd 1 $IMAGE mount");
    assert_eq!(step.line(), "ready");
    step.write("kill -STOP $task; kill -CONT $task; kill -CONT $task; echo sent\n");
    assert_eq!(step.line(), "sent");
    assert_works_on(&stage);
    step.write("kill -TERM $task\n");
    wait_until("the mount is gone", || stage.is_gone());
    assert_eq!(step.end(), Some(0));
}

#[test]
fn the_grace_period_of_a_step_begins_only_at_the_end_of_the_job() {
    let Some(stage) = stage_as_user() else { return };
    let task = "$ARCHFS run -q --grace 0 $IMAGE mount -- bash -c \
                'trap \"echo got it\" TERM; echo started; until [ -e done ]; do sleep 0.01; done'";
    let mut step = step(&stage, task);
    assert_eq!(step.line(), "started");
    for _ in 0..3 {
        step.write("kill -TERM $task\n");
        assert_eq!(step.line(), "got it");
        assert_works_on(&stage);
    }
    step.write("kill -CONT $task; kill -TERM $task\n");
    assert_eq!(step.line(), "got it");
    wait_until("the mount is gone", || stage.is_gone());
    fs::write(stage.work.path().join("done"), "").unwrap();
    assert_eq!(step.end(), Some(0));
}

/// The default grace period is two thirds of KillWait from slurm.conf.
#[test]
fn the_default_grace_ends_before_slurm_kills() {
    let Some(stage) = stage_as_user() else { return };
    let conf = stage.work.path().join("slurm.conf");
    fs::write(&conf, "ClusterName=test\nKillWait=3\n").unwrap();
    assert!(
        archfs()
            .args(["mount", "--keep", "-q"])
            .args([&stage.image, &stage.mount_point])
            .env("SLURM_JOB_ID", "1")
            .env("SLURM_CONF", &conf)
            .status()
            .unwrap()
            .success()
    );
    let (daemon, before) = (stage.daemon(), Instant::now());
    let mut file = File::open(stage.mount_point.join("folder/data")).unwrap();
    kill_process(daemon, Signal::TERM).unwrap();
    wait_until("the daemon has ended", || has_ended(daemon));
    let took = before.elapsed();
    assert!(took >= Duration::from_millis(1990) && took < Duration::from_secs(10), "{took:?}");
    assert!(stage.is_gone());
    assert!(file.read_to_end(&mut Vec::new()).is_err(), "no daemon answers any more");
}
