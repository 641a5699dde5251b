//! Copies that stay for the next job of this user, in a directory of their own.
//!
//! A copy is two files: the bytes of the archives, and their checksums (`near::checksums`). Its
//! name identifies the archives and their versions, so that a copy of another version is never
//! found. The daemon that uses it locks its checksums. The directory has mode 0700 and belongs to
//! this user; if another user has taken its name, nothing is kept.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::file::FileStorage;
use crate::error::{Error, Kind, Result};
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
    is_new: bool,
    paths: [PathBuf; 2],
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
    /// Bytes that it takes now.
    taken: u64,
    /// Bytes that it takes when it is complete.
    len: u64,
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
                    removed.bytes += old.taken;
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

    /// Removes copies below `parent` that are not in use, those that were used least recently
    /// first, while `lack` says how many bytes are missing. Removes none if all are not enough.
    pub fn make_room(parent: &Path, lack: impl Fn() -> u64) {
        let found = Self::below(parent);
        let missing = lack();
        if missing == 0 || found.check().is_err() {
            return;
        }
        let all = found.all().unwrap_or_default();
        if all.iter().map(|old| old.taken).fold(0, u64::saturating_add) < missing {
            return;
        }
        for old in all {
            if lack() == 0 {
                return;
            }
            found.evict(&old);
        }
    }

    /// The copy of `files`, or a new one. All copies together get at most `most` bytes, of which
    /// this one needs `len`: those that were used least recently are removed for it. `None` if
    /// another daemon uses it.
    ///
    /// # Errors
    /// `Io`; `Unsupported` if the files have nothing that identifies their version, or `most` bytes
    /// are not enough beside the copies in use.
    pub fn take(
        &self,
        files: &[Arc<FileStorage>],
        len: u64,
        most: u64,
    ) -> Result<Option<KeptCopy>> {
        let too_large = |others: &str| {
            let context = format!("the copy takes {}, more than {}{others}", Size(len), Size(most));
            Error::new(Kind::Unsupported, context)
        };
        if len > most {
            return Err(too_large(""));
        }
        let identity = identity_of(files)?;
        let name: OsString = blake3::Hash::from_bytes(identity).to_hex()[..32].into();
        let failed = |error| Error::io(format!("{}: cannot use", self.directory.display()), error);
        let checksums = self.opened(&with_suffix(&name)).map_err(failed)?;
        if !is_locked_now(&checksums).map_err(failed)? {
            return Ok(None);
        }
        let bytes = self.opened(&name).map_err(failed)?;
        let is_new = blocks(&bytes) == 0;
        let paths = [self.directory.join(&name), self.directory.join(with_suffix(&name))];
        let copy = KeptCopy { bytes, checksums, identity, is_new, paths };
        // With its size, which others count, and the time of its last use.
        let noted =
            copy.bytes.set_len(len).and_then(|()| copy.bytes.set_modified(SystemTime::now()));
        noted.map_err(failed)?;
        let others: Vec<_> = self.all()?.into_iter().filter(|old| old.name != name).collect();
        let mut sum = others.iter().map(|old| old.len).fold(len, u64::saturating_add);
        for old in &others {
            if sum <= most {
                break;
            }
            if self.evict(old) {
                sum = sum.saturating_sub(old.len);
            }
        }
        if sum > most {
            copy.discard_if_new();
            return Err(too_large(" beside the copies in use"));
        }
        Ok(Some(copy))
    }

    /// The copies that are there, those that were used least recently first.
    fn all(&self) -> Result<Vec<Old>> {
        let failed = |error| Error::io(format!("{}: cannot read", self.directory.display()), error);
        // A crash may have left one of the two files.
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            names.insert(Path::new(&name).file_stem().unwrap_or_default().to_owned());
        }
        let old = |name: OsString| {
            let found = fs::symlink_metadata(self.directory.join(&name)).ok();
            let taken = found.as_ref().map_or(0, |found| found.blocks().saturating_mul(512));
            let len = found.as_ref().map_or(0, fs::Metadata::len).max(taken);
            let used = found.and_then(|found| found.modified().ok());
            Old { name, taken, len, used: used.unwrap_or(SystemTime::UNIX_EPOCH) }
        };
        let mut all: Vec<_> = names.into_iter().map(old).collect();
        all.sort_by_key(|old| old.used);
        Ok(all)
    }

    /// Removes a copy for another one. Returns whether it could.
    fn evict(&self, old: &Old) -> bool {
        let shown = self.directory.join(&old.name);
        match self.remove(old) {
            Ok(true) => log::info!("{}: removed for another copy", shown.display()),
            Ok(false) => {}
            Err(error) => log::info!("{error}"),
        }
        !shown.exists()
    }

    /// Removes a copy. Returns whether it could: a daemon may use it.
    fn remove(&self, old: &Old) -> Result<bool> {
        let shown = self.directory.join(&old.name);
        let failed = |error| Error::io(format!("{}: cannot remove", shown.display()), error);
        let sums = self.directory.join(with_suffix(&old.name));
        // Kept until the end of the call.
        let _lock = match self.options().create(false).open(&sums) {
            Ok(lock) => match is_locked_now(&lock).map_err(failed)? {
                true => Some(lock),
                false => return Ok(false),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        for path in [&shown, &sums] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        Ok(true)
    }

    /// Opens or creates a file of the directory.
    fn opened(&self, name: &OsStr) -> io::Result<File> {
        self.options().create(true).open(self.directory.join(name))
    }

    fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(true).write(true).truncate(false).mode(0o600);
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        options
    }
}

