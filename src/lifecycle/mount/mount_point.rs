//! Locates and checks the mount point.
//!
//! Invariant: archfs mounts only on an empty directory, unless the user asks for another.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::error::{Error, Kind, Result};
use crate::lifecycle::mount::owned_directory::OwnedDirectory;
use crate::os::mountinfo::{self, MountEntry};
use crate::os::path_walk::{self, Refusal};
use crate::os::trust;

/// Checks the directory `mount_point`, and creates it if it is missing. Calls `before` before it
/// creates it. `covers_files` is whether the directory may have files.
///
/// Fails with `Busy` if the directory is not empty; `NotADirectory`; `NotFound` if its parent is
/// missing; `Io`; any error of `before`.
pub(crate) fn prepare(
    mount_point: &Path,
    covers_files: bool,
    before: &mut dyn FnMut() -> Result<()>,
) -> Result<OwnedDirectory> {
    check_or_create(mount_point, AllowedOwner::Own, covers_files, before)
}

/// Like `prepare`, for a mount in a private namespace. Only such a mount may cover another mount:
/// then there is no directory to check or to remove, and the result is `None`.
pub(crate) fn prepare_in_namespace(
    mount_point: &Path,
    covers_files: bool,
    before: &mut dyn FnMut() -> Result<()>,
) -> Result<Option<OwnedDirectory>> {
    if mountinfo::topmost(mount_point)?.is_some() {
        return Ok(None);
    }
    check_or_create(mount_point, AllowedOwner::Any, covers_files, before).map(Some)
}

fn check_or_create(
    mount_point: &Path,
    allowed: AllowedOwner,
    covers_files: bool,
    before: &mut dyn FnMut() -> Result<()>,
) -> Result<OwnedDirectory> {
    let (directory, is_new) = OwnedDirectory::create_or_use(mount_point, before)?;
    if !is_new {
        check_existing(mount_point, allowed, covers_files)?;
    }
    Ok(directory)
}

/// Whose directories may be the mount point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllowedOwner {
    /// Those of this user; see `check_owner` for exceptions.
    Own,
    /// Those of any user.
    Any,
}

/// The error for a mount point at which `entry` is mounted.
pub(crate) fn taken(mount_point: &Path, entry: &MountEntry) -> Error {
    let context = format!("{}: {} is mounted here", mount_point.display(), entry.describe());
    Error::new(Kind::Busy, context).with_hint(match entry.is_fuse() {
        true => "choose another mount point, or unmount that first",
        // Such as /proc: nobody means to unmount that.
        false => "choose another mount point",
    })
}

/// The absolute path of `path` without symbolic links. The mount point itself may be a mount that
/// is stale or hangs, so this checks only whether it is a link. `path_walk` says which links are
/// followed; one of another user at the mount point itself is not.
///
/// Fails with `NotFound` if the parent does not exist; `Usage` for the root directory and
/// descriptors.
pub(crate) fn locate(path: &Path) -> Result<PathBuf> {
    let given = path.display();
    if path == Path::new("/") {
        return Err(Error::new(Kind::Usage, "/: the root directory cannot be the mount point"));
    }
    if path.starts_with("/dev/fd") {
        // It is another directory in each process. `mount` has handled descriptor numbers before.
        let context = format!("{given}: cannot be the mount point");
        return Err(Error::new(Kind::Usage, context).with_hint(
            "to serve a mount that another program made: archfs mount ARCHIVE /dev/fd/N",
        ));
    }
    // Removes empty components and a trailing `.`, which would hide a symbolic link.
    let path: PathBuf = path.components().collect();
    path_walk::resolve_mount_point(&path).map_err(|refusal| match refusal {
        Refusal::Missing(missing) => no_such_directory(&missing),
        Refusal::System(part, error) => {
            let context = format!("{given}: cannot be the mount point: {}", part.display());
            Error::io(context, error.into())
        }
        Refusal::Link(link, uid) if link.file_name() == path.file_name() => {
            let context = format!("{given}: is a symbolic link of another user (uid {uid})");
            Error::new(Kind::Busy, context).with_hint(without_links())
        }
        rule => {
            let is_link = matches!(rule, Refusal::Link(..));
            let hint = if is_link { without_links() } else { "run archfs as that user" };
            Error::new(Kind::Busy, format!("{given}: {rule}")).with_hint(hint)
        }
    })
}

fn without_links() -> &'static str {
    match geteuid().is_root() {
        true => "root does not follow links of other users; give the path without them",
        false => "choose another mount point",
    }
}

fn no_such_directory(path: &Path) -> Error {
    Error::new(Kind::NotFound, format!("{}: no such directory", path.display())).with_hint(
        "archfs creates only the last directory of the path; create the others with mkdir -p",
    )
}

