//! `archfs run`: how it passes signals to its command, and what happens to processes that outlive
//! the command. Also the form of messages.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::support;
use crate::support::mount::{is_mounted, listed};
use crate::support::stage::{
    Stage, Talker, has_ended, said, stage, stage_as_user, stage_with, stop,
};
use crate::support::{image, run, wait_until};

/// `archfs run` with a bash script. $HERE is the parent of the mount point.
fn command(stage: &Stage, script: &str) -> Command {
    let mut command = stage.bash("exec $ARCHFS run $IMAGE mount -- bash -c \"$SCRIPT\"");
    command.env("SCRIPT", script).env("HERE", stage.work.path());
    command
}

fn written(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn run_forwards_signals() {
    let Some(stage) = stage_as_user() else { return };
    for (name, signal) in [
        ("TERM", Signal::TERM),
        ("INT", Signal::INT),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
    ] {
        let script = format!(
            "trap 'echo got it; exit 9' {name}; echo started; while :; do sleep 0.01; done"
        );
        let mut run = Talker::start(&mut command(&stage, &script));
        assert_eq!(run.line(), "started");
        stage.assert_readable();
        run.signal(signal);
        assert_eq!(run.line(), "got it", "{name}");
        assert_eq!(run.end(), Some(9), "{name}");
        assert!(stage.is_gone(), "{name}");
    }
    // A command without a handler is ended by the signal.
    let mut run = Talker::start(&mut command(&stage, "echo started; read x"));
    assert_eq!(run.line(), "started");
    run.signal(Signal::USR1);
    wait_until("run has ended", || run.has_ended());
    assert_eq!(run.end(), Some(128 + 10));
    assert!(stage.is_gone());
}

/// Counts interrupts until SIGUSR1. It uses sigwait and no handlers: Python delays a handler until
/// the next read, or interrupts a write halfway.
const COUNTER: &str = "\
import os, signal
expected = {signal.SIGINT, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, expected)
print('started by', os.getppid(), flush=True)
count = 0
while signal.sigwait(expected) == signal.SIGINT:
    count += 1
    print('got', count, flush=True)
print('counted', count, flush=True)
";

/// Types Ctrl-C at a terminal 20 times. SIGUSR1 arrives through `run`, so it arrives after any
/// interrupt that `run` forwarded.
#[test]
fn an_interrupt_at_a_terminal_reaches_the_command_once() {
    let Some(stage) = stage_as_user() else { return };
    let script = stage.work.path().join("counter.py");
    fs::write(&script, COUNTER).unwrap();
    let mut terminal = Command::new("env");
    let line = format!(
        "stty -echo; exec {} run -q {} {} -- python3 {}",
        env!("CARGO_BIN_EXE_archfs"),
        stage.image.display(),
        stage.mount_point.display(),
        script.display()
    );
    terminal.args(["--default-signal", "script", "-qefc", &line, "/dev/null"]);
    let mut terminal = Talker::start(&mut terminal);
    let started = terminal.line_with("started by ");
    let run: i32 = started.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
    for count in 1..=20 {
        terminal.write("\x03");
        assert_eq!(terminal.line().trim_end(), format!("got {count}"));
    }
    kill_process(Pid::from_raw(run).unwrap(), Signal::USR1).unwrap();
    assert_eq!(terminal.line().trim_end(), "counted 20");
    assert_eq!(terminal.end(), Some(0));
    assert!(stage.is_gone());
}

/// An image that contains a program.
fn with_program(work: &Path) -> std::path::PathBuf {
    let source = work.join("program-source");
    fs::create_dir_all(source.join("folder")).unwrap();
    fs::write(source.join("hello"), "hello, world\n").unwrap();
    fs::write(source.join("folder/data"), support::source::noise(1, 300_000)).unwrap();
    fs::copy("/bin/cat", source.join("cat")).unwrap();
    image::make(work, "program.sqfs", &source, &["-comp", "zstd"])
}

/// Ways to leave a process that uses the mount until the fifo `go` is written to.
const USES: [(&str, &str); 4] = [
    ("an open file", "exec 9<mount/folder/data; (read x <go) & exit 3"),
    ("a working directory", "cd mount/folder; (read x <\"$HERE\"/go) & exit 3"),
    (
        "a mapping",
        "exec python3 -c '
import mmap, os
with open(\"mount/folder/data\") as file:
    data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
if os.fork():
    os._exit(3)
open(\"go\").read()
'",
    ),
    (
        "a program",
        "mount/cat go & until [ \"$(readlink /proc/$!/exe)\" = \"$HERE\"/mount/cat ]; do :; done; exit 3",
    ),
];

/// > `run` keeps its mount as long as processes in the process group of COMMAND use it.
#[test]
fn background_processes_of_the_command_keep_the_mount_while_they_use_it() {
    let Some(stage) = stage_with(with_program) else { return };
    let go = stage.fifo("go");
    for (what, script) in USES {
        let mut run = Talker::complaining(&mut command(&stage, script));
        let line = run.line_with("the command has exited; waiting for process");
        assert!(line.ends_with(" that it left running"), "{line}");
        stage.assert_readable();
        assert!(!run.has_ended(), "{what}");
        fs::write(&go, "x\n").unwrap();
        assert_eq!(run.end(), Some(3), "{what}");
        assert!(stage.is_gone(), "{what}");
    }
}

#[test]
fn a_signal_ends_the_mount_despite_background_processes() {
    let Some(stage) = stage_as_user() else { return };
    let go = stage.fifo("go");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let script = "exec 9<mount/folder/data; (read x <go; wc -c <&9 >out; mv out done) & exit 3";
        let mut run = Talker::complaining(&mut command(&stage, script));
        run.line_with("the command has exited; waiting for process");
        let daemon = stage.daemon();
        run.signal(signal);
        assert_eq!(run.end(), Some(3));
        assert!(stage.is_gone(), "at once, under its name");
        // Open files stay readable.
        fs::write(&go, "x\n").unwrap();
        let done = stage.work.path().join("done");
        wait_until("it has read on", || done.exists());
        assert_eq!(written(&done), "300000\n");
        fs::remove_file(done).unwrap();
        wait_until("the daemon has ended", || has_ended(daemon));
    }
}

#[test]
fn processes_that_do_not_use_the_mount_do_not_keep_it() {
    let Some(stage) = stage_as_user() else { return };
    let go = stage.fifo("go");
    let script = "(read x <go; echo >done) >/dev/null 2>&1 & echo $! >pid; exit 0";
    let output = run(&mut command(&stage, script));
    assert!(stage.is_gone(), "{}", said(&output));
    let pid = fs::read_to_string(stage.work.path().join("pid")).unwrap();
    let note = format!("unmounted; process {} (bash) of the command can open no more", pid.trim());
    assert_eq!(said(&output).matches(&note).count(), 1, "{}", said(&output));
    assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
    let done = stage.work.path().join("done");
    assert!(!done.exists());
    fs::write(&go, "x\n").unwrap();
    wait_until("it goes on", || done.exists());
}

/// > `run` keeps its mount as long as processes in the process group of COMMAND use it.
#[test]
fn a_process_in_another_session_does_not_keep_the_mount_but_reads_open_files() {
    let Some(stage) = stage_as_user() else { return };
    let go = stage.fifo("go");
    let script = "exec 9<mount/folder/data; \
                  setsid sh -c 'read x <go; wc -c <&9 >out; mv out done' >/dev/null 2>&1 & exit 0";
    run(&mut command(&stage, script));
    assert!(stage.is_gone());
    fs::write(&go, "x\n").unwrap();
    let done = stage.work.path().join("done");
    wait_until("it has read on", || done.exists());
    assert_eq!(written(&done), "300000\n");
}

#[test]
fn open_files_stay_readable_when_run_is_killed() {
    let Some(stage) = stage_as_user() else { return };
    let script = "exec 9<mount/folder/data; echo started; read x; cat mount/hello; wc -c <&9; \
                  read x; echo last";
    let mut run = Talker::start(&mut command(&stage, script));
    assert_eq!(run.line(), "started");
    let daemon = stage.daemon();
    // The daemon learns the command's PID just after the start.
    wait_until("both hold the mount", || {
        listed(&stage.mount_point).unwrap()["holders"].as_array().unwrap().len() == 2
    });
    run.signal(Signal::KILL);
    wait_until("run has ended", || run.has_ended());
    run.write("go\n");
    assert_eq!(run.line(), "hello, world");
    assert_eq!(run.line(), "300000");
    stage.assert_readable();
    run.write("go\n");
    assert_eq!(run.line(), "last");
    wait_until("the mount is gone", || stage.is_gone());
    wait_until("the daemon has ended", || has_ended(daemon));
}

#[test]
fn run_clears_the_stale_mount_of_a_killed_daemon() {
    let Some(stage) = stage_as_user() else { return };
    let script = "echo started; read x; cat mount/hello || exit 5";
    let mut run = Talker::start(&mut command(&stage, script));
    assert_eq!(run.line(), "started");
    kill_process(stage.daemon(), Signal::KILL).unwrap();
    run.write("go\n");
    assert_eq!(run.end(), Some(5));
    assert!(stage.is_gone());
}

#[test]
fn run_cleans_up_after_a_daemon_killed_after_unmounting() {
    let Some(stage) = stage() else { return };
    let mut run = Talker::start(&mut command(&stage, "echo started; read x"));
    assert_eq!(run.line(), "started");
    let daemon = stage.daemon();
    stop(daemon);
    // Unmount for the daemon, which can then not remove the directory. umount(8) would send a
    // request for the root.
    rustix::mount::unmount(&stage.mount_point, UnmountFlags::NOFOLLOW).unwrap();
    kill_process(daemon, Signal::KILL).unwrap();
    assert!(stage.mount_point.exists());
    run.write("go\n");
    assert_eq!(run.end(), Some(0));
    assert!(stage.is_gone());
}

/// Children of `parent` that have exited and were not reaped.
fn zombies_of(parent: i32) -> usize {
    let stats = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let stat = fs::read_to_string(entry.unwrap().path().join("stat")).ok()?;
        let fields: Vec<String> =
            stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect();
        Some((fields[0].clone(), fields[1].parse::<i32>().unwrap()))
    });
    stats.filter(|(state, its_parent)| state == "Z" && *its_parent == parent).count()
}

