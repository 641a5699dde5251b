//! The batch job that this process runs in, and with which it is killed.

use std::env;

use rustix::system::uname;

use crate::os::kernel_file;

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

/// The batch system and the id of the job, if this process runs in one.
pub fn current() -> Option<(Scheduler, String)> {
    job(&|name| env::var(name).ok().filter(|value| !value.is_empty()))
}

/// How many nodes the job has, as far as Slurm or PBS says so; at least 1.
pub fn nodes() -> u64 {
    let number = |name| env::var(name).ok()?.parse().ok();
    // A step may have fewer nodes than its job.
    let names = ["SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "PBS_NUM_NODES"];
    names.into_iter().find_map(number).unwrap_or(1).max(1)
}

/// Names the job of this process, and which of its runs this is if it was started again. `None`
/// outside of a job.
pub fn run_name() -> Option<String> {
    let (scheduler, job) = current()?;
    let restarts = env::var("SLURM_RESTART_COUNT").unwrap_or_default();
    let name = format!("{scheduler:?}-{job}-{restarts}").to_ascii_lowercase();
    // A job of PBS has a name like `12[3].server`.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    Some(name.trim_end_matches('-').replace(|c| !is_plain(c), "_"))
}

/// Whether this process is a task of a Slurm step on several nodes.
pub fn is_in_step_of_several_nodes() -> bool {
    env::var("SLURM_STEP_NUM_NODES").is_ok_and(|nodes| nodes.parse().is_ok_and(|it: u64| it > 1))
}

/// The name of this node without its domain. Slurm may use another name than the kernel does.
pub fn node_name() -> String {
    let name = env::var("SLURMD_NODENAME").ok().filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| uname().nodename().to_string_lossy().into_owned());
    short(&name).to_owned()
}

fn job(variable: &dyn Fn(&str) -> Option<String>) -> Option<(Scheduler, String)> {
    let systems = [
        (Scheduler::Slurm, "SLURM_JOB_ID"),
        (Scheduler::Pbs, "PBS_JOBID"),
        (Scheduler::Lsf, "LSB_JOBID"),
    ];
    let named =
        systems.into_iter().find_map(|(scheduler, name)| Some((scheduler, variable(name)?)));
    named.or_else(|| {
        // Other programs set JOB_ID as well.
        variable("SGE_ROOT")?;
        Some((Scheduler::GridEngine, variable("JOB_ID")?))
    })
}

fn short(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// The step of a Slurm job with which a process is killed, found from its control group.
///
/// With proctrack/cgroup, Slurm kills every process in the control group of a step when the step
/// ends, including daemons. The same holds for the batch script and its job. If the control group
/// names no job, archfs assumes that no batch system kills the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobStep {
    job: String,
    /// A number, or a name such as `batch` or `extern`; empty if the control group is that of the
    /// whole job.
    step: String,
}

/// The batch job or step with which all processes started by this one are killed, including
/// daemons; `None` if no batch system does that.
pub fn killed_with() -> Option<String> {
    JobStep::own().map(|step| step.describe())
}

impl JobStep {
    /// The job step of process `pid`, if its control group names one.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        parse(&kernel_file::read_text(format!("/proc/{pid}/cgroup")).ok()?)
    }

    /// The job step of this process.
    pub(crate) fn own() -> Option<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Whether a process of this step may be killed while one of `other` still runs. A batch script
    /// lasts as long as its steps; of two steps, either may end first.
    pub(crate) fn may_end_before(&self, other: Option<&Self>) -> bool {
        let is_numbered_step = self.step.parse::<u32>().is_ok();
        match other {
            Some(other) if self.job == other.job => is_numbered_step && self.step != other.step,
            _ => true,
        }
    }

    /// Whether `other` belongs to the same job.
    pub(crate) fn is_of_the_job_of(&self, other: Option<&Self>) -> bool {
        other.is_some_and(|other| self.job == other.job)
    }

    /// The name for a message: `job 12`, `step 3 of job 12`.
    pub(crate) fn describe(&self) -> String {
        let Self { job, step } = self;
        if step.parse::<u32>().is_ok() {
            format!("step {step} of job {job}")
        } else {
            format!("job {job}")
        }
    }
}

/// Finds `job_12`, and `step_3` after it, in the text of /proc/PID/cgroup. In version 1 there is
/// one line per hierarchy; the lines of hierarchies that Slurm does not use contain neither.
fn parse(text: &str) -> Option<JobStep> {
    text.lines().find_map(|line| {
        let mut components = line.splitn(3, ':').nth(2)?.split('/');
        let job = components.find_map(|component| component.strip_prefix("job_"))?;
        let step =
            components.find_map(|component| component.strip_prefix("step_")).unwrap_or_default();
        Some(JobStep { job: job.to_owned(), step: step.to_owned() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_batch_system_is_known_by_its_variable() {
        let found = |set: &[&str]| {
            job(&|name| set.contains(&name).then(|| "7".to_owned())).map(|(scheduler, _)| scheduler)
        };
        assert_eq!(found(&["SLURM_JOB_ID"]), Some(Scheduler::Slurm));
        assert_eq!(found(&["PBS_JOBID"]), Some(Scheduler::Pbs));
        assert_eq!(found(&["LSB_JOBID"]), Some(Scheduler::Lsf));
        assert_eq!(found(&["SGE_ROOT", "JOB_ID"]), Some(Scheduler::GridEngine));
        assert_eq!(found(&["JOB_ID"]), None);
    }

    #[test]
    fn a_node_is_named_without_its_domain() {
        assert_eq!(short("nid0012.cluster.example.org"), "nid0012");
        assert_eq!(short("nid0012"), "nid0012");
    }

    fn step_of(path: &str) -> Option<JobStep> {
        parse(&format!("3:cpu:/\n2:freezer:{path}\n1:name=systemd:/user.slice\n"))
    }

    #[test]
    fn finds_job_and_step_in_both_versions() {
        let batch = step_of("/slurm/uid_1001/job_12/step_batch").unwrap();
        assert_eq!(batch.describe(), "job 12");
        let step = parse("0::/system.slice/slurmstepd.scope/job_12/step_3/user/task_0\n").unwrap();
        assert_eq!(step.describe(), "step 3 of job 12");
        assert_eq!(step_of("/user.slice/session-1.scope"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn knows_which_step_may_end_first() {
        let [batch, first, second] = ["step_batch", "step_0", "step_1"]
            .map(|step| step_of(&format!("/slurm/uid_1/job_12/{step}")).unwrap());
        let other = step_of("/slurm/uid_1/job_13/step_batch").unwrap();
        assert!(!batch.may_end_before(Some(&first)), "the script waits for its steps");
        assert!(!first.may_end_before(Some(&first)));
        assert!(first.may_end_before(Some(&second)));
        assert!(first.may_end_before(Some(&batch)));
        assert!(batch.may_end_before(Some(&other)));
        assert!(batch.may_end_before(None), "a user at a terminal");
    }
}
