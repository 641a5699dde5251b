//! What this user's archfs processes on this node know of each other.
//!
//! Owns the folder (0700, of the user alone) and the names in it: for each place a lock, a record
//! of the mount there and the socket of its daemon; for each directory that archfs made, who uses
//! it.
//! Invariant: what is written here only tells; a mount, a process or a directory is looked at
//! itself before anything is done to it, so old or missing files cost a message and nothing else.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, Kind, Result};
use crate::lifecycle::pinned::Pinned;

mod lock;
mod made;
mod own_file;
mod record;

pub(super) use lock::PlaceLock;
pub(super) use made::MadeDirectory;
pub(super) use record::{MountId, Record, Registered};

/// Where the folder may lie, the first that can be used. All are the same in every job and shell of
/// a node, and local to it.
const PARENTS: [&str; 3] = ["/tmp", "/dev/shm", "/var/tmp"];

/// The folder of this user.
#[derive(Clone, Debug)]
pub(super) struct Registry {
    folder: PathBuf,
}

/// What the files of one place are called: a digest of the place and the mount namespace, since the
/// same path is another place in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key(String);

impl Key {
    /// The key of `place`, an absolute path without symbolic links.
    pub(super) fn of(place: &Path) -> Self {
        let mut digest = Xxh3::new();
        digest.update(place.as_os_str().as_bytes());
        digest.update(b"\0");
        // Without /proc nothing works, so what stands here then is of no matter.
        let namespace = fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
        digest.update(namespace.as_os_str().as_bytes());
        Self(format!("{:032x}", digest.digest128()))
    }
}

impl Registry {
    /// The folder, made where it is missing.
    ///
    /// # Errors
    /// `Io` or `Busy` where no folder can be made that is this user's alone.
    pub(super) fn open() -> Result<Self> {
        Self::open_in(&PARENTS.map(Path::new))
    }

    fn open_in(parents: &[&Path]) -> Result<Self> {
        if let Some(used) = Self::existing_in(parents).filter(Self::is_used) {
            return Ok(used);
        }
        let mut first = None;
        for parent in parents {
            match Self::make_within(parent) {
                Ok(registry) => return Ok(registry),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| Error::new(Kind::Io, "no folder for the records of mounts")))
    }

    /// The folder, if there is one.
    pub(super) fn existing() -> Option<Self> {
        Self::existing_in(&PARENTS.map(Path::new))
    }

    /// One that is used comes first: somebody may have been in the way in /tmp when it was made,
    /// and not be any more.
    fn existing_in(parents: &[&Path]) -> Option<Self> {
        let all = Self::all_in(parents);
        all.iter().find(|registry| registry.is_used()).or(all.first()).cloned()
    }

    /// All folders that there are; more than one only where somebody was in the way.
    fn all() -> Vec<Self> {
        Self::all_in(&PARENTS.map(Path::new))
    }

    fn all_in(parents: &[&Path]) -> Vec<Self> {
        parents.iter().filter_map(|it| Self::within(it).ok()?).collect()
    }

    fn is_used(&self) -> bool {
        self.names_with(".record").next().is_some()
    }

    fn make_within(parent: &Path) -> Result<Self> {
        loop {
            let folder = folder(parent);
            match DirBuilder::new().mode(0o700).create(&folder) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(unusable(&folder, error));
                }
                _ => {}
            }
            // It may have gone again with the last mount of another process.
            if let Some(registry) = Self::within(parent)? {
                return Ok(registry);
            }
        }
    }

    fn within(parent: &Path) -> Result<Option<Self>> {
        let folder = folder(parent);
        let found = match fs::symlink_metadata(&folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            found => found.map_err(|error| unusable(&folder, error))?,
        };
        // Anybody may make names in /tmp.
        let is_ours = found.is_dir() && found.uid() == geteuid().as_raw();
        if !is_ours || found.mode() & 0o077 != 0 {
            let context = format!("{}: not a directory of yours alone", folder.display());
            return Err(Error::new(Kind::Busy, context)
                .with_hint("archfs keeps what it knows of its mounts there, with mode 0700"));
        }
        // Made under a umask that keeps rights from the owner, too.
        if found.mode() & 0o700 != 0o700 {
            let pinned = Pinned::new(&folder).map_err(std::io::Error::from);
            match pinned.and_then(|pinned| pinned.open_to_owner()) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                mended => mended.map_err(|error| unusable(&folder, error))?,
            }
        }
        Ok(Some(Self { folder }))
    }

    /// Removes the folder if nothing is in it.
    pub(super) fn tidy(&self) {
        let _ = fs::remove_dir(&self.folder);
    }

    /// Where the daemon of the mount with `key` listens.
    pub(super) fn socket(&self, key: &Key) -> PathBuf {
        self.file(key, "socket")
    }

    /// Listens there, whatever was left of another.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn listen(&self, key: &Key) -> std::io::Result<UnixListener> {
        let socket = self.socket(key);
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket)?;
        own_file::open_to_owner(&socket)?;
        Ok(listener)
    }

    /// The keys of all records.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.names_with(".record").map(Key).collect()
    }

    /// Removes locks that nobody holds and sockets that no record belongs to, and the folder with
    /// its last file. A socket without a lock is nothing that a kill leaves: whoever cleans /tmp by
    /// age takes the files and passes over the sockets.
    pub(super) fn clear_files(&self) {
        let names: BTreeSet<_> =
            self.names_with(".lock").chain(self.names_with(".socket")).collect();
        for name in names {
            let key = Key(name);
            let has_record = || self.file(&key, "record").exists();
            // Looked at again with the lock: somebody may have mounted meanwhile.
            if !has_record()
                && let Ok(Some(lock)) = PlaceLock::try_acquire_key(&key)
                && !has_record()
            {
                let _ = fs::remove_file(self.socket(&key));
                lock.remove();
            }
        }
        self.tidy();
    }

    /// The names in the folder that end in `suffix`, without it.
    fn names_with(&self, suffix: &'static str) -> impl Iterator<Item = String> {
        let names = fs::read_dir(&self.folder).into_iter().flatten();
        names.filter_map(move |entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            name.strip_suffix(suffix).map(str::to_owned)
        })
    }

    fn file(&self, key: &Key, suffix: &str) -> PathBuf {
        self.folder.join(format!("{}.{suffix}", key.0))
    }
}

