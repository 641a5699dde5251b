//! Makes the index of a tree without saving it: in a temporary file or in memory. Checks that the
//! job has the memory for it.
//!
//! A new index takes about 90 bytes per member, in memory if temporary files are in memory. If a
//! job has too little memory left, the mount fails with an error. Otherwise the kernel would kill
//! one of its processes. A saved index is read block by block, so it needs no such check.

use std::fs::File;
use std::io;
use std::path::Path;

use super::super::Index;
use super::super::blocks::Allowance;
use super::super::file::{IndexFile, IndexOptions};
use super::super::layout::Key;
use super::finished_tree::FinishedTree;
use crate::error::{Error, Kind, Result};
use crate::os::{kernel_file, memory, unlinked};
use crate::storage::{FileStorage, InMemory, Storage};
use crate::sync::Arc;
use crate::units::Size;

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
        check_memory(finished.estimate())?;
    }
    match file.and_then(|file| write_to(file, &finished, archive_len, &directory)) {
        Ok(file) => open_index(Arc::new(file), finished, name, allowance),
        Err(error) => {
            log::warn!("{}", takes_memory(name, &directory, error));
            check_memory(finished.estimate())?;
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

/// Members between two checks. They take about 10 MiB.
const CHECK_INTERVAL: usize = 1 << 16;

/// Memory to leave free, bytes.
const RESERVE: u64 = 16 << 20;

/// Checks the memory that a new index takes, every few members.
pub(super) struct MemoryCheck {
    since_check: usize,
    /// Memory that the process had in use at the start, bytes.
    initial: u64,
}

impl MemoryCheck {
    pub(super) fn new() -> Self {
        Self { since_check: 0, initial: anonymous_memory() }
    }

    /// Counts `members` that were added, and checks the memory if it is time.
    pub(super) fn add(&mut self, members: usize) -> Result<()> {
        self.since_check = self.since_check.saturating_add(members);
        if self.since_check < CHECK_INTERVAL {
            return Ok(());
        }
        self.since_check = 0;
        // In the end, the order of the members takes up to a quarter of what they take.
        let taken = anonymous_memory().saturating_sub(self.initial);
        check_memory(taken / 4)
    }
}

/// Checks that an index can take `bytes` more.
fn check_memory(bytes: u64) -> Result<()> {
    memory::headroom().map_or(Ok(()), |left| fits(bytes, left))
}

fn fits(bytes: u64, left: memory::Headroom) -> Result<()> {
    if bytes.saturating_add(RESERVE) <= left.bytes {
        return Ok(());
    }
    let context = format!(
        "too little memory for the index of its files: it takes {} more, {} {}",
        Size(bytes.saturating_add(RESERVE)),
        left.bound.leaves(),
        Size(left.bytes)
    );
    Err(Error::new(Kind::Io, context).with_hint(
        "set TMPDIR to a directory on a local disk, or give the job more memory, or mount an image \
         (archfs pack ARCHIVE IMAGE.sqfs)",
    ))
}

/// Anonymous memory of this process, bytes.
fn anonymous_memory() -> u64 {
    kernel_file::own_memory("RssAnon").unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory::{Bound, Headroom};

    #[test]
    fn the_warning_names_the_error_and_no_other_cause() {
        let directory = Path::new("/read-only");
        let error = io::Error::from_raw_os_error(libc::EROFS);
        let warning = takes_memory("a.tar", directory, error).to_string();
        assert!(warning.contains("Read-only file system"), "{warning}");
        assert!(!warning.contains("fit"), "{warning}");
    }

    #[test]
    fn an_index_needs_its_size_and_a_reserve() {
        let left = |bytes| Headroom { bytes, bound: Bound::ControlGroup };
        fits(100, left(RESERVE + 100)).unwrap();
        let error = fits(100, left(RESERVE + 99)).unwrap_err();
        assert_eq!(error.kind(), Kind::Io);
        assert!(error.to_string().contains("the limit of the job leaves"), "{error}");
        assert!(error.hint().is_some());
        fits(u64::MAX, left(u64::MAX - 1)).unwrap_err();
    }

    #[test]
    fn checks_memory_once_in_many_members() {
        let mut check = MemoryCheck::new();
        assert!(check.initial > 0);
        (0..CHECK_INTERVAL).for_each(|_| check.add(1).unwrap());
        assert_eq!(check.since_check, 0);
        check.add(CHECK_INTERVAL - 1).unwrap();
        assert_eq!(check.since_check, CHECK_INTERVAL - 1);
    }
}
