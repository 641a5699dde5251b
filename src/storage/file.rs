//! An archive in a file or on a block device, read with pread(2).
//!
//! Owns the open descriptor, which is the truth about the archive: a file that is replaced or
//! deleted while mounted goes on being read as it was opened.
//! Invariant: the length is what it was at opening; a file cut short later gives errors, not zeros.

use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use super::Storage;
use crate::error::{Error, Kind, Result};

/// A file opened for reading.
#[derive(Debug)]
pub struct FileStorage {
    file: File,
    path: PathBuf,
    len: u64,
}

impl FileStorage {
    /// Opens `path`, a regular file or a block device.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `UnknownFormat` for another kind of file, else `Io`.
    pub fn open(path: &Path) -> Result<Self> {
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
        Ok(Self { file, path: path.to_owned(), len })
    }
}

impl Storage for FileStorage {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(buffer, offset).map_err(|error| {
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
