//! While an archive is opened, a terminal shows a progress bar, and a signal ends the command at
//! once.
//!
//! `mounting.rs` has signals to a mount.

use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::support::faulty::{Fault, Faulty};
use crate::support::mount::is_mounted;
use crate::support::stage::{processes_about, stage};
use crate::support::tar::slower_archive;
use crate::support::{archfs, run, skip_without_mounts, wait_until, work_directory};

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// The records of root about `mount_point`.
fn records_of(mount_point: &Path) -> Vec<PathBuf> {
    let text = mount_point.to_str().unwrap().as_bytes();
    let all = fs::read_dir("/tmp/archfs-0").into_iter().flatten();
    let all = all.filter_map(|entry| Some(entry.ok()?.path()));
    // Others may be removed meanwhile.
    let is_about = |path: &PathBuf| {
        fs::read(path).is_ok_and(|bytes| bytes.windows(text.len()).any(|part| part == text))
    };
    all.filter(is_about).collect()
}

/// A batch system sends SIGTERM to all processes of a job, also in its first moments.
///
/// 2,000 rounds with ARCHFS_LONG_TESTS.
#[test]
fn a_signal_at_any_moment_of_the_start_leaves_no_record() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    // Opening takes far longer than a round.
    let archive = slower_archive(work.path(), 200);
    let name = archive.to_str().unwrap();
    let mount_point = work.path().join("mount");
    let is_long = std::env::var_os("ARCHFS_LONG_TESTS").is_some();
    for round in 0..if is_long { 2_000 } else { 100 } {
        let signal = [Signal::TERM, Signal::INT, Signal::HUP][round % 3];
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(env!("CARGO_BIN_EXE_archfs")).arg("mount");
        command.args((round % 4 == 0).then_some("--foreground")).arg(&archive).arg(&mount_point);
        if round % 2 == 0 {
            // Then a thread handles the signals for all others.
            command.env("SLURM_JOB_ID", "1").env_remove("SLURM_TASK_PID");
        }
        let mut child = command.process_group(0).stderr(Stdio::null()).spawn().unwrap();
        // A moment of the start, which takes some milliseconds, and more while other tests run.
        thread::sleep(Duration::from_micros(round as u64 * 7919 % 20_000));
        kill_process_group(pid(&child), signal).unwrap();
        let status = child.wait().unwrap();
        let what = format!("round {round}: {signal:?}");
        // In a Slurm job, the launcher may see the end of the daemon first.
        let is_by_signal = status.signal() == Some(signal.as_raw());
        assert!(is_by_signal || round % 2 == 0 && !status.success(), "{what}: {status}");
        wait_until(&format!("{what}: no process is left"), || processes_about(&[name]).is_empty());
        assert!(records_of(&mount_point).is_empty(), "{what}");
    }
}

/// A thread that waits for a file server cannot handle a signal.
#[test]
fn a_signal_ends_a_mount_whose_storage_does_not_answer() {
    let Some(stage) = stage() else { return };
    let faulty = Faulty::new(&stage.image, &stage.work.path().join("storage"));
    faulty.set(Fault::Hanging);
    let name = faulty.file().to_str().unwrap().to_owned();
    for (options, job) in [(&["-q"][..], ""), (&["-q", "--foreground"], ""), (&["-q"], "1")] {
        let mut command = Command::new("env");
        command.args(["--default-signal", env!("CARGO_BIN_EXE_archfs"), "mount"]).args(options);
        command.arg(faulty.file()).arg(&stage.mount_point).env_remove("SLURM_TASK_PID");
        if !job.is_empty() {
            command.env("SLURM_JOB_ID", job);
        }
        let before = faulty.reads();
        let mut child = command.process_group(0).stderr(Stdio::null()).spawn().unwrap();
        wait_until("it reads", || faulty.reads() > before);
        kill_process_group(pid(&child), Signal::TERM).unwrap();
        let what = format!("{options:?} {job}");
        wait_until(&format!("{what}: no process is left"), || {
            // Otherwise it stays as a zombie.
            let _ = child.try_wait();
            processes_about(&[&name]).is_empty()
        });
        assert!(records_of(&stage.mount_point).is_empty(), "{what}");
    }
    faulty.set(Fault::None);
}

#[test]
fn a_signal_while_opening_an_archive_ends_the_command_at_once() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    // Opening takes a minute or more, so only a signal ends it within ten seconds.
    let archive = slower_archive(work.path(), 200);
    let name = archive.to_str().unwrap().to_owned();
    let mount_point = work.path().join("mount");
    let mount = |word: &str| {
        // The process that started the tests may ignore some signals (nohup, a shell's background
        // job), and children inherit that.
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(env!("CARGO_BIN_EXE_archfs")).arg(word).arg(&archive);
        match word {
            "run" => command.arg(&mount_point).args(["--", "true"]),
            "mount" => command.arg(&mount_point),
            _ => &mut command,
        };
        command.process_group(0).stderr(Stdio::null());
        command
    };
    for word in ["mount", "run", "index"] {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL] {
            for to_group in [false, true] {
                let mut child = mount(word).spawn().unwrap();
                let expected = if word == "index" { 1 } else { 2 };
                wait_until("it is at work", || processes_about(&[&name]).len() == expected);
                let what = format!("{word} {signal:?}");
                match to_group {
                    // Like Ctrl-C at a terminal.
                    true => kill_process_group(pid(&child), signal).unwrap(),
                    false => kill_process(pid(&child), signal).unwrap(),
                }
                wait_until(&format!("{what}: it has ended"), || {
                    child.try_wait().unwrap().is_some()
                });
                let status = child.wait().unwrap();
                assert!(!status.success(), "{what}: {status}");
                if !to_group {
                    assert_eq!(status.signal(), Some(signal.as_raw()), "{what}: {status}");
                }
                wait_until(&format!("{what}: no process is left"), || {
                    processes_about(&[&name]).is_empty()
                });
                assert!(!is_mounted(&mount_point) && !mount_point.exists(), "{what}");
                let records = records_of(&mount_point);
                if signal == Signal::KILL && to_group && word != "index" {
                    assert_eq!(records.len(), 1, "the next mount would remove it");
                    fs::remove_file(&records[0]).unwrap();
                } else {
                    assert!(records.is_empty(), "{what}");
                }
            }
        }
    }
    let left: Vec<_> = fs::read_dir(work.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "the archive and its two parts: {left:?}");
}

#[test]
fn the_progress_bar_appears_only_on_a_terminal() {
    let work = work_directory();
    let archive = slower_archive(work.path(), 8);
    let output = run(archfs().arg("index").arg(&archive));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!stderr.contains(['\r', '\x1b']), "{stderr}");

    let line = format!("{} index {}", env!("CARGO_BIN_EXE_archfs"), archive.display());
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env("COLUMNS", "80");
    let mut child = terminal.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut seen = String::new();
    child.stdout.take().unwrap().read_to_string(&mut seen).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(seen.contains("reading headers") && seen.contains('%'), "{seen:?}");
    assert!(seen.trim_end().ends_with("2 files and directories indexed"), "{seen:?}");
    assert!(seen.contains("\x1b[2K") || seen.contains("\r\x1b"), "the line is cleaned: {seen:?}");
}
