//! Finds the files that archfs keeps for this test's mount points.
//!
//! Other tests mount as root at the same time. A file is named by a digest of its mount point, and
//! only a record contains the path, so the digest is learned from the record while the mount
//! exists.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directory of a user's files.
pub(crate) fn directory(user: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/archfs-{user}"))
}

/// The common prefix of the file names for `mount_point`, which the user has just mounted.
pub(crate) fn name_prefix(user: u32, mount_point: &Path) -> String {
    let is_record = |path: &PathBuf| path.extension() == Some("mount".as_ref());
    let record = entries(user)
        .into_iter()
        .find(|path| is_record(path) && names_mount_point(path, mount_point));
    let record = record.expect("a record of the mount");
    let start = record.file_stem().unwrap().to_str().unwrap().to_owned();
    // A wrong prefix would find no file and hide everything that remains.
    let socket = directory(user).join(format!("{start}.socket"));
    assert!(fs::symlink_metadata(&socket).is_ok(), "{} is not there", socket.display());
    start
}

/// All files for a mount point: by their prefix, or because they contain its path.
pub(crate) fn about(user: u32, start: &str, mount_point: &Path) -> Vec<PathBuf> {
    let is_about = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.as_bytes().starts_with(start.as_bytes()) || names_mount_point(path, mount_point)
    };
    entries(user).into_iter().filter(is_about).collect()
}

/// All files of the user.
pub(crate) fn entries(user: u32) -> Vec<PathBuf> {
    let found = fs::read_dir(directory(user)).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}

fn names_mount_point(file: &Path, mount_point: &Path) -> bool {
    // Sockets cannot be read.
    let text = fs::read(file).unwrap_or_default();
    let mount_point = mount_point.as_os_str().as_bytes();
    text.windows(mount_point.len()).any(|part| part == mount_point)
}
