//! The Slurm job in the environment variables, and the variables that must not reach srun.
//!
//! All functions are pure: the caller passes the variables.

use crate::error::{Error, Kind, Result};

/// Prefixes of variables that Slurm and MPI launchers set and that srun would read as options.
const REMOVED: [&str; 6] = ["SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SALLOC_", "PMI"];

/// Variables with these prefixes that srun needs to find the controller and the job.
const KEPT: [&str; 2] = ["SLURM_CONF", "SLURM_JOB_ID"];

/// Whether to remove the variable `name` from the environment of srun.
///
/// srun reads options from the environment, but the variables of a batch script describe the whole
/// job: SLURM_EXCLUSIVE, SLURM_MEM_PER_CPU, SLURM_GPUS and a dozen others make the step fail at
/// once.
pub(super) fn is_removed(name: &str) -> bool {
    !KEPT.contains(&name) && REMOVED.iter().any(|prefix| name.starts_with(prefix))
}

/// The job of the batch script that runs archfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Job {
    /// SLURM_JOB_ID.
    pub(super) id: String,
    /// The name of this node in Slurm.
    pub(super) node: String,
    /// The number of nodes of the job.
    pub(super) nodes: usize,
    /// Whether it is a heterogeneous job.
    pub(super) is_het: bool,
}

impl Job {
    /// The job of a batch script with the variables that `lookup` returns.
    pub(super) fn of_batch_script(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let refused = |why: &str| {
            Error::new(Kind::CannotMount, format!("cannot start a job step: {why}"))
                .with_hint("run this command in the batch script of a Slurm job, outside srun")
        };
        let id = lookup("SLURM_JOB_ID").ok_or_else(|| refused("not in a Slurm job"))?;
        if lookup("SLURM_STEP_ID").is_some_and(|step| step.parse::<u32>().is_ok()) {
            return Err(refused("already in a job step"));
        }
        // In a shell of salloc on a login node, the step would mount on another node.
        let node = lookup("SLURMD_NODENAME").ok_or_else(|| refused("not on a compute node"))?;
        let nodes = lookup("SLURM_JOB_NUM_NODES").or_else(|| lookup("SLURM_NNODES"));
        let nodes = nodes.and_then(|count| count.parse().ok()).unwrap_or(1);
        Ok(Self { id, node, nodes, is_het: lookup("SLURM_HET_SIZE").is_some() })
    }

    /// Whether Slurm kills the daemons of this job's script when the script ends. `group` describes
    /// the control group of this process.
    pub(super) fn is_tracked(&self, group: Option<&str>) -> bool {
        group == Some(format!("job {}", self.id).as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: [(&str, &str); 3] =
        [("SLURM_JOB_ID", "12"), ("SLURMD_NODENAME", "n1"), ("SLURM_JOB_NUM_NODES", "4")];

    fn job(more: &[(&str, &str)], without: &str) -> Result<Job> {
        let all = [&BATCH, more].concat();
        Job::of_batch_script(&|name| {
            let found = all.iter().rev().find(|(key, _)| *key == name && name != without);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn removes_all_slurm_variables_except_those_that_find_the_job() {
        for name in [
            "SLURM_EXCLUSIVE",
            "SLURM_MEM_PER_CPU",
            "SLURM_CLUSTERS",
            "SLURM_JOB_ID_OF_OTHERS",
            "SLURMD_NODENAME",
            "SRUN_CPUS_PER_TASK",
            "SBATCH_ACCOUNT",
            "SALLOC_ACCOUNT",
            "PMI_RANK",
            "PMIX_RANK",
        ] {
            assert!(is_removed(name), "{name}");
        }
        for name in ["SLURM_CONF", "SLURM_JOB_ID", "PATH", "ARCHFS_CACHE", "MY_SLURM_FILE"] {
            assert!(!is_removed(name), "{name}");
        }
    }

    #[test]
    fn a_batch_script_on_a_compute_node_has_a_job() {
        let found = job(&[], "").unwrap();
        assert_eq!(found, Job { id: "12".into(), node: "n1".into(), nodes: 4, is_het: false });
        assert!(job(&[("SLURM_STEP_ID", "batch"), ("SLURM_HET_SIZE", "2")], "").unwrap().is_het);
        assert_eq!(job(&[], "SLURM_JOB_NUM_NODES").unwrap().nodes, 1);
    }

    #[test]
    fn steps_login_nodes_and_other_shells_have_no_job() {
        assert!(job(&[("SLURM_STEP_ID", "0")], "").is_err());
        // The interactive step of salloc.
        assert!(job(&[("SLURM_STEP_ID", "4294967290")], "").is_err());
        assert!(job(&[], "SLURMD_NODENAME").is_err());
        assert!(job(&[], "SLURM_JOB_ID").is_err());
    }

    #[test]
    fn is_tracked_only_by_the_control_group_of_its_own_script() {
        let found = job(&[], "").unwrap();
        assert!(found.is_tracked(Some("job 12")));
        assert!(!found.is_tracked(None), "proctrack/linuxproc");
        assert!(!found.is_tracked(Some("job 13")), "variables of another job");
        assert!(!found.is_tracked(Some("step 0 of job 12")));
    }
}