fn folder(parent: &Path) -> PathBuf {
    parent.join(format!("archfs-{}", geteuid().as_raw()))
}

fn unusable(folder: &Path, error: std::io::Error) -> Error {
    Error::io(format!("{}: can not be used", folder.display()), error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn takes_only_a_folder_of_the_user_alone() {
        let parent = tempfile::tempdir().unwrap();
        assert!(Registry::within(parent.path()).unwrap().is_none());
        let registry = Registry::make_within(parent.path()).unwrap();
        let mode = fs::symlink_metadata(&registry.folder).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o700);
        fs::set_permissions(&registry.folder, fs::Permissions::from_mode(0o750)).unwrap();
        assert_eq!(Registry::within(parent.path()).unwrap_err().kind(), Kind::Busy);
        fs::set_permissions(&registry.folder, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Registry::within(parent.path()).unwrap().is_some());
        let mode = fs::symlink_metadata(&registry.folder).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o700, "made under another umask");
        registry.tidy();
        std::os::unix::fs::symlink("/tmp", &registry.folder).unwrap();
        assert_eq!(Registry::within(parent.path()).unwrap_err().kind(), Kind::Busy);
    }

    #[test]
    fn who_is_in_the_way_and_goes_does_not_set_processes_apart() {
        let [planted, free] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let parents = [planted.path(), free.path()];
        let in_the_way = folder(planted.path());
        fs::write(&in_the_way, "").unwrap();
        let registry = Registry::open_in(&parents).unwrap();
        assert_eq!(registry.folder, folder(free.path()));
        fs::remove_file(&in_the_way).unwrap();
        // Without records it is no more than a folder.
        fs::write(registry.folder.join("x.lock"), "").unwrap();
        assert_eq!(Registry::open_in(&parents).unwrap().folder, in_the_way);
        fs::write(registry.folder.join("x.record"), "").unwrap();
        assert_eq!(Registry::open_in(&parents).unwrap().folder, registry.folder);
        assert_eq!(Registry::existing_in(&parents).unwrap().folder, registry.folder);
    }

    #[test]
    fn locks_and_sockets_without_a_record_go_unless_somebody_has_the_lock() {
        let work = tempfile::tempdir().unwrap();
        let place = work.path().join("place");
        let key = Key::of(&place);
        // With the lock of another place, so that the folder stays.
        let _other = PlaceLock::acquire(&work.path().join("other")).unwrap();
        let registry = Registry::open().unwrap();
        let [socket, record, lock] = ["socket", "record", "lock"].map(|it| registry.file(&key, it));
        let listen = || drop(registry.listen(&key).unwrap());

        listen();
        assert!(!lock.exists());
        registry.clear_files();
        assert!(!socket.exists() && !lock.exists(), "a socket alone");

        let held = PlaceLock::acquire(&place).unwrap();
        listen();
        registry.clear_files();
        assert!(socket.exists() && lock.exists(), "somebody is about to mount");

        drop(held);
        fs::write(&record, "").unwrap();
        registry.clear_files();
        assert!(socket.exists() && lock.exists(), "it has a record");

        fs::remove_file(record).unwrap();
        registry.clear_files();
        assert!(!socket.exists() && !lock.exists(), "both");
    }

    #[test]
    fn places_have_keys_of_their_own() {
        assert_eq!(Key::of(Path::new("/a")), Key::of(Path::new("/a")));
        assert_ne!(Key::of(Path::new("/a")), Key::of(Path::new("/b")));
    }
}
