//! The directory that a mount covers, and its removal.
//!
//! archfs creates a missing mount point, and removes it after its last use. Several mounts may use
//! one directory: each private mount has its own mount namespace, and a job with its own /tmp sees
//! neither the mounts nor the records of another job. Removing a directory detaches what is mounted
//! on it in every other namespace. So each mount holds a shared flock(2) on the directory itself,
//! and the last one, which can take the lock exclusively, removes it.
//!
//! archfs marks a directory that it created by a fixed modification time. Creating a file in the
//! directory changes that time; a mount on it does not. A process may be killed before it has set
//! the time. So it first writes in the record file that it is about to create the directory.
//!
//! Invariant: archfs removes a directory only if archfs created it, it is empty and no mount uses
//! it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fd::AsFd;
use rustix::fs::{
    FlockOperation, OFlags, Timespec, Timestamps, UTIME_OMIT, flock, fstat, fstatfs, futimens,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::error::{Error, Result};
use crate::os::directory::{Directory, path_of};
use crate::os::mountinfo;

/// The modification time of a directory that archfs created, seconds since 1970: "arch" in ASCII.
const CREATED: i64 = 0x6172_6368;

/// AUTOFS_SUPER_MAGIC of linux/magic.h.
const AUTOFS: u64 = 0x0187;

/// The largest difference between two time stamps of a file system that count as equal.
const TICK: Duration = Duration::from_secs(1);

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// One use of a directory as a mount point. Dropping the last use removes the directory, if archfs
/// created it.
#[derive(Debug)]
pub(crate) struct OwnedDirectory {
    /// `None` if this user may not open it, because it belongs to another user, or if it is on
    /// autofs.
    directory: Option<File>,
}

impl OwnedDirectory {
    /// Creates the directory `path` (0700), or uses an existing one; returns whether it was
    /// created. Calls `before` before it creates one.
    pub(crate) fn create_or_use(
        path: &Path,
        before: &mut dyn FnMut() -> Result<()>,
    ) -> Result<(Self, bool)> {
        let failed =
            |error: io::Error| Error::io(format!("{}: cannot create", path.display()), error);
        loop {
            let (parent, name) = Directory::open_parent(path).map_err(failed)?;
            if parent.metadata(name).is_err() {
                before()?;
            }
            let is_new = parent.create(name).map_err(failed)?;
            if is_new {
                // The umask may deny permissions to the owner.
                let _ = parent.below(name).and_then(|directory| directory.open_to_owner());
            }
            let directory = match parent.open_with(name, DIRECTORY) {
                Ok(directory) => directory,
                // Another process has just removed it, after its last use.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) if is_new => return Err(failed(error)),
                // Not ours to remove; it may not even be a directory.
                Err(_) => return Ok((Self { directory: None }, false)),
            };
            if is_on_autofs(&directory) {
                return Ok((Self { directory: None }, is_new));
            }
            if is_new {
                mark(&directory).map_err(|error| failed(error.into()))?;
            }
            // Another process holds the exclusive lock only briefly, to remove the directory. Some
            // network file systems have no locks.
            let _ = flock(&directory, FlockOperation::LockShared);
            if is_named(&directory, &parent, name) {
                return Ok((Self { directory: Some(directory) }, is_new));
            }
        }
    }
}

impl Drop for OwnedDirectory {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory
            && is_marked(directory)
        {
            remove(directory);
        }
    }
}

/// Removes the directory `path` if archfs created it and no mount uses it; returns whether it did.
/// `creation_start` is when a process that was killed was about to create it.
pub(crate) fn remove_unused(path: &Path, creation_start: Option<SystemTime>) -> bool {
    // A mount there hides the directory, and its daemon may never answer.
    if !matches!(mountinfo::topmost(path), Ok(None)) {
        return false;
    }
    let Ok(directory) = open_directory(path) else {
        return false;
    };
    (is_marked(&directory) || creation_start.is_some_and(|start| is_created_at(&directory, start)))
        && remove(&directory)
}

/// Marks the directory `path` as created by archfs, if it is the one that a killed process was
/// about to create at `creation_start`. The last mount that uses it then removes it.
pub(crate) fn adopt(path: &Path, creation_start: SystemTime) {
    if matches!(mountinfo::topmost(path), Ok(None))
        && let Ok(directory) = open_directory(path)
        && is_created_at(&directory, creation_start)
    {
        let _ = mark(&directory);
    }
}

