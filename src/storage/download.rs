//! Whole files from URLs, and where files of this node are put that nobody has asked for.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::os::unlinked;
use crate::remote::{RemoteFile, Requester, Version};

/// Bytes of a file that is fetched as a whole that are read at once.
const PIECE: usize = 2 << 20;

/// All of the file at the URL `path`, in an unlinked file, and its version. `None` if it cannot be
/// had, or has more than `most` bytes.
pub(super) fn fetched(path: &Path, most: u64) -> Result<Option<(File, Version)>> {
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
        if let Err(error) = remote.read_exact_at(&mut buffer[..len], next, Requester::Fill) {
            return missing(error);
        }
        target
            .write_all(&buffer[..len])
            .map_err(|error| Error::io(format!("{}: cannot keep it", path.display()), error))?;
        next += len as u64;
    }
    Ok(Some((target, remote.version().clone())))
}

/// An unlinked file, and the directory that it is in. The kernel reports errors of a network file
/// system only when it has lost bytes, so the directory is on another.
pub(super) fn created() -> Result<(PathBuf, File)> {
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
