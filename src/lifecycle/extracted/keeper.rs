//! The process that removes extracted files when the last holder was killed.
//!
//! It takes no part in the ordinary end, when the last holder removes the files itself.

use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use rustix::process::setsid;

use super::directory::{ExtractedDirectory, is_removed};
use crate::error::{Error, Result};
use crate::lifecycle::daemon::signals::ENDING;
use crate::os::own_program;
use crate::os::raw_signals;

/// Starts a keeper of `directory`.
pub(super) fn start(directory: &ExtractedDirectory) -> Result<()> {
    // Not in this process's group, which may be killed as a whole (`keep`). This process
    // does not wait for it, because it usually lives longer.
    let started = own_program::silent(["keep-extracted", "--"]).arg(directory.path()).spawn();
    started.map(drop).map_err(|error| Error::io("cannot start a process", error))
}

/// Waits until no process holds the files extracted to `directory`, then removes them.
///
/// # Errors
/// `Io` if they cannot be removed.
pub fn keep(directory: &Path) -> Result<()> {
    // A batch system asks all processes of a job to end, and the holders are still there.
    ENDING.into_iter().for_each(raw_signals::ignore);
    let _ = setsid();
    let _ = std::env::set_current_dir("/");
    let Some(directory) = ExtractedDirectory::existing(directory) else { return Ok(()) };
    // It may be removed already.
    let Ok(holders) = directory.holders(false) else { return Ok(()) };
    retry_on_intr(|| flock(&holders, FlockOperation::LockExclusive))
        .map_err(|errno| Error::io("cannot wait for the end of the holders", errno.into()))?;
    match is_removed(&holders) {
        true => Ok(()),
        false => directory.remove(holders),
    }
}
