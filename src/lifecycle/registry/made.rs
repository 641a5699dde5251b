//! Directories that archfs made to mount on, and who still uses them.
//!
//! Owns making and removing them. Invariant: a directory is removed by the last who uses it, only
//! if archfs made it, and only if it is still that very directory, and empty.
//!
//! Several may use one: each private mount is in a namespace of its own, and removing a directory
//! takes away what is mounted on it in every other namespace. So each directory made has a file,
//! named by its device and inode number, on which whoever uses it holds a shared lock. The last
//! one, which gets the lock for itself alone, removes both. A directory whose users were all killed
//! is thereby taken over by the next mount on it, or cleared by `gc`.
//!
//! The number is known only once the directory is there, and whoever makes it may be killed in
//! between. So that a directory is to be made is written down before, under the key of the place;
//! whoever finds that note, with the lock of the place, finishes what was begun.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::lock::is_named;
use super::{Key, PlaceLock, Registry, own_file};
use crate::error::{Error, Result};
use crate::lifecycle::mountinfo;
use crate::lifecycle::pinned::Pinned;

/// The use of a directory that archfs made. Dropping it removes the directory with its last use.
#[derive(Debug)]
pub(in crate::lifecycle) struct MadeDirectory {
    place: PathBuf,
    /// Holds the lock.
    file: File,
    path: PathBuf,
    registry: Registry,
}

impl MadeDirectory {
    /// Makes the directory `place` (0700), or takes part in the use of it where archfs made it;
    /// `None` where it is somebody else's work. Call it with the lock of the place.
    ///
    /// # Errors
    /// `Io`, also where the parent is missing.
    pub(in crate::lifecycle) fn make(place: &Path) -> Result<Option<Self>> {
        let registry = Registry::open()?;
        let note = registry.note(place);
        let made = Self::make_noted(place, &note);
        let _ = fs::remove_file(note);
        made
    }

    fn make_noted(place: &Path, note: &Path) -> Result<Option<Self>> {
        let failed = |error| Error::io(format!("{}: can not be made", place.display()), error);
        loop {
            let registry = Registry::open()?;
            if fs::symlink_metadata(place).is_err() {
                own_file::open(note, File::options().create(true).write(true).truncate(true))
                    .and_then(|mut file| file.write_all(place.as_os_str().as_bytes()))
                    .map_err(failed)?;
            }
            let created = Pinned::new(place).map_err(std::io::Error::from);
            let created =
                created.and_then(|pinned| DirBuilder::new().mode(0o700).create(pinned.path()));
            let is_new = match created {
                Ok(()) => true,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => was_begun(place, note),
                Err(error) => return Err(failed(error)),
            };
            if is_new {
                // Whatever the umask; a directory that has gone again is looked for below.
                let _ = Pinned::new(place).map(|pinned| pinned.open_to_owner());
            }
            let Some(path) = registry.made_file(place) else {
                match fs::symlink_metadata(place) {
                    // Removed by its last user just now.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    _ => return Ok(None),
                }
            };
            let mut options = File::options();
            let opened = own_file::open(&path, options.read(true).append(true).create(is_new));
            let mut file = match opened {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound && !is_new => return Ok(None),
                // The folder went with its last file.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            if is_new {
                // One that is there already is of a directory that was removed by somebody else,
                // whose inode number this one has got.
                file.set_len(0).map_err(failed)?;
                file.write_all(place.as_os_str().as_bytes()).map_err(failed)?;
            } else if written_in(&mut file).is_none_or(|made| made != place) {
                return Ok(None);
            }
            flock(&file, FlockOperation::LockShared).map_err(|error| failed(error.into()))?;
            let made = Self { place: place.to_owned(), file, path, registry };
            if is_named(&made.file, &made.path) && made.is_itself() {
                return Ok(Some(made));
            }
        }
    }

    /// The use of the directory `place` where archfs made it.
    pub(in crate::lifecycle) fn existing(place: &Path) -> Option<Self> {
        let registry = Registry::existing()?;
        if was_begun(place, &registry.note(place)) {
            return Self::make(place).ok()?;
        }
        let path = registry.made_file(place)?;
        let mut file = File::open(&path).ok()?;
        flock(&file, FlockOperation::LockShared).ok()?;
        written_in(&mut file).filter(|made| made == place)?;
        let made = Self { place: place.to_owned(), file, path, registry };
        is_named(&made.file, &made.path).then_some(made)
    }

