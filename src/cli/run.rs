//! `archfs run`: mounts, runs a command and unmounts.

use std::ffi::OsString;

use clap::builder::FalseyValueParser;

use super::{args, mount};
use crate::error::Result;
use crate::lifecycle::{self, Outcome, Privacy, RunOptions};
use crate::log::Verbosity;

/// Mount archives, run COMMAND, unmount; exits with COMMAND's status
#[derive(Debug, clap::Args)]
#[command(override_usage = "archfs run [OPTIONS] ARCHIVE... MOUNTPOINT -- COMMAND [ARG]...", after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    mount: args::MountArgs,

    /// Mount in a namespace that only COMMAND and its children see; leaves no stale mount
    #[arg(long, env = "ARCHFS_PRIVATE", value_parser = FalseyValueParser::new())]
    private: bool,

    /// Let COMMAND read uncompressed files from the archive itself, by a preloaded library
    #[arg(long)]
    direct: bool,

    /// The command; ARCHFS_MOUNTPOINT in its environment is the mount point
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  P=/dev/shm/$USER-$SLURM_JOB_ID                      (a mount point for this job)
  archfs run data.sqfs $P -- python train.py $P
  archfs run --private data.sqfs $P -- python train.py $P  (needs no fusermount)
  srun archfs run data.sqfs $P -- python train.py $P       (the tasks of a node share it)

archfs passes signals on to COMMAND. SIGTERM and SIGHUP also start the grace period. If COMMAND
still runs when it ends, archfs unmounts lazily: files that COMMAND has open stay readable.

Exit status: COMMAND's own, or 128 + N if signal N ended it; 127 if it is not found, 126 if it is
not executable; 120 + the status of `archfs mount` if mounting failed.";

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let plan = args.mount.plan()?;
    crate::log::start(plan.verbosity, None);
    let plan = lifecycle::resolve_descriptors(plan)?;
    let privacy = if args.private { Privacy::Private } else { Privacy::Default };
    let daemon = |source| mount::daemon_arguments(&plan, source);
    let quiet = plan.verbosity == Verbosity::Quiet;
    let show = |message: &str| mount::wait_bar(message, quiet);
    let options = RunOptions { privacy, is_direct: args.direct };
    lifecycle::run(&plan, &daemon, options, &args.command, &show)
}
