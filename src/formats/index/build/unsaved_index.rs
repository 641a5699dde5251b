//! Makes the index of a tree without saving it: in a temporary file or in memory.

use std::fs::File;
use std::io;
use std::path::Path;

use super::super::Index;
use super::super::blocks::Allowance;
use super::super::file::{IndexFile, IndexOptions};
use super::super::key::Key;
use super::finished_tree::FinishedTree;
use crate::error::{Error, Result};
use crate::formats::index::weight;
use crate::os::unlinked;
use crate::storage::{FileStorage, InMemory, Storage};
use crate::sync::Arc;

/// An unsaved index up to this size stays in memory, bytes. A larger one goes into a temporary
/// file.
const IN_MEMORY_MAX: u64 = 1 << 20;

/// Makes the index of a tree that is not saved: in a temporary file if it is large, or else in
/// memory.
///
/// Fails with `Io` if the temporary file cannot be read, or if the index would take memory that the
/// job does not have.
pub(crate) fn unsaved(
    mut finished: FinishedTree,
    archive_len: u64,
    name: &str,
    allowance: &Arc<Allowance>,
) -> Result<Index> {
    // Only the next mount would need them.
    finished.seek_points.clear();
    let directory = std::env::temp_dir();
    if finished.estimate() <= IN_MEMORY_MAX {
        return in_memory(finished, archive_len, name, allowance);
    }
    let file = unlinked::create(&directory);
    if file.as_ref().is_ok_and(unlinked::is_in_memory) {
        weight::check(finished.estimate())?;
    }
    match file.and_then(|file| write_to(file, &finished, archive_len, &directory)) {
        Ok(file) => open_index(Arc::new(file), finished, name, allowance),
        Err(error) => {
            log::warn!("{}", takes_memory(name, &directory, error));
            weight::check(finished.estimate())?;
            in_memory(finished, archive_len, name, allowance)
        }
    }
}

/// Makes the index of a tree in memory.
///
/// Fails with `Corrupt` if the tree does not fit an archive of `archive_len` bytes.
pub(crate) fn in_memory(
    finished: FinishedTree,
    archive_len: u64,
    name: &str,
    allowance: &Arc<Allowance>,
) -> Result<Index> {
    let mut bytes = Vec::new();
    let written = finished.write(&Key::default(), archive_len, &mut bytes);
    written.map_err(|error| Error::io(name, error))?;
    open_index(Arc::new(InMemory::new(bytes)), finished, name, allowance)
}

/// Writes the index into `file`, an unlinked file in `directory`.
fn write_to(
    mut file: File,
    finished: &FinishedTree,
    archive_len: u64,
    directory: &Path,
) -> io::Result<FileStorage> {
    finished.write(&Key::default(), archive_len, &mut file)?;
    FileStorage::of(file, directory.to_owned())
}

/// The warning for an index that cannot be written into a file in `directory`.
fn takes_memory(name: &str, directory: &Path, error: io::Error) -> Error {
    let directory = directory.display();
    let what = format!("{name}: the index takes memory, because it cannot be in {directory}");
    Error::io(what, error)
}

fn open_index(
    file: Arc<dyn Storage>,
    finished: FinishedTree,
    name: &str,
    allowance: &Arc<Allowance>,
) -> Result<Index> {
    let found = IndexFile::open(file, &IndexOptions::new(name, allowance), &|_| Ok(()))?;
    Ok(found.index.with_findings(finished.findings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warning_names_the_error_and_no_other_cause() {
        let directory = Path::new("/read-only");
        let error = io::Error::from_raw_os_error(libc::EROFS);
        let warning = takes_memory("a.tar", directory, error).to_string();
        assert!(warning.contains("Read-only file system"), "{warning}");
        assert!(!warning.contains("fit"), "{warning}");
    }
}
