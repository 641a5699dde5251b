//! Detects that a mounted archive was rewritten in place.
//!
//! If an archive is rewritten while it is mounted, reads mix two versions: names of one, contents
//! of the other. No checksum notices that if data is stored uncompressed. Every write sets the
//! modification time before it changes a byte. So archfs compares the time and size after each
//! read: if they are unchanged, the bytes read before are those of the opened version. That holds
//! on local file systems. A network file system knows only what its server last reported;
//! `AT_STATX_DONT_SYNC` asks for exactly that. It is as new as the data that the file system
//! returns, and costs no request. Some file systems refresh attributes only when asked to, so once
//! a second archfs asks the server itself.
//!
//! Cost: one system call for each read of the archive, none for cached blocks. With fewer checks,
//! wrong bytes could be served unnoticed for a while.
//!
//! A link, rename, chmod or unlink changes neither time nor size, so it does not count as a new
//! version. A change is missed if the writer restores the old time afterwards.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::time::{ClockId, clock_gettime};

use super::identity::Identity;
use crate::error::{Error, Kind, Result};
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// What to do if an archive is rewritten in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Changes {
    /// Reads fail.
    #[default]
    Refused,
    /// Log it once; reads fail from then on.
    Reported,
    /// Log it once; reads continue.
    Allowed,
}

/// Seconds between two requests to the server of a network file system.
const SYNC_AFTER: u64 = 1;

/// The opened version of one file, and whether another version was seen.
#[derive(Debug)]
pub(super) struct Version {
    len: u64,
    modified: (i64, u32),
    changes: Changes,
    /// Set once another version was seen. Never cleared, because no write restores the old version.
    has_changed: AtomicBool,
    /// When the file system itself was last asked for the attributes, in seconds (monotonic clock).
    synced_at: AtomicU64,
}

impl Version {
    /// The version described by `identity`.
    pub(super) fn of(identity: &Identity, changes: Changes) -> Self {
        let Identity { len, modified, .. } = *identity;
        let synced_at = AtomicU64::new(seconds());
        Self { len, modified, changes, has_changed: AtomicBool::new(false), synced_at }
    }

    /// Fails if another version was seen earlier.
    ///
    /// # Errors
    /// `Changed`.
    pub(super) fn check_seen(&self, path: &Path) -> Result<()> {
        match self.has_changed.load(Ordering::Relaxed) && self.changes != Changes::Allowed {
            true => Err(changed(path)),
            false => Ok(()),
        }
    }

    /// Fails if `file` is another version now.
    ///
    /// # Errors
    /// `Changed`.
    pub(super) fn check(&self, file: &File, path: &Path) -> Result<()> {
        if self.has_changed.load(Ordering::Relaxed) {
            return self.check_seen(path);
        }
        let is_opened = |known| known == (self.len, self.modified);
        // If the kernel knows nothing, nothing indicates a change: the read succeeded.
        if !self.is_sync_due() && cached(file).is_none_or(is_opened) {
            return Ok(());
        }
        // Also because what the kernel knows may be older or less exact than what was opened.
        self.check_now(file, path)
    }

    /// Like `check`, but asks the file system itself.
    ///
    /// # Errors
    /// `Changed`.
    pub(super) fn check_now(&self, file: &File, path: &Path) -> Result<()> {
        self.check_seen(path)?;
        refreshed(file).map_or(Ok(()), |(len, modified)| self.compare(len, modified, path))
    }

    /// Fails if the size or time differs from the opened version.
    ///
    /// # Errors
    /// `Changed`.
    pub(super) fn compare(&self, len: u64, modified: (i64, u32), path: &Path) -> Result<()> {
        if (len, modified) == (self.len, self.modified) {
            return Ok(());
        }
        let is_first = !self.has_changed.swap(true, Ordering::Relaxed);
        if is_first && self.changes != Changes::Refused {
            let name = path.display();
            let before = described(self.len, self.modified);
            let now = described(len, modified);
            let is_allowed = self.changes == Changes::Allowed;
            let outcome = match is_allowed {
                true => "reads may return bytes of both versions (--allow-changes)",
                false => "reads now fail with EIO",
            };
            log::error!("{name}: rewritten in place: was {before}, is {now}; {outcome}");
            if !is_allowed {
                crate::log::hint(
                    "mount it again, and replace archives by rename, or use --allow-changes",
                );
            }
        }
        self.check_seen(path)
    }

    /// Whether to ask the file system itself now. True for one thread per interval.
    fn is_sync_due(&self) -> bool {
        let (now, last) = (seconds(), self.synced_at.load(Ordering::Relaxed));
        let exchange = |last| {
            self.synced_at.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        now.saturating_sub(last) >= SYNC_AFTER && exchange(last)
    }
}

fn changed(path: &Path) -> Error {
    let context = format!("{}: rewritten in place since it was opened", path.display());
    Error::new(Kind::Changed, context)
        .with_brief("the archive was rewritten in place")
        .with_hint("write a new file and rename it to the name of the archive")
}

fn described(len: u64, (seconds, nanoseconds): (i64, u32)) -> String {
    format!("{len} bytes, mtime {seconds}.{nanoseconds:09}")
}

fn seconds() -> u64 {
    clock_gettime(ClockId::MonotonicCoarse).tv_sec.unsigned_abs()
}

/// Size and modification time as known to the kernel.
fn cached(file: &File) -> Option<(u64, (i64, u32))> {
    let wanted = StatxFlags::SIZE | StatxFlags::MTIME;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    // Linux before 4.11 has no statx; there the sync once a second has to suffice.
    let attributes = statx(file, c"", flags, wanted).ok()?;
    let has_both = StatxFlags::from_bits_retain(attributes.stx_mask).contains(wanted);
    has_both.then_some((
        attributes.stx_size,
        (attributes.stx_mtime.tv_sec, attributes.stx_mtime.tv_nsec),
    ))
}

/// Size and modification time, refreshed by the file system.
fn refreshed(file: &File) -> Option<(u64, (i64, u32))> {
    let attributes = file.metadata().ok()?;
    Some((
        attributes.len(),
        (attributes.mtime(), u32::try_from(attributes.mtime_nsec()).unwrap_or(0)),
    ))
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

    /// A file with an old modification time.
    fn file(directory: &tempfile::TempDir) -> PathBuf {
        let path = directory.path().join("archive");
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
    fn reads_of_a_rewritten_file_fail_even_if_its_old_time_is_restored() {
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
    fn a_new_name_or_mode_is_no_change() {
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
    fn a_pooled_file_is_reopened_only_if_it_is_unchanged_or_changes_are_allowed() {
        let work = tempfile::tempdir().unwrap();
        let path = file(&work);
        let other = work.path().join("other");
        fs::write(&other, OLD).unwrap();
        let pool = FilePool::new(1);
        let open = |path, changes| FileStorage::open_in(path, &pool, changes).unwrap();
        let [refused, allowed] = [Changes::Refused, Changes::Allowed].map(|it| open(&path, it));
        // The pool has room for one file, which is this one.
        let last = open(&other, Changes::Refused);
        write(&path, b"new bytes");
        assert_eq!(read(&refused).unwrap_err().kind(), Kind::Changed);
        assert_eq!(read(&allowed).unwrap(), b"new bytes");
        assert_eq!(read(&last).unwrap(), OLD);
        fs::rename(&other, &path).unwrap();
        assert_eq!(read(&allowed).unwrap_err().kind(), Kind::Io, "another file at its path");
    }
}
