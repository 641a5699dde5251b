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

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::geteuid;

use super::file::FileStorage;
use super::new_file::{Existing, NewFile};
use super::trust::{is_served_by_another, is_trusted};
use crate::sync::Arc;

/// What the names of files begin with that are not complete yet.
const PREFIX: &str = ".archfs-";

/// An open directory.
#[derive(Clone, Debug)]
pub struct Directory {
    opened: Arc<Opened>,
}

#[derive(Debug)]
struct Opened {
    file: File,
    metadata: Metadata,
}

/// A file that was to be opened for appending.
#[derive(Debug)]
pub enum Appended {
    /// It can be written to.
    Opened(File),
    /// Another user can have put it there.
    Planted,
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
        let file =
            OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
        let metadata = file.metadata()?;
        Ok(Self { opened: Arc::new(Opened { file, metadata }) })
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

    /// A path to this directory, for as long as it is open.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.opened.file.as_raw_fd()).into()
    }

    /// Whether nobody but this user and root can create, rename or remove files here, nor `owner`,
    /// if one is named.
    pub fn is_written_only_by_us(&self, owner: Option<u32>) -> bool {
        let is_known =
            is_trusted(&self.opened.metadata) || owner == Some(self.opened.metadata.uid());
        is_known
            && self.opened.metadata.mode() & 0o022 == 0
            && !is_served_by_another(&self.opened.file)
    }

    /// Whether everybody can remove and rename the files of others here.
    pub fn is_open_to_all(&self) -> bool {
        self.opened.metadata.mode() & 0o1002 == 0o002
    }

    /// Whether others than the owner and the group can enter.
    pub fn is_entered_by_others(&self) -> bool {
        self.opened.metadata.mode() & 0o001 != 0
    }

    /// Opens the file `name` for reading. A pipe does not wait for its writer.
    ///
    /// # Errors
    /// The system's; `ELOOP` for a symbolic link.
    pub fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
        OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(self.at(name))
    }

    /// Opens the file `name` for appending, or makes it for this user alone. A pipe without
    /// a reader is an error. A link of the user's own or root's is followed.
    ///
    /// # Errors
    /// The system's.
    pub fn append(&self, name: &OsStr) -> io::Result<Appended> {
        let open = |flags: OFlags, is_new: bool| {
            let flags = (flags | OFlags::NONBLOCK).bits().cast_signed();
            let mut options = OpenOptions::new();
            options.append(true).mode(0o600).create_new(is_new).custom_flags(flags);
            options.open(self.at(name))
        };
        loop {
            match open(OFlags::NOFOLLOW, false) {
                Ok(file) if self.could_be_planted(&file.metadata()?) => {
                    return Ok(Appended::Planted);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
                    return self.append_by_link(name);
                }
                Err(error) => {
                    // What cannot be opened may be another user's.
                    let found = fs::symlink_metadata(self.at(name));
                    return match found.is_ok_and(|found| self.could_be_planted(&found)) {
                        true => Ok(Appended::Planted),
                        false => Err(error),
                    };
                }
                Ok(file) => return Ok(Appended::Opened(file)),
            }
            match open(OFlags::empty(), true) {
                // Another process made it just now.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                opened => return opened.map(Appended::Opened),
            }
        }
    }

    fn append_by_link(&self, name: &OsStr) -> io::Result<Appended> {
        let link = fs::symlink_metadata(self.at(name))?;
        // The owner of the directory could put another link in its place.
        if self.could_be_planted(&link) || (geteuid().is_root() && self.belongs_to_another()) {
            return Ok(Appended::Planted);
        }
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        options.open(self.at(name)).map(Appended::Opened)
    }

    /// Whether another user can have put `found` here where this user would not expect it. A user
    /// who names a directory of another user expects what that one puts there; root does not.
    fn could_be_planted(&self, found: &Metadata) -> bool {
        let is_of_all = self.opened.metadata.mode() & 0o002 != 0;
        let is_of_another = geteuid().is_root() && self.belongs_to_another();
        let is_of_owner =
            !is_of_all && !found.is_symlink() && found.uid() == self.opened.metadata.uid();
        let has_other_names = found.is_file() && found.nlink() > 1;
        (is_of_all || is_of_another) && (has_other_names || !(is_trusted(found) || is_of_owner))
    }

    fn belongs_to_another(&self) -> bool {
        !is_trusted(&self.opened.metadata)
    }

    /// Creates the file `name`, in the place of another one, with what `write` puts into it.
    /// Returns the file, open for reading.
    ///
    /// # Errors
    /// The system's, and those of `write`.
    pub fn replace(
        &self,
        name: &OsStr,
        readers: Readers,
        write: &mut dyn FnMut(&mut File) -> io::Result<()>,
    ) -> io::Result<File> {
        let mut written = |(mut file, new): (File, NewFile)| {
            write(&mut file)?;
            share(&file, readers)?;
            Ok::<_, io::Error>((file, new))
        };
        let (file, new) = written(NewFile::create(self, PREFIX)?)?;
        match new.publish(name, Existing::Replace) {
            Ok(()) => Ok(file),
            // Some file systems have files without a name, and cannot name them.
            Err(_) => {
                let (file, new) = written(NewFile::create_named(self, PREFIX)?)?;
                new.publish(name, Existing::Replace)?;
                Ok(file)
            }
        }
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
