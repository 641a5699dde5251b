//! Copies that stay for the next job of this user, in a directory of their own.
//!
//! A copy is two files: the bytes of the archives, and their checksums (`near::checksums`). Its
//! name identifies the archives and their versions, so that a copy of another version is never
//! found. The daemon that uses it locks its checksums. The directory has mode 0700 and belongs to
//! this user; if another user has taken its name, nothing is kept.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::geteuid;

use super::file::FileStorage;
use crate::error::{Error, Kind, Result};
use crate::os::unlinked;
use crate::sync::Arc;
use crate::units::Size;

/// What the names of checksums end with.
const CHECKSUMS: &str = ".sums";

/// The kept copies of this user in a directory.
#[derive(Debug)]
pub struct KeptCopies {
    directory: PathBuf,
}

/// A kept copy, locked.
#[derive(Debug)]
pub struct KeptCopy {
    pub(super) bytes: File,
    pub(super) checksums: File,
    pub(super) identity: [u8; 32],
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Copies that were removed.
    pub copies: u64,
    /// Bytes that they took.
    pub bytes: u64,
    /// Copies that are in use.
    pub in_use: u64,
}

/// A copy that may be removed.
struct Old {
    name: OsString,
    bytes: u64,
    used: SystemTime,
}

impl KeptCopies {
    /// Those below `parent`. The directory is created if it does not exist.
    ///
    /// # Errors
    /// `Io` if it cannot be created, or another user has taken its name.
    pub fn open(parent: &Path) -> Result<Self> {
        let found = Self::below(parent);
        match DirBuilder::new().mode(0o700).create(&found.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                let context = format!("{}: cannot create", found.directory.display());
                return Err(Error::io(context, error));
            }
            _ => {}
        }
        found.check()?;
        Ok(found)
    }

    /// Removes all copies below `parent` that are not in use.
    ///
    /// # Errors
    /// `Io`; none if there is no directory of copies.
    pub fn remove_all(parent: &Path) -> Result<Removed> {
        let found = Self::below(parent);
        if !found.directory.exists() {
            return Ok(Removed::default());
        }
        found.check()?;
        let mut removed = Removed::default();
        for old in found.all()? {
            match found.remove(&old)? {
                true => {
                    removed.copies += 1;
                    removed.bytes += old.bytes;
                }
                false => removed.in_use += 1,
            }
        }
        // Fails if some are in use.
        let _ = fs::remove_dir(&found.directory);
        Ok(removed)
    }

    fn below(parent: &Path) -> Self {
        Self { directory: parent.join(format!("archfs-stage-{}", geteuid().as_raw())) }
    }

    /// Fails unless only this user can enter the directory.
    fn check(&self) -> Result<()> {
        let shown = self.directory.display();
        let found = fs::symlink_metadata(&self.directory)
            .map_err(|error| Error::io(format!("{shown}: cannot read"), error))?;
        let is_own =
            found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0;
        match is_own {
            true => Ok(()),
            false => {
                let context = format!("{shown}: not a directory that only you can enter");
                Err(Error::new(Kind::Io, context).with_hint("remove it, or stage elsewhere"))
            }
        }
    }

    /// The copy of `files`, or a new one. All copies together get at most `most` bytes, of which
    /// this one needs `len`: those that were used least recently are removed for it. `None` if
    /// another daemon uses it.
    ///
    /// # Errors
    /// `Io`; `Unsupported` if the files have nothing that identifies their version, or the copy is
    /// larger than `most`.
    pub fn take(
        &self,
        files: &[Arc<FileStorage>],
        len: u64,
        most: u64,
    ) -> Result<Option<KeptCopy>> {
        if len > most {
            let context = format!("the copy takes {}, more than {}", Size(len), Size(most));
            return Err(Error::new(Kind::Unsupported, context));
        }
        let identity = identity_of(files)?;
        let name: OsString = blake3::Hash::from_bytes(identity).to_hex()[..32].into();
        let failed = |error| Error::io(format!("{}: cannot use", self.directory.display()), error);
        let checksums = self.opened(&with_suffix(&name)).map_err(failed)?;
        if !is_locked_now(&checksums) {
            return Ok(None);
        }
        let bytes = self.opened(&name).map_err(failed)?;
        // The time says when it was used.
        bytes.set_modified(SystemTime::now()).map_err(failed)?;
        let others = self.all()?.into_iter().filter(|old| old.name != name);
        let mut others: Vec<_> = others.collect();
        others.sort_by_key(|old| old.used);
        let mut taken = others.iter().map(|old| old.bytes).fold(len, u64::saturating_add);
        let own = blocks(&bytes);
        for old in others {
            let free = unlinked::free_bytes(&bytes).ok().flatten().unwrap_or(u64::MAX);
            if taken <= most && free.saturating_add(own) >= len {
                break;
            }
            if self.remove(&old)? {
                taken = taken.saturating_sub(old.bytes);
                log::info!(
                    "{}: removed for another copy",
                    self.directory.join(&old.name).display()
                );
            }
        }
        Ok(Some(KeptCopy { bytes, checksums, identity }))
    }

    /// The copies that are there.
    fn all(&self) -> Result<Vec<Old>> {
        let failed = |error| Error::io(format!("{}: cannot read", self.directory.display()), error);
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let is_copy = Path::new(&name).extension().is_none();
            // It may be removed at the moment.
            let Ok(found) = entry.metadata() else { continue };
            if is_copy {
                let used = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                all.push(Old { name, bytes: found.blocks().saturating_mul(512), used });
            }
        }
        Ok(all)
    }

    /// Removes a copy. Returns whether it could: a daemon may use it.
    fn remove(&self, old: &Old) -> Result<bool> {
        let shown = self.directory.join(&old.name);
        let failed = |error| Error::io(format!("{}: cannot remove", shown.display()), error);
        let sums = with_suffix(&old.name);
        let lock = self.opened(&sums).map_err(failed)?;
        if !is_locked_now(&lock) {
            return Ok(false);
        }
        fs::remove_file(&shown).map_err(failed)?;
        fs::remove_file(self.directory.join(sums)).map_err(failed)?;
        Ok(true)
    }

    /// Opens or creates a file of the directory.
    fn opened(&self, name: &OsStr) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        options.open(self.directory.join(name))
    }
}

