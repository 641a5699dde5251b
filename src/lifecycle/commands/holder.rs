//! For whom a mount in the background lives.
//!
//! Owns the choice: a process named on the command line, the batch job's task, the caller, or
//! nobody (until `unmount`). Leaves the watch to `process`. Invariant: the choice is told to the
//! user.

use std::fmt;

use rustix::process::{getpid, getppid};

use crate::error::{Error, Kind, Result};
use crate::lifecycle::system::process::{self, ProcessId, Stat};

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
pub enum HolderChoice {
    /// Nothing.
    Default,
    /// `--keep`.
    Keep,
    /// `--until-pid`.
    UntilPid(i32),
}

/// Whom a mount lives for that this process starts.
///
/// In a job script that is the script: SLURM_TASK_PID where a batch job set it and this process
/// belongs to that task, else the caller.
///
/// # Errors
/// `NotFound` where the process named, or the caller, has ended already.
pub fn choose(wish: HolderChoice) -> Result<Holder> {
    match wish {
        HolderChoice::Keep => Ok(Holder::Nobody(Reason::Asked)),
        HolderChoice::UntilPid(pid) => ProcessId::of(pid).map(Holder::Process),
        HolderChoice::Default => {
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
///
/// The variable may come from another node or another job, with ssh or `sbatch --export`. So only
/// an ancestor of this process counts, or the leader of its session: orphans stay in the session.
fn batch_task(pid: i32) -> Option<ProcessId> {
    if pid == getpid().as_raw_nonzero().get() {
        return None;
    }
    // `None` where /proc counts otherwise than Slurm or does not show all processes.
    let own = process::stat(getpid().as_raw_nonzero().get())?;
    if own.session != pid && !ancestors(own).any(|ancestor| ancestor == pid) {
        return None;
    }
    ProcessId::of(pid).ok()
}

/// More than any tree of processes is deep; processes that end while this is read could make a loop
/// of it.
const ANCESTORS_MAX: usize = 4096;

fn ancestors(process: Stat) -> impl Iterator<Item = i32> {
    let parent_of = |process: &Stat| process::stat_as_proc_counts(process.parent);
    // The last one that can be read names one more.
    let readable = std::iter::successors(Some(process), parent_of);
    readable.map(|process| process.parent).take(ANCESTORS_MAX)
}

/// Whether `parent` started this process, and did not only take it over from one that has ended:
/// init would hold the mount for ever. Whoever starts a process is in its session, unless the
/// process was made the leader of a new one. In a container, init may be in the session of the
/// script; then an orphan cannot be told from a child, and its mount stays as long as init.
fn may_have_called(parent: ProcessId) -> bool {
    let Some(own) = process::own_stat() else {
        return true;
    };
    // Of another user, whom /proc does not show.
    process::stat_as_proc_counts(own.parent).map_or(parent.pid() != INIT, |parent| {
        own.session == own.pid || own.session == parent.session
    })
}

/// The process that takes over whose parent has ended.
const INIT: i32 = 1;

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
