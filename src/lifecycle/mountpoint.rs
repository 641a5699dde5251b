//! The directory that shows the archive.
//!
//! Owns its checks, making it where it is missing (0700) and removing what was made.
//! Invariant: a directory that was there before is never removed, nor one that is not empty.

use std::fs::{self, DirBuilder, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::mountinfo::{self, MountEntry};
use super::{registry, unmount};
use crate::error::{Error, Kind, Result};

/// A directory that is ready to be mounted on. Dropping it removes it if it was made here.
#[derive(Debug)]
pub(super) struct Mountpoint {
    place: PathBuf,
    made: Option<Made>,
}

/// A directory that archfs made: device and inode number, since its path may come to mean another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl Mountpoint {
    /// Checks `path`, clears a dead mount of this user there, makes the directory where it is
    /// missing.
    ///
    /// # Errors
    /// `Busy` where something is mounted or in the directory; `NotADirectory`; `NotFound` where its
    /// parent is missing; `Io`.
    pub(super) fn prepare(path: &Path) -> Result<Self> {
        let place = locate(path)?;
        while let Some(entry) = mountinfo::topmost(&place)?.filter(is_in_the_way) {
            if !clear_dead(&place, &entry)? {
                let context = format!("{}: {} is mounted here", place.display(), entry.describe());
                return Err(Error::new(Kind::Busy, context)
                    .with_hint("choose another place, or unmount that first"));
            }
        }
        let made = make(&place)?;
        if made.is_none() {
            check_existing(&place)?;
        }
        Ok(Self { place, made })
    }

    /// The directory, absolute and without symbolic links.
    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// What was made here, if anything.
    pub(super) fn made(&self) -> Option<Made> {
        self.made
    }

    /// Removes what was made here. A mount that somebody puts there later finds it gone.
    pub(super) fn remove(&mut self) {
        if let Some(made) = self.made.take() {
            remove(&self.place, made);
        }
    }
}

impl Drop for Mountpoint {
    fn drop(&mut self) {
        self.remove();
    }
}

/// `path` as the kernel will name it. Only the parent is looked at, since the place itself may be a
/// dead mount, which no system call can look at.
///
/// # Errors
/// `NotFound` where the parent does not exist; `Usage` for a path that ends in `..`.
pub(super) fn locate(path: &Path) -> Result<PathBuf> {
    let shown = path.display();
    if path == Path::new("/") {
        return Err(Error::new(Kind::Usage, "/: can not mount over the root directory"));
    }
    // Without empty components and a `.` at the end, which would hide a symbolic link.
    let path: PathBuf = path.components().collect();
    let link = fs::symlink_metadata(&path).ok().filter(Metadata::is_symlink);
    if let Some(link) = &link {
        // In /tmp, somebody else could let a link lead to a directory that is not meant.
        let user = rustix::process::geteuid().as_raw();
        if link.uid() != user && link.uid() != 0 {
            let context = format!("{shown}: a symbolic link of somebody else");
            return Err(Error::new(Kind::Busy, context).with_hint("choose another name"));
        }
    }
    if link.is_some() || path.file_name().is_none() {
        return fs::canonicalize(&path)
            .map_err(|error| Error::io(format!("{shown}: can not be the mount point"), error));
    }
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let parent = fs::canonicalize(parent).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            Error::new(Kind::NotFound, format!("{}: no such directory", parent.display()))
                .with_hint("archfs makes the last folder of a mount point, not those above it")
        }
        _ => Error::io(format!("{}: can not be entered", parent.display()), error),
    })?;
    Ok(parent.join(path.file_name().unwrap_or_default()))
}

/// Removes the directory that archfs made at `place`, unless another is there now or it got
/// contents.
pub(super) fn remove(place: &Path, made: Made) {
    let is_ours = fs::symlink_metadata(place).is_ok_and(|found| Made::of(&found) == made);
    if is_ours && let Err(error) = fs::remove_dir(place) {
        log::warn!("{}: made by archfs, can not be removed: {error}", place.display());
    }
}

impl Made {
    fn of(found: &Metadata) -> Self {
        Self { device: found.dev(), inode: found.ino() }
    }
}

