//! The directories in which users usually mount: whether they are writable, and their free space.

use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::statvfs;

use crate::error::reason;

/// A directory in which users usually mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountParent {
    /// Its path.
    pub path: PathBuf,
    /// Its state.
    pub state: MountParentState,
}

/// The state of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountParentState {
    /// A directory can be created in it; the free space in bytes.
    Writable(u64),
    /// Nothing can be created in it; the error.
    Refused(String),
    /// It does not exist.
    Missing,
}

/// The usual directories, and TMPDIR if it is another one.
pub(super) fn all() -> Vec<MountParent> {
    let mut paths = vec![PathBuf::from("/dev/shm"), PathBuf::from("/tmp")];
    let own = std::env::var_os("TMPDIR").map(PathBuf::from);
    if let Some(own) = own.filter(|own| own.is_absolute() && !paths.contains(own)) {
        paths.push(own);
    }
    paths.into_iter().map(|path| MountParent { state: MountParentState::of(&path), path }).collect()
}

impl MountParentState {
    fn of(path: &Path) -> Self {
        if !path.is_dir() {
            return Self::Missing;
        }
        if let Err(error) = unused_name(path) {
            return Self::Refused(reason(error));
        }
        let free_bytes =
            statvfs(path).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize));
        Self::Writable(free_bytes)
    }
}

/// Creates a directory in `path` and removes it; returns its path. Whatever another user exchanges
/// it with, only an empty directory is removed.
pub(super) fn unused_name(path: &Path) -> io::Result<PathBuf> {
    let created = tempfile::Builder::new().prefix("archfs-doctor-").tempdir_in(path)?.keep();
    fs::remove_dir(&created)?;
    Ok(created)
}
