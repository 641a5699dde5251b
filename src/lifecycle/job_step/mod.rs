//! Runs the daemon of `archfs mount` as a step of a Slurm job.
//!
//! With process tracking by control groups, Slurm sends SIGKILL to all processes of a batch script
//! as soon as the script ends. A killed daemon leaves a stale mount. Slurm ends a step in order:
//! SIGCONT, SIGTERM, time to unmount, SIGKILL. So srun starts the daemon.
//!
//! ```text
//! mount (launcher) --stdin--> srun --> task on each node: the daemon, in the foreground
//!                  <-stdout-- srun <--
//! ```
//!
//! 1. Each task writes `started` and waits.
//! 2. When all have, the launcher sends the plan and `begin`. Each task mounts, and writes `ready`
//!    or `failed`.
//! 3. When all are ready, the launcher sends `hold`. Each task writes `holding` and closes its
//!    descriptors to srun.
//! 4. The launcher kills srun.
//!
//! Until `hold`, a task unmounts and exits if its standard input ends. So when `mount` returns,
//! either all nodes have mounted or none has, even if the launcher is killed. A step that starts
//! too late mounts nothing.

use std::ffi::OsString;
use std::path::PathBuf;

use super::registry;
use crate::batch_job;
use crate::error::{Error, Kind, Result};
use crate::lifecycle::mount::{inherited, mount_point};
use crate::lifecycle::plan::{DaemonPlan, MountPlan, STEP, StepTask, daemon_words};
use crate::lifecycle::ready::Ready;

mod launch;
mod progress;
mod srun;
mod task;

use launch::{End, Launch};
use srun::Job;

pub use srun::Nodes;
pub use task::Task;

/// Whether the daemon runs as a job step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobStepChoice {
    /// If that makes a difference and is possible.
    Auto,
    /// Always; it is an error if that is impossible.
    Always,
}

/// The outcome of mounting with a job step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Mounted until the job ends.
    OnNodes {
        /// The id of the job.
        job: String,
        /// The number of nodes of the job.
        nodes: usize,
    },
    /// Mounting failed, and no node is mounted.
    Failed {
        /// The highest exit status.
        status: u8,
        /// The nodes that failed. Each has printed its error.
        failed: Vec<String>,
        /// The number of nodes of the job.
        nodes: usize,
    },
    /// There is no step, so mount without one. Contains the reason if the user should know it.
    NoStep(Option<String>),
}

/// Mounts `plan` with a job step, on `nodes`. `until_pid` is the process that holds
/// the mounts, instead of the job. `ready` is where processes wait.
///
/// # Errors
/// `CannotMount` if a step was requested but is impossible; `Io`.
pub fn mount(
    plan: &MountPlan,
    (choice, nodes): (JobStepChoice, Nodes),
    until_pid: Option<i32>,
    ready: &mut Ready,
) -> Result<Outcome> {
    let is_required = choice == JobStepChoice::Always || nodes == Nodes::All;
    let job = match Job::of_batch_script(&|name| std::env::var(name).ok()) {
        Ok(job) if is_required || job.is_tracked(batch_job::killed_with().as_deref()) => job,
        Ok(_) => return Ok(Outcome::NoStep(None)),
        Err(error) if is_required => return Err(error),
        Err(_) => return Ok(Outcome::NoStep(None)),
    };
    if let Some(path) = process_local_path(plan) {
        if !is_required {
            return Ok(Outcome::NoStep(None));
        }
        let context = format!("{}: a job step cannot see it", path.display());
        return Err(Error::new(Kind::CannotMount, context));
    }
    // A mount that is already here is shared, or is an error, as without a step.
    let mount_point = mount_point::locate(&plan.mount_point)?;
    if nodes == Nodes::This && registry::mount_state(&mount_point)?.is_mounted() {
        return Ok(Outcome::NoStep(None));
    }
    let task = DaemonPlan::new(plan, StepTask { script_log: task::script_log(), until_pid });
    let end = match Launch::start(&job, nodes, &daemon_words(plan, STEP)) {
        Ok(launch) => launch.mount(&mount_point, &task, ready)?,
        Err(error) => End::NoStep(error.to_string()),
    };
    Ok(match end {
        End::Done => Outcome::OnNodes { job: job.id, nodes: job.nodes },
        End::Failed(failed, status) => Outcome::Failed { status, failed, nodes: job.nodes },
        End::NoStep(why) if is_required => {
            let context = format!("cannot start a job step: {why}");
            return Err(Error::new(Kind::CannotMount, context));
        }
        End::NoStep(why) => Outcome::NoStep(Some(why)),
    })
}

/// Runs `archfs ARGUMENTS`, which unmounts, on all nodes of the job. Returns the nodes that failed,
/// each of which has printed its error, and the highest exit status.
///
/// # Errors
/// `CannotMount` if there is no step; `Io`.
pub fn unmount(arguments: &[OsString]) -> Result<Option<(Vec<String>, u8)>> {
    let job = Job::of_batch_script(&|name| std::env::var(name).ok())?;
    match Launch::start(&job, Nodes::All, arguments)?.unmount()? {
        End::Done => Ok(None),
        End::Failed(failed, status) => Ok(Some((failed, status))),
        End::NoStep(why) => {
            Err(Error::new(Kind::CannotMount, format!("cannot start a job step: {why}")))
        }
    }
}

/// A path of `plan` that means something else in another process, if there is one.
fn process_local_path(plan: &MountPlan) -> Option<&PathBuf> {
    if inherited::number(&plan.mount_point).is_some() {
        return Some(&plan.mount_point);
    }
    let is_local = |path: &&PathBuf| path.starts_with("/proc") || path.starts_with("/dev/fd");
    plan.archives.iter().find(is_local)
}
