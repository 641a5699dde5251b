//! One mount for all processes that ask for the same archives at one mount point.
//!
//! - `record_directory`: the directory of the record files;
//! - `record`, `lock`: one file per mount point, which describes the mount and is its lock;
//! - `state`: the state of a mount point, derived from the mount table and that lock;
//! - `join`: take a lease on a live mount, or the lock to mount;
//! - `lease`: the connection to a daemon that keeps its mount alive.

use std::time::Duration;

mod clean_up;
mod join;
mod lease;
mod lock;
mod owner_only_file;
mod peers;
mod record;
mod record_directory;
mod record_directory_check;
mod record_file;
mod record_snapshot;
mod state;

pub(super) use clean_up::{
    clean_up_after_exit, detach_stale_unlocked, remove_ended_records, remove_orphan_sockets,
};
pub(super) use join::{JoinOutcome, first_record, join_or_lock, real_paths};
pub(super) use lease::{
    Client, ClientId, HolderStatus, Leases, MountFate, Status, UnmountAnswer, UnmountRequest,
};
pub(super) use lock::{LOCK_RETRY_INTERVAL, LockWait, MountLock};
pub(super) use peers::{Peers, is_served_by_others};
pub(super) use record::Record;
pub(super) use record_directory_check::check_record_directory;
pub(super) use record_snapshot::RecordSnapshot;
pub(super) use state::{MountState, mount_state, mount_state_within};

/// How long a daemon may take to exit after it was killed or has unmounted.
pub(super) const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the kernel may take to unmount.
pub(super) const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(120);
