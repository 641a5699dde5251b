//! Whether an archive is still the version that was opened.
//!
//! An archive that is rewritten in place while it is mounted gives bytes of two versions: names of
//! one, contents of the other, and no checksum notices where data is stored. Every write sets the
//! modification time before it changes a byte. So the time and the size are compared after each
//! read: bytes that were read before a comparison that finds no change are those of the version
//! that was opened. That holds on local file systems. A network file system knows what it last
//! heard from its server; `AT_STATX_DONT_SYNC` asks for no more than that, which is as new as the
//! bytes it gives, and costs no request. Once a second the server itself is asked, because some
//! file systems renew the attributes only then.
//!
//! Cost: one system call for each read of the archive, none for what is cached. Less often would
//! leave a time in which wrong bytes are served as right ones.
//!
//! Links, renames, permissions and unlink change neither time nor size. What changes only those is
//! no other version. A change that sets the old time again afterwards is not found.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::time::{ClockId, clock_gettime};

use super::file::Identity;
use crate::error::{Error, Kind, Result};
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// What is done about an archive that was rewritten in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Changes {
    /// Reads fail.
    #[default]
    Refused,
    /// The log says so, and reads fail from then on.
    Reported,
    /// The log says so, and reads go on.
    Allowed,
}

/// Seconds until the server of a network file system is asked again.
const SYNC_AFTER: u64 = 1;

/// The version of one file that was opened, and whether there is another by now.
#[derive(Debug)]
pub(super) struct Version {
    len: u64,
    modified: (i64, u32),
    changes: Changes,
    /// Whether another version was seen; never cleared, since no write makes the old one again.
    is_gone: AtomicBool,
    /// When the attributes were last asked of the file system itself, seconds of a clock.
    asked_at: AtomicU64,
}

impl Version {
    /// The version that `identity` says.
    pub(super) fn of(identity: &Identity, changes: Changes) -> Self {
        let Identity { len, modified, .. } = *identity;
        let asked_at = AtomicU64::new(seconds());
        Self { len, modified, changes, is_gone: AtomicBool::new(false), asked_at }
    }

    /// Fails where another version was seen before.
    ///
    /// # Errors
    /// `Changed`.
    pub(super) fn check_known(&self, path: &Path) -> Result<()> {
        match self.is_gone.load(Ordering::Relaxed) && self.changes != Changes::Allowed {
            true => Err(changed(path)),
            false => Ok(()),
        }
    }

    /// Fails where `file` is another version now.
    ///
    /// # Errors
    /// `Changed`.
    pub(super) fn check(&self, file: &File, path: &Path) -> Result<()> {
        if self.is_gone.load(Ordering::Relaxed) {
            return self.check_known(path);
        }
        let now = if self.is_sync_due() { asked(file) } else { known(file) };
        match now {
            Some((len, modified)) => self.compare(len, modified, path),
            // The bytes were there, and nothing says that they are others.
            None => Ok(()),
        }
    }

    /// Fails where the file has another size or time than it had.
    ///
    /// # Errors
    /// `Changed`.
    pub(super) fn compare(&self, len: u64, modified: (i64, u32), path: &Path) -> Result<()> {
        if (len, modified) == (self.len, self.modified) {
            return Ok(());
        }
        let is_first = !self.is_gone.swap(true, Ordering::Relaxed);
        if is_first && self.changes != Changes::Refused {
            let shown = path.display();
            let before = described(self.len, self.modified);
            let now = described(len, modified);
            let outcome = match self.changes {
                Changes::Allowed => "reads may give bytes of both (--allow-changes)",
                _ => {
                    "reads of it give EIO from now on; mount it again, and replace archives by \
                      rename, or use --allow-changes"
                }
            };
            log::error!("{shown}: rewritten in place: was {before}, is {now}; {outcome}");
        }
        self.check_known(path)
    }

