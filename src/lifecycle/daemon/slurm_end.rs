//! The end of a Slurm job: which signals announce it, and how long after them Slurm kills.
//!
//! `scancel --signal=TERM JOB` sends SIGTERM to every step while the job continues: its programs
//! save their work, and still need the mount. So do `--signal=INT` and `--signal=HUP`. At the end
//! of a job Slurm sends SIGCONT to every step, SIGTERM right after it, and SIGKILL after KillWait.
//! The signals themselves are the same. So a signal of Slurm means the end only shortly after a
//! SIGCONT, or if the batch script has ended. A signal of any other process always means the end.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{getppid, getuid};
use signal_hook::consts::SIGCONT;

use crate::os::process::{ProcessId, timespec};
use crate::os::signal::{Arrival, SenderId};
use crate::sync::{Arc, Mutex, OnceLock};

/// How long after SIGCONT a signal counts as the end. Slurm sends both within milliseconds; a node
/// that is short of memory or CPU delivers them later.
const RECENT: Duration = Duration::from_secs(5);

/// Name of the Slurm process on a node that starts and signals the tasks of a step.
const SENDER: &[u8] = b"slurmstepd";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Slurm,
    /// Another process, the kernel, or a terminal.
    Other,
}

/// State of the batch script, as far as this node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    Runs,
    Ended,
    /// It runs on another node, or this process does not know which process it is.
    Unknown,
}

#[derive(Debug, Default)]
pub(crate) struct SlurmEnd {
    continued: Option<Instant>,
}

impl SlurmEnd {
    /// `None` outside of a Slurm job.
    pub(crate) fn watch() -> Option<Self> {
        Self::is_in_job().then(Self::default)
    }

    pub(crate) fn is_in_job() -> bool {
        std::env::var_os("SLURM_JOB_ID").is_some()
    }

    /// Whether this signal means that the job ends. SIGCONT alone does not, because Slurm also
    /// sends it to resume a job.
    pub(crate) fn means_end(&mut self, arrival: Arrival, script: Script) -> bool {
        let now = Instant::now();
        if arrival.signal == SIGCONT {
            self.continued = Some(now);
            return false;
        }
        let means_end_at = self.means_end_at(now, Sender::of(arrival.sender), script);
        if !means_end_at {
            log::info!("ignored signal {} from Slurm: the job is still running", arrival.signal);
        }
        means_end_at
    }

    /// Whether SIGTERM, SIGHUP or SIGINT from `sender` means that the job ends.
    fn means_end_at(&self, now: Instant, sender: Sender, script: Script) -> bool {
        match (sender, script) {
            (Sender::Other, _) | (Sender::Slurm, Script::Ended) => true,
            (Sender::Slurm, Script::Runs | Script::Unknown) => self
                .continued
                .is_some_and(|continued| now.saturating_duration_since(continued) <= RECENT),
        }
    }
}

impl Script {
    /// The state of the script `process`, if this process knows it.
    pub(crate) fn of(process: Option<ProcessId>) -> Self {
        match process {
            Some(process) if process.is_alive() => Self::Runs,
            Some(_) => Self::Ended,
            None => Self::Unknown,
        }
    }
}

impl Sender {
    /// The kind of sender; `None` stands for the kernel.
    fn of(process: Option<SenderId>) -> Self {
        let Some(process) = process else {
            return Self::Other;
        };
        let is_slurm = match fs::read(format!("/proc/{}/comm", process.pid)) {
            Ok(name) => name.trim_ascii() == SENDER,
            // The mount option hidepid=2 hides it, or it is outside of this pid namespace, where it
            // has number 0. It started this task, as another user.
            Err(_) => {
                let parent = getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
                process.pid == parent && process.uid != getuid().as_raw()
            }
        };
        if is_slurm { Self::Slurm } else { Self::Other }
    }
}

