//! The batch job that this process runs in.
//!
//! It is found from variables and control groups only, so it causes no load on the scheduler.

use std::env;

use crate::lifecycle::system::process::ProcessId;
use crate::lifecycle::system::slurm;

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

/// A batch system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    /// Slurm.
    Slurm,
    /// PBS or Torque.
    Pbs,
    /// LSF.
    Lsf,
    /// Grid Engine.
    GridEngine,
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
        let systems = [
            (Scheduler::Slurm, "SLURM_JOB_ID"),
            (Scheduler::Pbs, "PBS_JOBID"),
            (Scheduler::Lsf, "LSB_JOBID"),
        ];
        let named = systems.into_iter().find_map(|(scheduler, name)| {
            Some((scheduler, env::var(name).ok().filter(|job| !job.is_empty())?))
        });
        let (scheduler, job) = named.or_else(|| {
            // Other programs set JOB_ID as well.
            env::var_os("SGE_ROOT")?;
            Some((Scheduler::GridEngine, env::var("JOB_ID").ok()?))
        })?;
        let step = env::var("SLURM_STEP_ID").ok().and_then(|step| step.parse().ok());
        let task = match env::var("SLURM_TASK_PID").map(|pid| pid.parse()) {
            Err(_) => Task::Unset,
            Ok(Ok(pid)) if ProcessId::of(pid).is_ok() => Task::Alive(pid),
            Ok(_) => Task::Gone,
        };
        Some(Self { scheduler, job, step, killed_with: slurm::killed_with(), task })
    }
}
