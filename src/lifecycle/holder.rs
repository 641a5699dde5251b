//! For whom a mount in the background lives.
//!
//! Owns the choice: a process named on the command line, the batch job's task, the caller, or
//! nobody (until `unmount`). Leaves the watch to `process`. Invariant: the choice is told to the
//! user.

use std::fmt;

use rustix::process::{getpid, getppid};

use super::process::{self, ProcessId};
use crate::error::{Error, Kind, Result};

/// Who holds a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// It goes when this process has ended.
    Process(ProcessId),
    /// It stays until `archfs unmount`.
    Nobody(Reason),
}

/// Why nobody holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// `--keep`.
    Asked,
    /// A person at a terminal called.
    Interactive,
}

/// What the command line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing.
    Usual,
    /// `--keep`.
    Keep,
    /// `--until-pid`.
    UntilPid(i32),
}

/// Whom a mount lives for that this process starts.
///
/// In a job script that is the script: SLURM_TASK_PID where a batch job set it, else the caller.
///
/// # Errors
/// `NotFound` where the process named, or the caller, has ended already.
pub fn choose(wish: Wish) -> Result<Holder> {
    match wish {
        Wish::Keep => Ok(Holder::Nobody(Reason::Asked)),
        Wish::UntilPid(pid) => ProcessId::of(pid).map(Holder::Process),
        Wish::Usual => {
            let task = std::env::var("SLURM_TASK_PID").ok();
            if let Some(task) = task.and_then(|pid| batch_task(pid.parse().ok()?)) {
                return Ok(Holder::Process(task));
            }
            let in_batch_job = std::env::var_os("SLURM_JOB_ID").is_some();
            let Some(caller) = getppid() else {
                return Ok(Holder::Nobody(Reason::Interactive));
            };
            let caller = ProcessId::of(caller.as_raw_nonzero().get())?;
            if !may_have_called(caller) {
                let context = "whoever called this has ended, so nobody needs the mount";
                return Err(Error::new(Kind::NotFound, context));
            }
            if !in_batch_job && caller.is_session_leader_with_terminal() {
                return Ok(Holder::Nobody(Reason::Interactive));
            }
            Ok(Holder::Process(caller))
        }
    }
}

/// The job's task, unless that is this very command (`srun archfs mount`), whose end is near.
fn batch_task(pid: i32) -> Option<ProcessId> {
    if pid == getpid().as_raw_nonzero().get() {
        return None;
    }
    ProcessId::of(pid).ok()
}

/// Whether `parent` started this process, and did not only take it over from one that has ended:
/// init would hold the mount for ever. Whoever starts a process is in its session, unless the
/// process was made the leader of a new one.
fn may_have_called(parent: ProcessId) -> bool {
    let own = getpid().as_raw_nonzero().get();
    match (process::stat(own), process::stat(parent.pid())) {
        (Some(own_stat), Some(parent)) => {
            own_stat.session == own || own_stat.session == parent.session
        }
        _ => false,
    }
}

impl fmt::Display for Holder {
    /// How long the mount holds, to stand behind `mounted A at B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(process) => {
                let (pid, name) = (process.pid(), process.name());
                write!(f, "until process {pid} ({name}) ends; --keep to hold until unmount")
            }
            Self::Nobody(Reason::Asked) => f.write_str("until unmount"),
            Self::Nobody(Reason::Interactive) => {
                f.write_str("until unmount; --until-pid PID to hold as long as a process")
            }
        }
    }
}
