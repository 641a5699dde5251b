//! Checks of the batch job, and whether other users may enter a mount.
//!
//! The remedies are short; docs/SLURM.md has the details.
//!
//! Invariant: a check predicts what a batch system does only if this process can see it.

use super::check::Check;
use crate::lifecycle::doctor::{Batch, Node, Scheduler, Task};

pub(super) fn checks(node: &Node) -> Vec<Check> {
    vec![batch(node.batch.as_ref()), others(node)]
}

fn batch(batch: Option<&Batch>) -> Check {
    const NAME: &str = "batch";
    let Some(Batch { scheduler, job, step, killed_with, task }) = batch else {
        return Check::good(NAME, "no job found");
    };
    let system = match scheduler {
        Scheduler::Slurm => "Slurm",
        Scheduler::Pbs => "PBS",
        Scheduler::Lsf => "LSF",
        Scheduler::GridEngine => "Grid Engine",
    };
    let step = step.map(|step| format!(", step {step}")).unwrap_or_default();
    let mut text = format!("{system} job {job}{step}");
    match task {
        Task::Unset => {}
        Task::Alive(pid) => text.push_str(&format!("; archfs unmounts when process {pid} exits")),
        Task::Gone => text.push_str("; SLURM_TASK_PID names no process here"),
    }
    if let Some(killed_with) = killed_with {
        let text = format!("{text}; mounts are killed with {killed_with} (proctrack/cgroup)");
        let remedy = "without srun, use exec archfs run (docs/SLURM.md)";
        return Check::note(NAME, text, Some(remedy.into()));
    }
    Check::good(NAME, text)
}

fn others(node: &Node) -> Check {
    const NAME: &str = "allow-other";
    if node.mounts_directly.is_some() || node.configuration.user_allow_other {
        return Check::good(NAME, "-o allow_other is permitted");
    }
    let text = "no user_allow_other in /etc/fuse.conf";
    match node.configuration.mount_max {
        Some(most) => Check::good(NAME, format!("{text}; mount_max is {most}")),
        None => Check::good(NAME, text),
    }
}
