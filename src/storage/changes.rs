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
//! A program can set the modification time back, but not the change time (inode(7), ctime). A link,
//! rename, chmod or unlink changes that one as well, and is no new version. So if only the change
//! time differs, archfs compares the first bytes of the archive with those that it had. They differ
//! in any other image, and in almost any other tar or ZIP archive.
//!
//! A change is missed if it leaves these bytes as they are and the old time is restored before the
//! next read. It is also missed if a program writes through a shared mapping to a page that it has
//! written to before: the kernel then sets no time.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::time::{ClockId, clock_gettime};
use xxhash_rust::xxh3::xxh3_64;

use super::identity::{Identity, Origin};
use crate::error::{Error, Kind, Result};
use crate::remote::Validators;
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
    /// Reads fail. A server may give an archive several ETags, with the same size and time.
    RefusedExceptEtags,
}

impl Changes {
    /// What an archive at a URL is recognized by.
    pub(super) fn validators(self) -> Validators {
        match self {
            Self::Refused | Self::Reported => Validators::All,
            Self::RefusedExceptEtags => Validators::Time,
            Self::Allowed => Validators::TimeOrSize,
        }
    }
}

/// Seconds between two requests to the server of a network file system.
const SYNC_AFTER: u64 = 1;

/// The first bytes of an archive that are compared.
const HEAD: usize = 4096;

/// What the file system says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attributes {
    len: u64,
    modified: (i64, u32),
    /// Change time, nanoseconds since 1970; `None` if it is not known.
    changed: Option<u64>,
}

impl Attributes {
    pub(super) fn of(identity: &Identity, origin: &Origin) -> Self {
        let Identity { len, modified, .. } = *identity;
        Self { len, modified, changed: Some(nanoseconds(origin.changed)) }
    }
}

/// The opened version of one file, and whether another version was seen.
#[derive(Debug)]
pub(super) struct Version {
    len: u64,
    modified: (i64, u32),
    /// The change time with which the first bytes were last compared.
    changed: AtomicU64,
    /// A digest of the first bytes; `None` if they could not be read.
    head: Option<u64>,
    changes: Changes,
    /// Set once another version was seen. Never cleared, because no write restores the old version.
    has_changed: AtomicBool,
    /// When the file system itself was last asked for the attributes, in seconds (monotonic clock).
    synced_at: AtomicU64,
}

impl Version {
    /// The version of `file`, which has this identity.
    pub(super) fn of(file: &File, identity: &Identity, origin: &Origin, changes: Changes) -> Self {
        let Identity { len, modified, .. } = *identity;
        let changed = AtomicU64::new(nanoseconds(origin.changed));
        let synced_at = AtomicU64::new(seconds());
        let (head, has_changed) = (head(file), AtomicBool::new(false));
        Self { len, modified, changed, head, changes, has_changed, synced_at }
    }

    /// The change time of this version, nanoseconds since 1970, as far as it is known.
    pub(super) fn changed(&self) -> u64 {
        self.changed.load(Ordering::Relaxed)
    }

    /// Fails if another version was seen earlier.
    pub(super) fn check_seen(&self, path: &Path) -> Result<()> {
        match self.has_changed.load(Ordering::Relaxed) && self.changes != Changes::Allowed {
            true => Err(changed(path)),
            false => Ok(()),
        }
    }

    /// Fails if `file` is another version now.
    pub(super) fn check(&self, file: &File, path: &Path) -> Result<()> {
        if self.has_changed.load(Ordering::Relaxed) {
            return self.check_seen(path);
        }
        let is_opened = |known| self.is_like(known) && self.has_same_change(known);
        // If the kernel knows nothing, nothing indicates a change: the read succeeded.
        if !self.is_sync_due() && cached(file).is_none_or(is_opened) {
            return Ok(());
        }
        // Also because what the kernel knows may be older or less exact than what was opened.
        self.check_now(file, path)
    }

    /// Like `check`, but asks the file system itself.
    pub(super) fn check_now(&self, file: &File, path: &Path) -> Result<()> {
        self.check_seen(path)?;
        refreshed(file).map_or(Ok(()), |found| self.compare(found, file, path))
    }

    /// Fails if `file`, which has the attributes `found`, is another version.
    pub(super) fn compare(&self, found: Attributes, file: &File, path: &Path) -> Result<()> {
        let is_like = self.is_like(found);
        if is_like && (self.has_same_change(found) || self.has_same_head(file)) {
            if let Some(changed) = found.changed {
                self.changed.store(changed, Ordering::Relaxed);
            }
            return Ok(());
        }
        let is_first = !self.has_changed.swap(true, Ordering::Relaxed);
        if is_first && matches!(self.changes, Changes::Reported | Changes::Allowed) {
            let name = path.display();
            let before = described(self.len, self.modified);
            let now = match is_like {
                true => "has other bytes with the same time".to_owned(),
                false => format!("is {}", described(found.len, found.modified)),
            };
            let is_allowed = self.changes == Changes::Allowed;
            let outcome = match is_allowed {
                true => "reads may return bytes of both versions (--allow-changes)",
                false => "reads now fail with EIO",
            };
            log::error!("{name}: rewritten in place: was {before}, {now}; {outcome}");
            if !is_allowed {
                crate::log::hint(
                    "mount it again, and replace archives by rename, or use --allow-changes",
                );
            }
        }
        self.check_seen(path)
    }

