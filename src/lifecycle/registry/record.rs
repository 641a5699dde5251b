//! The record of one mount: what its line in mountinfo does not tell.
//!
//! Owns its form, a word and a value a line. Invariant: a record that can not be read is none.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::{Key, Registry, own_file};
use crate::error::{Error, Result};
use crate::lifecycle::mountinfo::{self, MountEntry};
use crate::lifecycle::process::ProcessId;

/// What is known of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::lifecycle) struct Record {
    pub(in crate::lifecycle) daemon: ProcessId,
    pub(in crate::lifecycle) mount: MountId,
    /// Tells whether another mount would show the same.
    pub(in crate::lifecycle) identity: String,
    pub(in crate::lifecycle) archives: Vec<PathBuf>,
    pub(in crate::lifecycle) place: PathBuf,
}

/// A mount, told from all others that exist now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::lifecycle) struct MountId {
    pub(in crate::lifecycle) id: u64,
    /// Major and minor number of the file system's device, `0:53`.
    pub(in crate::lifecycle) device: String,
}

impl MountId {
    /// That of `entry`.
    pub(in crate::lifecycle) fn of(entry: &MountEntry) -> Self {
        Self { id: entry.id, device: entry.device.clone() }
    }
}

/// A record on disk; dropping it removes it and the name of the socket.
#[derive(Debug)]
pub(in crate::lifecycle) struct Registered {
    registry: Registry,
    key: Key,
}

impl Record {
    /// Writes the record. Call it with the lock of the place.
    ///
    /// # Errors
    /// `Io`.
    pub(in crate::lifecycle) fn write(&self) -> Result<Registered> {
        loop {
            let registry = Registry::open()?;
            let key = Key::of(&self.place);
            let file = registry.file(&key, "record");
            let failed = |error| Error::io(format!("{}: can not write", file.display()), error);
            // Gone and made anew, lest a link or a reader of an old one be written through.
            let _ = fs::remove_file(&file);
            match own_file::open(&file, File::options().write(true).create_new(true)) {
                // The folder went with its last file.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                opened => {
                    opened.and_then(|mut file| file.write_all(&self.encode())).map_err(failed)?;
                    return Ok(Registered { registry, key });
                }
            }
        }
    }

    /// The record of the mount at `place`, if there is one.
    pub(in crate::lifecycle) fn read(place: &Path) -> Option<Self> {
        let registry = Registry::existing()?;
        registry.record(&Key::of(place)).filter(|record| record.place == place)
    }

    /// Forgets what was at `place`: its daemon is gone.
    pub(in crate::lifecycle) fn forget(place: &Path) {
        if let Some(registry) = Registry::existing() {
            drop(Registered { registry, key: Key::of(place) });
        }
    }

    fn encode(&self) -> Vec<u8> {
        let Self { daemon, mount, identity, archives, place } = self;
        let mut bytes =
            format!("daemon {daemon}\nmount {} {}\nidentity {identity}\n", mount.id, mount.device)
                .into_bytes();
        let paths = archives.iter().map(|path| ("archive ", path)).chain([("place ", place)]);
        for (word, path) in paths {
            bytes.extend(word.as_bytes());
            bytes.extend(mountinfo::escape(path.as_os_str().as_bytes()));
            bytes.push(b'\n');
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let values = |word: &'static str| {
            bytes
                .split(|&byte| byte == b'\n')
                .filter_map(move |line| line.strip_prefix(word.as_bytes())?.strip_prefix(b" "))
        };
        let text = |word| std::str::from_utf8(values(word).next()?).ok();
        let path = |escaped: &[u8]| {
            PathBuf::from(std::ffi::OsString::from_vec(
                mountinfo::unescape(escaped).into_encoded_bytes(),
            ))
        };
        let (id, device) = text("mount")?.split_once(' ')?;
        Some(Self {
            daemon: text("daemon")?.parse().ok()?,
            mount: MountId { id: id.parse().ok()?, device: device.to_owned() },
            identity: text("identity")?.to_owned(),
            archives: values("archive").map(path).collect(),
            place: path(values("place").next()?),
        })
    }
}

impl Registry {
    /// The record with `key`, if there is one.
    pub(in crate::lifecycle) fn record(&self, key: &Key) -> Option<Record> {
        Record::decode(&fs::read(self.file(key, "record")).ok()?)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // The record last: once it is gone the place is free, and a socket of this name another's.
        for suffix in ["socket", "record"] {
            let _ = fs::remove_file(self.registry.file(&self.key, suffix));
        }
        self.registry.tidy();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_any_place() {
        for place in ["/a", "/a b\nplace c", "/x\\012\ndaemon 1:1", "/\n"] {
            for archives in [vec![], vec![PathBuf::from(place), "/b".into()]] {
                let daemon = "12:34".parse().unwrap();
                let mount = MountId { id: u64::MAX, device: "0:53".into() };
                let (identity, place) = ("ab-cd".to_owned(), place.into());
                let record = Record { daemon, mount, identity, archives, place };
                assert_eq!(Record::decode(&record.encode()), Some(record));
            }
        }
        assert_eq!(Record::decode(b""), None);
        assert_eq!(Record::decode(b"daemon x\nplace /a"), None);
    }
}
