//! Waits of unknown length are shown on a terminal, and long ones in the log of a job.
//!
//! `script` is the terminal, and stopped daemons make a command wait. Progress bars with a known
//! end are tested elsewhere.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::mount::Mounted;
use crate::support::stage::{Stage, Stopped, said, stage_as_user};
use crate::support::{archfs, wait_until};

/// A bash line at a terminal, whose output goes to the file `shown`.
fn at_a_terminal(stage: &Stage, line: &str) -> Terminal {
    let script = format!("exec {line}");
    fs::write(stage.work.path().join("script"), script).unwrap();
    let mut terminal = Command::new("script");
    terminal.args(["-qefc", "exec bash ./script", "shown"]).current_dir(stage.work.path());
    terminal.env("ARCHFS", env!("CARGO_BIN_EXE_archfs")).env("IMAGE", &stage.image);
    terminal.env("SHELL", "/bin/bash").env("TERM", "xterm").env_remove("SLURM_TASK_PID");
    Terminal(terminal.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
}

/// A terminal; its processes are ended when the test ends.
struct Terminal(Child);

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn shown(stage: &Stage) -> String {
    let bytes = fs::read(stage.work.path().join("shown")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn a_wait_shows_its_reason_and_time_and_is_erased_afterward() {
    let Some(stage) = stage_as_user() else { return };
    let mut waiting = at_a_terminal(&stage, "$ARCHFS wait mount");
    wait_until("it is shown", || shown(&stage).contains("waiting for a mount at mount (2s)"));
    let _mounted = Mounted::archfs(&stage.image, &stage.mount_point, &[]);
    assert!(waiting.0.wait().unwrap().success());
    // Erased at the end: after the text comes the sequence that clears the line.
    let text = shown(&stage);
    let after = text.rsplit("waiting for a mount").next().unwrap();
    assert!(after.contains("\u{1b}[2K"), "{text:?}");
}

#[test]
fn waiting_for_an_unresponsive_daemon_is_shown() {
    let Some(stage) = stage_as_user() else { return };
    let _mounted = Mounted::archfs(&stage.image, &stage.mount_point, &[]);
    for (line, text) in [
        ("$ARCHFS list", "asking the daemons of your mounts"),
        ("$ARCHFS stats mount", "waiting for the daemon of mount"),
        ("$ARCHFS wait mount", "waiting for a mount at mount"),
        ("$ARCHFS mount --keep $IMAGE mount", "waiting to mount at "),
        ("$ARCHFS run $IMAGE mount -- true", "waiting to mount at "),
        ("$ARCHFS unmount mount", "unmounting mount"),
    ] {
        let stopped = Stopped::new(stage.daemon());
        let mut waiting = at_a_terminal(&stage, line);
        wait_until(text, || shown(&stage).contains(text));
        drop(stopped);
        let status = waiting.0.wait().unwrap();
        assert!(status.success(), "{line}: {}", shown(&stage));
    }
    assert!(stage.is_gone());
}

#[test]
fn wait_reports_a_mount_that_cannot_be_read_yet() {
    let Some(stage) = stage_as_user() else { return };
    let _mounted = Mounted::archfs(&stage.image, &stage.mount_point, &[]);
    let stopped = Stopped::new(stage.daemon());
    // The kernel's cache would answer stat(2).
    assert!(stage.mount_point.is_dir());
    let before = Instant::now();
    let output = stage.ends(&["wait", "mount", "--timeout", "2s"]);
    let elapsed = before.elapsed();
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    assert!(
        said(&output).contains("mount: mounted, but the daemon did not answer before the timeout")
    );
    assert!(elapsed >= Duration::from_secs(2) && elapsed < Duration::from_secs(5), "{elapsed:?}");
    drop(stopped);
    let output = stage.ends(&["wait", "mount", "--timeout", "20s"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

#[test]
fn a_log_gets_lines_about_waits_of_more_than_five_seconds() {
    let Some(stage) = stage_as_user() else { return };
    let mount_point = stage.mount_point.display();
    let error = format!(
        "archfs: error: {mount_point}: not mounted before the timeout\n\
         archfs: hint: run `archfs list` to see your mounts on this node\n"
    );
    for (timeout, lines) in [("2s", &[][..]), ("6s", &[["", " so far"], ["ended after ", ""]])] {
        let output =
            archfs().args(["wait", "--timeout", timeout]).arg(&stage.mount_point).output().unwrap();
        assert_eq!(output.status.code(), Some(6));
        let said = said(&output);
        let notes = said.strip_suffix(&error).unwrap_or_else(|| panic!("{said}"));
        assert_eq!(notes.lines().count(), lines.len(), "{said}");
        for (found, [before, after]) in notes.lines().zip(lines) {
            let before = format!("archfs: note: waiting for a mount at {mount_point}: {before}");
            let time = found.strip_prefix(&before).and_then(|time| time.strip_suffix(after));
            let seconds = time.and_then(|time| time.strip_suffix(" s")?.parse::<f64>().ok());
            // A busy machine prints each line late, and starts to measure late.
            assert!(seconds.is_some_and(|seconds| (5.0..20.0).contains(&seconds)), "{said}");
        }
    }
}
