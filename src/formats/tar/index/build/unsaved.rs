//! Makes the index of a tree without saving it: in a temporary file or in memory.

use std::fs::File;
use std::io;
use std::path::Path;

use super::super::Index;
use super::super::blocks::Allowance;
use super::super::file::{IndexFile, IndexOptions};
use super::super::key::Key;
use super::draft::Draft;
use crate::error::{Error, Result};
use crate::formats::tar::weight;
use crate::os::unlinked;
use crate::storage::{FileStorage, InMemory, Storage};
use crate::sync::Arc;

/// An unsaved index up to this size stays in memory, bytes. A larger one goes into a temporary
/// file.
const IN_MEMORY_MAX: u64 = 1 << 20;

/// Makes the index of a tree that is not saved: in a temporary file if it is large, or else in
/// memory.
///
/// # Errors
/// `Io` if the temporary file cannot be read, or if the index would take memory that the job does
/// not have.
pub(in crate::formats::tar) fn unsaved(
    draft: Draft,
    decoded_len: u64,
    name: &str,
    allowance: &Arc<Allowance>,
) -> Result<Index> {
    let directory = std::env::temp_dir();
    if draft.estimate() <= IN_MEMORY_MAX {
        return in_memory(draft, decoded_len, name, allowance);
    }
    let file = unlinked::create(&directory);
    if file.as_ref().is_ok_and(unlinked::is_in_memory) {
        weight::check(draft.estimate())?;
    }
    match file.and_then(|file| written(file, &draft, decoded_len, &directory)) {
        Ok(file) => opened(Arc::new(file), draft, name, allowance),
        Err(error) => {
            log::warn!("{}", takes_memory(name, &directory, error));
            weight::check(draft.estimate())?;
            in_memory(draft, decoded_len, name, allowance)
        }
    }
}

/// Makes the index of a tree in memory.
///
/// # Errors
/// `Corrupt` if the tree does not fit an archive of `decoded_len` bytes.
pub(in crate::formats::tar) fn in_memory(
    draft: Draft,
    decoded_len: u64,
    name: &str,
    allowance: &Arc<Allowance>,
) -> Result<Index> {
    let mut bytes = Vec::new();
    let written = draft.write(&Key::default(), decoded_len, &mut bytes);
    written.map_err(|error| Error::io(name, error))?;
    opened(Arc::new(InMemory::new(bytes)), draft, name, allowance)
}

/// Writes the index into `file`, an unlinked file in `directory`.
fn written(
    mut file: File,
    draft: &Draft,
    decoded_len: u64,
    directory: &Path,
) -> io::Result<FileStorage> {
    draft.write(&Key::default(), decoded_len, &mut file)?;
    FileStorage::of(file, directory.to_owned())
}

/// The warning for an index that cannot be written into a file in `directory`.
fn takes_memory(name: &str, directory: &Path, error: io::Error) -> Error {
    let directory = directory.display();
    let what = format!("{name}: the index takes memory, because it cannot be in {directory}");
    Error::io(what, error)
}

fn opened(
    file: Arc<dyn Storage>,
    draft: Draft,
    name: &str,
    allowance: &Arc<Allowance>,
) -> Result<Index> {
    let found = IndexFile::open(file, &IndexOptions::new(name, allowance), &|_| Ok(()))?;
    Ok(found.index.with_findings(draft.findings))
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