fn check_existing(mount_point: &Path, allowed: AllowedOwner, covers_files: bool) -> Result<()> {
    let path = mount_point.display();
    let failed = |error| Error::io(format!("{path}: cannot be the mount point"), error);
    // Does not follow a link that was created after `locate`.
    let found = fs::symlink_metadata(mount_point).map_err(failed)?;
    if !found.is_dir() {
        return Err(Error::new(Kind::NotADirectory, format!("{path}: not a directory"))
            .with_hint("use an empty directory, or a name that does not exist yet"));
    }
    check_owner(mount_point, &found, allowed)?;
    if !covers_files && fs::read_dir(mount_point).map_err(failed)?.next().is_some() {
        return Err(Error::new(Kind::Busy, format!("{path}: the directory is not empty"))
            .with_hint(
                "use an empty directory, or a name that does not exist yet; -o nonempty hides the \
                 files",
            ));
    }
    Ok(())
}

fn is_world_writable(directory: Option<&Path>) -> bool {
    let directory =
        directory.filter(|directory| *directory != Path::new("")).unwrap_or(Path::new("."));
    fs::metadata(directory).is_ok_and(|found| found.mode() & 0o002 != 0)
}

/// Refuses directories that other users could remove, and the mount with them. The owner of a
/// directory can remove it in a private mount namespace, and create another one at the same path
/// that shows something else.
///
/// Members of a group that shares a project are trusted. So a user may mount on the directory of a
/// colleague, unless it or its parent is world-writable. Root, and a user with a private mount, may
/// mount on the directory of any user unless its parent is world-writable.
fn check_owner(mount_point: &Path, found: &Metadata, allowed: AllowedOwner) -> Result<()> {
    let is_own = found.uid() == geteuid().as_raw();
    let is_known = is_own || trust::is_trusted(found);
    let parent_is_world_writable = || is_world_writable(mount_point.parent());
    let is_allowed = match allowed {
        AllowedOwner::Own if !geteuid().is_root() => {
            is_own || (found.mode() & 0o002 == 0 && !parent_is_world_writable())
        }
        AllowedOwner::Own | AllowedOwner::Any => is_known || !parent_is_world_writable(),
    };
    if is_allowed {
        return Ok(());
    }
    let context =
        format!("{}: a directory of another user (uid {})", mount_point.display(), found.uid());
    Err(Error::new(Kind::CannotMount, context)
        .with_hint("use a directory of yours, or a name that does not exist yet"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_unsuitable_mount_points() {
        let directory = tempfile::tempdir().unwrap();
        let kind = |path: &Path| {
            let mut ignored = || Ok(());
            let prepared = locate(path).and_then(|located| prepare(&located, false, &mut ignored));
            prepared.unwrap_err().kind()
        };
        fs::write(directory.path().join("file"), "x").unwrap();
        assert_eq!(kind(directory.path()), Kind::Busy);
        assert_eq!(kind(&directory.path().join("file")), Kind::NotADirectory);
        assert_eq!(kind(&directory.path().join("no/such")), Kind::NotFound);
        assert_eq!(kind(Path::new("/")), Kind::Usage);
        prepare(&locate(directory.path()).unwrap(), true, &mut || Ok(())).unwrap();
        assert!(directory.path().join("file").exists());
    }

    #[test]
    fn resolves_links_as_the_kernel_does() {
        let directory = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(directory.path()).unwrap().join("real");
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, directory.path().join("link")).unwrap();
        assert_eq!(locate(&directory.path().join("link")).unwrap(), real);
        assert_eq!(locate(&directory.path().join("link/new")).unwrap(), real.join("new"));
        assert_eq!(locate(&directory.path().join("real/")).unwrap(), real);
        assert_eq!(locate(&directory.path().join("link/.")).unwrap(), real);
        for (target, name) in [("real/", "slash"), ("slash/", "second"), ("self", "self")] {
            std::os::unix::fs::symlink(target, directory.path().join(name)).unwrap();
        }
        assert_eq!(locate(&directory.path().join("second")).unwrap(), real);
        assert_eq!(locate(&directory.path().join("self")).unwrap_err().kind(), Kind::Io);
    }

    #[test]
    fn does_not_follow_a_link_of_another_user() {
        if !geteuid().is_root() {
            return println!("SKIPPED: needs root");
        }
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        fs::create_dir(directory.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        assert!(locate(&link).is_ok());
        std::os::unix::fs::lchown(&link, Some(65_534), None).unwrap();
        assert_eq!(locate(&link).unwrap_err().kind(), Kind::Busy);
    }
}
