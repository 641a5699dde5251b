//! Pins a mount point while others rename the directories above it.
//!
//! After root has checked a path, the owner of a directory in it can replace that with a link
//! before root acts on it. Then root would mount over /etc, or unmount /home. So root opens the
//! parent of the mount point once, by a path without links. It does everything else relative to
//! that descriptor, through its name in /proc. (fusermount does the same for other users, with
//! their rights.)
//!
//! Invariant: no symbolic link is followed.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, open, openat, openat2};
use rustix::io::Errno;
use rustix::process::geteuid;

/// A mount point: its parent directory, which is open, and its name in there.
#[derive(Debug)]
pub(in crate::lifecycle) struct ParentDirectory {
    parent: OwnedFd,
    name: OsString,
}

const FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl ParentDirectory {
    /// Pins `mount_point`, an absolute path without symbolic links, which need not exist itself.
    ///
    /// # Errors
    /// The error of the system call, for example ELOOP if the path now contains a link.
    pub(in crate::lifecycle) fn new(mount_point: &Path) -> rustix::io::Result<Self> {
        let parent = mount_point.parent().unwrap_or(Path::new("/"));
        let name = mount_point.file_name().unwrap_or_default().to_owned();
        let opened = openat2(CWD, parent, FLAGS, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        let parent = match opened {
            // Linux before 5.6, or a container forbids openat2(2). At least the last component is
            // not followed.
            Err(Errno::NOSYS | Errno::PERM) => {
                open(parent, FLAGS | OFlags::NOFOLLOW, Mode::empty())?
            }
            opened => opened?,
        };
        Ok(Self { parent, name })
    }

    /// A path of the mount point for this process, valid while `self` exists. The caller must not
    /// follow a link in its last component.
    pub(in crate::lifecycle) fn path(&self) -> PathBuf {
        path_of(&self.parent).join(&self.name)
    }

    /// Opens the directory at the mount point or, if something is mounted there, the root of that.
    ///
    /// # Errors
    /// The error of the system call, for example ENOTDIR, which a link causes as well.
    pub(in crate::lifecycle) fn directory(&self) -> rustix::io::Result<OwnedFd> {
        openat(&self.parent, &self.name, FLAGS | OFlags::NOFOLLOW, Mode::empty())
    }

    /// Gives the owner all permissions on the directory at the mount point, if this user owns it: a
    /// umask may have denied some. The permissions of others do not change.
    ///
    /// # Errors
    /// The error of the system call.
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

/// A path for this process that the kernel resolves to the file which `descriptor` has open.
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
    fn keeps_its_directory_when_one_above_it_is_replaced() {
        let work = tempfile::tempdir().unwrap();
        let work = fs::canonicalize(work.path()).unwrap();
        let (parent, moved, trap) = (work.join("parent"), work.join("moved"), work.join("trap"));
        for directory in [parent.join("mount"), trap.join("mount")] {
            fs::create_dir_all(directory).unwrap();
        }
        let parent_directory = ParentDirectory::new(&parent.join("mount")).unwrap();
        fs::rename(&parent, &moved).unwrap();
        symlink(&trap, &parent).unwrap();
        fs::remove_dir(parent_directory.path()).unwrap();
        assert!(!moved.join("mount").exists() && trap.join("mount").exists());
        fs::create_dir(parent_directory.path()).unwrap();
        assert!(moved.join("mount").exists());
        assert_eq!(ParentDirectory::new(&parent.join("mount")).unwrap_err(), Errno::LOOP);
    }

    #[test]
    fn open_to_owner_adds_permissions_for_the_owner_only() {
        let work = tempfile::tempdir().unwrap();
        let mount_point = fs::canonicalize(work.path()).unwrap().join("mount");
        fs::create_dir(&mount_point).unwrap();
        for (before, after) in [(0o600, 0o700), (0, 0o700), (0o1155, 0o1755), (0o700, 0o700)] {
            fs::set_permissions(&mount_point, fs::Permissions::from_mode(before)).unwrap();
            ParentDirectory::new(&mount_point).unwrap().open_to_owner().unwrap();
            assert_eq!(fs::metadata(&mount_point).unwrap().mode() & 0o7777, after, "{before:o}");
        }
    }

    #[test]
    fn a_link_at_the_mount_point_is_not_a_directory() {
        let work = tempfile::tempdir().unwrap();
        let work = fs::canonicalize(work.path()).unwrap();
        symlink("/", work.join("link")).unwrap();
        let error = ParentDirectory::new(&work.join("link")).unwrap().directory().unwrap_err();
        assert!(matches!(error, Errno::NOTDIR | Errno::LOOP), "{error}");
    }
}
