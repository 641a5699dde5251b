//! What the kernel tells of processes and batch jobs, and calls that it may not answer.

pub(super) mod probe;
pub(super) mod process;
pub(super) mod raw_signals;
pub(super) mod scm_rights;
pub(super) mod slurm;
