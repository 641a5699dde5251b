//! The copy of archives at URLs that the user does not stage: it has what was read of them.
//!
//! It is an unlinked file in $TMPDIR, /tmp or /dev/shm, so every byte is fetched once while it has
//! room. It takes only a part of the free space or memory, because nobody has asked for it. A
//! program that announces to read all of an archive has it fetched in the background.

use super::Storage;
use super::download::created;
use super::file::FileStorage;
use super::near::{Fill, Goal, NearCopy, Original, Target, room_of_unasked};
use crate::error::Result;
use crate::sync::Arc;

/// `files`, those at URLs through one copy.
pub(super) fn through_copy(mut files: Vec<Arc<FileStorage>>) -> Result<Vec<Arc<FileStorage>>> {
    let remote: Vec<_> = files.iter().filter(|file| file.is_remote()).cloned().collect();
    if remote.is_empty() {
        return Ok(files);
    }
    let (directory, target) = created()?;
    let target = Arc::new(target);
    let room = room_of_unasked(&target);
    let name = format!("copy in {}", directory.display());
    let target = Target { file: target, kept: None };
    let copy = NearCopy::new(target, name, originals(&remote), room, Goal::Announced)?;
    let fill = Arc::new(Fill::start(&copy)?);
    let remote = files.iter_mut().filter(|file| file.is_remote());
    for (number, file) in remote.enumerate() {
        *file = Arc::new(file.near(&copy, number, Some(Arc::clone(&fill))));
    }
    Ok(files)
}

/// `files` as a near copy needs them.
pub(super) fn originals(files: &[Arc<FileStorage>]) -> Vec<Original> {
    let original =
        |file: &Arc<FileStorage>| (file.path().display().to_string(), file.len(), file.source());
    files.iter().map(original).collect()
}
