//! The batch job that this process runs in, found from its environment.

use std::env;

use rustix::system::uname;

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
}
