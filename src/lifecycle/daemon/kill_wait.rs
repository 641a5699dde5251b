//! The time between SIGTERM and SIGKILL on this cluster (Slurm's KillWait).
//!
//! It is read from slurm.conf, which is cheap. If the nodes do not have that file, scontrol is
//! asked. Either may hang, so a thread does it while the mount is served.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::lifecycle::daemon::slurm_end::SlurmEnd;
use crate::os::process::timespec;
use crate::sync::{Arc, OnceLock};

/// Paths of slurm.conf other than $SLURM_CONF: slurmd's copy on a cluster without local
/// configuration, and the usual directories.
const FILES: [&str; 3] =
    ["/run/slurm/conf/slurm.conf", "/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf"];

/// Slurm's value if the configuration sets none (slurm.conf(5)).
const DEFAULT: Duration = Duration::from_secs(30);

/// How long scontrol may take.
const LIMIT: Duration = Duration::from_secs(10);

/// KillWait, once it is known.
#[derive(Clone, Debug, Default)]
pub(in crate::lifecycle) struct KillWait(Arc<OnceLock<Duration>>);

impl KillWait {
    /// In a Slurm job, looks up KillWait in the background and calls `answered` once it is known.
    pub(in crate::lifecycle) fn look_up(answered: impl FnOnce() + Send + 'static) -> Self {
        let kill_wait = Self::default();
        if !SlurmEnd::is_in_job() {
            return kill_wait;
        }
        let answer = Arc::clone(&kill_wait.0);
        let work = move || {
            if let Some(time) = from_files().or_else(from_scontrol) {
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
        self.0.get().copied()
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

fn from_scontrol() -> Option<Duration> {
    let mut command = Command::new("scontrol");
    command.args(["show", "config"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let text = output_within(&mut child, LIMIT);
    if text.is_none() {
        let _ = child.kill();
    }
    let _ = child.wait();
    parse(&text?)
}

/// The output of `child`; `None` if `child` does not close it within `limit`.
fn output_within(child: &mut Child, limit: Duration) -> Option<String> {
    let mut stdout = child.stdout.take()?;
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
        let start = |script| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().unwrap()
        };
        let mut hanging = start("echo KillWait; read x");
        assert_eq!(output_within(&mut hanging, Duration::from_millis(50)), None);
        drop(hanging.stdin.take());
        hanging.wait().unwrap();
        let mut quick = start("echo one; echo two");
        assert_eq!(output_within(&mut quick, SECONDS(60)).as_deref(), Some("one\ntwo\n"));
        quick.wait().unwrap();
    }
}
