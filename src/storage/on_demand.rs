//! The copy of archives at URLs that the user does not stage: it has what was read of them.
//!
//! It is an unlinked file in $TMPDIR or /tmp, so every byte is fetched once while it has room. A
//! program that announces to read all of an archive has it fetched in the background.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::archives::originals;
use super::file::FileStorage;
use super::near::{Fill, Goal, NearCopy, room_beside_others, room_on_disk};
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
    let room = match unlinked::is_in_memory(&target) {
        true => room_beside_others(),
        false => room_on_disk(&target),
    };
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

/// All of the file at the URL `path`, in an unlinked file. `None` if the server has none, does not
/// let this user see whether it has one, or has one of more than `most` bytes.
///
/// # Errors
/// As `RemoteFile::open` and `RemoteFile::read_exact_at`; `Io` if there is no space for it.
pub(super) fn fetched(path: &Path, most: u64) -> Result<Option<File>> {
    let remote = match RemoteFile::open(path) {
        Ok(remote) if remote.len() <= most => remote,
        Ok(_) => return Ok(None),
        Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Denied) => return Ok(None),
        Err(error) => return Err(error),
    };
    let (_, mut target) = created()?;
    let mut buffer = vec![0; PIECE];
    let mut next = 0;
    while next < remote.len() {
        let len = PIECE.min(usize::try_from(remote.len() - next).unwrap_or(PIECE));
        remote.read_exact_at(&mut buffer[..len], next, remote::PATIENCE)?;
        target
            .write_all(&buffer[..len])
            .map_err(|error| Error::io(format!("{}: cannot keep it", path.display()), error))?;
        next += len as u64;
    }
    Ok(Some(target))
}

/// An unlinked file, and the directory that it is in.
fn created() -> Result<(PathBuf, File)> {
    let mut outcome = Err(Error::new(Kind::Io, "no directory"));
    for directory in [std::env::temp_dir().as_path(), Path::new("/dev/shm")] {
        outcome = unlinked::create(directory).map_err(|error| {
            let context = format!("{}: cannot create a file", directory.display());
            Error::io(context, error).with_hint("set TMPDIR to a directory on this node")
        });
        if let Ok(file) = outcome {
            return Ok((directory.to_owned(), file));
        }
    }
    outcome.map(|file| (PathBuf::new(), file))
}
