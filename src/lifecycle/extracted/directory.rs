//! The directory of extracted files, private to this user, and what is in it.
//!
//! Invariant: other users cannot replace it, or anything that leads to it.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;

use crate::error::{Error, Kind, Result};
use crate::lifecycle::share::{check_private, extraction_record, node, open_0600};
use crate::os::trust;

/// The files, once all of them are there.
const FILES: &str = "files";

/// The files that are being extracted.
const PART: &str = "files.part";

/// The lock of the process that extracts.
const EXTRACTING: &str = "extracting";

/// The beginning of the name of the lock of all holders; the rest is the name of the node. The
/// locks of one node may not count on another one.
const HOLDERS: &str = "holders-";

/// A directory in which only this user and root can replace what archfs creates.
#[derive(Clone, Debug)]
pub(in crate::lifecycle) struct SafeParent(PathBuf);

impl SafeParent {
    /// Checks `parent`. In a user namespace the owners of directories are unknown, so check before
    /// this process enters one.
    ///
    /// # Errors
    /// `Io` if it is missing; `Busy` if another user may replace it.
    pub(in crate::lifecycle) fn check(parent: &Path) -> Result<Self> {
        let shown = parent.display();
        let parent = fs::canonicalize(parent).map_err(|error| cannot_extract_to(parent, error))?;
        let Some(untrusted) = trust::first_untrusted(&parent) else { return Ok(Self(parent)) };
        let untrusted = untrusted.display();
        let context =
            format!("{shown}: not safe to extract to: other users can replace {untrusted}");
        Err(Error::new(Kind::Busy, context)
            .with_hint("name a directory of your own on this node, for example $TMPDIR"))
    }
}

fn cannot_extract_to(directory: &Path, error: io::Error) -> Error {
    Error::io(format!("{}: cannot extract to this directory", directory.display()), error)
}

/// A directory for extracted files.
#[derive(Clone, Debug)]
pub(super) struct ExtractedDirectory {
    path: PathBuf,
}

