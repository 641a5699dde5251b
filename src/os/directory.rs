//! A directory that is opened once, and its files by name.
//!
//! A path can lead elsewhere each time it is used: a user with write access to a directory on the
//! way can replace the next component with a link. Operations here stay in the directory that was
//! opened. Invariant: a link as the last component is never followed, except where stated.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::geteuid;

use super::trust::{is_served_by_another, is_trusted};
use crate::sync::Arc;

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

/// The result of opening a file for appending.
#[derive(Debug)]
pub enum Appended {
    /// Open for writing.
    Opened(File),
    /// Another user may have put it there.
    Planted,
}

impl Directory {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// Those of the system.
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

    /// The directory of the file at `path`, the file's name in it, and its path with all links
    /// resolved. `None` if the file has no name or is no longer the one with this device and inode.
    pub fn of(path: &Path, inode: (u64, u64)) -> Option<(Self, OsString, PathBuf)> {
        let path = fs::canonicalize(path).ok()?;
        let (parent, name) = (path.parent()?, path.file_name()?);
        let directory = Self::open_with(parent, OFlags::NOFOLLOW).ok()?;
        let metadata = fs::symlink_metadata(directory.path_of(name)).ok()?;
        let is_same = (metadata.dev(), metadata.ino()) == inode;
        is_same.then(|| (directory, name.to_owned(), path.clone()))
    }

    /// A path to `name` in this directory.
    fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path().join(name)
    }

    /// A path to this directory, valid while it is open.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.opened.file.as_raw_fd()).into()
    }

    /// Like `path`, for other processes of this user.
    pub fn path_for_others(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.opened.file.as_raw_fd()).into()
    }

    /// Whether only this user, root and `owner`, if given, can create, rename or remove files here.
    pub fn is_written_only_by_us(&self, owner: Option<u32>) -> bool {
        let is_known =
            is_trusted(&self.opened.metadata) || owner == Some(self.opened.metadata.uid());
        is_known
            && self.opened.metadata.mode() & 0o022 == 0
            && !is_served_by_another(&self.opened.file)
    }

    /// Whether all users can remove and rename each other's files here.
    pub fn is_open_to_all(&self) -> bool {
        self.opened.metadata.mode() & 0o1002 == 0o002
    }

    /// Whether users other than the owner and the group can enter.
    pub fn is_entered_by_others(&self) -> bool {
        self.opened.metadata.mode() & 0o001 != 0
    }

    /// Opens the file `name` for reading. Does not block on a pipe.
    ///
    /// # Errors
    /// Those of the system; `ELOOP` for a symbolic link.
    pub fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
        OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(self.path_of(name))
    }

    /// Opens the file `name` for appending, or creates it for this user alone. A pipe without a
    /// reader is an error. A link is followed if this user or root owns it.
    ///
    /// # Errors
    /// Those of the system.
    pub fn append(&self, name: &OsStr) -> io::Result<Appended> {
        let open = |flags: OFlags, is_new: bool| {
            let flags = (flags | OFlags::NONBLOCK).bits().cast_signed();
            let mut options = OpenOptions::new();
            options.append(true).mode(0o600).create_new(is_new).custom_flags(flags);
            options.open(self.path_of(name))
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
                    // The open may fail because the file is another user's.
                    let metadata = fs::symlink_metadata(self.path_of(name));
                    return match metadata.is_ok_and(|metadata| self.could_be_planted(&metadata)) {
                        true => Ok(Appended::Planted),
                        false => Err(error),
                    };
                }
                Ok(file) => return Ok(Appended::Opened(file)),
            }
            match open(OFlags::empty(), true) {
                // Another process has just created it.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                opened => return opened.map(Appended::Opened),
            }
        }
    }

    fn append_by_link(&self, name: &OsStr) -> io::Result<Appended> {
        let link = fs::symlink_metadata(self.path_of(name))?;
        // The owner of the directory could replace the link.
        if self.could_be_planted(&link) || (geteuid().is_root() && self.belongs_to_another()) {
            return Ok(Appended::Planted);
        }
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        options.open(self.path_of(name)).map(Appended::Opened)
    }

    /// Whether another user may have put the file of `metadata` here unexpectedly. A user who names
    /// another user's directory expects that user's files there; root does not.
    fn could_be_planted(&self, metadata: &Metadata) -> bool {
        let is_world_writable = self.opened.metadata.mode() & 0o002 != 0;
        let is_of_another = geteuid().is_root() && self.belongs_to_another();
        let is_of_owner = !is_world_writable
            && !metadata.is_symlink()
            && metadata.uid() == self.opened.metadata.uid();
        let has_other_names = metadata.is_file() && metadata.nlink() > 1;
        (is_world_writable || is_of_another)
            && (has_other_names || !(is_trusted(metadata) || is_of_owner))
    }

    fn belongs_to_another(&self) -> bool {
        !is_trusted(&self.opened.metadata)
    }
}
