//! Records of the directories that `run --or-extract` made, by which `gc` finds them.
//!
//! Each is a file in the record directory, with the name of the node and the path.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::owner_only_file::open_0600;
use super::record::node;
use super::record_directory::RecordDirectory;
use crate::error::Result;

const SUFFIX: &str = ".extracted";

/// Records `directory`, which this process holds.
pub(in crate::lifecycle) fn write(directory: &Path) -> Result<()> {
    let name = name_of(directory);
    if RecordDirectory::containing(&name).is_some() {
        return Ok(());
    }
    let content = [node().as_bytes(), b"\n", directory.as_os_str().as_bytes()].concat();
    RecordDirectory::try_each_parent(|record_directory| {
        let path = record_directory.join(&name);
        let mut file = open_0600(&path, File::options().write(true).create(true).truncate(true))?;
        file.write_all(&content)
    })
}

/// The directories of this user on this node that were recorded.
pub(in crate::lifecycle) fn all() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for record_directory in RecordDirectory::all() {
        for name in record_directory.names(SUFFIX) {
            let content = fs::read(record_directory.join(&name)).unwrap_or_default();
            let Some(end) = content.iter().position(|&byte| byte == b'\n') else { continue };
            let (recorded, path) = content.split_at(end);
            if recorded == node().as_bytes() {
                found.push(PathBuf::from(std::ffi::OsString::from_vec(path[1..].to_vec())));
            }
        }
    }
    found
}

/// Removes the record of `directory`, which is gone.
pub(in crate::lifecycle) fn remove(directory: &Path) {
    let name = name_of(directory);
    while let Some(record_directory) = RecordDirectory::containing(&name) {
        if fs::remove_file(record_directory.join(&name)).is_err() {
            return;
        }
        record_directory.remove_if_empty();
    }
}

fn name_of(directory: &Path) -> String {
    format!("{:016x}{SUFFIX}", xxh3_64(directory.as_os_str().as_bytes()))
}
