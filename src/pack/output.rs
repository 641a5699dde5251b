//! The archive that is being written.
//!
//! Owns that it appears under its name whole or not at all; leaves what is in it to the writers.
//! Invariant: until `publish`, nothing has the final name, and a process that ends before leaves
//! nothing where the file system knows files without a name (O_TMPFILE), else removes what it made
//! unless it is killed by SIGKILL.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};
use rustix::io::Errno;
use tempfile::{Builder, TempPath};

use crate::error::{Error, Kind, Result};
use crate::kernel_file;

/// What becomes of a file that has the name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and there is no new one.
    Refuse,
    /// It is replaced at the end, and stays until then.
    Replace,
}

/// Bytes that are collected before they are written.
const BUFFER: usize = 1 << 20;

/// A file that gets its name when it is whole.
pub(crate) struct Output {
    path: PathBuf,
    existing: Existing,
    file: BufWriter<File>,
    /// Its name so far, where the file system has no files without one.
    named: Option<TempPath>,
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
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let (file, named) = match openat(CWD, folder, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => (File::from(file), None),
            // No such thing on that file system (NFS, some parallel ones), or in that kernel.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => {
                let (file, named) = temporary(folder).map_err(failed)?.into_parts();
                (file, Some(named))
            }
            Err(error) => return Err(failed(error.into())),
        };
        let file = BufWriter::with_capacity(BUFFER, file);
        Ok(Self { path: path.to_owned(), existing, file, named, len: 0 })
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
        let Self { path, existing, file, named, .. } = self;
        let failed = |error| cannot_write(&path, error);
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        // As if it had been made by open(2): what the umask lets others do.
        file.set_permissions(Permissions::from_mode(0o666 & !umask())).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        let content = match named {
            Some(named) => Content::Named(named),
            None => Content::Nameless(file),
        };
        Ok(Sealed { path, existing, content })
    }

    fn failed(&self, error: io::Error) -> Error {
        cannot_write(&self.path, error)
    }
}

/// A whole file that only lacks its name.
pub(crate) struct Sealed {
    path: PathBuf,
    existing: Existing,
    content: Content,
}

/// Where the bytes are until they have their name.
enum Content {
    Nameless(File),
    /// Under a name that is removed when this is dropped.
    Named(TempPath),
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
        let Self { path, existing, content } = self;
        let named = match (content, existing) {
            (Content::Named(named), _) => Ok(named),
            (Content::Nameless(file), Existing::Refuse) => {
                return link(&file, &path).map_err(|error| cannot_name(&path, error));
            }
            // A link can not replace, so it gets a name of its own first.
            (Content::Nameless(file), Existing::Replace) => name_for_a_while(&file, &path),
        };
        let kept = named.and_then(|named| {
            let kept = match existing {
                Existing::Replace => named.persist(&path),
                Existing::Refuse => named.persist_noclobber(&path),
            };
            kept.map_err(|error| error.error)
        });
        kept.map_err(|error| cannot_name(&path, error))
    }

    /// The same without an open file, where there are many: it gets a name for a while.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn closed(self) -> Result<Self> {
        let Self { path, existing, content } = self;
        let named = match content {
            Content::Named(named) => Ok(named),
            Content::Nameless(file) => name_for_a_while(&file, &path),
        };
        let named = named.map_err(|error| cannot_name(&path, error))?;
        Ok(Self { path, existing, content: Content::Named(named) })
    }
}

/// Gives a file without a name one.
fn link(file: &File, path: &Path) -> io::Result<()> {
    let file = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(linkat(CWD, file, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// Gives a file without a name one beside `path`.
fn name_for_a_while(file: &File, path: &Path) -> io::Result<TempPath> {
    let make = |path: &Path| link(file, path);
    Ok(Builder::new().prefix(PREFIX).make_in(folder_of(path), make)?.into_temp_path())
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

fn temporary(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    Builder::new().prefix(PREFIX).permissions(Permissions::from_mode(0o600)).tempfile_in(folder)
}

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

    #[test]
    fn a_file_with_a_name_of_its_own_is_renamed_or_removed() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("a");
        for existing in [Existing::Refuse, Existing::Replace] {
            let (file, named) = temporary(work.path()).unwrap().into_parts();
            let file = BufWriter::new(file);
            let mut output =
                Output { path: path.clone(), existing, file, named: Some(named), len: 0 };
            output.append(b"x").unwrap();
            output.publish().unwrap();
            assert_eq!(names(work.path()), ["a"]);
        }
    }
}
