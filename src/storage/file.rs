//! An archive in a file or on a block device, read with pread(2).
//!
//! Owns the open descriptor, which is the truth about the archive: a file that is replaced or
//! deleted while mounted goes on being read as it was opened.
//! Invariant: length and time are what they were at opening; a file cut short later gives errors,
//! not zeros.

use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::Storage;
use super::pool::{FilePool, Slot};
use crate::error::{Error, Kind, Result};
use crate::sync::{Arc, Mutex};

/// A file opened for reading.
#[derive(Debug)]
pub struct FileStorage {
    handle: Handle,
    path: PathBuf,
    identity: Identity,
}

/// How the file is held.
#[derive(Debug)]
enum Handle {
    /// Open for as long as this lives.
    Open(File),
    /// Open while its pool has room for it.
    Pooled(Arc<FilePool>, Arc<Slot>),
}

impl FileStorage {
    /// Opens `path`, a regular file or a block device.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `UnknownFormat` for another kind of file, else `Io`.
    pub fn open(path: &Path) -> Result<Self> {
        let (file, identity) = opened(path)?;
        Ok(Self { handle: Handle::Open(file), path: path.to_owned(), identity })
    }

    /// The same for one of many files that share an allowance of open ones. What is read later must
    /// still be the file that was there first: one that was replaced gives an error.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_in(path: &Path, pool: &Arc<FilePool>) -> Result<Self> {
        let (file, identity) = opened(path)?;
        let slot = Arc::new(Mutex::new(None));
        pool.file(&slot, || Ok(file))?;
        let handle = Handle::Pooled(Arc::clone(pool), slot);
        Ok(Self { handle, path: path.to_owned(), identity })
    }

    /// What the file was when it was opened.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    fn reopen(&self) -> Result<File> {
        // That it is gone is a fault of the storage now, and says nothing of names in the archive.
        let failed =
            |error: Error| Error::new(Kind::Io, "can not be opened again").with_source(error);
        let (file, identity) = opened(&self.path).map_err(failed)?;
        if identity == self.identity {
            return Ok(file);
        }
        let context =
            format!("{}: was replaced or changed while it is mounted", self.path.display());
        Err(Error::new(Kind::Io, context))
    }
}

/// Opens `path` and looks at what was opened.
fn opened(path: &Path) -> Result<(File, Identity)> {
    let shown = path.display();
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => Error::new(Kind::NotFound, format!("{shown}: no such file")),
        _ => Error::io(format!("{shown}: can not open"), error),
    };
    // Looked at before opening, since opening a pipe would wait for its writer.
    let kind = std::fs::metadata(path).map_err(failed)?.file_type();
    if kind.is_dir() {
        let context = format!("{shown}: is a directory, not an archive");
        return Err(Error::new(Kind::IsADirectory, context)
            .with_hint("pack it first: mksquashfs DIRECTORY data.sqfs -comp zstd"));
    }
    if !kind.is_file() && !kind.is_block_device() {
        let context = format!("{shown}: neither a file nor a block device");
        return Err(Error::new(Kind::UnknownFormat, context));
    }
    let mut file = File::open(path).map_err(failed)?;
    // The metadata of a block device has no size, its end has.
    let len = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    let identity = Identity {
        len,
        modified: (found.mtime(), u32::try_from(found.mtime_nsec()).unwrap_or(0)),
        inode: (found.dev(), found.ino()),
        owner: found.uid(),
        mode: found.mode(),
    };
    Ok((file, identity))
}

/// What tells one version of a file from another, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Bytes.
    pub len: u64,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// The number of the device and of the inode.
    pub inode: (u64, u64),
    /// The owner's number.
    pub owner: u32,
    /// Kind and permissions (st_mode).
    pub mode: u32,
}

impl Storage for FileStorage {
    fn len(&self) -> u64 {
        self.identity.len
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let pooled;
        let file = match &self.handle {
            Handle::Open(file) => file,
            Handle::Pooled(pool, slot) => {
                pooled = pool.file(slot, || self.reopen())?;
                pooled.as_ref()
            }
        };
        file.read_exact_at(buffer, offset).map_err(|error| {
            let context =
                format!("{}: reading {} bytes at {offset:#x}", self.path.display(), buffer.len());
            match error.kind() {
                ErrorKind::UnexpectedEof => {
                    Error::corrupt(format!("{context}: the file ends before that"))
                }
                _ => Error::io(context, error),
            }
        })
    }
}
