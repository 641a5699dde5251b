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

    /// Give back what `mount --until-pid PID` took, as if that process had ended: it goes, lazily
    /// if it is in use, unless others hold it
    #[arg(long, value_name = "PID", conflicts_with = "lazy")]
    held_by: Option<i32>,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    crate::log::start(Verbosity::Usual, None)?;
    let how = if args.lazy { Detach::Lazily } else { Detach::IfIdle };
    let mut status = 0;
    for mountpoint in &args.mountpoints {
        let place = mountpoint.display();
        let bar = Bar::wait(&format!("unmounting {place}"));
        let outcome = match args.held_by {
            Some(pid) => lifecycle::give_back(mountpoint, pid),
            None => lifecycle::unmount(mountpoint, how),
        };
        drop(bar);
        match outcome {
            Ok(Unmounted::Gone) => {}
            Ok(Unmounted::Stays) => term::tell(&format!("{place}: stays mounted")),
            Ok(Unmounted::HeldByOthers(others)) => {
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
