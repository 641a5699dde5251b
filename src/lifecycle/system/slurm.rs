//! Whose end a batch system makes the end of a process.
//!
//! Owns telling that from control groups: with proctrack/cgroup, Slurm kills every process of a
//! step's group when the step has ended, a daemon included, and so for the batch script and the
//! job. Leaves what follows to those who mount. Invariant: what can not be told is nobody's end.

use crate::kernel_file;

/// The step of a batch job that a process ends with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::lifecycle) struct JobStep {
    job: String,
    /// A number, or `batch`, `extern` and the like; empty where the group is that of the whole job.
    step: String,
}

/// The batch job, or step of one, with which all that this process starts is killed, daemons
/// included; `None` where no batch system does that.
pub fn killed_with() -> Option<String> {
    JobStep::own().map(|group| group.describe())
}

impl JobStep {
    /// The group of the process with the number `pid`, if a batch system watches over it.
    pub(in crate::lifecycle) fn of(pid: i32) -> Option<Self> {
        parse(&kernel_file::read_text(format!("/proc/{pid}/cgroup")).ok()?)
    }

    /// That of this process.
    pub(in crate::lifecycle) fn own() -> Option<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Whether a process of this group may be killed while one of `other` goes on. A batch script
    /// lasts as long as its steps; of two steps either may end first.
    pub(in crate::lifecycle) fn may_end_before(&self, other: Option<&Self>) -> bool {
        let is_numbered_step = self.step.parse::<u32>().is_ok();
        match other {
            Some(other) if self.job == other.job => is_numbered_step && self.step != other.step,
            _ => true,
        }
    }

    /// Whether `other` is of the same job.
    pub(in crate::lifecycle) fn is_of_the_job_of(&self, other: Option<&Self>) -> bool {
        other.is_some_and(|other| self.job == other.job)
    }

    /// For a person: `job 12`, `step 3 of job 12`.
    pub(in crate::lifecycle) fn describe(&self) -> String {
        let Self { job, step } = self;
        if step.parse::<u32>().is_ok() {
            format!("step {step} of job {job}")
        } else {
            format!("job {job}")
        }
    }
}

/// Finds `job_12` and, behind it, `step_3` in a path of /proc/PID/cgroup. Version 1 has a line a
/// hierarchy; those that Slurm does not use for jobs have neither.
fn parse(text: &str) -> Option<JobStep> {
    text.lines().find_map(|line| {
        let mut folders = line.splitn(3, ':').nth(2)?.split('/');
        let job = folders.find_map(|folder| folder.strip_prefix("job_"))?;
        let step = folders.find_map(|folder| folder.strip_prefix("step_")).unwrap_or_default();
        Some(JobStep { job: job.to_owned(), step: step.to_owned() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(path: &str) -> Option<JobStep> {
        parse(&format!("3:cpu:/\n2:freezer:{path}\n1:name=systemd:/user.slice\n"))
    }

    #[test]
    fn finds_job_and_step_in_both_versions() {
        let batch = group("/slurm/uid_1001/job_12/step_batch").unwrap();
        assert_eq!(batch.describe(), "job 12");
        let step = parse("0::/system.slice/slurmstepd.scope/job_12/step_3/user/task_0\n").unwrap();
        assert_eq!(step.describe(), "step 3 of job 12");
        assert_eq!(group("/user.slice/session-1.scope"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn tells_who_may_end_first() {
        let [batch, first, second] = ["step_batch", "step_0", "step_1"]
            .map(|step| group(&format!("/slurm/uid_1/job_12/{step}")).unwrap());
        let other = group("/slurm/uid_1/job_13/step_batch").unwrap();
        assert!(!batch.may_end_before(Some(&first)), "the script waits for its steps");
        assert!(!first.may_end_before(Some(&first)));
        assert!(first.may_end_before(Some(&second)));
        assert!(first.may_end_before(Some(&batch)));
        assert!(batch.may_end_before(Some(&other)));
        assert!(batch.may_end_before(None), "somebody at a terminal");
    }
}
