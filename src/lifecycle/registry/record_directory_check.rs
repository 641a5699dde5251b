//! Checks for `archfs doctor` that the record directory can be written.

use std::io::Write;
use std::path::PathBuf;

use tempfile::Builder;

use super::record_directory::RecordDirectory;
use crate::error::Result;

/// The size of the test file in bytes: one block of most file systems, and more than most records.
const SIZE: usize = 4096;

/// Writes a file to the record directory and removes it; returns the path of the directory.
///
/// Fails with `Io` if no directory can be written to, for example because the file systems are
/// full.
pub(in crate::lifecycle) fn check_record_directory() -> Result<PathBuf> {
    RecordDirectory::try_each_parent(|record_directory| {
        let file = Builder::new().prefix("probe-").tempfile_in(record_directory.path());
        let written = file.and_then(|mut file| file.write_all(&[0; SIZE]));
        record_directory.remove_if_empty();
        // Drops the name of the test file from the error.
        written.map_err(|error| error.kind())?;
        Ok(record_directory.path().to_owned())
    })
}
