//! A directory on a disk as a source. `disk` examines single files, `table` reads them.
//!
//! Invariants: symbolic links below the directory are never followed. The archive that is being
//! written is not found.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Dir, Mode, OFlags, fstat, openat};

use super::disk::{self, OpenDirectory};
use super::found::{Directory, FileId, Found, FoundKind, Listed, Source, XattrRule};
use super::list::Wanted;
use super::table;
use crate::error::{Error, Kind, Result};
use crate::os::directory::parent_of;
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
pub(super) struct OutputArchive {
    /// The directory that it will be in.
    directory: FileId,
    name: Vec<u8>,
    names: OutputNames,
}

/// Which names a run creates in the directory of the archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputNames {
    /// Only that of the archive.
    #[default]
    One,
    /// Those of the shards and their class list, but not that of the archive itself.
    Shards,
}

impl OutputArchive {
    /// The archive that will be at `path`; `None` if its directory does not exist.
    pub(super) fn new(path: &Path, names: OutputNames) -> Option<Self> {
        use std::os::unix::ffi::OsStrExt;
        let stat = rustix::fs::stat(parent_of(path)).ok()?;
        let name = path.file_name()?.as_bytes().to_vec();
        Some(Self { directory: disk::file_id(&stat), name, names })
    }

    /// Whether `name` in `directory` is the archive or a temporary file of a run.
    pub(super) fn matches(&self, directory: FileId, name: &[u8]) -> bool {
        let is_archive = || match self.names {
            OutputNames::One => self.name == name,
            OutputNames::Shards => shards::is_shard(&self.name, name),
        };
        self.directory == directory && (name.starts_with(output::PREFIX.as_bytes()) || is_archive())
    }
}

/// A directory on a disk.
pub(super) struct DiskDirectory<'f> {
    base: OwnedFd,
    /// Its path as the user gave it, for messages.
    display: Vec<u8>,
    /// Its own identity.
    id: FileId,
    other_mounts: OtherMounts,
    xattr_rule: XattrRule,
    output_archive: Option<&'f OutputArchive>,
}

impl<'f> DiskDirectory<'f> {
    /// Opens the directory at `path`, which may be a symbolic link to one.
    pub(super) fn open(
        path: &Path,
        other_mounts: OtherMounts,
        xattr_rule: XattrRule,
        output_archive: Option<&'f OutputArchive>,
    ) -> Result<(Self, Found)> {
        use std::os::unix::ffi::OsStrExt;
        let failed = |error: rustix::io::Errno| {
            Error::io(format!("{}: cannot open", path.display()), error.into())
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = openat(CWD, path, flags, Mode::empty()).map_err(failed)?;
        let id = disk::file_id(&fstat(&base).map_err(failed)?);
        let found = disk::examine(&OpenDirectory::new(base.as_fd(), xattr_rule), b".", xattr_rule)
            .map_err(|error| error.within(path.display()))?;
        let display = path.as_os_str().as_bytes().to_vec();
        Ok((Self { base, display, id, other_mounts, xattr_rule, output_archive }, found))
    }

    /// The open directory, and its path as the user gave it.
    pub(super) fn into_base(self) -> (OwnedFd, Vec<u8>) {
        (self.base, self.display)
    }

    fn open_directory(&self, directory: &Directory) -> Result<OwnedFd> {
        let failed = |error| Error::io("cannot list the directory", error);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = disk::open_below(self.base.as_fd(), &directory.path, flags).map_err(failed)?;
        let stat = fstat(&opened).map_err(|error| failed(error.into()))?;
        if disk::file_id(&stat) != directory.id {
            return Err(Error::new(
                Kind::Changed,
                "replaced by another directory while it was listed",
            ));
        }
        Ok(opened)
    }

    fn examine_one(
        &self,
        parent: &OpenDirectory<'_>,
        directory: &Directory,
        listed: &Listed,
    ) -> Result<Option<Found>> {
        if self
            .output_archive
            .is_some_and(|output_archive| output_archive.matches(directory.id, &listed.name))
        {
            return Ok(None);
        }
        let found = disk::examine(parent, &listed.name, self.xattr_rule);
        let mut found = found.map_err(|error| match (error.kind(), &directory.wanted) {
            (Kind::Changed, Wanted::Only(_)) => Error::new(Kind::NotFound, "no such file"),
            _ => error,
        })?;
        if let FoundKind::Directory { entered } = &mut found.kind {
            *entered = self.other_mounts == OtherMounts::Enter || found.id.device == self.id.device;
        }
        Ok(Some(found))
    }
}

impl Source for DiskDirectory<'_> {
    fn names(&self, directory: &Directory) -> Result<Vec<Listed>> {
        let failed =
            |error: rustix::io::Errno| Error::io("cannot list the directory", error.into());
        let opened = self.open_directory(directory)?;
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

    fn examine(&self, directory: &Directory, names: &[Listed]) -> Vec<Result<Option<Found>>> {
        match self.open_directory(directory) {
            Ok(opened) => {
                let parent = OpenDirectory::new(opened.as_fd(), self.xattr_rule);
                names.iter().map(|name| self.examine_one(&parent, directory, name)).collect()
            }
            Err(error) => {
                let again = |_: &Listed| Err(Error::new(error.kind(), error.to_string()));
                names.iter().map(again).collect()
            }
        }
    }

    fn origin(&self, path: &[u8]) -> String {
        table::display_path(&self.display, path)
    }
}
