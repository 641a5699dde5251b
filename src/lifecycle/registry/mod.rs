//! One mount for all processes that ask for the same archives at one mount point.
//!
//! - `record`: the description of a mount, and its text in a record file;
//! - `record_directory`: where the record files of a user are;
//! - `record_directory_check`: for `archfs doctor`, whether that can be written;
//! - `record_file`: the names of record files and sockets;
//! - `owner_only_file`: opens these files with mode 0600;
//! - `record_snapshot`: a record file, read without its lock;
//! - `lock`: the lock of a mount point, which is a lock on its record file;
//! - `state`: the state of a mount point, from the mount table and the record file;
//! - `clean_up`: removes what daemons have left behind;
//! - `lease`: the connection to a daemon that keeps its mount alive;
//! - `identity`: which plans can share a mount;
//! - `join`: takes a lease on a live mount, or the lock to mount;
//! - `lease_request`: asks a daemon for a lease, for `join`;
//! - `join_wait`: waits until other processes have mounted or unmounted, for `join`;
//! - `extraction_record`: the record of a directory that `run --or-extract` made;
//! - `peers`: other daemons that share a cache budget or an archive.

use std::time::Duration;

mod clean_up;
pub(super) mod extraction_record;
mod identity;
mod join;
mod join_wait;
mod lease;
mod lease_request;
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
pub use clean_up::{remove_stale_socket, try_connect};
pub use identity::at_read_socket;
pub(super) use identity::{first_record, name_on_all_nodes, real_paths};
pub(super) use join::{JoinOutcome, join_or_lock};
pub(super) use lease::{
    Client, ClientId, DirectAnswer, HolderStatus, Leases, MountFate, Prepared, Responder, Status,
    UnmountAnswer, UnmountRequest,
};
pub(super) use lock::{LOCK_RETRY_INTERVAL, LockWait, MountLock};
pub(super) use owner_only_file::open_0600;
pub(super) use peers::{Peers, is_served_by_others};
pub(super) use record::{Record, node};
pub(super) use record_directory::in_record_directory;
pub(super) use record_directory_check::check_record_directory;
pub(super) use record_snapshot::RecordSnapshot;
pub(super) use state::{MountState, mount_state, mount_state_within};

/// How long a daemon may take to exit after it was killed or has unmounted.
pub(super) const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the kernel may take to unmount.
pub(super) const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(120);
