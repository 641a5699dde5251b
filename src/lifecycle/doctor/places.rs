//! Folders of the node where one mounts.
//!
//! Owns whether names can be made there and how much room they have. Invariant: what is made to
//! find out has no name, or is gone again.

use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

/// A folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its path.
    pub path: PathBuf,
    /// How it does.
    pub state: State,
}

/// How it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// A folder can be made in it, and it has room for that many bytes.
    Writable(u64),
    /// Nothing can be made in it, and why.
    Refused(String),
    /// It is not there.
    Missing,
}

/// The usual folders, and TMPDIR where that is another.
pub(super) fn all() -> Vec<Place> {
    let mut paths = vec![PathBuf::from("/dev/shm"), PathBuf::from("/tmp")];
    let own = std::env::var_os("TMPDIR").map(PathBuf::from);
    if let Some(own) = own.filter(|own| own.is_absolute() && !paths.contains(own)) {
        paths.push(own);
    }
    paths.into_iter().map(|path| Place { state: State::of(&path), path }).collect()
}

impl State {
    fn of(path: &Path) -> Self {
        if !path.is_dir() {
            return Self::Missing;
        }
        if let Err(error) = tempfile::Builder::new().prefix("archfs-doctor-").tempdir_in(path) {
            return Self::Refused(error.to_string());
        }
        let room = statvfs(path).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize));
        Self::Writable(room)
    }
}
