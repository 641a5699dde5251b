//! Whether a signal of Slurm means the end of the job.
//!
//! `scancel --signal=TERM JOB` sends SIGTERM to every step while the job continues: its programs
//! save their work, and still need the mount. So do `--signal=INT` and `--signal=HUP`. At the end
//! of a job Slurm sends SIGCONT to every step, SIGTERM right after it, and SIGKILL after KillWait.
//! The signals themselves are the same. So a signal of Slurm means the end only shortly after a
//! SIGCONT, or if the batch script has ended. A signal of any other process always means the end.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{getppid, getuid};
use signal_hook::consts::SIGCONT;

use crate::os::process::ProcessId;
use crate::os::signal_receiver::{Arrival, SenderId};

/// How long after SIGCONT a signal counts as the end. Slurm sends both within milliseconds; a node
/// that is short of memory or CPU delivers them later.
const RECENT: Duration = Duration::from_secs(5);

/// Name of the Slurm process on a node that starts and signals the tasks of a step.
const SENDER: &[u8] = b"slurmstepd";

/// The sender of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Slurm,
    /// Another process, the kernel, or a terminal.
    Other,
}

/// State of the batch script, as far as this node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lifecycle) enum Script {
    Runs,
    Ended,
    /// It runs on another node, or this process does not know which process it is.
    Unknown,
}

/// What Slurm has sent to this process.
#[derive(Debug, Default)]
pub(in crate::lifecycle) struct SlurmEnd {
    continued: Option<Instant>,
}

impl SlurmEnd {
    /// `None` outside of a Slurm job.
    pub(in crate::lifecycle) fn watch() -> Option<Self> {
        Self::is_in_job().then(Self::default)
    }

    /// Whether this process belongs to a Slurm job.
    pub(in crate::lifecycle) fn is_in_job() -> bool {
        std::env::var_os("SLURM_JOB_ID").is_some()
    }

    /// Whether this signal means that the job ends. SIGCONT alone does not, because Slurm also
    /// sends it to resume a job.
    pub(in crate::lifecycle) fn means_end(&mut self, arrival: Arrival, script: Script) -> bool {
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
    pub(in crate::lifecycle) fn of(process: Option<ProcessId>) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