/// Paths of slurm.conf other than $SLURM_CONF: slurmd's copy on a cluster without local
/// configuration, and the usual directories.
const SLURM_CONF: [&str; 3] =
    ["/run/slurm/conf/slurm.conf", "/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf"];

/// Slurm's value if the configuration sets none (slurm.conf(5)).
const DEFAULT_KILL_WAIT: Duration = Duration::from_secs(30);

const SCONTROL_LIMIT: Duration = Duration::from_secs(10);

/// KillWait, the time from SIGTERM to SIGKILL, once it is known. Dropping it ends the search.
///
/// It is read from slurm.conf, which is cheap. If the nodes do not have that file, scontrol is
/// asked. Either may hang, so a thread does it while the mount is served.
#[derive(Debug, Default)]
pub(crate) struct KillWait {
    answer: Arc<OnceLock<Duration>>,
    scontrol: Running,
}

/// The scontrol that is asked, as long as it runs.
type Running = Arc<Mutex<Option<Child>>>;

impl KillWait {
    /// In a Slurm job, looks up KillWait in the background and calls `answered` once it is known.
    pub(crate) fn look_up(answered: impl FnOnce() + Send + 'static) -> Self {
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
    pub(crate) fn get(&self) -> Option<Duration> {
        self.answer.get().copied()
    }
}

impl Drop for KillWait {
    fn drop(&mut self) {
        end(&self.scontrol);
    }
}

fn end(running: &Running) {
    if let Some(mut child) = running.lock().take() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn from_files() -> Option<Duration> {
    let named = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    let files = named.into_iter().chain(SLURM_CONF.map(PathBuf::from));
    let text = files.into_iter().find_map(|file| fs::read_to_string(file).ok())?;
    match parse(&text) {
        None if includes_others(&text) => None,
        found => Some(found.unwrap_or(DEFAULT_KILL_WAIT)),
    }
}

fn from_scontrol(running: &Running) -> Option<Duration> {
    let mut command = Command::new("scontrol");
    command.args(["show", "config"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    parse(&output_within(&mut command, running, SCONTROL_LIMIT)?)
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
            Err(Errno::INTR) => continue,
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
    fn a_slurm_signal_ends_the_job_after_sigcont_or_without_the_script() {
        let now = Instant::now();
        let mut end = SlurmEnd::default();
        for script in [Script::Runs, Script::Unknown] {
            assert!(!end.means_end_at(now, Sender::Slurm, script), "scancel --signal, {script:?}");
        }
        assert!(end.means_end_at(now, Sender::Slurm, Script::Ended));
        end.continued = Some(now);
        for script in [Script::Runs, Script::Ended, Script::Unknown] {
            assert!(end.means_end_at(now, Sender::Slurm, script), "{script:?}");
            assert!(end.means_end_at(now + RECENT, Sender::Slurm, script), "{script:?}");
        }
        // A job that was resumed a while ago continues.
        let later = now + RECENT + Duration::from_millis(1);
        assert!(!end.means_end_at(later, Sender::Slurm, Script::Runs));
        assert!(!end.means_end_at(later, Sender::Slurm, Script::Unknown));
    }

    #[test]
    fn a_signal_of_any_other_process_ends_the_job() {
        let now = Instant::now();
        for script in [Script::Runs, Script::Ended, Script::Unknown] {
            assert!(SlurmEnd::default().means_end_at(now, Sender::Other, script), "{script:?}");
        }
    }

    #[test]
    fn this_process_and_the_kernel_are_not_slurm() {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let own = SenderId { pid, uid: getuid().as_raw() };
        assert_eq!(Sender::of(Some(own)), Sender::Other);
        assert_eq!(Sender::of(None), Sender::Other);
        // No process has this number, and it is not the parent's.
        let ended = SenderId { pid: i32::MAX, uid: getuid().as_raw() + 1 };
        assert_eq!(Sender::of(Some(ended)), Sender::Other);
    }

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
