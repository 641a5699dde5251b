//! `archfs notify`: started by `archfs mount -o notify_pipe=`, to wait for the reader of the pipe.
//! Not for users.

use std::path::PathBuf;

use crate::error::Result;
use crate::lifecycle::{self, MountStatus};

/// Write to a named pipe whether archfs has mounted (started by `archfs mount`)
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The named pipe
    pipe: PathBuf,

    /// Nothing is mounted
    #[arg(long)]
    failed: bool,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    let status = if args.failed { MountStatus::Failed } else { MountStatus::Mounted };
    lifecycle::notify(&args.pipe, status).map(|()| 0)
}
