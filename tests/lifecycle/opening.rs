//! While an archive is opened, a terminal shows a progress bar, and a signal ends the command at
//! once.
//!
//! `mounting.rs` has signals to a mount.

use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::support::mount::is_mounted;
use crate::support::stage::processes_about;
use crate::support::tar::slower_archive;
use crate::support::{archfs, run, skip_without_mounts, wait_until, work_directory};

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
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
