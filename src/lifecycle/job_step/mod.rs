//! The daemon of `archfs mount` as a step of a Slurm job.
//!
//! With process tracking by control groups Slurm sends SIGKILL to whatever a batch script has
//! started as soon as the script ends, and a daemon that is killed leaves a stale mount. Steps end
//! in order: SIGCONT, SIGTERM, time to unmount, SIGKILL. So the daemon is started by srun.
//!
//! ```text
//! mount (launcher) --stdin--> srun --> task on each node: the daemon, in the foreground
//!                  <-stdout-- srun <--
//! ```
//!
//! The tasks write `started` and wait. When all nodes have, the launcher sends `begin`. The tasks
//! write `ready` or `failed`. When all are ready, the launcher sends `hold`, the tasks write
//! `holding` and close their descriptors to srun, and the launcher kills srun. Until `hold` the end
//! of standard input makes a task unmount and exit. So either all nodes are mounted when `mount`
//! returns or none is, also where the launcher is killed, and a step that starts too late mounts
//! nothing.

use std::ffi::OsString;
use std::path::PathBuf;

use super::share::{self, MountState};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::MountPlan;
use crate::lifecycle::mount::{inherited, mount_point};
use crate::lifecycle::system::slurm;

mod environment;
mod launch;
mod message;
mod nodes;
mod srun;
mod task;

use environment::Job;
use launch::{End, Launch};

pub use srun::Nodes;
pub use task::Task;

/// Whether the daemon runs as a job step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobStep {
    /// Where that makes a difference, and is possible.
    Auto,
    /// Or not at all.
    Always,
    /// Never.
    Never,
}

/// What became of a mount by a job step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Mounted, until the job ends.
    Mounted {
        /// The number of the job.
        job: String,
        /// How many nodes it has.
        nodes: usize,
    },
    /// Mounting failed, and no node is mounted.
    Failed {
        /// The highest exit status.
        status: u8,
        /// The nodes that failed. They have said why.
        failed: Vec<String>,
        /// How many nodes the job has.
        nodes: usize,
    },
    /// No step, for that reason, if a person should know it: mount without one.
    NoStep(Option<String>),
}

/// Mounts as `plan` says by a job step, on `nodes`. `arguments` are those of the task, which get
/// the script's output as `INODE:PATH`. `ready` is the descriptor at which somebody waits for the
/// line `ready`.
///
/// # Errors
/// `CannotMount` where a step was asked for and cannot be had; `Io`.
pub fn mount(
    plan: &MountPlan,
    (choice, nodes): (JobStep, Nodes),
    arguments: &dyn Fn(Option<String>) -> Vec<OsString>,
    ready: Option<u32>,
) -> Result<Outcome> {
    let must = choice == JobStep::Always || nodes == Nodes::All;
    let job = match Job::of_batch_script(&|name| std::env::var(name).ok()) {
        _ if choice == JobStep::Never => return Ok(Outcome::NoStep(None)),
        Ok(job) if must || job.is_tracked(slurm::killed_with().as_deref()) => job,
        Ok(_) => return Ok(Outcome::NoStep(None)),
        Err(error) if must => return Err(error),
        Err(_) => return Ok(Outcome::NoStep(None)),
    };
    if let Some(path) = own_path(plan) {
        if !must {
            return Ok(Outcome::NoStep(None));
        }
        let context = format!("{}: a job step cannot see it", path.display());
        return Err(Error::new(Kind::CannotMount, context));
    }
    // What is mounted here already is shared, or is in the way, as without a step.
    let mount_point = mount_point::locate(&plan.mountpoint)?;
    if nodes == Nodes::This
        && matches!(share::look(&mount_point)?, MountState::Alive(..) | MountState::Other(_))
    {
        return Ok(Outcome::NoStep(None));
    }
    let end = match Launch::start(&job, nodes, &arguments(task::script_log())) {
        Ok(launch) => launch.mount(&mount_point, ready)?,
        Err(error) => End::NoStep(error.to_string()),
    };
    Ok(match end {
        End::Done => Outcome::Mounted { job: job.id, nodes: job.nodes },
        End::Failed(failed, status) => Outcome::Failed { status, failed, nodes: job.nodes },
        End::NoStep(why) if must => {
            let context = format!("cannot run the daemon as a job step: {why}");
            return Err(Error::new(Kind::CannotMount, context));
        }
        End::NoStep(why) => Outcome::NoStep(Some(why)),
    })
}

/// Runs `archfs ARGUMENTS`, which unmount, on all nodes of the job. Returns the nodes that failed
/// and the highest exit status; all have said why.
///
/// # Errors
/// `CannotMount` where there is no step; `Io`.
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

/// A path of `plan` that means something else in another process.
fn own_path(plan: &MountPlan) -> Option<&PathBuf> {
    if inherited::number(&plan.mountpoint).is_some() {
        return Some(&plan.mountpoint);
    }
    let is_own = |path: &&PathBuf| path.starts_with("/proc") || path.starts_with("/dev/fd");
    plan.archives.iter().find(is_own)
}
