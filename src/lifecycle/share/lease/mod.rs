//! Who still needs a mount.
//!
//! Owns the leases and the conversation about them: a lease is a connection to the mount's socket,
//! so whatever ends its holder ends the lease. Leaves what follows from them to `hold`.
//! Invariant: a lease given is counted before its holder is told, and none is given once the mount
//! is on its way out.
//!
//! A process that knows nothing of archfs, such as a job's script, can not keep a connection.
//! Whoever mounts for it asks the daemon to watch it instead; then its process descriptor is the
//! lease.

mod client;
mod message;
mod server;

pub(in crate::lifecycle) use client::{Client, LeaseEnd};
pub(in crate::lifecycle) use message::{HolderStatus, Status, UnmountAnswer, UnmountRequest};
pub(in crate::lifecycle) use server::Leases;
