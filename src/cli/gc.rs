//! `archfs gc`: removes what killed daemons left behind.

use std::path::{Path, PathBuf};

use super::bar::Bar;
use super::{exit, term};
use crate::error::Result;
use crate::lifecycle::{self, Cleared, Removed};
use crate::units::{counted, format_size};

/// Clear your stale mounts, and other remains of killed daemons
#[derive(Debug, clap::Args)]
#[command(after_help = "Live mounts and mounts of other users are not touched.

Examples:
  archfs gc
  archfs gc --stage /local          (also copies of --stage-keep)
  In an epilog, as the job's user:
  su \"$SLURM_JOB_USER\" -s /bin/sh -c 'archfs gc --quiet'")]
pub(super) struct Args {
    /// Also remove your copies of archives that --stage-keep left in DIR
    #[arg(long, value_name = "DIR")]
    stage: Option<PathBuf>,

    /// Print only errors and warnings
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    // This command reports what it cleared, so the log is quiet.
    crate::log::start_without_warnings();
    let bar = (!args.quiet).then(|| Bar::wait("clearing stale mounts"));
    let cleared = lifecycle::gc();
    drop(bar);
    let cleared = cleared?;
    if !args.quiet {
        for mount_point in &cleared.mounts {
            term::print_note(&format!("{}: cleared a stale mount", mount_point.display()));
        }
        for mount_point in &cleared.directories {
            term::print_note(&format!("{}: removed an unused mount point", mount_point.display()));
        }
    }
    for directory in cleared.extracted.iter().filter(|_| !args.quiet) {
        term::print_note(&format!("{}: removed extracted files", directory.display()));
    }
    if cleared.jobs > 0 && !args.quiet {
        let jobs = counted(cleared.jobs as u64, "job");
        term::print_note(&format!("removed records of {jobs} that ended without removing them"));
    }
    let mut status = 0;
    if let Some(directory) = &args.stage {
        match lifecycle::remove_kept_copies(directory) {
            Ok(removed) if !args.quiet => print_removed(directory, removed),
            Ok(_) => {}
            Err(error) => {
                term::show_error(&error);
                status = exit::of(&error);
            }
        }
    }
    let Cleared { mounts, directories, jobs, extracted, errors } = &cleared;
    let is_clear =
        mounts.is_empty() && directories.is_empty() && extracted.is_empty() && *jobs == 0;
    if is_clear && errors.is_empty() && !args.quiet && args.stage.is_none() {
        term::print_note("nothing to clear on this node");
    }
    for error in errors {
        term::show_error(error);
        status = status.max(exit::of(error));
    }
    Ok(status)
}

fn print_removed(directory: &Path, Removed { copies, bytes, in_use }: Removed) {
    let shown = directory.display();
    if copies > 0 {
        let (copies, bytes) = (of_copies(copies), format_size(bytes));
        term::print_note(&format!("{shown}: removed {copies}, {bytes}"));
    }
    if in_use > 0 {
        term::print_note(&format!("{shown}: {} in use", of_copies(in_use)));
    }
}

fn of_copies(count: u64) -> String {
    match count {
        1 => "1 copy".to_owned(),
        count => format!("{count} copies"),
    }
}
