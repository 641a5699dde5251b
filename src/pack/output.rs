//! The archive that is being written.
//!
//! It appears complete or not at all (`os::new_file`), in the directory that was opened at the
//! start.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::os::directory::{Directory, parent_of};
use crate::os::kernel_file;
use crate::os::lustre;
use crate::os::new_file::NewFile;

pub use crate::os::new_file::Existing;

const BUFFER: usize = 1 << 20;

/// A file that gets its name when it is complete.
pub(crate) struct Output {
    path: PathBuf,
    existing: Existing,
    file: BufWriter<File>,
    new: NewFile,
    len: u64,
}

impl Output {
    /// Creates a file that will be published as `path`.
    ///
    /// # Errors
    /// `InvalidInput` if `path` exists and must not be replaced; `Io` if the directory is not
    /// writable.
    #[cfg(test)]
    pub(crate) fn create(path: &Path, existing: Existing) -> Result<Self> {
        Self::create_in(&open_parent(path)?, path, existing)
    }

    /// Like `create`, in the directory of `path`, which the caller has opened.
    pub(super) fn create_in(
        directory: &Directory,
        path: &Path,
        existing: Existing,
    ) -> Result<Self> {
        Self::create_by(directory, path, existing, &|directory| NewFile::create(directory, PREFIX))
    }

    /// Like `create`. On Lustre, the file is spread over several servers if it becomes large,
    /// unless the directory has a layout for that already.
    pub(crate) fn create_striped(path: &Path, existing: Existing) -> Result<Self> {
        Self::create_by(&open_parent(path)?, path, existing, &|directory| {
            if lustre::default_stripe_count(&directory.path_for_others()) == Some(1) {
                match NewFile::create_by(directory, PREFIX, &lustre::create) {
                    Ok(created) => return Ok(created),
                    Err(error) => log::info!("{}: no layout: {error}", path.display()),
                }
            }
            NewFile::create(directory, PREFIX)
        })
    }

    fn create_by(
        directory: &Directory,
        path: &Path,
        existing: Existing,
        new_file: &dyn Fn(&Directory) -> io::Result<(File, NewFile)>,
    ) -> Result<Self> {
        let name = path.file_name().unwrap_or(".".as_ref());
        match directory.metadata(name) {
            Ok(found) if found.is_dir() => {
                let context = format!("{}: is a directory", path.display());
                return Err(Error::new(Kind::IsADirectory, context));
            }
            Ok(_) if existing == Existing::Refuse => return Err(exists(path)),
            _ => {}
        }
        let (file, new) = new_file(directory).map_err(|error| cannot_create(path, error))?;
        let file = BufWriter::with_capacity(BUFFER, file);
        Ok(Self { path: path.to_owned(), existing, file, new, len: 0 })
    }

    /// Bytes written so far, which is the offset of the next byte.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// `Io`, for example if the disk is full.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| self.failed(error))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Overwrites the bytes at `offset`, which must have been written before.
    pub(crate) fn overwrite(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        let written =
            self.file.flush().and_then(|()| self.file.get_ref().write_all_at(bytes, offset));
        written.map_err(|error| self.failed(error))
    }

    /// Cuts the file off at `len` bytes.
    pub(crate) fn truncate(&mut self, len: u64) -> Result<()> {
        let cut = self.file.flush().and_then(|()| {
            self.file.get_ref().set_len(len)?;
            self.file.seek(SeekFrom::Start(len)).map(drop)
        });
        cut.map_err(|error| self.failed(error))?;
        self.len = len;
        Ok(())
    }

    /// Flushes the file to the disk and gives it its name.
    pub(crate) fn publish(self) -> Result<()> {
        self.seal()?.publish()
    }

    /// Flushes the file to the disk. Nothing can be appended afterward.
    pub(crate) fn seal(self) -> Result<Sealed> {
        let Self { path, existing, file, new, .. } = self;
        let failed = |error| cannot_write(&path, error);
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        // The mode that open(2) would have given the file.
        file.set_permissions(Permissions::from_mode(0o666 & !kernel_file::umask()))
            .map_err(failed)?;
        file.sync_all().map_err(failed)?;
        Ok(Sealed { path, existing, new })
    }