    fn is_like(&self, found: Attributes) -> bool {
        (found.len, found.modified) == (self.len, self.modified)
    }

    fn has_same_change(&self, found: Attributes) -> bool {
        found.changed.is_none_or(|changed| changed == self.changed())
    }

    /// Whether the first bytes of `file` are those of this version, as far as that is known.
    fn has_same_head(&self, file: &File) -> bool {
        self.head.is_none_or(|opened| head(file).is_none_or(|found| found == opened))
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

/// A time in nanoseconds since 1970.
pub(super) fn nanoseconds((seconds, nanoseconds): (i64, u32)) -> u64 {
    let whole = seconds.wrapping_mul(1_000_000_000);
    whole.wrapping_add(i64::from(nanoseconds)).cast_unsigned()
}

/// A digest of the first bytes of `file`.
fn head(file: &File) -> Option<u64> {
    let mut bytes = [0; HEAD];
    let len = file.read_at(&mut bytes, 0).ok()?;
    Some(xxh3_64(&bytes[..len]))
}

/// The attributes as known to the kernel.
fn cached(file: &File) -> Option<Attributes> {
    let wanted = StatxFlags::SIZE | StatxFlags::MTIME;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    // Linux before 4.11 has no statx; there the sync once a second has to suffice.
    let found = statx(file, c"", flags, wanted | StatxFlags::CTIME).ok()?;
    let known = StatxFlags::from_bits_retain(found.stx_mask);
    let changed = nanoseconds((found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec));
    known.contains(wanted).then_some(Attributes {
        len: found.stx_size,
        modified: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
        // NFS often knows the modification time alone.
        changed: known.contains(StatxFlags::CTIME).then_some(changed),
    })
}

/// The attributes, refreshed by the file system.
fn refreshed(file: &File) -> Option<Attributes> {
    let found = file.metadata().ok()?;
    let nanosecond = |number| u32::try_from(number).unwrap_or(0);
    Some(Attributes {
        len: found.len(),
        modified: (found.mtime(), nanosecond(found.mtime_nsec())),
        changed: Some(nanoseconds((found.ctime(), nanosecond(found.ctime_nsec())))),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, FileTimes, OpenOptions, Permissions};
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use std::path::PathBuf;
    use std::time::{Duration, UNIX_EPOCH};

    use super::super::pool::FilePool;
    use super::super::{FileStorage, Storage, open_originals};
    use super::*;
    use crate::progress::Progress;

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
                    open_originals(std::slice::from_ref(&path), changes, &Progress::default())
                        .unwrap()
                        .remove(0)
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

    /// > So does a read that finds another change time (ctime) and other bytes at the start of the
    /// > archive.
    #[test]
    fn a_file_whose_time_was_set_back_before_the_next_read_is_rewritten_if_it_begins_differently() {
        let work = tempfile::tempdir().unwrap();
        let path = file(&work);
        let opened = FileStorage::open(&path).unwrap();
        assert_eq!(read(&opened).unwrap(), OLD);
        set_time(&path, 1_000_000_000);
        assert_eq!(read(&opened).unwrap(), OLD, "the same bytes");
        write(&path, b"new");
        set_time(&path, 1_000_000_000);
        assert_eq!(read(&opened).unwrap_err().kind(), Kind::Changed);
        // A name that was there is another file if its inode number is used again.
        let pool = FilePool::new(1);
        write(&path, OLD);
        set_time(&path, 1_000_000_000);
        let pooled = FileStorage::open_in(&path, Changes::Refused, Some(&pool)).unwrap();
        let other = work.path().join("other");
        fs::write(&other, OLD).unwrap();
        let _last = FileStorage::open_in(&other, Changes::Refused, Some(&pool)).unwrap();
        write(&path, b"new");
        set_time(&path, 1_000_000_000);
        assert_eq!(read(&pooled).unwrap_err().kind(), Kind::Changed);
    }

    /// > A new name, a rename, a new mode and unlink are no changes.
    #[test]
    fn a_new_name_or_mode_is_no_change() {
        let work = tempfile::tempdir().unwrap();
        let path = file(&work);
        let opened = FileStorage::open(&path).unwrap();
        let pool = FilePool::new(1);
        let pooled = FileStorage::open_in(&path, Changes::Refused, Some(&pool)).unwrap();
        fs::write(work.path().join("last"), OLD).unwrap();
        let closes_it =
            FileStorage::open_in(&work.path().join("last"), Changes::Refused, Some(&pool));
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read(&pooled).unwrap(), OLD, "opened again");
        drop(closes_it);
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
        let open = |path, changes| FileStorage::open_in(path, changes, Some(&pool)).unwrap();
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