impl ExtractedDirectory {
    /// The directory `name` in `parent`, created if it is missing.
    ///
    /// # Errors
    /// `Io` if it cannot be created; `Busy` if it is not for this user alone.
    pub(super) fn create(SafeParent(parent): &SafeParent, name: &str) -> Result<Self> {
        let directory = Self { path: parent.join(name) };
        match DirBuilder::new().mode(0o700).create(&directory.path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(cannot_extract_to(parent, error));
            }
            _ => {}
        }
        if let Err(error) = check_private(&directory.path, geteuid().as_raw()) {
            let context = format!("{}: cannot be used: {error}", directory.path.display());
            return Err(Error::new(Kind::Busy, context).with_hint("name another directory"));
        }
        Ok(directory)
    }

    /// The directory at `path`, if it is one of this user.
    pub(super) fn existing(path: &Path) -> Option<Self> {
        check_private(path, geteuid().as_raw()).ok().map(|()| Self { path: path.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn files(&self) -> PathBuf {
        self.path.join(FILES)
    }

    pub(super) fn part(&self) -> PathBuf {
        self.path.join(PART)
    }

    /// Removes the files that a killed process had begun to extract.
    pub(super) fn remove_part(&self) -> io::Result<()> {
        remove_tree(&self.part())
    }

    /// The file with the lock of the process that extracts.
    pub(super) fn extracting(&self) -> io::Result<File> {
        open_lock(&self.path.join(EXTRACTING), true)
    }

    /// The file with the lock of all holders on this node. It is created only if `may_create`.
    pub(super) fn holders(&self, may_create: bool) -> io::Result<File> {
        open_lock(&self.path.join(format!("{HOLDERS}{}", node())), may_create)
    }

    /// Another node with holders, if any.
    pub(super) fn other_node(&self) -> Option<String> {
        let own = node();
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut nodes = names.filter_map(|name| Some(name.strip_prefix(HOLDERS)?.to_owned()));
        nodes.find(|node| *node != own)
    }

    /// Removes everything. The caller has the exclusive lock of `holders`.
    ///
    /// # Errors
    /// `Io` if something could not be removed.
    pub(super) fn remove(&self, holders: File) -> Result<()> {
        let failed = |error| {
            let context = format!("{}: cannot remove the extracted files", self.path.display());
            Error::io(context, error).with_hint("run `archfs gc` to try again")
        };
        // Whoever takes the lock finds either all files or none.
        let _ = fs::rename(self.files(), self.part());
        self.remove_part().map_err(failed)?;
        let _ = fs::remove_file(self.path.join(EXTRACTING));
        self.remove_empty(holders);
        Ok(())
    }

    /// Removes the directory if it holds nothing but the lock `holders`, which the caller has.
    pub(super) fn remove_empty(&self, holders: File) {
        // Before another process can take the lock, and write a record of its own.
        extraction_record::remove(&self.path);
        let _ = fs::remove_file(self.path.join(format!("{HOLDERS}{}", node())));
        // It is not empty if another process wants to extract to it.
        let _ = fs::remove_dir(&self.path);
        // Last: a process that waits for the lock finds that its file has no name any more.
        drop(holders);
    }
}

/// Opens the file of a lock in a directory that is closed to others.
fn open_lock(path: &Path, may_create: bool) -> io::Result<File> {
    open_0600(path, File::options().read(true).write(true).create(may_create))
}

/// Whether the file of a lock, which is open, has been removed.
pub(super) fn is_removed(lock: &File) -> bool {
    lock.metadata().is_ok_and(|found| found.nlink() == 0)
}

/// Removes a directory and everything in it, also what is in directories without write permission.
fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        removed => return removed,
    }
    let mut directories = vec![path.to_owned()];
    while let Some(directory) = directories.pop() {
        let _ = fs::set_permissions(&directory, Permissions::from_mode(0o700));
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        directories.extend(below.map(|entry| entry.path()));
    }
    fs::remove_dir_all(path)
}

/// Removes the directories without holders that killed processes of this user have left on this
/// node. Returns the directories that were removed, and the errors.
pub(in crate::lifecycle) fn remove_ended() -> (Vec<PathBuf>, Vec<Error>) {
    let (mut removed, mut errors) = (Vec::new(), Vec::new());
    for path in extraction_record::all() {
        let Some(directory) = ExtractedDirectory::existing(&path) else {
            // Somebody else removed it, or it was never created.
            if fs::symlink_metadata(&path).is_err() {
                extraction_record::remove(&path);
            }
            continue;
        };
        // Created: a process may have been killed before it could.
        let Ok(holders) = directory.holders(true) else { continue };
        if flock(&holders, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        match directory.remove(holders) {
            Ok(()) => removed.push(path),
            Err(error) => errors.push(error),
        }
    }
    (removed, errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_directories_that_cannot_be_written() {
        let work = tempfile::tempdir().unwrap();
        let tree = work.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/b/file"), "").unwrap();
        for closed in ["a/b", "a", ""] {
            fs::set_permissions(tree.join(closed), Permissions::from_mode(0o000)).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        remove_tree(&tree).unwrap();
    }

    #[test]
    fn another_node_is_found_by_its_lock() {
        let work = tempfile::tempdir().unwrap();
        fs::set_permissions(work.path(), Permissions::from_mode(0o700)).unwrap();
        let directory = ExtractedDirectory::existing(work.path()).unwrap();
        directory.holders(true).unwrap();
        assert_eq!(directory.other_node(), None);
        fs::write(work.path().join("holders-elsewhere"), "").unwrap();
        assert_eq!(directory.other_node().as_deref(), Some("elsewhere"));
        fs::set_permissions(work.path(), Permissions::from_mode(0o750)).unwrap();
        assert!(ExtractedDirectory::existing(work.path()).is_none(), "open to a group");
    }
}
