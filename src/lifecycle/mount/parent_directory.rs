//! A mount point that stays the same while others rename what is above it.
//!
//! Owns the way from a path that was checked to the directory that was meant by it. Invariant: no
//! symbolic link is followed, so what is mounted, unmounted or removed lies where the path said.
//!
//! Between a look at a path and what is then done to it, whoever owns a folder on the way can put a
//! link in its place, and root would mount over /etc, or unmount /home. So root looks up the folder
//! above the mount point once, by a path that has no links, and does everything else from there, by
//! the name of its descriptor in /proc. (fusermount does the same for others, with their rights.)

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, open, openat, openat2};
use rustix::io::Errno;
use rustix::process::geteuid;

/// A mount point by the folder above it, which is open, and its name there.
#[derive(Debug)]
pub(in crate::lifecycle) struct ParentDirectory {
    folder: OwnedFd,
    name: OsString,
}

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl ParentDirectory {
    /// Pins `mount_point`, an absolute path without symbolic links, which need not exist itself.
    ///
    /// # Errors
    /// The system's, such as ELOOP where there are links by now.
    pub(in crate::lifecycle) fn new(mount_point: &Path) -> rustix::io::Result<Self> {
        let folder = mount_point.parent().unwrap_or(Path::new("/"));
        let name = mount_point.file_name().unwrap_or_default().to_owned();
        let opened = openat2(CWD, folder, FOLDER, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        let folder = match opened {
            // Before Linux 5.6, or forbidden by a container: at least not through the last name.
            Err(Errno::NOSYS | Errno::PERM) => {
                open(folder, FOLDER | OFlags::NOFOLLOW, Mode::empty())?
            }
            opened => opened?,
        };
        Ok(Self { folder, name })
    }

    /// A path of the mount point for this process, as long as this lives. Whoever uses it must not
    /// follow a link in its last name.
    pub(in crate::lifecycle) fn path(&self) -> PathBuf {
        path_of(&self.folder).join(&self.name)
    }

    /// The directory at the mount point, open; what is mounted there, if something is.
    ///
    /// # Errors
    /// The system's, such as ENOTDIR, also for a link.
    pub(in crate::lifecycle) fn directory(&self) -> rustix::io::Result<OwnedFd> {
        openat(&self.folder, &self.name, FOLDER | OFlags::NOFOLLOW, Mode::empty())
    }

    /// Gives the caller all rights to its own directory at the mount point, some of which a umask
    /// may have kept from it. Nobody else gets any.
    ///
    /// # Errors
    /// The system's.
    pub(in crate::lifecycle) fn open_to_owner(&self) -> io::Result<()> {
        let directory = self.directory()?;
        let path = path_of(&directory);
        let found = fs::metadata(&path)?;
        if found.uid() != geteuid().as_raw() || found.mode() & 0o700 == 0o700 {
            return Ok(());
        }
        let mode = found.mode() & 0o7777 | 0o700;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    }
}

/// A path of what `descriptor` has open, for this process. The kernel follows it to that very file.
pub(in crate::lifecycle) fn path_of(descriptor: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// > Root opens the parent directory once, without following links, and mounts, unmounts and
    /// > removes from there. A swapped directory or link can make that fail, but cannot redirect
    /// > it.
    #[test]
    fn stays_where_it_was_when_a_folder_above_it_is_replaced() {
        let work = tempfile::tempdir().unwrap();
        let work = fs::canonicalize(work.path()).unwrap();
        let (folder, moved, trap) = (work.join("folder"), work.join("moved"), work.join("trap"));
        for made in [folder.join("place"), trap.join("place")] {
            fs::create_dir_all(made).unwrap();
        }
        let pinned = ParentDirectory::new(&folder.join("place")).unwrap();
        fs::rename(&folder, &moved).unwrap();
        symlink(&trap, &folder).unwrap();
        fs::remove_dir(pinned.path()).unwrap();
        assert!(!moved.join("place").exists() && trap.join("place").exists());
        fs::create_dir(pinned.path()).unwrap();
        assert!(moved.join("place").exists());
        assert_eq!(ParentDirectory::new(&folder.join("place")).unwrap_err(), Errno::LOOP);
    }

    #[test]
    fn the_owner_gets_all_rights_and_others_none() {
        let work = tempfile::tempdir().unwrap();
        let mount_point = fs::canonicalize(work.path()).unwrap().join("place");
        fs::create_dir(&mount_point).unwrap();
        for (before, after) in [(0o600, 0o700), (0, 0o700), (0o1155, 0o1755), (0o700, 0o700)] {
            fs::set_permissions(&mount_point, fs::Permissions::from_mode(before)).unwrap();
            ParentDirectory::new(&mount_point).unwrap().open_to_owner().unwrap();
            assert_eq!(fs::metadata(&mount_point).unwrap().mode() & 0o7777, after, "{before:o}");
        }
    }

    #[test]
    fn a_link_at_the_place_is_no_directory() {
        let work = tempfile::tempdir().unwrap();
        let work = fs::canonicalize(work.path()).unwrap();
        symlink("/", work.join("link")).unwrap();
        let error = ParentDirectory::new(&work.join("link")).unwrap().directory().unwrap_err();
        assert!(matches!(error, Errno::NOTDIR | Errno::LOOP), "{error}");
    }
}
