//! One process at a time does something about a place.
//!
//! Owns the lock of a place: who mounts there, clears a dead mount or removes its record holds it.
//! Invariant: the file that is locked is the one that has the name, so that it can be removed.
//!
//! It is a flock(2), which belongs to the open file and not to the process: a launcher hands it to
//! the daemon that it starts, and it is free when both have let go of it, also by being killed.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{Key, Registry, own_file};
use crate::error::{Error, Kind, Result};

/// After what time one who waits is told so. Mounting an image takes less.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often one looks until then.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The lock of a place, free again when this and every duplicate of it is dropped.
#[derive(Debug)]
pub(in crate::lifecycle) struct PlaceLock {
    file: File,
    path: PathBuf,
    registry: Registry,
}

impl PlaceLock {
    /// Waits until nobody else does anything about `place`; says so if that takes long enough
    /// for a person to wonder.
    ///
    /// # Errors
    /// `Io` where it can not be locked.
    pub(in crate::lifecycle) fn acquire(place: &Path) -> Result<Self> {
        let key = Key::of(place);
        let patience = Instant::now() + PATIENCE;
        while Instant::now() < patience {
            if let Some(lock) = Self::try_acquire_key(&key)? {
                return Ok(lock);
            }
            thread::sleep(LOOK_AGAIN);
        }
        log::warn!("{}: waiting for who mounts here just now", place.display());
        loop {
            if let Some(lock) = Self::attempt(&key, FlockOperation::LockExclusive)? {
                return Ok(lock);
            }
        }
    }

    /// The lock of `place`, unless somebody has it.
    ///
    /// # Errors
    /// `Io` where it can not be locked.
    pub(in crate::lifecycle) fn try_acquire(place: &Path) -> Result<Option<Self>> {
        Self::try_acquire_key(&Key::of(place))
    }

    /// The same by the key of the place.
    ///
    /// # Errors
    /// `Io` where it can not be locked.
    pub(super) fn try_acquire_key(key: &Key) -> Result<Option<Self>> {
        Self::attempt(key, FlockOperation::NonBlockingLockExclusive)
    }

    /// `None` where somebody has it, or its file was removed meanwhile.
    fn attempt(key: &Key, how: FlockOperation) -> Result<Option<Self>> {
        let registry = Registry::open()?;
        let path = registry.file(key, "lock");
        let failed = |error: std::io::Error| {
            let is_denied = error.kind() == ErrorKind::PermissionDenied;
            Error::io(format!("{}: can not lock", path.display()), error).with_hint(match is_denied
            {
                true => "it must be yours, with mode 0600; remove it if archfs has no mount there",
                false => "archfs keeps what it knows of its mounts there, which takes some room",
            })
        };
        let opened = own_file::open(&path, File::options().create(true).append(true));
        let file = match opened {
            // The folder went with its last file.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        loop {
            match flock(&file, how) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(failed(error.into())),
            }
        }
        Ok(is_named(&file, &path).then_some(Self { file, path, registry }))
    }

    /// The lock again, for another process.
    ///
    /// # Errors
    /// `Io` where there are no more descriptors.
    pub(in crate::lifecycle) fn duplicate(&self) -> Result<OwnedFd> {
        let duplicate = self.file.as_fd().try_clone_to_owned();
        duplicate.map_err(|error| Error::io("can not duplicate a lock", error))
    }

    /// The lock of `place` that whoever started this process handed over as `descriptor`.
    ///
    /// # Errors
    /// `Usage` where it is no such lock; `Io`.
    pub(in crate::lifecycle) fn adopt(descriptor: OwnedFd, place: &Path) -> Result<Self> {
        let (file, key) = (File::from(descriptor), Key::of(place));
        // Which folder is the one in use may have changed since.
        for registry in Registry::all() {
            let path = registry.file(&key, "lock");
            if is_named(&file, &path) {
                return Ok(Self { file, path, registry });
            }
        }
        Err(Error::new(Kind::Usage, "standard input is not the lock of the place"))
    }

    /// Removes its file and lets go of it: nothing is left to be said about the place.
    pub(in crate::lifecycle) fn remove(self) {
        // Whoever waits for it finds that it has no name any more and makes a new one.
        let _ = fs::remove_file(&self.path);
        self.registry.tidy();
    }
}

/// Whether `path` still is the name of `file`.
pub(super) fn is_named(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(held), Ok(named)) => (held.dev(), held.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_at_a_time_and_removing_it_wakes_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("place");
        let first = PlaceLock::acquire(&place).unwrap();
        assert!(PlaceLock::try_acquire(&place).unwrap().is_none());
        thread::scope(|scope| {
            scope.spawn(|| {
                PlaceLock::acquire(&place).unwrap().remove();
            });
            first.remove();
        });
        PlaceLock::try_acquire(&place).unwrap().unwrap().remove();
    }

    #[test]
    fn is_held_until_the_last_duplicate_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("place");
        let lock = PlaceLock::acquire(&place).unwrap();
        let duplicate = lock.duplicate().unwrap();
        drop(lock);
        assert!(PlaceLock::try_acquire(&place).unwrap().is_none());
        let adopted = PlaceLock::adopt(duplicate, &place).unwrap();
        drop(adopted);
        PlaceLock::try_acquire(&place).unwrap().unwrap().remove();
        let other = File::open("/dev/null").unwrap().into();
        assert_eq!(PlaceLock::adopt(other, &place).unwrap_err().kind(), Kind::Usage);
    }
}