/// An automount trigger is replaced when the directory is entered; all else is in the way.
fn is_in_the_way(entry: &MountEntry) -> bool {
    entry.kind != "autofs"
}

/// Clears `entry` at `place` if it is a mount of this user whose daemon is gone; tells whether it
/// was.
fn clear_dead(place: &Path, entry: &MountEntry) -> Result<bool> {
    if !unmount::may_touch(entry) || !registry::is_dead(entry, place) {
        return Ok(false);
    }
    log::warn!("{}: clearing a dead mount of {}", place.display(), entry.describe());
    unmount::clear(place, entry)?;
    Ok(true)
}

/// Makes the directory; `None` where it is there already.
fn make(place: &Path) -> Result<Option<Made>> {
    let failed =
        |error| Error::io(format!("{}: can not make the mount point", place.display()), error);
    match DirBuilder::new().mode(0o700).create(place) {
        Ok(()) => fs::symlink_metadata(place).map(|found| Some(Made::of(&found))).map_err(failed),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

fn check_existing(place: &Path) -> Result<()> {
    let shown = place.display();
    let failed = |error| Error::io(format!("{shown}: can not be the mount point"), error);
    if !fs::metadata(place).map_err(failed)?.is_dir() {
        return Err(Error::new(Kind::NotADirectory, format!("{shown}: not a directory"))
            .with_hint("the mount point is a directory, or a name that archfs can make one at"));
    }
    if fs::read_dir(place).map_err(failed)?.next().is_some() {
        return Err(Error::new(Kind::Busy, format!("{shown}: the directory is not empty"))
            .with_hint("mount on an empty directory, or at a name that does not exist yet"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_a_missing_directory_and_removes_only_what_it_made() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let mountpoint = Mountpoint::prepare(&missing).unwrap();
        assert!(mountpoint.made().is_some() && missing.is_dir());
        drop(mountpoint);
        assert!(!missing.exists());
        fs::create_dir(&missing).unwrap();
        drop(Mountpoint::prepare(&missing).unwrap());
        assert!(missing.is_dir());
    }

    #[test]
    fn leaves_a_directory_that_took_the_place_of_the_one_it_made() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("place");
        let mountpoint = Mountpoint::prepare(&place).unwrap();
        // Renamed, not removed, so that the inode number can not be used again.
        fs::rename(&place, folder.path().join("elsewhere")).unwrap();
        fs::create_dir(&place).unwrap();
        drop(mountpoint);
        assert!(place.is_dir());
    }

    #[test]
    fn refuses_what_can_not_be_mounted_on() {
        let folder = tempfile::tempdir().unwrap();
        let kind = |path: &Path| Mountpoint::prepare(path).unwrap_err().kind();
        fs::write(folder.path().join("file"), "x").unwrap();
        assert_eq!(kind(folder.path()), Kind::Busy);
        assert_eq!(kind(&folder.path().join("file")), Kind::NotADirectory);
        assert_eq!(kind(&folder.path().join("no/such")), Kind::NotFound);
        assert_eq!(kind(Path::new("/proc")), Kind::Busy);
        assert_eq!(kind(Path::new("/")), Kind::Usage);
        assert!(folder.path().join("file").exists());
    }

    #[test]
    fn follows_links_to_the_place_the_kernel_names() {
        let folder = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(folder.path()).unwrap().join("real");
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, folder.path().join("link")).unwrap();
        assert_eq!(locate(&folder.path().join("link")).unwrap(), real);
        assert_eq!(locate(&folder.path().join("link/new")).unwrap(), real.join("new"));
        assert_eq!(locate(&folder.path().join("real/")).unwrap(), real);
        assert_eq!(locate(&folder.path().join("link/.")).unwrap(), real);
    }

    #[test]
    fn does_not_follow_a_link_of_somebody_else() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        fs::create_dir(folder.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        assert!(locate(&link).is_ok());
        std::os::unix::fs::lchown(&link, Some(65_534), None).unwrap();
        assert_eq!(locate(&link).unwrap_err().kind(), Kind::Busy);
    }
}
