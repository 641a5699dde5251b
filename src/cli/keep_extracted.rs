//! `archfs keep-extracted`: started by `run --or-extract`, removes the files at the end. Not for
//! users.

use std::path::PathBuf;

use crate::error::Result;
use crate::extract;

/// Remove extracted files when the last process that holds them has ended (started by `run`)
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The directory
    directory: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    extract::keep(&args.directory).map(|()| 0)
}
