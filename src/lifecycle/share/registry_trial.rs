//! A trial of the registry, for `archfs doctor`.

use std::io::Write;
use std::path::PathBuf;

use tempfile::Builder;

use super::registry::Registry;
use crate::error::Result;

/// Bytes of the file that is written: a block of most file systems, and more than most records.
const SIZE: usize = 4096;

/// Writes a file to the registry and removes it; returns the directory of the registry.
///
/// # Errors
/// `Io` where nothing can be written anywhere, as on full file systems.
pub(in crate::lifecycle) fn try_registry() -> Result<PathBuf> {
    Registry::create_in(|registry| {
        let file = Builder::new().prefix("probe-").tempfile_in(registry.directory());
        let written = file.and_then(|mut file| file.write_all(&[0; SIZE]));
        registry.tidy();
        // Without the name of the file that was tried.
        written.map_err(|error| error.kind())?;
        Ok(registry.directory().to_owned())
    })
}
