//! The batch job that this process is in.
//!
//! Owns telling which system started it; leaves to `system::slurm` whose end ends a daemon.
//! Invariant: nothing but variables and control groups is asked, so it costs the scheduler nothing.

use std::env;

use crate::lifecycle::system::process::ProcessId;
use crate::lifecycle::system::slurm;

/// A job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Who started it.
    pub scheduler: Scheduler,
    /// Its number there.
    pub job: String,
    /// A step of srun: its number.
    pub step: Option<u32>,
    /// What it is killed with, daemons included, where control groups tell.
    pub killed_with: Option<String>,
    /// The process that a mount in the script would live for.
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

/// SLURM_TASK_PID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// It is not set.
    Unset,
    /// That process lives.
    Alive(i32),
    /// What is set is no process that lives here.
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
            // Others use this name, too.
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
