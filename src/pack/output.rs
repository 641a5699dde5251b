//! The archive that is being written.
//!
//! It appears under its name whole or not at all (`storage::NewFile`), in the folder that was there
//! when it was begun.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::kernel_file;
use crate::storage::{Directory, NewFile};

pub use crate::storage::Existing;

/// Bytes that are collected before they are written.
const BUFFER: usize = 1 << 20;

/// A file that gets its name when it is whole.
pub(crate) struct Output {
    path: PathBuf,
    existing: Existing,
    file: BufWriter<File>,
    new: NewFile,
    len: u64,
}

impl Output {
    /// A new file that will be called `path`.
    ///
    /// # Errors
    /// `InvalidInput` where there is such a file and it is not to be replaced; `Io` where the
    /// folder can not be written to.
    pub(crate) fn create(path: &Path, existing: Existing) -> Result<Self> {
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => {
                let context = format!("{}: is a folder", path.display());
                return Err(Error::new(Kind::IsADirectory, context));
            }
            Ok(_) if existing == Existing::Refuse => return Err(exists(path)),
            _ => {}
        }
        let folder = folder_of(path);
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                Error::new(Kind::NotFound, format!("{}: no such folder", folder.display()))
                    .with_hint("make it first, or give another place")
            }
            _ => Error::io(format!("{}: can not be made", path.display()), error),
        };
        let directory = Directory::open(folder).map_err(failed)?;
        let (file, new) = NewFile::create(&directory, PREFIX).map_err(failed)?;
        let file = BufWriter::with_capacity(BUFFER, file);
        Ok(Self { path: path.to_owned(), existing, file, new, len: 0 })
    }

    /// Bytes so far: where the next ones will stand.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Adds `bytes` at the end.
    ///
    /// # Errors
    /// `Io`, such as where the disk is full.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| self.failed(error))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Writes `bytes` over those at `offset`, which are there already.
    ///
    /// # Errors
    /// As `append`.
    pub(crate) fn overwrite(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        let written =
            self.file.flush().and_then(|()| self.file.get_ref().write_all_at(bytes, offset));
        written.map_err(|error| self.failed(error))
    }

    /// Drops what stands from `len` on.
    ///
    /// # Errors
    /// As `append`.
    pub(crate) fn truncate(&mut self, len: u64) -> Result<()> {
        let cut = self.file.flush().and_then(|()| {
            self.file.get_ref().set_len(len)?;
            self.file.seek(SeekFrom::Start(len)).map(drop)
        });
        cut.map_err(|error| self.failed(error))?;
        self.len = len;
        Ok(())
    }

    /// Makes sure that all of it is on the disk, and gives it its name.
    ///
    /// # Errors
    /// As `create` and `append`.
    pub(crate) fn publish(self) -> Result<()> {
        self.seal()?.publish()
    }

    /// Makes sure that all of it is on the disk; nothing can be added any more.
    ///
    /// # Errors
    /// As `append`.
    pub(crate) fn seal(self) -> Result<Sealed> {
        let Self { path, existing, file, new, .. } = self;
        let failed = |error| cannot_write(&path, error);
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        // As if it had been made by open(2): what the umask lets others do.
        file.set_permissions(Permissions::from_mode(0o666 & !umask())).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        Ok(Sealed { path, existing, new })
    }

    fn failed(&self, error: io::Error) -> Error {
        cannot_write(&self.path, error)
    }
}

/// A whole file that only lacks its name.
pub(crate) struct Sealed {
    path: PathBuf,
    existing: Existing,
    new: NewFile,
}

impl Sealed {
    /// What it will be called.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name.
    ///
    /// # Errors
    /// `InvalidInput` where there is such a file and it is not to be replaced; `Io`.
    pub(crate) fn publish(self) -> Result<()> {
        let Self { path, existing, new } = self;
        let name = path.file_name().unwrap_or_default();
        new.publish(name, existing).map_err(|error| cannot_name(&path, error))
    }

    /// The same without an open file, where there are many: it gets a name for the time being.
    ///
    /// # Errors
    /// `Io`.
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
    let error = Error::io(format!("{}: can not be written", path.display()), error);
    if full {
        error.with_hint("nothing of it is left there; give a place with more room")
    } else {
        error
    }
}

/// What names begin with that are there only for a while.
pub(super) const PREFIX: &str = ".archfs-pack-";

/// The folder that `path` is in.
pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn exists(path: &Path) -> Error {
    Error::new(Kind::InvalidInput, format!("{}: is there already", path.display()))
        .with_hint("--force replaces it")
}

/// The bits that a new file of this process does not get.
fn umask() -> u32 {
    let mask = kernel_file::own_status("Umask");
    mask.and_then(|mask| u32::from_str_radix(&mask, 8).ok()).unwrap_or(0o077)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn appears_whole_or_not_at_all() {
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
    fn replaces_only_when_told_to() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("a");
        let early = Output::create(&path, Existing::Refuse).unwrap();
        fs::write(&path, "somebody else's").unwrap();
        assert!(early.publish().is_err());
        assert!(Output::create(&path, Existing::Refuse).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"somebody else's");
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
    fn an_archive_stays_in_the_folder_that_was_there_when_it_was_begun() {
        let work = tempfile::tempdir().unwrap();
        let [folder, moved, victim] =
            ["folder", "moved", "victim"].map(|name| work.path().join(name));
        fs::create_dir(&folder).unwrap();
        fs::create_dir(&victim).unwrap();
        let mut output = Output::create(&folder.join("a"), Existing::Replace).unwrap();
        output.append(b"x").unwrap();
        fs::rename(&folder, &moved).unwrap();
        std::os::unix::fs::symlink(&victim, &folder).unwrap();
        output.publish().unwrap();
        assert_eq!((names(&moved), names(&victim)), (vec!["a".to_owned()], Vec::new()));
    }
}