/// Removes `directory` at its current path, unless another mount uses it.
fn remove(directory: &File) -> bool {
    // A file system without locks cannot show other uses.
    let locked = flock(directory, FlockOperation::NonBlockingLockExclusive);
    if let Err(Errno::WOULDBLOCK | Errno::INTR) = locked {
        return false;
    }
    // A directory above it may have been renamed.
    let Ok(path) = fs::read_link(path_of(directory)) else {
        return false;
    };
    let Ok((parent, name)) = Directory::open_parent(&path) else {
        return false;
    };
    if !matches!(mountinfo::topmost(&path), Ok(None)) || !is_named(directory, &parent, name) {
        return false;
    }
    match parent.remove_directory(name) {
        Ok(()) => true,
        Err(error) => {
            log::warn!(
                "{}: cannot remove the directory that archfs created: {error}",
                path.display()
            );
            false
        }
    }
}

/// Whether the directory is on autofs, where an automounter creates and removes directories, and
/// unmounts only while no process has the directory open.
pub(crate) fn is_on_autofs(directory: impl AsFd) -> bool {
    fstatfs(directory).is_ok_and(|found| found.f_type as u64 == AUTOFS)
}

fn open_directory(path: &Path) -> io::Result<File> {
    let (parent, name) = Directory::open_parent(path)?;
    parent.open_with(name, DIRECTORY)
}

fn mark(directory: &File) -> rustix::io::Result<()> {
    let created = Timespec { tv_sec: CREATED, tv_nsec: 0 };
    let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    futimens(directory, &Timestamps { last_access: omitted, last_modification: created })
}

fn is_marked(directory: &File) -> bool {
    fstat(directory)
        .is_ok_and(|found| found.st_mtime == CREATED && found.st_uid == geteuid().as_raw())
}

/// Whether `directory` belongs to this user and was created or changed at `time`. One that another
/// process created later has a later time.
fn is_created_at(directory: &File, time: SystemTime) -> bool {
    let Ok(found) = fstat(directory) else {
        return false;
    };
    let changed = UNIX_EPOCH + Duration::from_secs(found.st_ctime.try_into().unwrap_or(0));
    let apart = changed.duration_since(time).unwrap_or_else(|earlier| earlier.duration());
    found.st_uid == geteuid().as_raw() && apart <= TICK
}

fn is_named(directory: &File, parent: &Directory, name: &OsStr) -> bool {
    match (directory.metadata(), parent.metadata(name)) {
        (Ok(held), Ok(named)) => (held.dev(), held.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn create(path: &Path) -> (OwnedDirectory, bool) {
        OwnedDirectory::create_or_use(path, &mut || Ok(())).unwrap()
    }

    fn work() -> (tempfile::TempDir, PathBuf) {
        let work = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(work.path()).unwrap().join("mount");
        (work, path)
    }

    #[test]
    fn last_use_removes_it() {
        let (_work, path) = work();
        let (first, is_new) = create(&path);
        assert!(is_new);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
        let (second, is_new) = create(&path);
        assert!(!is_new);
        drop(first);
        assert!(path.is_dir());
        assert!(!remove_unused(&path, None), "in use");
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn stays_if_archfs_did_not_create_it_or_it_was_filled_or_replaced() {
        let (work, path) = work();
        fs::create_dir(&path).unwrap();
        drop(create(&path));
        assert!(path.is_dir());
        assert!(!remove_unused(&path, Some(UNIX_EPOCH)));
        fs::remove_dir(&path).unwrap();

        let (used, _) = create(&path);
        fs::write(path.join("file"), "").unwrap();
        fs::remove_file(path.join("file")).unwrap();
        drop(used);
        assert!(path.is_dir(), "it was filled for a while");
        fs::remove_dir(&path).unwrap();

        let (used, _) = create(&path);
        let moved = work.path().join("moved");
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&path).unwrap();
        drop(used);
        assert!(path.is_dir() && !moved.exists(), "the one that was created goes");
    }

    #[test]
    fn removes_what_a_killed_process_created() {
        let (_work, path) = work();
        // Like a killed process, which only closes its files.
        let (used, _) = create(&path);
        let used = std::mem::ManuallyDrop::new(used);
        flock(used.directory.as_ref().unwrap(), FlockOperation::Unlock).unwrap();
        assert!(remove_unused(&path, None) && !path.exists());

        // As if killed before it marked the directory.
        let creation_start = SystemTime::now();
        fs::create_dir(&path).unwrap();
        assert!(!remove_unused(&path, None));
        assert!(!remove_unused(&path, Some(creation_start - Duration::from_secs(60))));
        assert!(remove_unused(&path, Some(creation_start)) && !path.exists());
    }
}
