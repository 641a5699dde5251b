//! `archfs read-names`: started by the daemon to read all names of its mount ahead. Not for users.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::lifecycle;

/// Read all names of a mount ahead (started by the daemon)
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The mount point
    mountpoint: PathBuf,

    /// The number of the mount's device, as stat(2) returns it
    device: u64,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    lifecycle::read_names(&args.mountpoint, args.device)
        .map(|()| 0)
        .map_err(|error| Error::io("cannot read names", error))
}