#[test]
fn run_reaps_orphans() {
    let Some(stage) = stage_as_user() else { return };
    let script = "for i in $(seq 100); do (true & ) ; done; echo made; read x";
    let mut run = Talker::start(&mut command(&stage, script));
    assert_eq!(run.line(), "made");
    let pid = run.pid().as_raw_nonzero().get();
    wait_until("no orphan is left unburied", || zombies_of(pid) == 0);
    run.write("go\n");
    assert_eq!(run.end(), Some(0));
}

/// Like workers of a data loader: they read and poll whether their parent is alive.
#[test]
fn workers_of_a_killed_command_do_not_delay_the_unmount() {
    let Some(stage) = stage_as_user() else { return };
    let loader = "\
import multiprocessing, os, signal

def work(parent, started):
    count = 0
    while os.getppid() == parent:
        with open('mount/folder/data', 'rb') as file:
            assert len(file.read()) == 300000
        count += 1
        if count == 10:
            started.release()

if __name__ == '__main__':
    multiprocessing.set_start_method('fork')
    started = multiprocessing.Semaphore(0)
    workers = [multiprocessing.Process(target=work, args=(os.getpid(), started), daemon=True)
               for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        started.acquire()
    os.kill(os.getpid(), signal.SIGKILL)
";
    fs::write(stage.work.path().join("loader.py"), loader).unwrap();
    let output = command(&stage, "exec python3 loader.py").output().unwrap();
    assert_eq!(output.status.code(), Some(137), "{}", said(&output));
    assert!(stage.is_gone() && !is_mounted(&stage.mount_point));
}

/// The kernel reaps the children of a process that ignores SIGCHLD.
#[test]
fn run_ends_even_if_started_with_sigchld_ignored() {
    let Some(stage) = stage_as_user() else { return };
    let script = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); \
                  os.execv(sys.argv[1], sys.argv[1:])";
    let mut python = Command::new("timeout");
    python.args(["20", "python3", "-c", script, env!("CARGO_BIN_EXE_archfs"), "run", "-q"]);
    let output =
        python.args([&stage.image, &stage.mount_point]).args(["--", "sh", "-c", "exit 7"]).output();
    assert_eq!(output.unwrap().status.code(), Some(7));
    assert!(stage.is_gone());
}

