//! The time between SIGTERM and SIGKILL on this cluster (Slurm's KillWait).
//!
//! It is read from slurm.conf, which is cheap. If the nodes do not have that file, scontrol is
//! asked. Either may hang, so a thread does it while the mount is served.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::lifecycle::daemon::slurm_end::SlurmEnd;
use crate::os::process::timespec;
use crate::sync::{Arc, Mutex, OnceLock};

/// Paths of slurm.conf other than $SLURM_CONF: slurmd's copy on a cluster without local
/// configuration, and the usual directories.
const FILES: [&str; 3] =
    ["/run/slurm/conf/slurm.conf", "/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf"];

/// Slurm's value if the configuration sets none (slurm.conf(5)).
const DEFAULT: Duration = Duration::from_secs(30);

/// How long scontrol may take.
const LIMIT: Duration = Duration::from_secs(10);

/// KillWait, once it is known. Dropping it ends the search.
#[derive(Debug, Default)]
pub(in crate::lifecycle) struct KillWait {
    answer: Arc<OnceLock<Duration>>,
    scontrol: Running,
}

/// The scontrol that is asked, as long as it runs.
type Running = Arc<Mutex<Option<Child>>>;

impl KillWait {
    /// In a Slurm job, looks up KillWait in the background and calls `answered` once it is known.
    pub(in crate::lifecycle) fn look_up(answered: impl FnOnce() + Send + 'static) -> Self {
        let kill_wait = Self::default();
        if !SlurmEnd::is_in_job() {
            return kill_wait;
        }
        let (answer, scontrol) = (Arc::clone(&kill_wait.answer), Arc::clone(&kill_wait.scontrol));
        let work = move || {
            if let Some(time) = from_files().or_else(|| from_scontrol(&scontrol)) {
                let _ = answer.set(time);
                answered();
            }
        };
        // Without a thread or an answer, the default grace period does not change.
        let _ = thread::Builder::new().name("kill-wait".into()).spawn(work);
        kill_wait
    }

    /// `None` if it is not known, or not yet.
    pub(in crate::lifecycle) fn get(&self) -> Option<Duration> {
        self.answer.get().copied()
    }
}

impl Drop for KillWait {
    fn drop(&mut self) {
        end(&self.scontrol);
    }
}

/// Kills the program, if it runs.
fn end(running: &Running) {
    if let Some(mut child) = running.lock().take() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn from_files() -> Option<Duration> {
    let named = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    let files = named.into_iter().chain(FILES.map(PathBuf::from));
    let text = files.into_iter().find_map(|file| fs::read_to_string(file).ok())?;
    match parse(&text) {
        None if includes_others(&text) => None,
        found => Some(found.unwrap_or(DEFAULT)),
    }
}

fn from_scontrol(running: &Running) -> Option<Duration> {
    let mut command = Command::new("scontrol");
    command.args(["show", "config"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    parse(&output_within(&mut command, running, LIMIT)?)
}

/// The output of `command`, which is in `running` meanwhile; `None` if it is not closed within
/// `limit`.
fn output_within(command: &mut Command, running: &Running, limit: Duration) -> Option<String> {
    let mut child = command.spawn().ok()?;
    let stdout = child.stdout.take();
    *running.lock() = Some(child);
    let text = read_within(stdout?, limit);
    // All of its output has been read, or it took too long.
    end(running);
    text
}

/// What `stdout` has until it is closed; `None` if it is not closed within `limit`.
fn read_within(mut stdout: ChildStdout, limit: Duration) -> Option<String> {
    let deadline = Instant::now() + limit;
    let mut text = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        let left = timespec(deadline.saturating_duration_since(Instant::now()));
        match poll(&mut [PollFd::new(&stdout, PollFlags::IN)], Some(&left)) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return None,
        }
        match stdout.read(&mut bytes).ok()? {
            0 => return String::from_utf8(text).ok(),
            count => text.extend_from_slice(&bytes[..count]),
        }
    }
}

/// The value in slurm.conf (`KillWait=60`) or in `scontrol show config` (`KillWait = 60 sec`).
fn parse(text: &str) -> Option<Duration> {
    text.lines().find_map(|line| {
        let (key, value) = without_comment(line).split_once('=')?;
        if !key.trim().eq_ignore_ascii_case("KillWait") {
            return None;
        }
        value.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_secs)
    })
}

fn includes_others(text: &str) -> bool {
    let first = |line| without_comment(line).split_ascii_whitespace().next();
    text.lines().filter_map(first).any(|key| key.eq_ignore_ascii_case("include"))
}

fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn parses_scontrol_output_and_slurm_conf() {
        let scontrol_output = "Configuration data as of 2026-11-23T00:00:00\n\
                     InactiveLimit           = 0 sec\n\
                     KillOnBadExit           = 0\n\
                     KillWait                = 10 sec\n\
                     LaunchParameters        = (null)\n";
        assert_eq!(parse(scontrol_output), Some(SECONDS(10)));
        assert_eq!(parse("ClusterName=c\nkillwait=5 # short\nMinJobAge=300\n"), Some(SECONDS(5)));
        for text in ["", "#KillWait=5\n", "KillWait=\n", "KillWait=UNLIMITED\n", "KillWaiting=5\n"]
        {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn detects_included_files() {
        assert!(includes_others("ClusterName=c\n  Include /etc/slurm/times.conf\n"));
        assert!(!includes_others("# include\nIncludes=no\n"));
    }

    #[test]
    fn does_not_wait_for_a_program_that_hangs() {
        let shell = |script| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
            command
        };
        let running = Running::default();
        let mut hanging = shell("echo KillWait; exec sleep 1000");
        assert_eq!(output_within(&mut hanging, &running, Duration::from_millis(50)), None);
        assert!(running.lock().is_none());
        let mut quick = shell("echo one; echo two");
        let text = output_within(&mut quick, &running, SECONDS(60));
        assert_eq!(text.as_deref(), Some("one\ntwo\n"));
    }

    #[test]
    fn a_daemon_that_ends_takes_the_program_with_it() {
        let kill_wait = KillWait::default();
        let running = Arc::clone(&kill_wait.scontrol);
        let asking = thread::spawn(move || {
            let mut hanging = Command::new("sleep");
            hanging.arg("1000").stdout(Stdio::piped());
            output_within(&mut hanging, &running, SECONDS(500))
        });
        while kill_wait.scontrol.lock().is_none() {
            thread::yield_now();
        }
        drop(kill_wait);
        // Its output is closed, because it was killed.
        assert_eq!(asking.join().unwrap().as_deref(), Some(""));
    }
}
