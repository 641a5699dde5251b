//! `archfs unmount`: end a mount, alive or dead.

use std::path::PathBuf;

use super::bar::Bar;
use super::{exit, term};
use crate::error::Result;
use crate::lifecycle::{self, Detach, Unmounted};
use crate::log::Verbosity;

/// Unmount; also clears a mount whose daemon is dead
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  archfs unmount /dev/shm/data
  archfs unmount --lazy /dev/shm/data     (also while files of it are open)")]
pub(super) struct Args {
    /// Where it is mounted
    #[arg(required = true, value_name = "MOUNTPOINT")]
    mountpoints: Vec<PathBuf>,

    /// Also when it is in use: the name goes at once, open files go on until they are closed
    #[arg(long, short = 'z')]
    lazy: bool,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    crate::log::start(Verbosity::Usual, None)?;
    let how = if args.lazy { Detach::Lazily } else { Detach::IfIdle };
    let mut status = 0;
    for mountpoint in &args.mountpoints {
        let bar = Bar::wait(&format!("unmounting {}", mountpoint.display()));
        let outcome = lifecycle::unmount(mountpoint, how);
        drop(bar);
        match outcome {
            Ok(Unmounted::Gone) => {}
            Ok(Unmounted::HeldByOthers(others)) => {
                let place = mountpoint.display();
                term::tell(&format!("{place}: still held by process {others}"));
            }
            Err(error) => {
                term::show_error(&error);
                status = status.max(exit::of(&error));
            }
        }
    }
    Ok(status)
}
