//! One mount for all processes that ask for the same archives at one mount point.
//!
//! - `registry`: the directory of the record files;
//! - `record`, `lock`: one file per mount point, which describes the mount and is its lock;
//! - `state`: the state of a mount point, derived from the mount table and that lock;
//! - `join`: take a lease on a live mount, or the lock to mount;
//! - `lease`: the connection to a daemon that keeps its mount alive.

use std::time::Duration;

mod join;
mod lease;
mod lock;
mod peers;
mod private_file;
mod record;
mod registry;
mod registry_trial;
mod state;

pub(super) use join::{Entry, connect, enter, first_record, real_paths};
pub(super) use lease::{
    Client, HolderStatus, LeaseEnd, Leases, Status, UnmountAnswer, UnmountRequest,
};
pub(super) use lock::{MountLock, RecordFile, clear_others, clear_sockets};
pub(super) use peers::Peers;
pub(super) use record::Record;
pub(super) use registry_trial::try_registry;
pub(super) use state::{MountState, clear, clear_locked, detach_stale, discard, look, look_within};

/// How long a daemon may take to exit after it was killed or has unmounted.
pub(super) const EXIT: Duration = Duration::from_secs(5);
