//! Copies that stay for the next job of this user, in a directory of their own.
//!
//! A copy is two files: the bytes of the archives, and their checksums (`near::checksums`). Its
//! name identifies the archives and their versions, so that a copy of another version is never
//! found. The daemon that uses it locks its checksums. The directory has mode 0700 and belongs to
//! this user; if another user has taken its name, or could replace it, nothing is kept. Invariant:
//! only files with names that archfs makes are used or removed, in the directory that was opened.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::file::FileStorage;
use crate::error::{Error, Kind, Result};
use crate::os::directory::Directory;
use crate::sync::Arc;
use crate::units::Size;

/// What the names of checksums end with.
const CHECKSUMS: &str = ".sums";

/// Length of the name of a copy, in hexadecimal digits.
const NAME_LEN: usize = 32;

/// The kept copies of this user in a directory.
#[derive(Clone, Debug)]
pub struct KeptCopies {
    parent: Directory,
    /// Only this user can enter it.
    directory: Directory,
    name: OsString,
    /// For messages.
    path: PathBuf,
    is_new: bool,
}

/// A kept copy, locked.
#[derive(Debug)]
pub struct KeptCopy {
    pub(super) bytes: File,
    pub(super) checksums: File,
    pub(super) identity: [u8; 32],
    is_new: bool,
    name: OsString,
    copies: KeptCopies,
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
    /// Those in `parent`, which the user named as `shown`. Their directory is created if it does
    /// not exist.
    ///
    /// # Errors
    /// `Busy` if other users can replace that directory; `Io` if it cannot be created, or another
    /// user has taken its name.
    pub fn open(parent: &Directory, shown: &Path) -> Result<Self> {
        check_safe(parent, shown)?;
        let name = directory_name();
        let is_new = parent.create(&name).map_err(|error| {
            Error::io(format!("{}: cannot create", shown.join(&name).display()), error)
        })?;
        Self::of_existing(parent, shown, is_new).inspect_err(|_| {
            if is_new {
                let _ = parent.remove_directory(&name);
            }
        })
    }

    /// Those in `parent`, if their directory exists.
    pub fn existing(parent: &Directory, shown: &Path) -> Result<Option<Self>> {
        match parent.metadata(&directory_name()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            _ => check_safe(parent, shown)?,
        }
        Self::of_existing(parent, shown, false).map(Some)
    }

    fn of_existing(parent: &Directory, shown: &Path, is_new: bool) -> Result<Self> {
        let name = directory_name();
        let path = shown.join(&name);
        let directory = parent.private(&name, geteuid().as_raw()).map_err(|error| {
            let context = format!("{}: not a directory that only you can enter", path.display());
            Error::io(context, error).with_hint("remove it, or stage elsewhere")
        })?;
        Ok(Self { parent: parent.clone(), directory, name, path, is_new })
    }

    /// Removes all copies in `parent` that are not in use.
    ///
    /// # Errors
    /// `Io`; none if there is no directory of copies.
    pub fn remove_all(parent: &Path) -> Result<Removed> {
        let mut removed = Removed::default();
        let opened = match Directory::open(parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(removed),
            opened => opened.map_err(|error| Error::io(parent.display().to_string(), error))?,
        };
        let Some(found) = Self::existing(&opened, parent)? else { return Ok(removed) };
        for old in found.all()? {
            match found.remove(&old)? {
                true => {
                    removed.copies += 1;
                    removed.bytes += old.taken;
                }
                false => removed.in_use += 1,
            }
        }
        found.remove_if_empty();
        Ok(removed)
    }

    /// Removes copies that are not in use, those that were used least recently first, while `lack`
    /// says how many bytes are missing. Removes none if all are not enough.
    pub fn make_room(&self, lack: impl Fn() -> u64) {
        let missing = lack();
        if missing == 0 {
            return;
        }
        let all = self.all().unwrap_or_default();
        if all.iter().map(|old| old.taken).fold(0, u64::saturating_add) < missing {
            return;
        }
        for old in all {
            if lack() == 0 {
                return;
            }
            self.evict(&old);
        }
    }

