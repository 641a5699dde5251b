//! `archfs gc`: removes what killed daemons left behind.

use super::bar::Bar;
use super::{exit, term};
use crate::error::Result;
use crate::lifecycle;
use crate::log::Verbosity;

/// Clear your stale archfs mounts, directories created for them, and left-over records
#[derive(Debug, clap::Args)]
#[command(after_help = "It touches nothing that is alive, nor anything of another user.

Examples:
  archfs gc
  su \"$SLURM_JOB_USER\" -s /bin/sh -c 'archfs gc --quiet'     (in an epilog, as the job's user)")]
pub(super) struct Args {
    /// Print only errors and warnings
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    // This command reports what it cleared, so the log is quiet.
    crate::log::start(Verbosity::Quiet, None);
    let bar = (!args.quiet).then(|| Bar::wait("clearing dead mounts"));
    let cleared = lifecycle::gc();
    drop(bar);
    let cleared = cleared?;
    if !args.quiet {
        for mount_point in &cleared.mounts {
            term::print_message(&format!("cleared the dead mount {}", mount_point.display()));
        }
        for mount_point in &cleared.directories {
            term::print_message(&format!("removed {}", mount_point.display()));
        }
    }
    let mut status = 0;
    for error in &cleared.errors {
        term::show_error(error);
        status = status.max(exit::of(error));
    }
    Ok(status)
}
