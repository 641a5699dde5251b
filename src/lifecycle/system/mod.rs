//! Processes, batch jobs and signals as the kernel reports them, and calls that may block for ever.

pub(super) mod probe;
pub(super) mod process;
pub(super) mod raw_signals;
pub(super) mod scm_rights;
pub(super) mod slurm;