    /// Whether the file system itself is to be asked; one thread does.
    fn is_sync_due(&self) -> bool {
        let (now, last) = (seconds(), self.asked_at.load(Ordering::Relaxed));
        let exchange = |last| {
            self.asked_at.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        now.saturating_sub(last) >= SYNC_AFTER && exchange(last)
    }
}

fn changed(path: &Path) -> Error {
    let context = format!("{}: rewritten in place since it was opened", path.display());
    Error::new(Kind::Changed, context)
        .with_hint("write a new file and rename it to the archive's name instead")
}

fn described(len: u64, (seconds, nanoseconds): (i64, u32)) -> String {
    format!("{len} bytes, mtime {seconds}.{nanoseconds:09}")
}

fn seconds() -> u64 {
    clock_gettime(ClockId::MonotonicCoarse).tv_sec.unsigned_abs()
}

/// Size and time as the system knows them.
fn known(file: &File) -> Option<(u64, (i64, u32))> {
    let wanted = StatxFlags::SIZE | StatxFlags::MTIME;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    // Linux before 4.11 has no such call; there the sync once a second has to do.
    let found = statx(file, c"", flags, wanted).ok()?;
    let has_both = StatxFlags::from_bits_retain(found.stx_mask).contains(wanted);
    has_both.then_some((found.stx_size, (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec)))
}

/// The same as the file system knows them.
fn asked(file: &File) -> Option<(u64, (i64, u32))> {
    let found = file.metadata().ok()?;
    Some((found.len(), (found.mtime(), u32::try_from(found.mtime_nsec()).unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, FileTimes, OpenOptions, Permissions};
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use std::path::PathBuf;
    use std::time::{Duration, UNIX_EPOCH};

    use super::super::pool::FilePool;
    use super::super::{FileStorage, Storage, open_files};
    use super::*;

    const OLD: &[u8] = b"old bytes";

    /// A file that was last written long ago.
    fn file(folder: &tempfile::TempDir) -> PathBuf {
        let path = folder.path().join("archive");
        fs::write(&path, OLD).unwrap();
        set_time(&path, 1_000_000_000);
        path
    }

    fn set_time(path: &Path, seconds: u64) {
        let time = UNIX_EPOCH + Duration::from_secs(seconds);
        File::open(path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
    }

    fn read(file: &FileStorage) -> Result<Vec<u8>> {
        let mut bytes = vec![0; OLD.len()];
        file.read_exact_at(&mut bytes, 0).map(|()| bytes)
    }

    fn write(path: &Path, bytes: &[u8]) {
        OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, 0).unwrap();
    }

    #[test]
    fn a_file_that_was_rewritten_is_read_no_more_even_with_its_old_time() {
        let rewritten: [fn(&Path); 4] = [
            |path| write(path, b"new"),
            |path| write(path, &[b'x'; 100]),
            |path| OpenOptions::new().write(true).open(path).unwrap().set_len(4).unwrap(),
            |path| set_time(path, 1_000_000_001),
        ];
        for rewrite in rewritten {
            let work = tempfile::tempdir().unwrap();
            let path = file(&work);
            let [refused, reported, allowed] =
                [Changes::Refused, Changes::Reported, Changes::Allowed].map(|changes| {
                    open_files(std::slice::from_ref(&path), changes).unwrap().remove(0)
                });
            for opened in [&refused, &reported, &allowed] {
                assert_eq!(read(opened).unwrap(), OLD);
            }
            rewrite(&path);
            for opened in [&refused, &reported] {
                let error = read(opened).unwrap_err();
                assert_eq!(error.kind(), Kind::Changed, "{error}");
                assert!(error.to_string().contains("archive: rewritten in place"), "{error}");
            }
            let is_short = fs::metadata(&path).unwrap().len() < OLD.len() as u64;
            assert_eq!(read(&allowed).is_err(), is_short);
            write(&path, OLD);
            File::options().write(true).open(&path).unwrap().set_len(OLD.len() as u64).unwrap();
            set_time(&path, 1_000_000_000);
            assert_eq!(read(&refused).unwrap_err().kind(), Kind::Changed, "it was another");
            assert_eq!(read(&allowed).unwrap(), OLD);
        }
    }

    /// > A new name, a rename, a new mode and unlink are no changes.
    #[test]
    fn a_name_or_mode_of_its_own_is_no_change() {
        let work = tempfile::tempdir().unwrap();
        let path = file(&work);
        let opened = FileStorage::open(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&path, work.path().join("link")).unwrap();
        assert_eq!(read(&opened).unwrap(), OLD);
        fs::write(work.path().join("other"), "another version").unwrap();
        fs::rename(work.path().join("other"), &path).unwrap();
        assert_eq!(read(&opened).unwrap(), OLD);
        fs::remove_file(&path).unwrap();
        fs::remove_file(work.path().join("link")).unwrap();
        assert_eq!(read(&opened).unwrap(), OLD);
    }

    #[test]
    fn one_of_many_files_is_opened_again_only_if_it_is_the_same_or_changes_are_allowed() {
        let work = tempfile::tempdir().unwrap();
        let path = file(&work);
        let other = work.path().join("other");
        fs::write(&other, OLD).unwrap();
        let pool = FilePool::new(1);
        let open = |path, changes| FileStorage::open_in(path, &pool, changes).unwrap();
        let [refused, allowed] = [Changes::Refused, Changes::Allowed].map(|it| open(&path, it));
        // The pool has room for one file, and that is this.
        let last = open(&other, Changes::Refused);
        write(&path, b"new bytes");
        assert_eq!(read(&refused).unwrap_err().kind(), Kind::Changed);
        assert_eq!(read(&allowed).unwrap(), b"new bytes");
        assert_eq!(read(&last).unwrap(), OLD);
        fs::rename(&other, &path).unwrap();
        assert_eq!(read(&allowed).unwrap_err().kind(), Kind::Io, "another file at its path");
    }
}
