//! The names of the files in a record directory, and how to read a record file.
//!
//! Each mount point has a record file, `KEY.mount`, and the socket of its daemon, `KEY.socket`. The
//! files of a private mount, and of one that is unmounted but still served, are named
//! `KEY-PROCESS`.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::io::Errno;
use xxhash_rust::xxh3::Xxh3;

use super::record::{self, Record};

pub(super) const RECORD_SUFFIX: &str = ".mount";
pub(super) const SOCKET_SUFFIX: &str = ".socket";

/// The maximum size of a record in bytes, enough for some 100,000 archives.
const RECORD_SIZE_MAX: u64 = 32 << 20;

/// The key of a mount point: a digest of its path, the mount namespace and the boot of the node.
/// The same path is another directory in a container, and nodes may share /tmp.
fn key(mount_point: &Path) -> String {
    let mut digest = Xxh3::new();
    let namespace = fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
    for part in [mount_point.as_os_str(), namespace.as_os_str(), record::boot().as_ref()] {
        digest.update(part.as_encoded_bytes());
        digest.update(b"\0");
    }
    format!("{:032x}", digest.digest128())
}

/// The name of the record file of the shared mount at `mount_point`.
pub(super) fn record_name(mount_point: &Path) -> String {
    key(mount_point) + RECORD_SUFFIX
}

/// The name of the record file of a private mount that `record` describes.
pub(super) fn private_record_name(record: &Record) -> String {
    format!("{}{}{RECORD_SUFFIX}", private_prefix(&record.mount_point), record.process)
}

/// Whether the record file `record_name` is not the lock of a mount point.
pub(super) fn is_private(record_name: &str) -> bool {
    record_name.contains('-')
}

/// The prefix of the names of the record files of private mounts at `mount_point`.
pub(super) fn private_prefix(mount_point: &Path) -> String {
    key(mount_point) + "-"
}

/// The name of the socket that belongs to the record file `record_name`.
pub(super) fn socket_name(record_name: &str) -> String {
    record_name.strip_suffix(RECORD_SUFFIX).unwrap_or(record_name).to_owned() + SOCKET_SUFFIX
}

/// The name of the record file that belongs to the socket `socket_name`.
pub(super) fn record_name_of_socket(socket_name: &str) -> String {
    socket_name.strip_suffix(SOCKET_SUFFIX).unwrap_or(socket_name).to_owned() + RECORD_SUFFIX
}

/// The record in `file`; `None` if it is being written, or its writer was killed.
pub(super) fn read_record(file: &File) -> Option<Record> {
    let len = file.metadata().ok()?.len();
    let mut text = vec![0; usize::try_from(len.min(RECORD_SIZE_MAX)).ok()?];
    file.read_exact_at(&mut text, 0).ok()?;
    Record::decode(&text)
}

/// Repeats the system call `call` until no signal interrupts it.
pub(super) fn retry_if_interrupted(
    mut call: impl FnMut() -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}

/// Whether `path` still names `file`.
pub(super) fn is_named(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(opened), Ok(named)) => (opened.dev(), opened.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}