    fn failed(&self, error: io::Error) -> Error {
        cannot_write(&self.path, error)
    }
}

/// A complete file that has no name yet.
pub(crate) struct Sealed {
    path: PathBuf,
    existing: Existing,
    new: NewFile,
}

impl Sealed {
    pub(crate) fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// `InvalidInput` if the path exists and must not be replaced; `Io`.
    pub(crate) fn publish(self) -> Result<()> {
        let Self { path, existing, new } = self;
        new.publish(path.file_name().unwrap_or_default(), existing)
            .map_err(|error| cannot_name(&path, error))
    }

    /// Closes the file to save descriptors; a temporary name keeps it.
    pub(crate) fn closed(self) -> Result<Self> {
        let Self { path, existing, new } = self;
        let new = new.closed().map_err(|error| cannot_name(&path, error))?;
        Ok(Self { path, existing, new })
    }
}

fn cannot_name(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
        _ => cannot_write(path, error),
    }
}

fn cannot_write(path: &Path, error: io::Error) -> Error {
    let full = matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    );
    let error = Error::io(format!("{}: cannot write", path.display()), error);
    if full {
        error.with_hint(
            "the incomplete archive was removed; write to a file system with more free space",
        )
    } else {
        error
    }
}

pub(super) const PREFIX: &str = ".archfs-pack-";

pub(super) fn open_parent(path: &Path) -> Result<Directory> {
    let parent = parent_of(path);
    Directory::open(parent).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Error::new(Kind::NotFound, format!("{}: no such directory", parent.display()))
                .with_hint("create it first, or use another path")
        }
        _ => cannot_create(path, error),
    })
}

fn cannot_create(path: &Path, error: io::Error) -> Error {
    Error::io(format!("{}: cannot create", path.display()), error)
}

fn exists(path: &Path) -> Error {
    Error::new(Kind::InvalidInput, format!("{}: already exists", path.display()))
        .with_hint("use --force to replace it")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn names(parent: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(parent)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn appears_complete_or_not_at_all() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("a");
        let mut output = Output::create(&path, Existing::Refuse).unwrap();
        output.append(b"0123456789").unwrap();
        output.overwrite(b"XY", 2).unwrap();
        output.truncate(6).unwrap();
        output.append(b"z").unwrap();
        assert_eq!(output.len(), 7);
        assert!(!path.exists());
        output.publish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"01XY45z");

        let mut dropped = Output::create(&path, Existing::Replace).unwrap();
        dropped.append(b"never seen").unwrap();
        drop(dropped);
        assert_eq!(names(work.path()), ["a"]);
        assert_eq!(fs::read(&path).unwrap(), b"01XY45z");
    }

    #[test]
    fn replaces_only_with_existing_replace() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("a");
        let early = Output::create(&path, Existing::Refuse).unwrap();
        fs::write(&path, "another file").unwrap();
        assert!(early.publish().is_err());
        assert!(Output::create(&path, Existing::Refuse).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"another file");
        let mut forced = Output::create(&path, Existing::Replace).unwrap();
        forced.append(b"mine").unwrap();
        forced.publish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        assert_eq!(names(work.path()), ["a"]);
        assert!(Output::create(work.path(), Existing::Replace).is_err());
    }

    /// > `pack` writes its archive into the directory that it opened at the start, even if the path
    /// > leads elsewhere later.
    #[test]
    fn an_archive_stays_in_the_directory_that_was_opened_first() {
        let work = tempfile::tempdir().unwrap();
        let [parent, moved, victim] =
            ["parent", "moved", "victim"].map(|name| work.path().join(name));
        fs::create_dir(&parent).unwrap();
        fs::create_dir(&victim).unwrap();
        let mut output = Output::create(&parent.join("a"), Existing::Replace).unwrap();
        output.append(b"x").unwrap();
        fs::rename(&parent, &moved).unwrap();
        std::os::unix::fs::symlink(&victim, &parent).unwrap();
        output.publish().unwrap();
        assert_eq!((names(&moved), names(&victim)), (vec!["a".to_owned()], Vec::new()));
    }
}
