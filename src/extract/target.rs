//! The directory that is extracted to, and the directories below it.
//!
//! Invariant: a directory is opened by its name in the one above it, and never through a symbolic
//! link. So what another process puts into the target leads nowhere else.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, openat};

use super::listing::{DirectoryId, Listing};
use crate::error::{Error, Result};
use crate::sync::Arc;

/// Directories that a thread keeps open. All threads together stay well below the usual limit of
/// 1,024 descriptors.
const OPEN_DIRECTORIES: usize = 16;

/// How a directory is opened.
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The directory that is extracted to.
pub(super) struct Target {
    file: File,
    is_new: bool,
}

impl Target {
    /// Opens `path`. Creates the directory, for this user alone, if it is missing.
    ///
    /// # Errors
    /// `Io` if that fails.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let is_new = match fs::DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => return Err(Error::io("cannot create the directory", error)),
        };
        let opened = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let opened =
            opened.map_err(|errno| Error::io("cannot open the directory", errno.into()))?;
        Ok(Self { file: opened.into(), is_new })
    }

    /// Removes the directory at `path` if it was created. Nothing was written to it.
    pub(super) fn give_up(&self, path: &Path) {
        if self.is_new {
            let _ = fs::remove_dir(path);
        }
    }

    /// The open directory.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Whether the directory was created.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }
}

/// The directories below the target that one thread has open.
pub(super) struct OpenDirectories<'t> {
    target: &'t Target,
    listing: &'t Listing,
    slots: [Option<(DirectoryId, Arc<OwnedFd>)>; OPEN_DIRECTORIES],
}

/// An open directory.
#[derive(Clone)]
pub(super) enum OpenDirectory<'t> {
    Root(&'t File),
    Below(Arc<OwnedFd>),
}

impl AsFd for OpenDirectory<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Root(file) => file.as_fd(),
            Self::Below(opened) => opened.as_fd(),
        }
    }
}

impl<'t> OpenDirectories<'t> {
    pub(super) fn new(target: &'t Target, listing: &'t Listing) -> Self {
        Self { target, listing, slots: [const { None }; OPEN_DIRECTORIES] }
    }

    /// Opens the directory `id`.
    ///
    /// # Errors
    /// Those of the system; `ELOOP` or `ENOTDIR` if a symbolic link is in its place.
    pub(super) fn open(&mut self, id: DirectoryId) -> rustix::io::Result<OpenDirectory<'t>> {
        // A list and not recursion, because an archive may be arbitrarily deep.
        let mut missing = Vec::new();
        let mut next = id;
        let mut opened = loop {
            if next == DirectoryId::ROOT {
                break OpenDirectory::Root(&self.target.file);
            }
            match &self.slots[next.index() % OPEN_DIRECTORIES] {
                Some((known, opened)) if *known == next => {
                    break OpenDirectory::Below(Arc::clone(opened));
                }
                _ => missing.push(next),
            }
            next = self.listing.directory(next).parent;
        };
        for id in missing.into_iter().rev() {
            let name = self.listing.directory_name(id);
            let below = Arc::new(openat(&opened, name, DIRECTORY, Mode::empty())?);
            self.slots[id.index() % OPEN_DIRECTORIES] = Some((id, Arc::clone(&below)));
            opened = OpenDirectory::Below(below);
        }
        Ok(opened)
    }
}
