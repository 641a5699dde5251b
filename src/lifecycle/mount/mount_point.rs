//! The directory that shows the archive.
//!
//! Owns its checks; leaves making and removing it to `registry`. Invariant: nothing is mounted over
//! anything but an empty directory.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::geteuid;

use crate::error::{Error, Kind, Result};
use crate::lifecycle::mount::owned_directory::OwnedDirectory;
use crate::lifecycle::mount::root_path::{self, Refusal};
use crate::mountinfo::{self, MountEntry};
use crate::storage;

/// Links in a row that are followed, as many as the kernel does (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// A directory that is ready to be mounted on. Dropping it removes it if archfs created it.
#[derive(Debug)]
pub(in crate::lifecycle) struct Mountpoint {
    /// `None` where something else is mounted there, which only a namespace of its own covers.
    _directory: Option<OwnedDirectory>,
}

impl Mountpoint {
    /// Checks the directory `mount_point`, and creates it where it is missing; calls `before`
    /// before that.
    ///
    /// # Errors
    /// `Busy` where something is in the directory; `NotADirectory`; `NotFound` where its parent is
    /// missing; `Io`; what `before` returns.
    pub(in crate::lifecycle) fn prepare(
        mount_point: &Path,
        before: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Self> {
        Self::check_or_create(mount_point, Whose::Own, before)
    }

    /// The same for a mount that only a namespace of its own sees: what is mounted there outside
    /// does not matter. `begun` is called before the directory is created.
    ///
    /// # Errors
    /// As `prepare`.
    pub(in crate::lifecycle) fn within_namespace(
        mount_point: &Path,
        begun: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Self> {
        if mountinfo::topmost(mount_point)?.is_some() {
            return Ok(Self { _directory: None });
        }
        Self::check_or_create(mount_point, Whose::Any, begun)
    }

    fn check_or_create(
        mount_point: &Path,
        whose: Whose,
        before: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Self> {
        let (directory, is_new) = OwnedDirectory::create_or_use(mount_point, before)?;
        if !is_new {
            check_existing(mount_point, whose)?;
        }
        Ok(Self { _directory: Some(directory) })
    }
}

/// Whose directory may be mounted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// That of the user.
    Own,
    /// That of anybody.
    Any,
}

/// The error for a mount point that something else has.
pub(in crate::lifecycle) fn taken(mount_point: &Path, entry: &MountEntry) -> Error {
    let context = format!("{}: {} is mounted here", mount_point.display(), entry.describe());
    Error::new(Kind::Busy, context).with_hint("choose another place, or unmount that first")
}

/// `path` as the kernel will name it. Of the mount point itself it is only asked whether it is a
/// link, as it may be a mount that is dead or hangs. Root follows no link of another user, and
/// enters no file system that another user serves (`root_path`).
///
/// # Errors
/// `NotFound` where the parent does not exist; `Usage` for the root directory and descriptors.
pub(in crate::lifecycle) fn locate(path: &Path) -> Result<PathBuf> {
    let shown = path.display();
    if path == Path::new("/") {
        return Err(Error::new(Kind::Usage, "/: is the root directory, no mount point"));
    }
    if path.starts_with("/dev/fd") {
        // Another folder in each process; `mount` has taken the numbers of descriptors before.
        let context = format!("{shown}: can not be the mount point");
        return Err(Error::new(Kind::Usage, context).with_hint(
            "a mount that is handed over is served by: archfs mount ARCHIVE /dev/fd/N",
        ));
    }
    // Without empty components and a `.` at the end, which would hide a symbolic link.
    let path: PathBuf = path.components().collect();
    if geteuid().is_root() {
        return root_path::resolve(&path).map_err(|refusal| match refusal {
            Refusal::Rule(error) => error,
            Refusal::NoDirectory(at) => no_such_directory(&at),
            Refusal::System(at, error) => {
                let context = format!("{shown}: can not be the mount point: {}", at.display());
                Error::io(context, error.into())
            }
        });
    }
    let link = link_at(&path);
    if let Some(link) = &link {
        // In /tmp, somebody else could let a link lead to a directory that is not meant.
        let user = geteuid().as_raw();
        if link.uid() != user && link.uid() != 0 {
            let context = format!("{shown}: a symbolic link of somebody else");
            return Err(Error::new(Kind::Busy, context).with_hint("choose another name"));
        }
    }
    if let Some(foreign) = path.ancestors().skip(1).find(|part| is_planted(part)) {
        let context = format!("{shown}: {} is a symbolic link of somebody else", foreign.display());
        return Err(Error::new(Kind::Busy, context).with_hint("choose another place"));
    }
    if link.is_some() || path.file_name().is_none() {
        return follow(path)
            .map_err(|error| Error::io(format!("{shown}: can not be the mount point"), error));
    }
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let parent = fs::canonicalize(parent).map_err(|error| match error.kind() {
        ErrorKind::NotFound => no_such_directory(parent),
        _ => Error::io(format!("{}: can not be entered", parent.display()), error),
    })?;
    Ok(parent.join(path.file_name().unwrap_or_default()))
}

fn no_such_directory(path: &Path) -> Error {
    Error::new(Kind::NotFound, format!("{}: no such directory", path.display()))
        .with_hint("archfs makes the last folder of a mount point, not those above it")
}

/// The symbolic link at `path`, if one is there. readlink(2) tells first: for a mount the kernel
/// answers it by itself, while stat(2) goes to the daemon.
fn link_at(path: &Path) -> Option<Metadata> {
    fs::read_link(path).ok()?;
    fs::symlink_metadata(path).ok().filter(Metadata::is_symlink)
}

/// Where `path` leads, by links that may end with a slash: with one, realpath(3) asks whether a
/// directory is there.
fn follow(mut path: PathBuf) -> io::Result<PathBuf> {
    for _ in 0..LINKS_MAX {
        let Ok(target) = fs::read_link(&path) else {
            return fs::canonicalize(path);
        };
        let folder = path.parent().unwrap_or(Path::new("/"));
        path = folder.join(target).components().collect();
    }
    Err(Errno::LOOP.into())
}

fn check_existing(mount_point: &Path, whose: Whose) -> Result<()> {
    let shown = mount_point.display();
    let failed = |error| Error::io(format!("{shown}: can not be the mount point"), error);
    // Not through a link that somebody has put there since the mount point was located.
    let found = fs::symlink_metadata(mount_point).map_err(failed)?;
    if !found.is_dir() {
        return Err(Error::new(Kind::NotADirectory, format!("{shown}: not a directory"))
            .with_hint("the mount point is a directory, or a name that archfs can make one at"));
    }
    check_owner(mount_point, &found, whose)?;
    if fs::read_dir(mount_point).map_err(failed)?.next().is_some() {
        return Err(Error::new(Kind::Busy, format!("{shown}: the directory is not empty"))
            .with_hint("mount on an empty directory, or at a name that does not exist yet"));
    }
    Ok(())
}

/// Whether `path` is a link that somebody made where everybody may make names; the kernel follows
/// none of them either, where fs.protected_symlinks is set.
fn is_planted(path: &Path) -> bool {
    let is_foreign = link_at(path).is_some_and(|link| !storage::is_trusted(&link));
    is_foreign && is_of_everybody(path.parent())
}

fn is_of_everybody(folder: Option<&Path>) -> bool {
    let folder = folder.filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    fs::metadata(folder).is_ok_and(|found| found.mode() & 0o002 != 0)
}

/// Refuses directories that others could take away, and the mount with them: who owns a directory
/// can remove it in a mount namespace of his own, and make another at its name that shows something
/// else. Those of a group that shares a project are trusted, so a user may mount on what a
/// colleague made where not everybody may write. Root may mount in the folders of a user for that
/// user; a private mount may be over any folder of the node.
fn check_owner(mount_point: &Path, found: &Metadata, whose: Whose) -> Result<()> {
    let is_own = found.uid() == geteuid().as_raw();
    let is_known = is_own || storage::is_trusted(found);
    let among_all = || is_of_everybody(mount_point.parent());
    let is_fine = match whose {
        Whose::Own if !geteuid().is_root() => is_own || (found.mode() & 0o002 == 0 && !among_all()),
        Whose::Own | Whose::Any => is_known || !among_all(),
    };
    if is_fine {
        return Ok(());
    }
    let context =
        format!("{}: a directory of somebody else (uid {})", mount_point.display(), found.uid());
    Err(Error::new(Kind::CannotMount, context)
        .with_hint("mount on a directory of yours, or at a name that does not exist yet"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_can_not_be_mounted_on() {
        let folder = tempfile::tempdir().unwrap();
        let kind = |path: &Path| {
            let mut ignored = || Ok(());
            let prepared = locate(path)
                .and_then(|it| Mountpoint::check_or_create(&it, Whose::Own, &mut ignored));
            prepared.unwrap_err().kind()
        };
        fs::write(folder.path().join("file"), "x").unwrap();
        assert_eq!(kind(folder.path()), Kind::Busy);
        assert_eq!(kind(&folder.path().join("file")), Kind::NotADirectory);
        assert_eq!(kind(&folder.path().join("no/such")), Kind::NotFound);
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
        for (target, name) in [("real/", "slash"), ("slash/", "second"), ("self", "self")] {
            std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
        }
        assert_eq!(locate(&folder.path().join("second")).unwrap(), real);
        assert_eq!(locate(&folder.path().join("self")).unwrap_err().kind(), Kind::Io);
    }

    #[test]
    fn does_not_follow_a_link_of_somebody_else() {
        if !geteuid().is_root() {
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
