//! Whether a signal of Slurm means the end of the job.
//!
//! `scancel --signal=TERM JOB` sends SIGTERM to every step while the job works on: the programs of
//! the job save their work, and still need the mount. So do `--signal=INT` and `--signal=HUP`. At
//! the end of a job Slurm sends SIGCONT to every step, SIGTERM right behind it, and SIGKILL after
//! KillWait. The signals themselves are the same, so a signal of Slurm means the end only shortly
//! after a SIGCONT, or if the batch script has ended. A signal of any other process does always.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{getppid, getuid};
use signal_hook::consts::SIGCONT;

use crate::lifecycle::daemon::signals::{Arrival, SenderId};
use crate::lifecycle::system::process::ProcessId;

/// How long after SIGCONT a signal counts as the end. Slurm sends both within milliseconds; a node
/// that is short of memory or CPU delivers them later.
const RECENT: Duration = Duration::from_secs(5);

/// What Slurm calls the process on a node that starts and signals the tasks of a step.
const SENDER: &[u8] = b"slurmstepd";

/// Who sent a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Slurm,
    /// Another process, the kernel, or a terminal.
    Other,
}

/// The batch script, as far as this node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lifecycle) enum Script {
    Runs,
    Ended,
    /// It runs on another node, or this process was not told of it.
    Unknown,
}

/// What Slurm has sent to this process.
#[derive(Debug, Default)]
pub(in crate::lifecycle) struct SlurmEnd {
    continued: Option<Instant>,
}

impl SlurmEnd {
    /// `None` outside of Slurm's jobs.
    pub(in crate::lifecycle) fn watch() -> Option<Self> {
        std::env::var_os("SLURM_JOB_ID").map(|_| Self::default())
    }

    /// Whether the signal that came means that the job ends. SIGCONT alone does not, whoever sent
    /// it: Slurm sends it to resume a job, too.
    pub(in crate::lifecycle) fn is_the_end(&mut self, came: Arrival, script: Script) -> bool {
        let now = Instant::now();
        if came.signal == SIGCONT {
            self.continued = Some(now);
            return false;
        }
        let is_meant = self.is_meant(now, Sender::of(came.sender), script);
        if !is_meant {
            log::info!("signal {} of Slurm while the job works on", came.signal);
        }
        is_meant
    }

    /// Whether SIGTERM, SIGHUP or SIGINT from `sender` means that the job ends.
    fn is_meant(&self, now: Instant, sender: Sender, script: Script) -> bool {
        match (sender, script) {
            (Sender::Other, _) | (Sender::Slurm, Script::Ended) => true,
            (Sender::Slurm, Script::Runs | Script::Unknown) => self
                .continued
                .is_some_and(|continued| now.saturating_duration_since(continued) <= RECENT),
        }
    }
}

impl Script {
    /// The state of `process`, if this process was told of the script.
    pub(in crate::lifecycle) fn of(process: Option<ProcessId>) -> Self {
        match process {
            Some(process) if process.is_alive() => Self::Runs,
            Some(_) => Self::Ended,
            None => Self::Unknown,
        }
    }
}

impl Sender {
    /// The sender of a signal that `process` sent; `None` for the kernel.
    fn of(process: Option<SenderId>) -> Self {
        let Some(process) = process else {
            return Self::Other;
        };
        let is_slurm = match fs::read(format!("/proc/{}/comm", process.pid)) {
            Ok(name) => name.trim_ascii() == SENDER,
            // The mount option hidepid=2 hides it, or it is outside of this pid namespace, where
            // it has number 0. It has started this task, as another user.
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
    fn a_signal_of_slurm_is_the_end_after_sigcont_or_without_the_script() {
        let now = Instant::now();
        let mut end = SlurmEnd::default();
        for script in [Script::Runs, Script::Unknown] {
            assert!(!end.is_meant(now, Sender::Slurm, script), "scancel --signal, {script:?}");
        }
        assert!(end.is_meant(now, Sender::Slurm, Script::Ended));
        end.continued = Some(now);
        for script in [Script::Runs, Script::Ended, Script::Unknown] {
            assert!(end.is_meant(now, Sender::Slurm, script), "{script:?}");
            assert!(end.is_meant(now + RECENT, Sender::Slurm, script), "{script:?}");
        }
        // A job that was resumed a while ago works on.
        let later = now + RECENT + Duration::from_millis(1);
        assert!(!end.is_meant(later, Sender::Slurm, Script::Runs));
        assert!(!end.is_meant(later, Sender::Slurm, Script::Unknown));
    }

    #[test]
    fn a_signal_of_any_other_process_is_always_the_end() {
        let now = Instant::now();
        for script in [Script::Runs, Script::Ended, Script::Unknown] {
            assert!(SlurmEnd::default().is_meant(now, Sender::Other, script), "{script:?}");
        }
    }

    #[test]
    fn this_process_and_the_kernel_are_not_slurm() {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let own = SenderId { pid, uid: getuid().as_raw() };
        assert_eq!(Sender::of(Some(own)), Sender::Other);
        assert_eq!(Sender::of(None), Sender::Other);
        // No process has this number, nor is it the parent's.
        let gone = SenderId { pid: i32::MAX, uid: getuid().as_raw() + 1 };
        assert_eq!(Sender::of(Some(gone)), Sender::Other);
    }
}
