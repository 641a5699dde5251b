//! `archfs wait`: waits until another task of the node has mounted.

use std::path::PathBuf;
use std::time::Duration;

use super::bar::Bar;
use super::values::time;
use crate::error::Result;
use crate::lifecycle;

/// Wait until a mount can be read (for the other tasks of a node)
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 when the mount can be read; 5 if something else is mounted there; 6 at the timeout.

Examples:
  archfs wait /dev/shm/$USER-data
  archfs wait --timeout 5m /dev/shm/$USER-data && python train.py"
)]
pub(super) struct Args {
    /// The mount point
    mountpoint: PathBuf,

    /// Give up after this time (suffixes: s, m, h) [default: never]
    #[arg(long, value_name = "T", value_parser = time)]
    timeout: Option<Duration>,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    let mount_point = args.mountpoint.display();
    let _bar = Bar::wait(&format!("waiting for a mount at {mount_point}"));
    lifecycle::wait(&args.mountpoint, args.timeout).map(|()| 0)
}