impl KeptCopy {
    /// Removes it if nothing of the archives was in it before: there is no room for it.
    pub fn discard_if_new(&self) {
        if self.is_new {
            for path in &self.paths {
                let _ = fs::remove_file(path);
            }
        }
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

/// Locks `file` until it is closed. Returns whether no other process has locked it, and the file
/// still has its name.
fn is_locked_now(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file.metadata()?.nlink() > 0),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Identifies `files` and their versions.
fn identity_of(files: &[Arc<FileStorage>]) -> Result<[u8; 32]> {
    let mut digest = blake3::Hasher::new();
    for file in files {
        let Some(version) = file.version_text() else {
            let context = format!("{}: nothing says which version it is", file.path().display());
            return Err(Error::new(Kind::Unsupported, context));
        };
        digest.update(&(version.len() as u64).to_le_bytes());
        digest.update(&version);
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
        // The one in use stays, and leaves no room for another.
        let none = work.copies.take(&work.archive("e"), LEN, LEN);
        assert!(none.unwrap_err().to_string().contains("beside the copies in use"));
        assert_eq!(work.count(), 2, "nothing is left of the new one");
        assert!(work.take("e", 2 * LEN).1);
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
    fn what_a_crash_has_left_is_removed() {
        let work = Work::new();
        work.take("a", 4 * LEN);
        work.take("b", 4 * LEN);
        let copies: Vec<_> = work.copies.all().unwrap().into_iter().map(|old| old.name).collect();
        fs::remove_file(work.copies.directory.join(&copies[0])).unwrap();
        fs::remove_file(work.copies.directory.join(with_suffix(&copies[1]))).unwrap();
        KeptCopies::remove_all(work.directory.path()).unwrap();
        assert!(!work.copies.directory.exists());
    }

    #[test]
    fn copies_make_room_for_others_only_if_that_suffices() {
        let work = Work::new();
        for name in ["a", "b", "c"] {
            work.take(name, 4 * LEN);
        }
        let make_room = |missing: u64| {
            let before = work.copies.all().unwrap().iter().map(|old| old.taken).sum::<u64>();
            KeptCopies::make_room(work.directory.path(), || {
                let now = work.copies.all().unwrap().iter().map(|old| old.taken).sum::<u64>();
                missing.saturating_sub(before - now)
            });
            work.count() / 2
        };
        assert_eq!(make_room(0), 3);
        assert_eq!(make_room(4 * LEN), 3);
        assert_eq!(make_room(LEN + 1), 1);
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
        assert!(files[0].version_text().is_some());
    }
}
