//! A panic in any thread of a daemon ends the mount; readers and holders get an error, and none
//! hangs.
//!
//! An environment variable injects the panic, in builds with debug assertions only.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::fs::{Advice, fadvise};

use crate::support::mount::{is_mounted, listed, unmount};
use crate::support::stage::{Stage, has_ended, said, stage, stage_with};
use crate::support::stale::one_at_a_time;
use crate::support::{archfs, image, wait_until};

/// How long a reader may wait for its error.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `archfs mount --keep` with a daemon that panics in `thread`; its output goes to `log`.
fn mount_to_panic(stage: &Stage, thread: &str, options: &[&str]) {
    let mut command = archfs();
    command.args(["mount", "--keep", "--log-file", "log"]).args(options);
    command.arg(&stage.image).arg(&stage.mount_point).env("ARCHFS_PANIC_AT", thread);
    let output = command.current_dir(stage.work.path()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

/// The daemon itself must not send the first request to its mount: after a panic it could not exit
/// until that request has a reply, which would never come.
#[test]
fn mount_reports_a_daemon_that_panics_at_the_first_request() {
    let Some(stage) = stage() else {
        return;
    };
    let script =
        "timeout 20 \"$ARCHFS\" mount --keep --log-file log \"$IMAGE\" mount; echo status $?";
    let output = stage.bash(script).env("ARCHFS_PANIC_AT", "getattr").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "status 1\n", "{}", said(&output));
    assert!(said(&output).contains("does not answer"), "{}", said(&output));
    let log = fs::read_to_string(stage.work.path().join("log")).unwrap();
    assert!(log.contains("injected in getattr"), "{log}");
    wait_until("the mount is gone", || stage.is_gone());
    let mount_point = stage.mount_point.as_os_str().as_encoded_bytes();
    wait_until("the daemon ended", || {
        let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let mut lines = processes.filter_map(|it| fs::read(it.path().join("cmdline")).ok());
        !lines.any(|line| line.split(|&byte| byte == 0).any(|word| word == mount_point))
    });
}

/// Checks that nothing is left, that the log has the reason, and that the mount point can be used
/// again.
fn assert_went_loudly(stage: &Stage, thread: &str) {
    wait_until("the mount is gone", || stage.is_gone());
    wait_until("no record is left", || listed(&stage.mount_point).is_none());
    let read_log = || fs::read_to_string(stage.work.path().join("log")).unwrap();
    // The daemon unmounts first.
    wait_until("the log has the reason", || read_log().contains("internal error in archfs"));
    let log = read_log();
    let reports: Vec<_> =
        log.lines().filter(|line| line.contains("internal error in archfs")).collect();
    assert_eq!(reports.len(), 1, "{log}");
    for part in
        [stage.mount_point.to_str().unwrap(), "src/failpoint.rs:", &format!("injected in {thread}")]
    {
        assert!(reports[0].contains(part), "{part:?}: {log}");
    }
    let output = stage.mount(&["--keep"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(fs::read_dir(&stage.mount_point).unwrap().next().is_some());
    unmount(&stage.mount_point);
}

/// Reads all of `path` in `readers` threads and returns each result, within PATIENCE.
fn read_at_once(path: &Path, readers: usize) -> Vec<std::io::Result<usize>> {
    let (sender, results) = channel();
    for _ in 0..readers {
        let (sender, path) = (sender.clone(), path.to_owned());
        thread::spawn(move || {
            let _ = sender.send(fs::read(path).map(|bytes| bytes.len()));
        });
    }
    (0..readers).map(|_| results.recv_timeout(PATIENCE).expect("no reader hangs")).collect()
}

/// > A panic in any thread of the daemon ends the mount at once. The daemon reports it, with the
/// > line of the source, on standard error or in the log file, and exits with status 101.
///
/// > Readers get an error and none hangs; the mount point is free again.
#[test]
fn a_panic_under_many_readers_ends_the_mount_and_none_hangs() {
    // With all event loops, and with only one.
    for options in [&[][..], &["--threads", "1"]] {
        let Some(stage) = stage() else {
            return;
        };
        mount_to_panic(&stage, "read", options);
        let daemon = stage.daemon();
        let outcomes = read_at_once(&stage.mount_point.join("folder/data"), 32);
        assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
        wait_until("the daemon ended", || has_ended(daemon));
        assert_went_loudly(&stage, "read");
    }
}

/// > A panic in any thread of the daemon ends the mount at once. The daemon reports it, with the
/// > line of the source, on standard error or in the log file, and exits with status 101.
///
/// > Readers get an error and none hangs; the mount point is free again.
#[test]
fn an_open_file_gives_an_error_after_a_panic() {
    let Some(stage) = stage() else {
        return;
    };
    mount_to_panic(&stage, "lease", &[]);
    let daemon = stage.daemon();
    let mut file = fs::File::open(stage.mount_point.join("folder/data")).unwrap();
    let mut bytes = [0; 4096];
    file.read_exact(&mut bytes).unwrap();
    let asked = archfs().arg("stats").arg(&stage.mount_point).output().unwrap();
    assert!(!asked.status.success(), "who asked learns of it");
    wait_until("the daemon ended", || has_ended(daemon));
    // The kernel had read ahead; the rest cannot be read.
    let rest = file.read_to_end(&mut Vec::new());
    let later = fs::metadata(stage.mount_point.join("hello"));
    assert!(rest.is_err() || rest.unwrap() == 300_000 - 4096);
    assert_eq!(later.unwrap_err().raw_os_error(), Some(rustix::io::Errno::NOENT.raw_os_error()));
    wait_until("the daemon ended", || has_ended(daemon));
    assert_went_loudly(&stage, "lease");
}

/// Every line of the text file.
const LINE: &[u8] = b"what is decoded ahead\n";

/// An image of a file with `lines` lines and that block size.
fn of_text(work: &Path, lines: usize, block: &str) -> PathBuf {
    let source = work.join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("text"), LINE.repeat(lines)).unwrap();
    image::make(work, "text.sqfs", &source, &["-comp", "gzip", "-b", block])
}

/// > A panic in any thread of the daemon ends the mount at once. The daemon reports it, with the
/// > line of the source, on standard error or in the log file, and exits with status 101.
#[test]
fn a_panic_while_decoding_ahead_ends_the_mount() {
    let Some(stage) = stage_with(|work| of_text(work, 500_000, "128K")) else {
        return;
    };
    mount_to_panic(&stage, "ahead", &[]);
    let daemon = stage.daemon();
    let outcomes = read_at_once(&stage.mount_point.join("text"), 1);
    wait_until("the daemon ended", || has_ended(daemon));
    // Unless the reader was faster than the panic.
    assert!(outcomes[0].is_err() || matches!(outcomes[0], Ok(11_000_000)), "{outcomes:?}");
    wait_until("the daemon ended", || has_ended(daemon));
    assert_went_loudly(&stage, "ahead");
}

/// > A panic in any thread of the daemon ends the mount at once. The daemon reports it, with the
/// > line of the source, on standard error or in the log file, and exits with status 101.
#[test]
fn a_panic_while_releasing_memory_ends_the_mount() {
    let Some(stage) = stage() else {
        return;
    };
    mount_to_panic(&stage, "release", &["--cache-idle", "1"]);
    // The requests of `mount` may already have triggered it.
    let _ = fs::read(stage.mount_point.join("hello"));
    assert_went_loudly(&stage, "release");
}

/// > A panic in any thread of the daemon ends the mount at once. The daemon reports it, with the
/// > line of the source, on standard error or in the log file, and exits with status 101.
#[test]
fn a_panic_in_the_foreground_is_reported_on_stderr_with_status_101() {
    let Some(stage) = stage() else {
        return;
    };
    let mut command = archfs();
    command.args(["mount", "--foreground"]).arg(&stage.image).arg(&stage.mount_point);
    let child = command.env("ARCHFS_PANIC_AT", "read").stderr(Stdio::piped()).spawn().unwrap();
    wait_until("it is mounted", || is_mounted(&stage.mount_point));
    assert!(fs::read(stage.mount_point.join("hello")).is_err());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(101), "{}", said(&output));
    assert!(said(&output).contains("internal error in archfs, unmounted"), "{}", said(&output));
    assert!(stage.is_gone());
}

/// > `run` lets COMMAND finish, returns its exit status, and reports that the mount ended first.
#[test]
fn run_returns_its_commands_status_and_reports_that_the_mount_ended() {
    let Some(stage) = stage() else {
        return;
    };
    for (script, status) in [("cat mount/hello", 1), ("cat mount/hello; exit 7", 7)] {
        let mut command =
            stage.bash(&format!("\"$ARCHFS\" run \"$IMAGE\" mount -- sh -c '{script}'"));
        let output = command.env("ARCHFS_PANIC_AT", "read").output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", said(&output));
        assert!(
            said(&output).contains("mount ended before the command exited"),
            "{}",
            said(&output)
        );
        assert!(stage.is_gone());
    }
}

/// > A daemon that cannot allocate memory exits at once, and its mount is stale until it is
/// > cleared.
#[test]
fn gc_clears_the_stale_mount_of_a_daemon_out_of_memory() {
    let _one = one_at_a_time();
    let Some(stage) = stage_with(|work| of_text(work, 3_000_000, "1M")) else {
        return;
    };
    let output = stage.mount(&["--keep", "--cache", "256M"]);
    assert!(output.status.success(), "{}", said(&output));
    let daemon = stage.daemon();
    // Below its current size, so neither mmap nor the heap can grow. A limit of address space would
    // not work, because a heap reserves more than it uses.
    let pid = daemon.as_raw_nonzero().to_string();
    let limits = ["--data=1", "--pid", &pid];
    let limited = Command::new("prlimit").args(limits).status().unwrap();
    assert!(limited.success());
    // Reads too little of each block for it to leave the cache: 60 MiB, more than the heap has
    // free.
    let file = fs::File::open(stage.mount_point.join("text")).unwrap();
    fadvise(&file, 0, None, Advice::Random).unwrap();
    let (sender, results) = channel();
    thread::spawn(move || {
        for start in (0..60_u64).map(|block| block << 20) {
            let mut bytes = [0; 4096];
            let outcome = file.read_exact_at(&mut bytes, start);
            let _ = sender.send(outcome.map(|()| (start, bytes)));
        }
    });
    let mut failed = 0;
    for _ in 0..60 {
        match results.recv_timeout(PATIENCE).expect("no reader hangs") {
            Ok((start, bytes)) => {
                let expected = LINE.iter().cycle().skip(start as usize % LINE.len());
                assert!(bytes.iter().eq(expected.take(bytes.len())), "other bytes at {start}");
            }
            Err(_) => failed += 1,
        }
    }
    assert!(failed > 0, "all was there without memory");
    wait_until("the daemon has ended", || has_ended(daemon));
    assert!(is_mounted(&stage.mount_point), "it had no chance to unmount");
    assert_eq!(listed(&stage.mount_point).unwrap()["state"], "dead");
    assert!(archfs().arg("gc").status().unwrap().success());
    assert!(stage.is_gone());
}
