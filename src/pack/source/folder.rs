//! A directory on a disk as a source. `disk` examines single files, `table` reads them.
//!
//! Invariants: symbolic links below the directory are never followed. The archive that is being
//! written is not found.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Dir, Mode, OFlags, fstat, openat};

use super::disk;
use super::found::{At, Folder, Found, Listed, Seen, Source};
use super::list::Wanted;
use super::table;
use crate::error::{Error, Kind, Result};
use crate::pack::{output, shards};

/// What happens to directories on which another file system is mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtherMounts {
    /// They are packed with their contents.
    #[default]
    Enter,
    /// They are packed as empty directories.
    Skip,
}

/// The archive that is being written, which is not packed into itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CreatedArchive {
    /// The directory that it will be in.
    folder: At,
    name: Vec<u8>,
    names: Names,
}

/// Which names a run creates in the directory of the archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// Only that of the archive.
    #[default]
    One,
    /// Those of the shards and their class list, but not that of the archive itself.
    Shards,
}

impl CreatedArchive {
    /// The archive that will be at `path`; `None` if its directory does not exist.
    pub(super) fn at(path: &Path, names: Names) -> Option<Self> {
        use std::os::unix::ffi::OsStrExt;
        let stat = rustix::fs::stat(output::folder_of(path)).ok()?;
        let name = path.file_name()?.as_bytes().to_vec();
        Some(Self { folder: disk::at(&stat), name, names })
    }

    /// Whether `name` in `directory` is the archive or a temporary file of a run.
    pub(super) fn is(&self, folder: At, name: &[u8]) -> bool {
        let is_made = || match self.names {
            Names::One => self.name == name,
            Names::Shards => shards::is_shard(&self.name, name),
        };
        self.folder == folder && (name.starts_with(output::PREFIX.as_bytes()) || is_made())
    }
}

/// A directory on a disk.
pub(super) struct DiskFolder<'f> {
    base: OwnedFd,
    /// Its path as the user gave it, for messages.
    shown: Vec<u8>,
    /// Its own identity.
    at: At,
    others: OtherMounts,
    made: Option<&'f CreatedArchive>,
}

impl<'f> DiskFolder<'f> {
    /// Opens the directory at `path`, which may be a symbolic link to one.
    ///
    /// # Errors
    /// `NotADirectory`, `Io`.
    pub(super) fn open(
        path: &Path,
        others: OtherMounts,
        made: Option<&'f CreatedArchive>,
    ) -> Result<(Self, Found)> {
        use std::os::unix::ffi::OsStrExt;
        let failed = |error: rustix::io::Errno| {
            Error::io(format!("{}: can not be opened", path.display()), error.into())
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = openat(CWD, path, flags, Mode::empty()).map_err(failed)?;
        let at = disk::at(&fstat(&base).map_err(failed)?);
        let found =
            disk::examine(base.as_fd(), b".").map_err(|error| error.within(path.display()))?;
        let shown = path.as_os_str().as_bytes().to_vec();
        Ok((Self { base, shown, at, others, made }, found))
    }

    /// The open directory, and its path as the user gave it.
    pub(super) fn into_base(self) -> (OwnedFd, Vec<u8>) {
        (self.base, self.shown)
    }

    fn open_folder(&self, folder: &Folder) -> Result<OwnedFd> {
        let failed = |error| Error::io("can not be listed", error);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = disk::open_below(self.base.as_fd(), &folder.path, flags).map_err(failed)?;
        let stat = fstat(&opened).map_err(|error| failed(error.into()))?;
        if disk::at(&stat) != folder.at {
            return Err(Error::new(Kind::Changed, "replaced by another while it was listed"));
        }
        Ok(opened)
    }

    fn look_at(&self, opened: &OwnedFd, folder: &Folder, listed: &Listed) -> Result<Option<Found>> {
        if self.made.is_some_and(|made| made.is(folder.at, &listed.name)) {
            return Ok(None);
        }
        let mut found = disk::examine(opened.as_fd(), &listed.name).map_err(|error| {
            match (error.kind(), &folder.wanted) {
                (Kind::Changed, Wanted::Only(_)) => Error::new(Kind::NotFound, "no such file"),
                _ => error,
            }
        })?;
        if let Seen::Folder { entered } = &mut found.seen {
            *entered = self.others == OtherMounts::Enter || found.at.device == self.at.device;
        }
        Ok(Some(found))
    }
}

impl Source for DiskFolder<'_> {
    fn names(&self, folder: &Folder) -> Result<Vec<Listed>> {
        let failed = |error: rustix::io::Errno| Error::io("can not be listed", error.into());
        let opened = self.open_folder(folder)?;
        let mut names = Vec::new();
        for entry in Dir::new(opened).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(Listed { name: name.into(), number: None });
            }
        }
        Ok(names)
    }

    fn look(&self, folder: &Folder, names: &[Listed]) -> Vec<Result<Option<Found>>> {
        match self.open_folder(folder) {
            Ok(opened) => names.iter().map(|name| self.look_at(&opened, folder, name)).collect(),
            Err(error) => {
                let again = |_: &Listed| Err(Error::new(error.kind(), error.to_string()));
                names.iter().map(again).collect()
            }
        }
    }

    fn origin(&self, path: &[u8]) -> String {
        table::shown(&self.shown, path)
    }
}
