//! The batch job that this process runs in.
//!
//! It is found from variables and control groups only, so it causes no load on the scheduler.

use std::env;

pub use crate::batch_job::Scheduler;

use crate::batch_job;
use crate::lifecycle::slurm;
use crate::os::process::ProcessId;

/// A batch job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The batch system that started it.
    pub scheduler: Scheduler,
    /// Its id in the batch system.
    pub job: String,
    /// The number of the step, if this process runs in a step of srun.
    pub step: Option<u32>,
    /// The job or step with which daemons started here are killed, if control groups show it.
    pub killed_with: Option<String>,
    /// The process that SLURM_TASK_PID names. A mount in the script is unmounted when it ends.
    pub task: Task,
}

/// The process that SLURM_TASK_PID names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The variable is not set.
    Unset,
    /// This process is alive.
    Alive(i32),
    /// It does not name a process that is alive on this node.
    Gone,
}

impl Batch {
    pub(super) fn around() -> Option<Self> {
        let (scheduler, job) = batch_job::current()?;
        let step = env::var("SLURM_STEP_ID").ok().and_then(|step| step.parse().ok());
        let task = match env::var("SLURM_TASK_PID").map(|pid| pid.parse()) {
            Err(_) => Task::Unset,
            Ok(Ok(pid)) if ProcessId::of(pid).is_ok() => Task::Alive(pid),
            Ok(_) => Task::Gone,
        };
        Some(Self { scheduler, job, step, killed_with: slurm::killed_with(), task })
    }
}
