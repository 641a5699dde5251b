//! The directory that is extracted to, and the directories below it:
//! created first, completed last.
//!
//! Invariant: a directory is opened by its name in the one above it, and never through a symbolic
//! link. So what another process puts into the target leads nowhere else.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use super::attributes::{Object, restore};
use super::listing::{DirectoryId, Listing};
use super::{Failure, Report};
use crate::error::{Error, Result};
use crate::os::directory::{Directory, parent_of};
use crate::sync::Arc;
use crate::vfs::{Counts, Tree};

/// Directories that a thread keeps open. All threads together stay well below the usual limit of
/// 1,024 descriptors.
const OPEN_DIRECTORIES: usize = 16;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

pub(super) struct Target {
    file: File,
    /// The directory above and the name, if it was created.
    created: Option<(Directory, OsString)>,
}

impl Target {
    /// Opens `path`. Creates the directory, for this user alone, if it is missing.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = |error| Error::io("cannot open the directory", error);
        let (directory, created) = match Directory::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let cannot_create = |error: io::Error| {
                    let is_missing = error.kind() == ErrorKind::NotFound;
                    let error = Error::io("cannot create the directory", error);
                    match is_missing {
                        true => error.with_hint(
                            "create the directory above it first; to extract a path of the \
                             archive, use --only PATH",
                        ),
                        false => error,
                    }
                };
                let parent = Directory::open(parent_of(path)).map_err(cannot_create)?;
                let name = path.file_name().unwrap_or_default().to_owned();
                let is_new = parent.create(&name).map_err(cannot_create)?;
                let directory = parent.below(&name).map_err(failed)?;
                (directory, is_new.then_some((parent, name)))
            }
            opened => (opened.map_err(failed)?, None),
        };
        let file = directory.open_with(".".as_ref(), DIRECTORY).map_err(failed)?;
        Ok(Self { file, created })
    }

    /// Removes the directory if it was created. Nothing was written to it.
    pub(super) fn give_up(&self) {
        if let Some((parent, name)) = &self.created {
            let _ = parent.remove_directory(name);
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn is_new(&self) -> bool {
        self.created.is_some()
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
    /// Fails with the error of the system; `ELOOP` or `ENOTDIR` if a symbolic link is in its place.
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

/// The directories that could not be created, and those below them. They are reported once, and
/// what is in them is left out.
pub(super) struct Unusable(HashSet<DirectoryId>);

impl Unusable {
    pub(super) fn contains(&self, id: DirectoryId) -> bool {
        self.0.contains(&id)
    }
}

/// Creates all directories, for this user alone.
pub(super) fn create_directories(
    listing: &Listing,
    target: &Target,
    report: &Report<'_>,
) -> Unusable {
    let mut unusable = Unusable(HashSet::new());
    let mut opened = OpenDirectories::new(target, listing);
    for id in listing.below_root() {
        if report.is_stopped() {
            break;
        }
        let parent = listing.directory(id).parent;
        if unusable.contains(parent) {
            unusable.0.insert(id);
            continue;
        }
        let created = opened.open(parent).and_then(|parent| {
            match mkdirat(&parent, listing.directory_name(id), Mode::RWXU) {
                // It must be a directory.
                Err(Errno::EXIST) => opened.open(id).map(drop),
                created => created,
            }
        });
        if let Err(errno) = created {
            let failure = match errno {
                Errno::NOTDIR | Errno::LOOP => Failure::NotADirectory,
                errno => Failure::System("cannot create the directory", errno),
            };
            report.failed(listing.directory_path(id), &failure);
            unusable.0.insert(id);
        }
    }
    unusable
}

/// Sets the attributes of all directories, those of the target only if it was created.
pub(super) fn complete_directories(
    tree: &dyn Tree,
    (listing, unusable): (&Listing, &Unusable),
    target: &Target,
    report: &Report<'_>,
) {
    let mut opened = OpenDirectories::new(target, listing);
    let root = target.is_new().then_some(DirectoryId::ROOT);
    // From the bottom up, because a directory may become unreadable.
    for id in listing.below_root().rev().chain(root) {
        if report.is_stopped() {
            return;
        }
        if unusable.contains(id) {
            continue;
        }
        let path = || listing.directory_path(id);
        let opened = opened.open(id).map_err(|errno| Failure::System("cannot open", errno));
        let restored = opened.and_then(|opened| {
            let attr = tree.attr(listing.directory(id).ino).map_err(Failure::Tree)?;
            restore(tree, &attr, Object::Open(opened.as_fd()), report, &path)
        });
        match restored {
            Ok(()) => report.written(Counts { directories: 1, ..Counts::default() }),
            Err(failure) => report.failed(path(), &failure),
        }
    }
}
