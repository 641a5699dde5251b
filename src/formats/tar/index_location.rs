//! Where the index of an archive may be: beside it, in the user's cache directory, at the path that
//! the user gave, or beside it at its server.
//!
//! The directory of the archive is opened once. If an attacker replaces it with a link during the
//! scan, the index still goes into the directory that was opened.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::os::directory::{Directory, cache_directory, create_cache, parent_of};
use crate::storage::FileStorage;
use crate::url;

/// A path where an index may be.
pub(super) struct IndexLocation {
    pub(super) kind: LocationKind,
    /// `None` if it cannot be opened or does not exist yet.
    pub(super) directory: Option<Directory>,
    pub(super) name: OsString,
    /// For messages.
    pub(super) path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LocationKind {
    /// In the directory of the archive.
    Beside,
    /// In the user's cache directory.
    Cached,
    /// At the path that the user gave.
    Named,
    /// Beside the archive at its server.
    AtServer,
}

impl IndexLocation {
    /// The paths for the index of `file` if the user gave none, in the order to try them.
    pub(super) fn usual(file: &FileStorage, recursive: bool) -> Vec<Self> {
        let suffix = suffix(recursive);
        let locations =
            [Self::beside(file, suffix), Self::cached(file, suffix), Self::at_server(file, suffix)];
        locations.into_iter().flatten().collect()
    }

    /// The path that the user gave.
    pub(super) fn named(path: &Path) -> Self {
        let directory = Directory::open(parent_of(path)).ok();
        let name = path.file_name().unwrap_or_default().to_owned();
        Self { kind: LocationKind::Named, directory, name, path: path.to_owned() }
    }

    /// The file that lists the indexes of `file` that were refused.
    pub(super) fn refused(file: &FileStorage, recursive: bool) -> Option<Self> {
        Self::cached(file, &format!("{}.refused", suffix(recursive)))
    }

    fn beside(file: &FileStorage, suffix: &str) -> Option<Self> {
        // On FUSE, the daemon can report any owner for an index.
        if file.is_remote() || file.origin().is_served_by_process() {
            return None;
        }
        let (directory, mut name, path) = Directory::of(file.path(), file.identity().inode)?;
        name.push(suffix);
        let path = path.with_file_name(&name);
        Some(Self { kind: LocationKind::Beside, directory: Some(directory), name, path })
    }

    fn at_server(file: &FileStorage, suffix: &str) -> Option<Self> {
        let path = file.is_remote().then(|| url::beside(file.path(), suffix))??;
        let name = OsString::new();
        Some(Self { kind: LocationKind::AtServer, directory: None, name, path })
    }

    fn cached(file: &FileStorage, suffix: &str) -> Option<Self> {
        let cache_directory = cache_directory()?;
        let name = cached_name(file, suffix);
        let path = cache_directory.join(&name);
        let directory = Directory::open(&cache_directory).ok();
        Some(Self { kind: LocationKind::Cached, directory, name, path })
    }

    /// The file at this path, if it exists.
    pub(super) fn open(&self) -> io::Result<Option<File>> {
        let Some(directory) = &self.directory else {
            return Ok(None);
        };
        match directory.open_file(&self.name) {
            Ok(file) => Ok(Some(file)),
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The directory to save the index in. Creates the user's cache directory; others must exist.
    pub(super) fn directory_to_write(&self) -> io::Result<Directory> {
        match (self.kind, &self.directory) {
            (LocationKind::Cached, _) => create_cache(),
            (_, Some(directory)) => Ok(directory.clone()),
            // For the reason.
            (_, None) => Directory::open(parent_of(&self.path)),
        }
    }
}

/// What the name of an index ends with.
fn suffix(recursive: bool) -> &'static str {
    if recursive { ".recursive.archfs-index" } else { ".archfs-index" }
}

/// The file name of the archive's index in the cache: a hash of what names the archive, then its
/// own name for people to read.
fn cached_name(file: &FileStorage, suffix: &str) -> OsString {
    let mut name = OsString::from(blake3::hash(&file.lasting_name()).to_hex().as_str());
    name.push("-");
    let file_name = file.path().file_name().unwrap_or_default().as_bytes();
    // A file name has at most 255 bytes.
    let file_name = file_name.get(file_name.len().saturating_sub(150)..).unwrap_or_default();
    name.push(OsStr::from_bytes(file_name));
    name.push(suffix);
    name
}