    /// Removes all directories that archfs made and nobody uses; returns them.
    pub(in crate::lifecycle) fn clear_unused(registry: &Registry) -> Vec<PathBuf> {
        let begun = Self::clear_begun(registry);
        let names: Vec<_> = registry.names_with(".made").collect();
        let unused = names
            .into_iter()
            .filter_map(|name| {
                let path = registry.folder.join(format!("{name}.made"));
                let mut file = File::open(&path).ok()?;
                flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
                let place = written_in(&mut file)?;
                let unused = Self { place: place.clone(), file, path, registry: registry.clone() };
                let is_there = unused.is_itself();
                drop(unused);
                is_there.then_some(place)
            })
            .collect::<Vec<_>>();
        [begun, unused].concat()
    }

    /// The same for those that were begun to be made and no more.
    fn clear_begun(registry: &Registry) -> Vec<PathBuf> {
        let names: Vec<_> = registry.names_with(".making").collect();
        names
            .into_iter()
            .filter_map(|name| {
                let key = Key(name);
                let _lock = PlaceLock::try_acquire_key(&key).ok()??;
                let note = registry.file(&key, "making");
                let place = written_in(&mut File::open(&note).ok()?)?;
                let made = was_begun(&place, &note).then(|| Self::make_noted(&place, &note));
                let _ = fs::remove_file(note);
                made.map(|made| {
                    drop(made);
                    place
                })
            })
            .collect()
    }

    /// Whether the directory at the place is the one that was made.
    fn is_itself(&self) -> bool {
        self.is_at(&self.place)
    }

    fn is_at(&self, path: &Path) -> bool {
        self.registry.made_file(path).is_some_and(|file| file == self.path)
    }
}

impl Drop for MadeDirectory {
    fn drop(&mut self) {
        // What is mounted there hides the directory, so one could not tell whether it is the one; a
        // dead mount, say, which is cleared at another time.
        let is_hidden = !matches!(mountinfo::topmost(&self.place), Ok(None));
        if is_hidden || flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        // Where the folder above is gone, this is, too.
        let pinned = Pinned::new(&self.place);
        if let Ok(pinned) = pinned
            && self.is_at(&pinned.path())
            && let Err(error) = fs::remove_dir(pinned.path())
        {
            let place = self.place.display();
            log::warn!("{place}: made by archfs, can not be removed: {error}");
            // In use by a mount that takes no part in this, say; it is left to `gc`.
            if error.kind() != ErrorKind::DirectoryNotEmpty {
                return;
            }
        }
        let _ = fs::remove_file(&self.path);
        self.registry.tidy();
    }
}

/// The directory for which a file was made.
fn written_in(file: &mut File) -> Option<PathBuf> {
    let mut place = Vec::new();
    file.read_to_end(&mut place).ok()?;
    Some(PathBuf::from(std::ffi::OsString::from_vec(place)))
}

/// The directory at `place`; `None` also where something is mounted on it, which hides it, and may
/// hang.
fn seen_at(place: &Path) -> Option<fs::Metadata> {
    if !matches!(mountinfo::topmost(place), Ok(None)) {
        return None;
    }
    fs::symlink_metadata(place).ok().filter(fs::Metadata::is_dir)
}

/// Whether `note` says that the directory `place` was to be made, and it was, at that time.
fn was_begun(place: &Path, note: &Path) -> bool {
    let (Ok(mut file), Some(found)) = (File::open(note), seen_at(place)) else {
        return false;
    };
    let Ok(noted) = file.metadata() else {
        return false;
    };
    // Somebody else's who came later would be younger. Mounting leaves these times alone.
    found.uid() == noted.uid()
        && found.ctime().abs_diff(noted.mtime()) <= 1
        && written_in(&mut file).is_some_and(|noted| noted == place)
}

impl Registry {
    /// Where it is written down that the directory `place` is about to be made.
    fn note(&self, place: &Path) -> PathBuf {
        self.file(&Key::of(place), "making")
    }