impl KeptCopy {
    /// The file with the bytes.
    pub fn file(&self) -> &File {
        &self.bytes
    }

    /// Bytes that it takes now.
    pub fn taken(&self) -> u64 {
        blocks(&self.bytes)
    }
}

fn blocks(file: &File) -> u64 {
    file.metadata().map_or(0, |found| found.blocks().saturating_mul(512))
}

fn with_suffix(name: &OsStr) -> OsString {
    let mut name = name.to_owned();
    name.push(CHECKSUMS);
    name
}

/// Locks `file` until it is closed. Returns whether this succeeded, and the file still has its
/// name.
fn is_locked_now(file: &File) -> bool {
    let locked = flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
    locked && file.metadata().is_ok_and(|found| found.nlink() > 0)
}

/// Identifies `files` and their versions.
fn identity_of(files: &[Arc<FileStorage>]) -> Result<[u8; 32]> {
    let mut digest = blake3::Hasher::new();
    for file in files {
        let (identity, origin) = (file.identity(), file.origin());
        if !identity.is_regular() || !file.names_version() {
            let context = format!("{}: nothing says which version it is", file.path().display());
            return Err(Error::new(Kind::Unsupported, context));
        }
        let (device, inode) = identity.inode;
        let (seconds, nanoseconds) = identity.modified;
        let (changed, changed_nanoseconds) = origin.changed;
        let line = format!(
            "{device} {inode} {} {seconds} {nanoseconds} {changed} {changed_nanoseconds} {}\n",
            identity.len, origin.file_system
        );
        digest.update(line.as_bytes());
    }
    Ok(*digest.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use std::time::Duration;

    use super::*;

    const LEN: u64 = 1 << 20;

    struct Work {
        directory: tempfile::TempDir,
        copies: KeptCopies,
    }

    impl Work {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let copies = KeptCopies::open(directory.path()).unwrap();
            Self { directory, copies }
        }

        fn archive(&self, name: &str) -> Vec<Arc<FileStorage>> {
            let path = self.directory.path().join(name);
            if !path.exists() {
                fs::write(&path, name).unwrap();
            }
            vec![Arc::new(FileStorage::open(&path).unwrap())]
        }

        /// Takes the copy, and fills it if it is new. Returns whether it was new.
        fn take(&self, name: &str, most: u64) -> (KeptCopy, bool) {
            let copy = self.copies.take(&self.archive(name), LEN, most).unwrap().unwrap();
            let is_new = copy.taken() == 0;
            copy.bytes.write_all_at(&[7; LEN as usize], 0).unwrap();
            // In order, although they are used within a tick of the clock.
            let uses = fs::read_dir(self.directory.path()).unwrap().count() as u64;
            let used = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + uses);
            copy.bytes.set_modified(used).unwrap();
            (copy, is_new)
        }

        fn count(&self) -> usize {
            fs::read_dir(&self.copies.directory).unwrap().count()
        }
    }

    #[test]
    fn a_copy_is_found_again_as_long_as_the_archive_is_the_same() {
        let work = Work::new();
        assert!(work.take("a", 4 * LEN).1);
        assert!(!work.take("a", 4 * LEN).1);
        fs::write(work.directory.path().join("a"), "another version").unwrap();
        assert!(work.take("a", 4 * LEN).1);
        // A new file with the same name, size and time is another one.
        let path = work.directory.path().join("a");
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another version").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        assert!(work.take("a", 4 * LEN).1);
    }

    #[test]
    fn the_copies_that_were_used_least_recently_make_room() {
        let work = Work::new();
        for name in ["a", "b", "c"] {
            assert!(work.take(name, 3 * LEN).1);
        }
        assert!(!work.take("a", 3 * LEN).1);
        assert!(work.take("d", 3 * LEN).1);
        assert_eq!(work.count(), 6);
        let (_held, is_new) = work.take("c", 3 * LEN);
        assert!(!is_new);
        // The one in use stays, although there is no room for it then.
        assert!(work.take("e", LEN).1);
        assert_eq!(work.count(), 4);
        let none = work.copies.take(&work.archive("f"), LEN, LEN - 1);
        assert_eq!(none.unwrap_err().kind(), Kind::Unsupported);
    }

    #[test]
    fn a_copy_in_use_is_not_shared_or_removed() {
        let work = Work::new();
        let (held, _) = work.take("a", 4 * LEN);
        assert!(work.copies.take(&work.archive("a"), LEN, 4 * LEN).unwrap().is_none());
        work.take("b", 4 * LEN);
        let removed = KeptCopies::remove_all(work.directory.path()).unwrap();
        assert_eq!(removed, Removed { copies: 1, bytes: LEN, in_use: 1 });
        drop(held);
        let removed = KeptCopies::remove_all(work.directory.path()).unwrap();
        assert_eq!((removed.copies, removed.in_use), (1, 0));
        assert!(!work.copies.directory.exists());
        assert_eq!(KeptCopies::remove_all(work.directory.path()).unwrap(), Removed::default());
    }

    #[test]
    fn a_directory_that_others_can_enter_is_not_used() {
        let work = Work::new();
        let set = |mode| {
            fs::set_permissions(&work.copies.directory, fs::Permissions::from_mode(mode)).unwrap();
        };
        set(0o755);
        assert!(KeptCopies::open(work.directory.path()).is_err());
        set(0o700);
        assert!(KeptCopies::open(work.directory.path()).is_ok());
        fs::remove_dir(&work.copies.directory).unwrap();
        std::os::unix::fs::symlink("/tmp", &work.copies.directory).unwrap();
        assert!(KeptCopies::open(work.directory.path()).is_err());
        let files = work.archive("a");
        assert!(files[0].names_version());
    }
}
