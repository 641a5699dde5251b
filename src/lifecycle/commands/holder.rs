//! Chooses the process that holds a mount in the background.
//!
//! It is a process named on the command line, the task of the batch job, or the caller. Without a
//! holder the mount stays until `archfs unmount`. The choice is printed for the user.

use std::fmt;

use rustix::process::{getpid, getppid};

use crate::error::{Error, Kind, Result};
use crate::os::process::{self, ProcessId, Stat};

/// What holds a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The mount stays until this process ends.
    Process(ProcessId),
    /// The mount stays until `archfs unmount`.
    UntilUnmount(Reason),
}

/// Why a mount stays until it is unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// `--keep`.
    KeepOption,
    /// The caller is an interactive shell.
    Interactive,
}

/// The holder that the command line asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderChoice {
    /// No option was given.
    Default,
    /// `--keep`.
    Keep,
    /// `--until-pid`.
    UntilPid(i32),
}

/// Chooses the holder of a mount that this process starts.
///
/// By default this is the task of the batch job: the process SLURM_TASK_PID, if this process
/// belongs to that task. Otherwise it is the caller. If the caller is an interactive shell outside
/// of a job, no process holds the mount.
///
/// # Errors
/// `NotFound` if the process named, or the caller, has already ended.
pub fn choose(choice: HolderChoice) -> Result<Holder> {
    match choice {
        HolderChoice::Keep => Ok(Holder::UntilUnmount(Reason::KeepOption)),
        HolderChoice::UntilPid(pid) => ProcessId::of(pid).map(Holder::Process),
        HolderChoice::Default => {
            let task = std::env::var("SLURM_TASK_PID").ok();
            if let Some(task) = task.and_then(|pid| batch_task(pid.parse().ok()?)) {
                return Ok(Holder::Process(task));
            }
            let in_batch_job = std::env::var_os("SLURM_JOB_ID").is_some();
            let Some(caller) = getppid() else {
                return Ok(Holder::UntilUnmount(Reason::Interactive));
            };
            let caller = ProcessId::of(caller.as_raw_nonzero().get())?;
            if !is_real_parent(caller) {
                let context = "the calling process has already exited, so the mount has no holder";
                return Err(
                    Error::new(Kind::NotFound, context).with_hint("use --until-pid PID, or --keep")
                );
            }
            if !in_batch_job && caller.is_session_leader_with_terminal() {
                return Ok(Holder::UntilUnmount(Reason::Interactive));
            }
            Ok(Holder::Process(caller))
        }
    }
}

/// The task of the batch job, unless this command is the task itself (`srun archfs mount`) and is
/// about to end.
///
/// SLURM_TASK_PID may come from another node or another job, through ssh or `sbatch --export`. So
/// it only counts if it names an ancestor of this process or the leader of its session: orphans
/// stay in the session.
fn batch_task(pid: i32) -> Option<ProcessId> {
    if pid == getpid().as_raw_nonzero().get() {
        return None;
    }
    // `None` if /proc numbers processes differently than Slurm does, or does not show all of them.
    let own = process::stat(getpid().as_raw_nonzero().get())?;
    if own.session != pid && !ancestors(own).any(|ancestor| ancestor == pid) {
        return None;
    }
    ProcessId::of(pid).ok()
}

/// Deeper than any process tree. The limit is needed because processes that end during the walk can
/// make it a loop.
const ANCESTORS_MAX: usize = 4096;

fn ancestors(process: Stat) -> impl Iterator<Item = i32> {
    let parent_of = |process: &Stat| process::stat_as_proc_counts(process.parent);
    // The last process that can be read still names its parent.
    let readable = std::iter::successors(Some(process), parent_of);
    readable.map(|process| process.parent).take(ANCESTORS_MAX)
}

/// Whether `parent` started this process, or only adopted it because the real parent has ended. If
/// init adopted it, init would hold the mount for ever.
///
/// A process is in the session of its real parent, unless it was made the leader of a new session.
/// In a container, init may be in the session of the script. Then an orphan looks like a child,
/// and its mount stays as long as init runs.
fn is_real_parent(parent: ProcessId) -> bool {
    let Some(own) = process::own_stat() else {
        return true;
    };
    // /proc does not show the parent, which belongs to another user.
    process::stat_as_proc_counts(own.parent).map_or(parent.pid() != INIT, |parent| {
        own.session == own.pid || own.session == parent.session
    })
}

/// The process that adopts orphans.
const INIT: i32 = 1;

impl Holder {
    /// How to choose another holder.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Process(_) => Some("use --keep to keep it until `archfs unmount`"),
            Self::UntilUnmount(Reason::KeepOption) => None,
            Self::UntilUnmount(Reason::Interactive) => {
                Some("use --until-pid PID to unmount when that process exits")
            }
        }
    }
}

impl fmt::Display for Holder {
    /// Says how long the mount is held, after the text `mounted A at B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(process) => {
                let (pid, name) = (process.pid(), process.name());
                write!(f, "until process {pid} ({name}) exits")
            }
            Self::UntilUnmount(Reason::KeepOption) => f.write_str("until unmount"),
            Self::UntilUnmount(Reason::Interactive) => f.write_str("until unmount"),
        }
    }
}
