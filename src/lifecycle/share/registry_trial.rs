//! Checks for `archfs doctor` that the registry can be written.

use std::io::Write;
use std::path::PathBuf;

use tempfile::Builder;

use super::registry::Registry;
use crate::error::Result;

/// The size of the test file in bytes: one block of most file systems, and more than most records.
const SIZE: usize = 4096;

/// Writes a file to the registry and removes it; returns the directory of the registry.
///
/// # Errors
/// `Io` if no directory can be written to, for example because the file systems are full.
pub(in crate::lifecycle) fn try_registry() -> Result<PathBuf> {
    Registry::create_in(|registry| {
        let file = Builder::new().prefix("probe-").tempfile_in(registry.directory());
        let written = file.and_then(|mut file| file.write_all(&[0; SIZE]));
        registry.tidy();
        // Drops the name of the test file from the error.
        written.map_err(|error| error.kind())?;
        Ok(registry.directory().to_owned())
    })
}
