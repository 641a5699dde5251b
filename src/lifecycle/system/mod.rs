//! What the kernel tells of processes and batch jobs, and calls that it may not answer.

pub(super) mod answer;
pub(super) mod batch;
pub(super) mod descriptor;
pub(super) mod process;
pub(super) mod raw_signals;
