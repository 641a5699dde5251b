//! The mount point of `archfs run` if the user names none.
//!
//! Its name follows from the user, the job and what the mount shows. So all tasks of a node that
//! ask for the same archives find the same directory and share one mount, and the paths of files
//! are the same on all nodes. Everybody can work out the name, so a directory of another user at
//! that path is passed over.

use std::env;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::geteuid;

use crate::error::{Error, Kind, Result};
use crate::lifecycle::mount::mount_point;
use crate::lifecycle::{MountPlan, registry};
use crate::os::mountinfo::{self, MountEntry};
use crate::url;

/// The mount point for `plan`, whose own is ignored. It exists already if the plan is mounted.
///
/// # Errors
/// `CannotMount` if there is no directory for temporary files; `Io` if /proc cannot be read.
pub fn choose_mount_point(plan: &MountPlan) -> Result<PathBuf> {
    let name = registry::name_on_all_nodes(plan);
    let parents = [Some("/dev/shm".into()), env::var_os("TMPDIR"), Some("/tmp".into())];
    for parent in parents.into_iter().flatten().map(PathBuf::from) {
        // The mount table has paths without symbolic links.
        let Ok(parent) = fs::canonicalize(parent) else { continue };
        let path = parent.join(&name);
        if may_create_in(&parent) && is_free_or_own(&path)? {
            return Ok(path);
        }
    }
    let context = "no directory for a mount point: tried /dev/shm, $TMPDIR and /tmp";
    Err(Error::new(Kind::CannotMount, context)
        .with_hint("name one: archfs run ARCHIVE... MOUNTPOINT -- COMMAND"))
}

/// Whether `path`, an archive or a mount point, is an archive: a file or a block device.
/// Does not ask a FUSE mount at that path, which may hang, and as root nothing that another user
/// serves.
pub fn is_archive(path: &Path) -> bool {
    if url::is_url(path) {
        return true;
    }
    let Ok(path) = mount_point::locate(path) else { return false };
    let is_served = |entry: Option<MountEntry>| entry.is_some_and(|entry| entry.is_fuse());
    !mountinfo::topmost(&path).is_ok_and(is_served)
        && fs::metadata(&path)
            .is_ok_and(|found| found.is_file() || found.file_type().is_block_device())
}

fn may_create_in(parent: &Path) -> bool {
    parent.is_dir() && access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Whether nothing is at `path`, or a directory or a mount of this user.
fn is_free_or_own(path: &Path) -> Result<bool> {
    // First, because stat(2) of a stale mount fails, and of one that hangs it does not return.
    if let Some(entry) = mountinfo::topmost(path)? {
        return Ok(entry.is_own());
    }
    let found = fs::symlink_metadata(path);
    Ok(found.map_or(true, |found| found.is_dir() && found.uid() == geteuid().as_raw()))
}
