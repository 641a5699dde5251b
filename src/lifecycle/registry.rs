//! What is known of each mount besides what the kernel tells: its daemon, and the directory it
//! made.
//!
//! Owns one small file for each mount in a folder of the user's own, named by the mount's device.
//! Invariant: records help, but nothing depends on them: without one, a mount is judged by itself.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::geteuid;

use super::mountinfo::MountEntry;
use super::mountpoint::Made;
use super::process::ProcessId;
use crate::error::{Error, Kind, Result};

/// The record of one mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) daemon: ProcessId,
    /// The directory that was made for it.
    pub(super) made: Option<Made>,
    pub(super) place: PathBuf,
}

/// A record on disk, removed when dropped.
#[derive(Debug)]
pub(super) struct Registered(PathBuf);

impl Record {
    /// Writes the record of the mount `entry`.
    ///
    /// # Errors
    /// `Io` or `Busy` where the user's folder can not be made or belongs to somebody else.
    pub(super) fn write(&self, entry: &MountEntry) -> Result<Registered> {
        let file = path(entry);
        let failed = |error| Error::io(format!("{}: can not write", file.display()), error);
        loop {
            check_folder()?;
            // Gone and made anew, lest a link or a reader of an old one be written through.
            let _ = fs::remove_file(&file);
            match File::options().write(true).create_new(true).mode(0o600).open(&file) {
                // Whoever forgot the last record took the folder along.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                opened => {
                    opened.and_then(|mut file| file.write_all(&self.encode())).map_err(failed)?;
                    return Ok(Registered(file));
                }
            }
        }
    }

    /// The record of the mount `entry` at `place`, if there is one.
    pub(super) fn read(entry: &MountEntry, place: &Path) -> Option<Self> {
        check_folder().ok()?;
        let bytes = fs::read(path(entry)).ok()?;
        // Devices are used again; a record of another place is an old one.
        Self::decode(&bytes).filter(|record| record.place == place)
    }

    /// Lines of a word and a value; the place comes last, as it may hold any byte.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = format!("daemon {}\n", self.daemon).into_bytes();
        if let Some(Made { device, inode }) = self.made {
            bytes.extend(format!("made {device}:{inode}\n").into_bytes());
        }
        bytes.extend(b"place ");
        bytes.extend(self.place.as_os_str().as_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let start = bytes.windows(7).position(|window| window == b"\nplace ")?;
        let (head, place) = bytes.split_at_checked(start.checked_add(7)?)?;
        let head = std::str::from_utf8(head).ok()?;
        let value =
            |word: &str| head.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
        let made = value("made").and_then(|made| {
            let (device, inode) = made.split_once(':')?;
            Some(Made { device: device.parse().ok()?, inode: inode.parse().ok()? })
        });
        let place = PathBuf::from(OsString::from_vec(place.to_vec()));
        Some(Self { daemon: value("daemon")?.parse().ok()?, made, place })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Forgets the mount `entry`.
pub(super) fn forget(entry: &MountEntry) {
    remove(&path(entry));
}

/// Whether the daemon of the archfs mount `entry` at `place` is gone.
pub(super) fn is_dead(entry: &MountEntry, place: &Path) -> bool {
    match Record::read(entry, place) {
        Some(record) => !record.daemon.is_alive(),
        // The kernel answers stat(2) from its cache, also for the dead; statfs(2) it has to ask
        // for.
        None => rustix::fs::statfs(place).is_err_and(|error| error == Errno::NOTCONN),
    }
}

/// Removes a record, which may be gone already, and the folder with the last one.
fn remove(file: &Path) {
    let _ = fs::remove_file(file);
    let _ = fs::remove_dir(folder());
}

fn path(entry: &MountEntry) -> PathBuf {
    folder().join(entry.device.replace(':', "-"))
}

/// The folder of this user's records. It is the same in every job and shell of the node.
fn folder() -> PathBuf {
    PathBuf::from(format!("/tmp/archfs-{}", geteuid().as_raw()))
}

/// Makes the folder, and checks that it is this user's alone: anybody may make names in /tmp.
fn check_folder() -> Result<()> {
    let folder = folder();
    let failed = |error| Error::io(format!("{}: can not be used", folder.display()), error);
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let found = match fs::symlink_metadata(&folder) {
        // Removed meanwhile, which is as good as empty.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.map_err(failed)?,
    };
    if !found.is_dir() || found.uid() != geteuid().as_raw() || found.mode() & 0o077 != 0 {
        let context = format!("{}: not a directory of yours alone (0700)", folder.display());
        return Err(Error::new(Kind::Busy, context));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_any_place() {
        for place in ["/a", "/a b\nplace c", "/x\ndaemon 1:1\nmade 1:1"] {
            for made in [None, Some(Made { device: 3, inode: u64::MAX })] {
                let daemon = "12:34".parse().unwrap();
                let record = Record { daemon, made, place: place.into() };
                assert_eq!(Record::decode(&record.encode()), Some(record));
            }
        }
        assert_eq!(Record::decode(b""), None);
        assert_eq!(Record::decode(b"daemon x\nplace /a"), None);
    }
}
