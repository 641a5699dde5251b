//! The copy of archives at URLs that the user does not stage: it has what was read of them.
//!
//! It is an unlinked file in $TMPDIR, /tmp or /dev/shm, so every byte is fetched once while it has
//! room. It takes only a part of the free space or memory, because nobody has asked for it. A program
//! that announces to read all of an archive has it fetched in the background.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::archives::originals;
use super::file::FileStorage;
use super::near::{Fill, Goal, NearCopy, room_of_unasked};
use crate::error::{Error, Kind, Result};
use crate::os::unlinked;
use crate::remote::{self, RemoteFile};
use crate::sync::Arc;

/// `files`, those at URLs through one copy.
///
/// # Errors
/// `Io` if there is no directory for the copy.
pub(super) fn through_copy(mut files: Vec<Arc<FileStorage>>) -> Result<Vec<Arc<FileStorage>>> {
    let remote: Vec<_> = files.iter().filter(|file| file.is_remote()).cloned().collect();
    if remote.is_empty() {
        return Ok(files);
    }
    let (directory, target) = created()?;
    let target = Arc::new(target);
    let room = room_of_unasked(&target);
    let name = format!("copy in {}", directory.display());
    let copy = NearCopy::new(target, name, originals(&remote), room, Goal::Announced)?;
    let fill = Arc::new(Fill::start(&copy)?);
    let near = files.iter_mut().filter(|file| file.is_remote()).enumerate();
    near.for_each(|(number, file)| {
        *file = Arc::new(file.near(&copy, number, Some(Arc::clone(&fill))))
    });
    Ok(files)
}

/// Bytes of a file that is fetched as a whole that are read at once.
const PIECE: usize = 2 << 20;

/// All of the file at the URL `path`, in an unlinked file. `None` if it cannot be had, or has more
/// than `most` bytes.
///
/// # Errors
/// `Io` if there is no space for it.
pub(super) fn fetched(path: &Path, most: u64) -> Result<Option<File>> {
    let missing = |error: Error| {
        log::info!("{error}");
        Ok(None)
    };
    let remote = match RemoteFile::open_briefly(path) {
        Ok(remote) if remote.len() <= most => remote,
        Ok(_) => return Ok(None),
        Err(error) => return missing(error),
    };
    let (_, mut target) = created()?;
    let mut buffer = vec![0; PIECE];
    let mut next = 0;
    while next < remote.len() {
        let len = PIECE.min(usize::try_from(remote.len() - next).unwrap_or(PIECE));
        let patience = remote::PATIENCE_IN_BACKGROUND;
        if let Err(error) = remote.read_exact_at(&mut buffer[..len], next, patience) {
            return missing(error);
        }
        target
            .write_all(&buffer[..len])
            .map_err(|error| Error::io(format!("{}: cannot keep it", path.display()), error))?;
        next += len as u64;
    }
    Ok(Some(target))
}

/// An unlinked file, and the directory that it is in. The kernel reports errors of a network file
/// system only when it has lost bytes, so the directory is on another.
fn created() -> Result<(PathBuf, File)> {
    let mut outcome = Err(Error::new(Kind::Io, "no directory"));
    for directory in [std::env::temp_dir().as_path(), Path::new("/tmp"), Path::new("/dev/shm")] {
        let failed =
            |error| Error::io(format!("{}: cannot create a file", directory.display()), error);
        match unlinked::create(directory) {
            Ok(file) if unlinked::is_local(&file) => return Ok((directory.to_owned(), file)),
            Ok(_) => {
                let context = format!("{}: a network file system", directory.display());
                outcome = Err(Error::new(Kind::Io, context));
            }
            Err(error) => outcome = Err(failed(error)),
        }
    }
    outcome.map_err(|error| error.with_hint("set TMPDIR to a directory on this node"))
}
