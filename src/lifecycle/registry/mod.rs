//! One mount for all processes that ask for the same archives at one mount point.
//!
//! - `record`: a record file, which describes a mount;
//! - `lock`: the lock of a mount point, which is a lock on its record file;
//! - `state`: a record file read without its lock, and the state of a mount point;
//! - `clean_up`: removes what daemons have left behind;
//! - `lease`: the connection to a daemon that keeps its mount alive;
//! - `identity`: which plans can share a mount;
//! - `join`: takes a lease on a live mount, or the lock to mount;
//! - `peers`: other daemons that share a cache budget or an archive.

use std::time::Duration;

mod clean_up;
mod identity;
mod join;
mod lease;
mod lock;
mod peers;
mod record;
mod state;

pub(super) use clean_up::{
    clean_up_after_exit, detach_stale_unlocked, remove_ended_records, remove_orphan_sockets,
};
pub use clean_up::{remove_stale_socket, try_connect};
pub use identity::at_read_socket;
pub(super) use identity::{first_record, identity_on_all_nodes, name_on_all_nodes, real_paths};
pub(super) use join::{JoinOutcome, join_or_lock};
pub use lease::Health;
pub(super) use lease::{
    Client, ClientId, DirectAnswer, HolderStatus, Leases, MountFate, Prepared, Responder, Status,
    UnmountAnswer, UnmountRequest,
};
pub(super) use lock::{LOCK_RETRY_INTERVAL, LockWait, MountLock};
pub(super) use peers::{Peers, is_served_by_others};
pub(super) use record::Record;
pub(super) use state::{MountState, RecordSnapshot, mount_state, mount_state_within};

/// How long a daemon may take to exit after it was killed or has unmounted.
pub(super) const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the kernel may take to unmount.
pub(super) const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(120);