#[test]
fn ignored_signals_stay_ignored() {
    let Some(stage) = stage_as_user() else { return };
    let mut nohup = Command::new("nohup");
    nohup
        .arg(env!("CARGO_BIN_EXE_archfs"))
        .args(["run", "-q"])
        .args([&stage.image, &stage.mount_point]);
    let output = nohup.args(["--", "grep", "SigIgn", "/proc/self/status"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mask = u64::from_str_radix(text.trim().rsplit('\t').next().unwrap(), 16).unwrap();
    assert_eq!(mask & 1, 1, "SIGHUP: {text}");
}

/// `archfs: error: OBJECT: WHAT`, in a batch job with the name of the node
#[test]
fn errors_have_one_form_and_name_the_node_in_a_batch_job() {
    let none = "/nonexistent/data.sqfs";
    let calls: [(&[&str], i32); 8] = [
        (&["ls", none], 1),
        (&["mount", none, "/nonexistent/m"], 1),
        (&["run", none, "/nonexistent/m", "--", "true"], 121),
        (&["mount", "--frobnicate"], 2),
        (&["run", "--frobnicate"], 122),
        (&["unmount", "/nonexistent/m"], 1),
        (&["index", "/proc/self/environ"], 3),
        (&["info", "/proc/self/mem"], 1),
    ];
    for (words, status) in calls {
        for (job, prefix) in [
            (&[][..], "archfs: "),
            (
                &[("SLURM_JOB_ID", "12"), ("SLURMD_NODENAME", "nid0012.cluster")],
                "archfs[nid0012]: ",
            ),
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_archfs"));
            for name in ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "SGE_ROOT"] {
                command.env_remove(name);
            }
            let output = command.args(words).envs(job.iter().copied()).output().unwrap();
            let said = said(&output);
            assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
            let mut lines = said.lines();
            let first = lines.next().unwrap();
            assert!(first.starts_with(&format!("{prefix}error: ")), "{words:?}: {said}");
            let hint = format!("{prefix}hint: ");
            assert!(lines.all(|line| line.starts_with(&hint)), "{words:?}: {said}");
        }
    }
}

/// `-q`: print only errors with their hints, and warnings
#[test]
fn quiet_leaves_out_notes_and_keeps_warnings_and_errors() {
    let Some(stage) = stage_as_user() else { return };
    let copy = stage.work.path().join("copy.sqfs");
    fs::copy(&stage.image, &copy).unwrap();
    for (option, has_notes) in [("-q", false), ("-v", true)] {
        let script = format!(
            "$ARCHFS mount {option} --keep $IMAGE copy.sqfs mount; $ARCHFS unmount mount; \
             $ARCHFS mount {option} --keep none.sqfs mount"
        );
        let said = said(&stage.bash(&script).output().unwrap());
        assert!(said.contains("copy.sqfs: hides 2 files of "), "{option}: {said}");
        assert!(said.contains("archfs: error: "), "{option}: {said}");
        assert_eq!(said.contains("archfs: note: "), has_notes, "{option}: {said}");
    }
}

/// `-v`: also print the format, the index, threads and cache, how it was mounted, how long each
/// step took
#[test]
fn verbose_reports_how_an_archive_is_mounted_and_how_long_it_took() {
    let Some(stage) = stage_as_user() else { return };
    let tar = "tar -cf data.tar -C /etc hostname; $ARCHFS index -q --index data.index data.tar; ";
    let how = match rustix::process::geteuid().is_root() {
        true => "mounted directly in ",
        false => "mounted with fusermount in ",
    };
    let everywhere = ["; opened in ", " threads answer requests, cache of "];
    for (line, expected) in [
        ("run -v $IMAGE mount -- true", ["SquashFS image, zstd, blocks of 128.0 KiB", how]),
        ("run -v --index data.index data.tar mount -- true", [": using the index ", how]),
        ("run -v data.tar mount -- true", ["tar, not compressed", ": index made, not saved"]),
        ("run -v --private $IMAGE mount -- true", ["served ", "mounted in a namespace in "]),
    ] {
        let said = said(&stage.bash(&format!("{tar}$ARCHFS {line}")).output().unwrap());
        for text in expected.iter().chain(&everywhere) {
            let is_noted = |line: &str| line.starts_with("archfs: note: ") && line.contains(text);
            assert!(said.lines().any(is_noted), "{line}: no {text:?} in {said}");
        }
        let said = said_by_default(&stage, &format!("{tar}$ARCHFS {line}"));
        assert_eq!(said, "", "{line}");
    }
}

/// What a script prints without `-v`.
fn said_by_default(stage: &Stage, script: &str) -> String {
    said(&stage.bash(&script.replace(" -v", "")).output().unwrap())
}
