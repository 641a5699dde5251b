//! Leases: a mount stays until the last process with a lease has ended or returned it.
//!
//! A lease is a connection to the daemon's socket, so it ends with its holder, however that ends.
//! A process that knows nothing of archfs, such as a job script, has no connection. The process
//! that mounts for it asks the daemon to watch it; then its process descriptor is the lease.
//!
//! - `message`: the requests and answers;
//! - `client`: the side of the holder;
//! - `server`: the side of the daemon.
//!
//! Invariants: the daemon counts a lease before it answers. It grants none after it has begun to
//! unmount.

mod client;
mod message;
mod server;

pub(crate) use client::{Client, HoldAnswer, MountFate, Prepared};
pub use message::Health;
pub(crate) use message::{DirectAnswer, HolderStatus, Status, UnmountAnswer, UnmountRequest};
pub(crate) use server::{ClientId, Leases, Responder};
