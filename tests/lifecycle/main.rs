//! When a mount starts and ends, and who keeps it.

#[path = "../support/mod.rs"]
mod support;
#[expect(dead_code, reason = "other tests use more of it")]
#[path = "../../src/remote/tests/server.rs"]
mod test_server;

mod automount;
mod chosen_mount_point;
mod commands;
mod cpus;
mod descriptors;
mod direct;
mod health;
mod job_step;
mod leases;
mod mount_helper;
mod mounting;
mod name_readahead;
mod namespaces;
mod opening;
mod or_extract;
mod overlay;
mod private;
mod readahead;
mod remote;
mod restrictions;
mod shared_overlay;
mod sharing;
mod signals;
mod squashfuse;
mod stage;
mod stage_keep;
mod stale;
mod together;
mod waits;
