//! A directory that is opened once, and files in it by name.
//!
//! A path can lead elsewhere each time it is used: whoever may write to a directory on the way can
//! put a link in the place of the next one. What is done here is done in the directory that was
//! opened. Invariant: the last component of no path is followed if it is a link.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags, linkat};

use super::file::FileStorage;
use super::trust::{is_served_by_another, is_trusted};

/// What the names of files begin with that are not complete yet.
const PREFIX: &str = ".archfs-";

/// An open directory.
#[derive(Debug)]
pub struct Directory {
    opened: File,
    metadata: Metadata,
}

/// Who else may read a file that is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readers {
    /// The group of the file.
    pub group: u32,
    /// Permissions of the group and of others; the owner may always read and write.
    pub mode: u32,
}

impl Directory {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_with(path, OFlags::empty())
    }

    fn open_with(path: &Path, flags: OFlags) -> io::Result<Self> {
        let flags = flags | OFlags::PATH | OFlags::DIRECTORY;
        let opened =
            OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
        let metadata = opened.metadata()?;
        Ok(Self { opened, metadata })
    }

    /// The directory in which `file` is, and its name there, with all links followed. `None` where
    /// that cannot be told: the file has no name, or was replaced since it was opened.
    pub fn of(file: &FileStorage) -> Option<(Self, OsString, PathBuf)> {
        let path = fs::canonicalize(file.path()).ok()?;
        let (parent, name) = (path.parent()?, path.file_name()?);
        let directory = Self::open_with(parent, OFlags::NOFOLLOW).ok()?;
        let found = fs::symlink_metadata(directory.at(name)).ok()?;
        let is_same = (found.dev(), found.ino()) == file.identity().inode;
        is_same.then(|| (directory, name.to_owned(), path.clone()))
    }

    /// A path to `name` in this directory.
    fn at(&self, name: &OsStr) -> PathBuf {
        self.path().join(name)
    }

    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.opened.as_raw_fd()).into()
    }

    /// Whether nobody but this user and root can create, rename or remove files here, nor `owner`,
    /// if one is named.
    pub fn is_written_only_by_us(&self, owner: Option<u32>) -> bool {
        let is_known = is_trusted(&self.metadata) || owner == Some(self.metadata.uid());
        is_known && self.metadata.mode() & 0o022 == 0 && !is_served_by_another(&self.opened)
    }

    /// Whether everybody can remove and rename the files of others here.
    pub fn is_open_to_all(&self) -> bool {
        self.metadata.mode() & 0o1002 == 0o002
    }

    /// Whether others than the owner and the group can enter.
    pub fn is_entered_by_others(&self) -> bool {
        self.metadata.mode() & 0o001 != 0
    }

    /// Opens the file `name` for reading. A pipe does not wait for its writer.
    ///
    /// # Errors
    /// The system's; `ELOOP` for a symbolic link.
    pub fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
        OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(self.at(name))
    }

    /// Creates the file `name`, in the place of another one, with what `write` puts into it. Until
    /// it is complete it has another name or none, and nothing is left if this process is killed
    /// where the file system knows files without a name (O_TMPFILE in open(2)).
    ///
    /// # Errors
    /// The system's, and those of `write`.
    pub fn replace(
        &self,
        name: &OsStr,
        readers: Readers,
        write: &mut dyn FnMut(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        if let Some(mut file) = self.nameless() {
            write(&mut file)?;
            share(&file, readers)?;
            if self.publish(&file, name).is_ok() {
                return Ok(());
            }
            // This file system gives such a file no name.
        }
        let mut file = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(self.path())?;
        write(file.as_file_mut())?;
        share(file.as_file(), readers)?;
        file.persist(self.at(name)).map(|_| ()).map_err(|error| error.error)
    }

    fn nameless(&self) -> Option<File> {
        let flags = OFlags::TMPFILE.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.write(true).mode(0o600).custom_flags(flags).open(self.path()).ok()
    }

    /// A name can be given but not replaced in one step, so the file gets another one in between.
    fn publish(&self, file: &File, name: &OsStr) -> io::Result<()> {
        let source = format!("/proc/self/fd/{}", file.as_raw_fd());
        let named = tempfile::Builder::new().prefix(PREFIX).make_in(self.path(), |path| {
            Ok(linkat(CWD, &source, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
        })?;
        named.into_temp_path().persist(self.at(name)).map_err(|error| error.error)
    }
}

/// Gives `file` to its readers. One whose group this user may not choose is not for a group.
fn share(file: &File, Readers { group, mode }: Readers) -> io::Result<()> {
    let mut mode = mode & 0o044;
    if mode & 0o040 != 0 && file.metadata()?.gid() != group {
        match fchown(file, None, Some(group)) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::PermissionDenied => mode &= !0o040,
            Err(error) => return Err(error),
        }
    }
    file.set_permissions(Permissions::from_mode(0o600 | mode))
}