    /// The file that stands for the directory at `place`, whoever made it; `None` where none is
    /// seen.
    fn made_file(&self, place: &Path) -> Option<PathBuf> {
        let found = seen_at(place)?;
        let name = format!("{}-{}.made", found.dev(), found.ino());
        Some(self.folder.join(OsStr::new(&name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_with_its_last_user() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("place");
        let first = MadeDirectory::make(&place).unwrap().unwrap();
        let second = MadeDirectory::make(&place).unwrap().unwrap();
        drop(first);
        assert!(place.is_dir());
        drop(second);
        assert!(!place.exists());
    }

    #[test]
    fn leaves_what_somebody_else_made_or_filled() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("place");
        fs::create_dir(&place).unwrap();
        assert!(MadeDirectory::make(&place).unwrap().is_none());
        fs::remove_dir(&place).unwrap();

        let made = MadeDirectory::make(&place).unwrap().unwrap();
        // Renamed, not removed, so that the inode number can not be used again.
        fs::rename(&place, folder.path().join("elsewhere")).unwrap();
        fs::create_dir(&place).unwrap();
        drop(made);
        assert!(place.is_dir());
        fs::remove_dir(&place).unwrap();

        let made = MadeDirectory::make(&place).unwrap().unwrap();
        fs::write(place.join("file"), "").unwrap();
        drop(made);
        assert!(place.is_dir());
    }

    #[test]
    fn an_inode_number_that_comes_again_is_another_directory() {
        let folder = tempfile::tempdir().unwrap();
        let (place, other) = (folder.path().join("place"), folder.path().join("other"));
        let made = std::mem::ManuallyDrop::new(MadeDirectory::make(&place).unwrap().unwrap());
        flock(&made.file, FlockOperation::Unlock).unwrap();
        // The same inode at another place, as if the first was removed.
        fs::rename(&place, &other).unwrap();
        assert!(MadeDirectory::make(&other).unwrap().is_none(), "somebody else's");
        assert!(MadeDirectory::existing(&other).is_none());
        let cleared = MadeDirectory::clear_unused(&made.registry);
        assert!(!cleared.contains(&other) && !cleared.contains(&place), "{cleared:?}");
        assert!(other.is_dir() && !made.path.exists());

        // Left from a directory that was removed before this one was made.
        fs::create_dir(&place).unwrap();
        let path = made.registry.made_file(&place).unwrap();
        fs::remove_dir(&place).unwrap();
        // The folder may have gone with the last file; only a private one is ever used.
        Registry::open().unwrap();
        fs::write(&path, "/elsewhere").unwrap();
        let again = MadeDirectory::make(&place).unwrap().unwrap();
        assert_eq!(written_in(&mut File::open(&again.path).unwrap()).unwrap(), place);
        drop(again);
        let _ = fs::remove_file(path);
        assert!(!place.exists());
    }

    #[test]
    fn what_was_only_begun_is_finished_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("place");
        // Keeps the folder of the registry.
        let other = MadeDirectory::make(&folder.path().join("other")).unwrap().unwrap();
        let begin = || {
            let note = other.registry.note(&place);
            fs::write(&note, place.as_os_str().as_bytes()).unwrap();
            fs::create_dir(&place).unwrap();
            note
        };
        let note = begin();
        let made = MadeDirectory::make(&place).unwrap().unwrap();
        assert!(!note.exists());
        drop(made);
        assert!(!place.exists());

        begin();
        drop(MadeDirectory::existing(&place).unwrap());
        assert!(!place.exists() && !note.exists());

        begin();
        assert!(MadeDirectory::clear_unused(&other.registry).contains(&place));
        assert!(!place.exists() && !note.exists());

        // Another's, which is there although it was not made.
        fs::write(&note, "/elsewhere").unwrap();
        fs::create_dir(&place).unwrap();
        assert!(MadeDirectory::make(&place).unwrap().is_none());
        assert!(!note.exists());
    }

    #[test]
    fn what_killed_users_left_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("place");
        let made = MadeDirectory::make(&place).unwrap().unwrap();
        let registry = made.registry.clone();
        assert!(!MadeDirectory::clear_unused(&registry).contains(&place), "it is in use");
        // A killed process closes its files and does nothing more.
        let path = made.path.clone();
        let made = std::mem::ManuallyDrop::new(made);
        flock(&made.file, FlockOperation::Unlock).unwrap();
        assert!(MadeDirectory::clear_unused(&registry).contains(&place));
        assert!(!place.exists() && !path.exists());
    }
}
