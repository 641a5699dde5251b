//! The directory that a mount covers, and who removes it.
//!
//! archfs creates a missing mount point and removes it again with its last use. Several mounts may
//! use one directory: each private mount has a namespace of its own, and a job with its own /tmp
//! sees neither the mounts nor the records of another job. Removing a directory takes away what is
//! mounted on it in every other namespace. So each mount holds a shared flock(2) on the directory
//! itself, and the last one, which gets the lock exclusively, removes it.
//!
//! That archfs created a directory is recorded in its modification time, which is set to a fixed
//! moment. A file that anybody creates in it changes that time, and nothing else does; a mount on
//! it leaves it alone. A process that is killed before it has set the time has said before, in the
//! record file, that it creates the directory. Invariant: only a directory that archfs created,
//! that is empty and that nobody uses is removed.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fd::OwnedFd;
use rustix::fs::{
    FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, flock, fstat, futimens, open,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::error::{Error, Result};
use crate::lifecycle::mount::parent_directory::{self, ParentDirectory};
use crate::mountinfo;

/// The modification time of a directory that archfs created, seconds since 1970: "arch" in ASCII.
const CREATED: i64 = 0x6172_6368;

/// How far the clocks of a file system's time stamps may be apart.
const TICK: Duration = Duration::from_secs(1);

/// The use of a directory as a mount point. Dropping it removes the directory with its last use, if
/// archfs created it.
#[derive(Debug)]
pub(in crate::lifecycle) struct OwnedDirectory {
    /// `None` where it may not be opened: another user's.
    directory: Option<OwnedFd>,
}

impl OwnedDirectory {
    /// Creates the directory `path` (0700), or uses the one that is there. Returns whether it was
    /// created. Calls `before` when it is about to be created.
    ///
    /// # Errors
    /// `Io`, also where the parent is missing; what `before` returns.
    pub(in crate::lifecycle) fn create_or_use(
        path: &Path,
        before: &mut dyn FnMut() -> Result<()>,
    ) -> Result<(Self, bool)> {
        let failed =
            |error: io::Error| Error::io(format!("{}: cannot be created", path.display()), error);
        loop {
            let parent = ParentDirectory::new(path).map_err(|error| failed(error.into()))?;
            if fs::symlink_metadata(parent.path()).is_err() {
                before()?;
            }
            let is_new = match DirBuilder::new().mode(0o700).create(parent.path()) {
                Ok(()) => true,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
                Err(error) => return Err(failed(error)),
            };
            if is_new {
                // Whatever the umask.
                let _ = parent.open_to_owner();
            }
            let directory = match open_directory(&parent.path()) {
                Ok(directory) => directory,
                // Removed by its last user just now.
                Err(Errno::NOENT) => continue,
                Err(error) if is_new => return Err(failed(error.into())),
                // Not ours to remove, and not a directory perhaps.
                Err(_) => return Ok((Self { directory: None }, false)),
            };
            if is_new {
                mark(&directory).map_err(|error| failed(error.into()))?;
            }
            // Others hold the exclusive lock for a moment only, to remove it. Some network file
            // systems have no locks.
            let _ = flock(&directory, FlockOperation::LockShared);
            if is_named(&directory, &parent.path()) {
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

/// Removes the directory `path` if archfs created it and nothing uses it. `begun` is when a killed
/// process was about to create it. Returns whether it was removed.
pub(in crate::lifecycle) fn remove_unused(path: &Path, begun: Option<SystemTime>) -> bool {
    // What is mounted there hides it, and might never answer.
    if !matches!(mountinfo::topmost(path), Ok(None)) {
        return false;
    }
    let Ok(directory) =
        ParentDirectory::new(path).and_then(|parent| open_directory(&parent.path()))
    else {
        return false;
    };
    (is_marked(&directory) || begun.is_some_and(|begun| is_created_at(&directory, begun)))
        && remove(&directory)
}

/// Marks the directory `path` as created by archfs where it is what a killed process was about to
/// create at the time `begun`. A mount that uses it removes it then.
pub(in crate::lifecycle) fn adopt(path: &Path, begun: SystemTime) {
    if matches!(mountinfo::topmost(path), Ok(None))
        && let Ok(directory) =
            ParentDirectory::new(path).and_then(|parent| open_directory(&parent.path()))
        && is_created_at(&directory, begun)
    {
        let _ = mark(&directory);
    }
}

/// Removes `directory`, wherever it is now, unless another mount uses it.
fn remove(directory: &OwnedFd) -> bool {
    // On file systems without locks nothing tells of others.
    let locked = flock(directory, FlockOperation::NonBlockingLockExclusive);
    if let Err(Errno::WOULDBLOCK | Errno::INTR) = locked {
        return false;
    }
    // A parent may have been renamed.
    let Ok(path) = fs::read_link(parent_directory::path_of(directory)) else {
        return false;
    };
    let Ok(parent) = ParentDirectory::new(&path) else {
        return false;
    };
    if !matches!(mountinfo::topmost(&path), Ok(None)) || !is_named(directory, &parent.path()) {
        return false;
    }
    match fs::remove_dir(parent.path()) {
        Ok(()) => true,
        Err(error) => {
            log::warn!("{}: created by archfs, cannot be removed: {error}", path.display());
            false
        }
    }
}

fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
}

fn mark(directory: &OwnedFd) -> rustix::io::Result<()> {
    let created = Timespec { tv_sec: CREATED, tv_nsec: 0 };
    let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    futimens(directory, &Timestamps { last_access: omitted, last_modification: created })
}

fn is_marked(directory: &OwnedFd) -> bool {
    fstat(directory)
        .is_ok_and(|found| found.st_mtime == CREATED && found.st_uid == geteuid().as_raw())
}

/// Whether `directory` is ours and was created, or changed, at `time`. One that another process
/// creates later is younger.
fn is_created_at(directory: &OwnedFd, time: SystemTime) -> bool {
    let Ok(found) = fstat(directory) else {
        return false;
    };
    let changed = UNIX_EPOCH + Duration::from_secs(found.st_ctime.try_into().unwrap_or(0));
    let apart = changed.duration_since(time).unwrap_or_else(|earlier| earlier.duration());
    found.st_uid == geteuid().as_raw() && apart <= TICK
}

fn is_named(directory: &OwnedFd, path: &Path) -> bool {
    match (fstat(directory), fs::symlink_metadata(path)) {
        (Ok(held), Ok(named)) => (held.st_dev, held.st_ino) == (named.dev(), named.ino()),
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
    fn goes_with_its_last_use() {
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
    fn stays_where_archfs_did_not_create_it_or_it_was_filled_or_replaced() {
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
    fn what_a_killed_process_created_is_removed() {
        let (_work, path) = work();
        // A killed process closes its files and does nothing more.
        let (used, _) = create(&path);
        let used = std::mem::ManuallyDrop::new(used);
        flock(used.directory.as_ref().unwrap(), FlockOperation::Unlock).unwrap();
        assert!(remove_unused(&path, None) && !path.exists());

        // Killed before it was marked.
        let begun = SystemTime::now();
        fs::create_dir(&path).unwrap();
        assert!(!remove_unused(&path, None));
        assert!(!remove_unused(&path, Some(begun - Duration::from_secs(60))));
        assert!(remove_unused(&path, Some(begun)) && !path.exists());
    }
}