    /// The copy of `files`, or a new one. All copies together get at most `most` bytes, of which
    /// this one needs `len`: those that were used least recently are removed for it. `None` if
    /// another daemon uses it. If it fails, a new directory is removed.
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
        self.try_to_take(files, len, most).inspect_err(|_| {
            if self.is_new {
                self.remove_if_empty();
            }
        })
    }

    fn try_to_take(
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
        let name: OsString = blake3::Hash::from_bytes(identity).to_hex()[..NAME_LEN].into();
        let failed = |error| Error::io(format!("{}: cannot use", self.path.display()), error);
        let checksums = self.opened(&with_suffix(&name), OFlags::CREATE).map_err(failed)?;
        if !is_locked_now(&checksums).map_err(failed)? {
            return Ok(None);
        }
        let bytes = self.opened(&name, OFlags::CREATE).map_err(failed)?;
        let is_new = blocks(&bytes) == 0;
        let copies = self.clone();
        let copy = KeptCopy { bytes, checksums, identity, is_new, name: name.clone(), copies };
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

    /// The copies that are there, those that were used least recently first. Other files are none
    /// of archfs, which leaves them alone.
    fn all(&self) -> Result<Vec<Old>> {
        let failed = |error| Error::io(format!("{}: cannot read", self.path.display()), error);
        // A crash may have left one of the two files.
        let names = self.directory.names().map_err(failed)?;
        let names: BTreeSet<_> = names.iter().filter_map(|name| copy_name(name)).collect();
        let old = |name: &OsStr| {
            let found = self.directory.metadata(name).ok();
            let taken = found.as_ref().map_or(0, |found| found.blocks().saturating_mul(512));
            let len = found.as_ref().map_or(0, Metadata::len).max(taken);
            let used = found.and_then(|found| found.modified().ok());
            Old { name: name.to_owned(), taken, len, used: used.unwrap_or(SystemTime::UNIX_EPOCH) }
        };
        let mut all: Vec<_> = names.into_iter().map(old).collect();
        all.sort_by_key(|old| old.used);
        Ok(all)
    }

    /// Removes a copy for another one. Returns whether it could.
    fn evict(&self, old: &Old) -> bool {
        match self.remove(old) {
            Ok(true) => {
                let shown = self.path.join(&old.name);
                log::info!("{}: removed for another copy", shown.display());
            }
            Ok(false) => {}
            Err(error) => log::info!("{error}"),
        }
        self.directory.metadata(&old.name).is_err()
    }

    /// Removes a copy. Returns whether it could: a daemon may use it.
    fn remove(&self, old: &Old) -> Result<bool> {
        let failed = |error| {
            Error::io(format!("{}: cannot remove", self.path.join(&old.name).display()), error)
        };
        let sums = with_suffix(&old.name);
        // Kept until the end of the call.
        let _lock = match self.opened(&sums, OFlags::empty()) {
            Ok(lock) => match is_locked_now(&lock).map_err(failed)? {
                true => Some(lock),
                false => return Ok(false),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        self.remove_files(&old.name).map_err(failed)?;
        Ok(true)
    }

    fn remove_files(&self, name: &OsStr) -> io::Result<()> {
        self.directory.remove_file(name)?;
        self.directory.remove_file(&with_suffix(name))
    }

    fn remove_if_empty(&self) {
        let _ = self.parent.remove_directory(&self.name);
    }

    /// Opens a file of the directory, which must be a regular file of this user.
    fn opened(&self, name: &OsStr, flags: OFlags) -> io::Result<File> {
        let file = self.directory.open_with(name, OFlags::RDWR | OFlags::NONBLOCK | flags)?;
        let found = file.metadata()?;
        match found.is_file() && found.uid() == geteuid().as_raw() {
            true => Ok(file),
            false => Err(io::Error::other("a file of another user is in its place")),
        }
    }
}

impl KeptCopy {
    /// Removes it if nothing of the archives was in it before: there is no room for it.
    pub fn discard_if_new(&self) {
        if self.is_new {
            let _ = self.copies.remove_files(&self.name);
            if self.copies.is_new {
                self.copies.remove_if_empty();
            }
        }
    }

    /// Bytes that it takes now.
    pub fn taken(&self) -> u64 {
        blocks(&self.bytes)
    }
}

/// Fails if other users can rename what archfs creates in `parent`.
fn check_safe(parent: &Directory, shown: &Path) -> Result<()> {
    let Some(untrusted) = parent.first_untrusted() else { return Ok(()) };
    let (shown, untrusted) = (shown.display(), untrusted.display());
    let context =
        format!("{shown}: not safe to keep copies in: other users can replace {untrusted}");
    Err(Error::new(Kind::Busy, context)
        .with_hint("name a directory of your own, or one with the sticky bit"))
}

fn directory_name() -> OsString {
    format!("archfs-stage-{}", geteuid().as_raw()).into()
}

/// The name of the copy that the file `name` belongs to, if it is one that archfs makes.
fn copy_name(name: &OsStr) -> Option<&OsStr> {
    let bytes = name.as_bytes();
    let stem = bytes.strip_suffix(CHECKSUMS.as_bytes()).unwrap_or(bytes);
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (stem.len() == NAME_LEN && stem.iter().all(is_digit)).then(|| OsStr::from_bytes(stem))
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
    use std::fs;
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use std::time::Duration;

    use super::*;

    const LEN: u64 = 1 << 20;

    struct Work {
        directory: tempfile::TempDir,
        copies: KeptCopies,
    }

    fn open(parent: &Path) -> Result<KeptCopies> {
        KeptCopies::open(&Directory::open(parent).unwrap(), parent)
    }

    impl Work {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let copies = open(directory.path()).unwrap();
            Self { directory, copies }
        }

        fn path(&self) -> PathBuf {
            self.directory.path().join(directory_name())
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

        /// Takes the copy and gives it back, as `take`. Its lock is ended by a call, because a
        /// process that another test is starting has its descriptor for a moment.
        fn uses(&self, name: &str, most: u64) -> bool {
            let (copy, is_new) = self.take(name, most);
            flock(&copy.checksums, FlockOperation::Unlock).unwrap();
            is_new
        }

        fn count(&self) -> usize {
            fs::read_dir(self.path()).unwrap().count()
        }
    }

    #[test]
    fn a_copy_is_found_again_as_long_as_the_archive_is_the_same() {
        let work = Work::new();
        assert!(work.uses("a", 4 * LEN));
        assert!(!work.uses("a", 4 * LEN));
        fs::write(work.directory.path().join("a"), "another version").unwrap();
        assert!(work.uses("a", 4 * LEN));
        // A new file with the same name, size and time is another one.
        let path = work.directory.path().join("a");
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another version").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        assert!(work.uses("a", 4 * LEN));
    }

    #[test]
    fn the_copies_that_were_used_least_recently_make_room() {
        let work = Work::new();
        for name in ["a", "b", "c"] {
            assert!(work.uses(name, 3 * LEN));
        }
        assert!(!work.uses("a", 3 * LEN));
        assert!(work.uses("d", 3 * LEN));
        assert_eq!(work.count(), 6);
        let (_held, is_new) = work.take("c", 3 * LEN);
        assert!(!is_new);
        // The one in use stays, and leaves no room for another.
        let none = work.copies.take(&work.archive("e"), LEN, LEN);
        assert!(none.unwrap_err().to_string().contains("beside the copies in use"));
        assert_eq!(work.count(), 2, "nothing is left of the new one");
        assert!(work.uses("e", 2 * LEN));
        assert_eq!(work.count(), 4);
        let none = work.copies.take(&work.archive("f"), LEN, LEN - 1);
        assert_eq!(none.unwrap_err().kind(), Kind::Unsupported);
    }

    #[test]
    fn a_copy_in_use_is_not_shared_or_removed() {
        let work = Work::new();
        let (held, _) = work.take("a", 4 * LEN);
        assert!(work.copies.take(&work.archive("a"), LEN, 4 * LEN).unwrap().is_none());
        work.uses("b", 4 * LEN);
        let removed = KeptCopies::remove_all(work.directory.path()).unwrap();
        assert_eq!(removed, Removed { copies: 1, bytes: LEN, in_use: 1 });
        flock(&held.checksums, FlockOperation::Unlock).unwrap();
        drop(held);
        let removed = KeptCopies::remove_all(work.directory.path()).unwrap();
        assert_eq!((removed.copies, removed.in_use), (1, 0));
        assert!(!work.path().exists());
        assert_eq!(KeptCopies::remove_all(work.directory.path()).unwrap(), Removed::default());
    }

    #[test]
    fn what_a_crash_has_left_is_removed() {
        let work = Work::new();
        work.uses("a", 4 * LEN);
        work.uses("b", 4 * LEN);
        let copies: Vec<_> = work.copies.all().unwrap().into_iter().map(|old| old.name).collect();
        fs::remove_file(work.path().join(&copies[0])).unwrap();
        fs::remove_file(work.path().join(with_suffix(&copies[1]))).unwrap();
        KeptCopies::remove_all(work.directory.path()).unwrap();
        assert!(!work.path().exists());
    }

    #[test]
    fn copies_make_room_for_others_only_if_that_suffices() {
        let work = Work::new();
        for name in ["a", "b", "c"] {
            work.uses(name, 4 * LEN);
        }
        let make_room = |missing: u64| {
            let before = work.copies.all().unwrap().iter().map(|old| old.taken).sum::<u64>();
            work.copies.make_room(|| {
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
            fs::set_permissions(work.path(), fs::Permissions::from_mode(mode)).unwrap();
        };
        set(0o755);
        assert!(open(work.directory.path()).is_err());
        set(0o700);
        assert!(open(work.directory.path()).is_ok());
        fs::remove_dir(work.path()).unwrap();
        std::os::unix::fs::symlink("/tmp", work.path()).unwrap();
        assert!(open(work.directory.path()).is_err());
        let files = work.archive("a");
        assert!(files[0].version_text().is_some());
    }

    #[test]
    fn a_directory_that_others_can_exchange_is_not_used() {
        let work = Work::new();
        work.uses("a", 4 * LEN);
        let parent = work.directory.path();
        let set = |mode| fs::set_permissions(parent, fs::Permissions::from_mode(mode)).unwrap();
        set(0o777);
        let refused = open(parent).unwrap_err();
        assert_eq!(refused.kind(), Kind::Busy);
        assert!(refused.to_string().contains("other users can replace"), "{refused}");
        assert!(KeptCopies::remove_all(parent).is_err());
        assert_eq!(work.count(), 2);
        set(0o1777);
        assert_eq!(KeptCopies::remove_all(parent).unwrap().copies, 1);
    }

    /// > They remove only files whose names archfs makes.
    #[test]
    fn what_archfs_did_not_make_stays() {
        let work = Work::new();
        work.uses("a", 4 * LEN);
        let others = ["results", "results.sums", &"A".repeat(32), &"a".repeat(33)];
        for name in others {
            fs::write(work.path().join(name), "dear").unwrap();
        }
        assert!(work.uses("b", LEN), "the other copy makes room");
        assert_eq!(work.count(), others.len() + 2);
        assert_eq!(KeptCopies::remove_all(work.directory.path()).unwrap().copies, 1);
        assert_eq!(work.count(), others.len());
    }

    /// > They stay in the directory that they opened, even if the path leads elsewhere later.
    #[test]
    fn nothing_is_removed_through_a_link_in_place_of_the_directory() {
        let work = Work::new();
        let (victim, moved) = (work.directory.path().join("victim"), work.path().join("../moved"));
        for name in ["a", "b", "c"] {
            work.uses(name, 4 * LEN);
        }
        let (_held, _) = work.take("d", 4 * LEN);
        fs::create_dir(&victim).unwrap();
        for name in work.copies.directory.names().unwrap() {
            fs::write(victim.join(name), "dear").unwrap();
        }
        fs::rename(work.path(), &moved).unwrap();
        std::os::unix::fs::symlink(&victim, work.path()).unwrap();
        let count = |path: &Path| fs::read_dir(path).unwrap().count();
        let lack = std::cell::Cell::new(2_u64);
        work.copies.make_room(|| lack.replace(lack.get().saturating_sub(1)));
        assert_eq!((count(&moved), count(&victim)), (6, 8));
        let copy = work.copies.take(&work.archive("e"), LEN, 2 * LEN).unwrap().unwrap();
        assert_eq!((count(&moved), count(&victim)), (4, 8));
        copy.discard_if_new();
        assert_eq!((count(&moved), count(&victim)), (2, 8));
    }

    #[test]
    fn a_copy_that_fails_leaves_no_directory_behind() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a"), "a").unwrap();
        let files = vec![Arc::new(FileStorage::open(&directory.path().join("a")).unwrap())];
        let count = || fs::read_dir(directory.path()).unwrap().count();
        open(directory.path()).unwrap().take(&files, LEN, LEN - 1).unwrap_err();
        assert_eq!(count(), 1);
        let copies = open(directory.path()).unwrap();
        copies.take(&files, LEN, LEN).unwrap().unwrap().discard_if_new();
        assert_eq!(count(), 1);
        // One that was there stays.
        open(directory.path()).unwrap();
        open(directory.path()).unwrap().take(&files, LEN, LEN - 1).unwrap_err();
        assert_eq!(count(), 2);
    }

    #[test]
    fn a_file_of_another_user_is_no_copy() {
        let work = Work::new();
        work.uses("a", 4 * LEN);
        for name in work.copies.directory.names().unwrap() {
            if std::os::unix::fs::chown(work.path().join(name), Some(5), None).is_err() {
                return println!("SKIPPED: needs root");
            }
        }
        let refused = work.copies.take(&work.archive("a"), LEN, 4 * LEN).unwrap_err();
        assert!(refused.to_string().contains("a file of another user"), "{refused}");
        assert!(KeptCopies::remove_all(work.directory.path()).is_err());
        assert_eq!(work.count(), 2);
    }
}
