//! An archive in a regular file or on a block device, read with pread(2), or at a URL.
//!
//! The open descriptor pins the archive: if the file is replaced or deleted while mounted, reads
//! continue from the opened one. A staged archive is read through its near copy but keeps its own
//! name, length and time. Invariants: length and time stay as they were at open; a file truncated
//! later gives errors, not zeros. `changes` detects a file that is rewritten in place.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::num::NonZeroU64;
use std::ops::{Deref, Range};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise, fstatfs};
use rustix::param;

use super::changes::{Attributes, Changes, Version, nanoseconds};
use super::download;
use super::identity::{
    Identity, Origin, Validator, identified, identified_remote, modified_at, open_random, opened,
};
use super::near::{Fill, NearCopy, Source, Wanted};
use super::pool::{FilePool, Slot};
use super::{FilePart, Storage};
use crate::error::{Error, Kind, Result};
use crate::os::file_position::{FilePosition, Valid};
use crate::os::page_cache;
use crate::os::trust;
use crate::os::unlinked::is_in_memory;
use crate::remote::{self, RemoteFile, Requester};
use crate::sync::{Arc, AtomicBool, OnceLock, Ordering};
use crate::together::SharedArchive;
use crate::url;

mod background;
mod shared;
#[cfg(test)]
mod tests;

pub(super) use background::{BackgroundReads, CachedReads, CachedSource};
use shared::SharedSource;

/// A file opened for reading.
#[derive(Debug)]
pub struct FileStorage {
    path: PathBuf,
    identity: Identity,
    origin: Origin,
    /// `None` for a block device, whose time is unrelated to its contents, for a near copy, whose
    /// sources have their own, and for a URL, whose server names the version in each answer.
    version: Option<Version>,
    bytes: Bytes,
    /// The pool of open files it belongs to, even if it is read from a copy.
    pool: Option<Arc<FilePool>>,
    /// Set before there is a copy of it, if the nodes of the job share it.
    shared: OnceLock<Arc<SharedArchive>>,
    serving: OnceLock<Serving>,
}

/// Where the bytes of an archive are read from.
#[derive(Debug)]
enum Bytes {
    /// A file that is open as long as this value lives.
    Local(Arc<File>),
    /// A file that is open while its pool has room for it.
    Pooled(Arc<FilePool>, Arc<Slot>),
    /// A copy, in which the archive has this number.
    Near {
        copy: Arc<NearCopy>,
        file: Arc<File>,
        number: usize,
        /// Keeps the fill of the copy alive, if it ends with the files.
        fill: Option<Arc<Fill>>,
    },
    Remote(Arc<RemoteFile>),
}

/// What a file needs while it is mounted.
#[derive(Debug)]
struct Serving {
    /// The same file, opened once more with POSIX_FADV_RANDOM: for contents of files, around which
    /// the kernel would read other files. `None` if it could not be opened again.
    random: Option<File>,
    /// Whether contents are read with the kernel's readahead as long as memory has room for it.
    gains_from_readahead: bool,
    /// `None` if its bytes are only in memory.
    cache: Option<Arc<ArchiveCache>>,
    /// Whether it is on a FUSE file system, which gets no advice about reads. Advice makes the
    /// kernel read into the page cache. If the file system does not expect that (FOPEN_DIRECT_IO),
    /// it may answer with fewer bytes, which the kernel takes for the end of the file.
    is_on_fuse: bool,
    reads: Option<BackgroundReads>,
}

impl Serving {
    /// Whether pages that were served are dropped.
    fn drops(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.drops())
    }

    /// Whether the kernel's readahead may fetch the files behind contents that are read.
    fn reads_ahead(&self) -> bool {
        self.gains_from_readahead && self.cache.as_ref().is_some_and(|cache| cache.has_room())
    }
}

/// Whether the page cache of the archives of a mount keeps what was handed out.
///
/// The kernel caches what a mount reads, so what archfs read for it is in memory twice: as pages of
/// the mount, and as pages of the archive. A dataset that fits into memory once but not twice would
/// then be read from storage in every epoch. So where both do not fit, the pages of the archive are
/// dropped as soon as they were served. `lifecycle` decides; this is the switch.
#[derive(Debug, Default)]
pub struct ArchiveCache {
    drops: AtomicBool,
    has_room: AtomicBool,
}

impl ArchiveCache {
    /// Whether served pages are dropped.
    pub fn drops(&self) -> bool {
        self.drops.load(Ordering::Relaxed)
    }

    /// Whether memory has room for the archives beside the data that is served.
    pub fn has_room(&self) -> bool {
        self.has_room.load(Ordering::Relaxed)
    }

    /// Notes whether there is room.
    pub fn set_has_room(&self, has_room: bool) {
        self.has_room.store(has_room, Ordering::Relaxed);
    }

    /// Drops served pages from now on, or keeps them.
    pub fn set_drops(&self, drops: bool) {
        self.drops.store(drops, Ordering::Relaxed);
    }
}

/// The shortest read of contents, in bytes, for which the kernel does no readahead. For shorter
/// ones it does: storage takes about as long to deliver a few pages as 32 KiB, and many small files
/// of an archive are likely to be needed. But the end of a longer file follows pages that were
/// just read. The kernel takes such a read for sequential, and may read other files up to the
/// readahead of the device, for example 8 MiB.
const RANDOM_MIN: usize = 32 << 10;

/// The type of NFS (statfs(2), f_type).
const NFS: u64 = 0x6969;

/// The most that the client of NFS may read ahead, in KiB, if the kernel is to read ahead in
/// contents of files. If the file before was read already, it takes a read for sequential, and
/// fetches the next files with the same request (page_cache_sync_ra in mm/readahead.c). With a
/// larger readahead, these would be too many for a job that reads a part of the archive.
const AROUND_MAX: u64 = 128;

/// Bytes at the start of an archive whose pages are dropped before it is served. The reads that
/// recognize its format make the kernel read ahead there and mark a page. A read of a marked page
/// continues that readahead, in large folios and to the end of the archive, whatever the advice.
const HEAD: u64 = 128 << 10;

/// Bytes announced at once. Of one announcement the kernel reads no more than the readahead of the
/// device or its largest request (force_page_cache_ra in mm/readahead.c), and drops the rest. The
/// default readahead is 128 KiB.
const WILL_NEED_MAX: u64 = 128 << 10;

/// The types of file systems (statfs(2), f_type) on other machines, or served by a process: FUSE,
/// GPFS, Lustre, BeeGFS, 9P, CephFS, SMB.
const NETWORK_FILE_SYSTEMS: [u64; 7] =
    [trust::FUSE, 0x4750_4653, 0x0BD0_0BD0, 0x1983_0326, 0x0102_1997, 0x00C3_6400, 0xFE53_4D42];

/// Bytes of tables that are asked of a server at once. In the time of one request it sends about as
/// much.
const REMOTE_TABLES: u64 = 256 << 10;

/// An open file, for one call.
pub(super) enum Opened<'h> {
    Borrowed(&'h File),
    Shared(Arc<File>),
}

impl Deref for Opened<'_> {
    type Target = File;

    fn deref(&self) -> &File {
        match self {
            Self::Borrowed(file) => file,
            Self::Shared(file) => file,
        }
    }
}

impl FileStorage {
    /// Opens `path`, a regular file or a block device.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `Usage` for a pipe, `UnknownFormat` for another kind of file,
    /// else `Io`.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_in(path, Changes::default(), None)
    }

    /// Like `open`; `changes` says what to do if the file is rewritten in place. A file in a `pool`
    /// may be closed between reads. If it is replaced in that time, later reads fail.
    pub(super) fn open_in(
        path: &Path,
        changes: Changes,
        pool: Option<&Arc<FilePool>>,
    ) -> Result<Self> {
        let (file, identity, origin) = opened(path)?;
        let version =
            identity.is_regular().then(|| Version::of(&file, &identity, &origin, changes));
        let opened = Self::new(path.to_owned(), (identity, origin), local(file, pool));
        Ok(Self { version, pool: pool.cloned(), ..opened })
    }

    /// Wraps an open file, without checks for rewrites. `path` is its path, or a name for errors.
    pub fn of(file: File, path: PathBuf) -> io::Result<Self> {
        let identified = identified(&file, file.metadata()?.len())?;
        Ok(Self::new(path, identified, local(file, None)))
    }

    /// Like `of`, for a file that belongs to this one. It joins this file's pool of open files, if
    /// there is one. The file must be at `path`.
    pub fn with(&self, file: File, path: PathBuf) -> io::Result<Self> {
        let identified = identified(&file, file.metadata()?.len())?;
        let bytes = local(file, self.pool.as_ref());
        let opened = Self::new(std::path::absolute(path)?, identified, bytes);
        Ok(Self { pool: self.pool.clone(), ..opened })
    }

    /// Opens the archive at the URL with the name `path`; `changes` says what to do if the server
    /// gives it several ETags.
    pub(super) fn open_remote(path: &Path, changes: Changes) -> Result<Self> {
        let file = RemoteFile::open(path, changes.validators())?;
        let identified = identified_remote(path, &file);
        Ok(Self::new(path.to_owned(), identified, Bytes::Remote(Arc::new(file))))
    }

    /// The same archive, read through `copy`, where it has this number. `fill` ends with the last
    /// of its files.
    pub(super) fn near(
        &self,
        (copy, file): (&Arc<NearCopy>, &Arc<File>),
        number: usize,
        fill: Option<Arc<Fill>>,
    ) -> Self {
        let (copy, file) = (Arc::clone(copy), Arc::clone(file));
        let bytes = Bytes::Near { copy, file, number, fill };
        let near = Self::new(self.path.clone(), (self.identity, self.origin), bytes);
        Self { pool: self.pool.clone(), shared: self.shared.clone(), ..near }
    }

    fn new(path: PathBuf, (identity, origin): (Identity, Origin), bytes: Bytes) -> Self {
        let (shared, serving) = (OnceLock::new(), OnceLock::new());
        Self { path, identity, origin, version: None, bytes, pool: None, shared, serving }
    }

    /// Where a copy fetches the bytes of this archive from.
    pub(super) fn source(self: &Arc<Self>) -> Arc<dyn Source> {
        match self.shared.get() {
            Some(shared) => Arc::new(SharedSource::new(self.own_source(), shared)),
            None => self.own_source(),
        }
    }

    fn own_source(self: &Arc<Self>) -> Arc<dyn Source> {
        match &self.bytes {
            Bytes::Remote(file) => Arc::clone(file) as _,
            _ => Arc::clone(self) as _,
        }
    }

    /// All of the file at the URL `path`, in an unlinked file, and the time of its last change in
    /// seconds since 1970, if the server says. `None` if the server has none, or one that is larger
    /// than this archive, which is too much for an index.
    ///
    /// # Errors
    /// As `RemoteFile::open` and `RemoteFile::read_exact_at`; `Io` if there is no space for it.
    pub fn fetched(&self, path: &Path) -> Result<Option<(Self, Option<i64>)>> {
        let Some((file, version)) = download::fetched(path, self.identity.len)? else {
            return Ok(None);
        };
        match Self::of(file, path.to_owned()) {
            Ok(file) => Ok(Some((file, modified_at(&version)))),
            Err(error) => Err(Error::io(path.display().to_string(), error)),
        }
    }

    /// Identifies this version of this file, also on another day. `None` if nothing does.
    ///
    /// The path counts, and the device number does not: the number of a network file system changes
    /// when it is mounted again, and a FUSE file system may number its files anew each time.
    pub(super) fn version_text(&self) -> Option<Vec<u8>> {
        let Identity { len, modified, inode: (_, inode), .. } = self.identity;
        match &self.bytes {
            Bytes::Remote(file) => {
                let remote::Version { etag, modified } = file.version();
                let version = format!(" {len} {etag:?} {modified:?}");
                let is_named = self.origin.validator != Validator::None;
                is_named.then(|| [self.lasting_name(), version.into_bytes()].concat())
            }
            Bytes::Local(_) | Bytes::Pooled(..) if self.identity.is_regular() => {
                let Origin { file_system, changed, .. } = self.origin;
                let version = format!(" {len} {inode} {modified:?} {changed:?} {file_system}");
                Some([self.lasting_name(), version.into_bytes()].concat())
            }
            Bytes::Local(_) | Bytes::Pooled(..) | Bytes::Near { .. } => None,
        }
    }

    /// Notes that the archive in it was opened, or that all of it is being read for that. Reads
    /// from a server then wait longer for it, but only once if it `is_read_once`.
    pub fn note_opened(&self, is_read_once: bool) {
        match &self.bytes {
            Bytes::Remote(file) => file.note_opened(is_read_once),
            Bytes::Near { copy, number, .. } => copy.note_opened(*number, is_read_once),
            Bytes::Local(_) | Bytes::Pooled(..) => {}
        }
    }

    /// What names it, also on another day: its real path, or what its URL leads to.
    pub fn lasting_name(&self) -> Vec<u8> {
        if self.is_remote() {
            return remote::lasting_identity(&url::text(&self.path));
        }
        let real = fs::canonicalize(&self.path);
        real.as_deref().unwrap_or(&self.path).as_os_str().as_encoded_bytes().to_owned()
    }

    /// Whether it is at a URL.
    pub fn is_remote(&self) -> bool {
        url::is_url(&self.path)
    }

    /// Prepares the file for requests of a mount, after it was opened and scanned: `cache` says
    /// whether pages that were served stay. If `is_random`, the file is opened once more, and
    /// contents of files are read without what lies around them. `reads` gets to know all reads.
    /// Has no effect the second time.
    pub(super) fn serve(
        &self,
        cache: &Arc<ArchiveCache>,
        is_random: bool,
        reads: Option<BackgroundReads>,
    ) {
        self.serving.get_or_init(|| {
            let is_in_memory = self.is_in_memory();
            let random = match &self.bytes {
                Bytes::Local(file) => Some(&**file),
                Bytes::Near { file, .. } => Some(&**file),
                Bytes::Pooled(..) | Bytes::Remote(_) => None,
            };
            let is_on_fuse = self.is_on_fuse();
            let is_random = is_random && !is_in_memory && !is_on_fuse;
            let random = random.filter(|_| is_random).and_then(open_random);
            // Without `reads`, it is the source of a copy, which has each byte once.
            let gains_from_readahead = reads.is_some()
                && random.is_some()
                && self.origin.file_system == NFS
                && reads_little_ahead(page_cache::readahead_kib(self.identity.inode.0));
            if random.is_some() {
                self.drop_cached(0, HEAD);
            }
            let cache = (!is_in_memory).then(|| Arc::clone(cache));
            Serving { random, gains_from_readahead, cache, is_on_fuse, reads }
        });
    }

    /// The path it was opened at.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its identity when it was opened.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Its origin when it was opened.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Whether its bytes are only in memory.
    pub fn is_in_memory(&self) -> bool {
        self.opened().is_ok_and(|(file, _)| is_in_memory(&file))
    }

    /// Drops all of it from the page cache if the kernel has read around contents. Some of those
    /// pages are marked: a read of one continues the readahead, whatever the advice.
    pub fn drop_read_around(&self) {
        if self.serving.get().is_some_and(|serving| serving.gains_from_readahead) {
            self.drop_cached(0, self.identity.len);
        }
    }

    fn is_on_fuse(&self) -> bool {
        let found = self.opened().ok().and_then(|(file, _)| fstatfs(&*file).ok());
        found.is_some_and(|found| found.f_type as u64 == trust::FUSE)
    }

    /// The copy that it is read through, if it is in a file.
    pub(super) fn copy(&self) -> Option<&Arc<NearCopy>> {
        match &self.bytes {
            Bytes::Near { copy, .. } => Some(copy),
            Bytes::Local(_) | Bytes::Pooled(..) | Bytes::Remote(_) => None,
        }
    }

    /// Whether it is on a file system for which the page cache does not work. Then only a copy can
    /// hold what is read ahead. GPFS has a cache of its own, others can be mounted in both ways. A
    /// file system on local storage never counts: if it has another cache, such as that of ZFS, a
    /// copy would be a second one.
    pub(super) fn bypasses_page_cache(&self) -> bool {
        let Ok((file, _)) = self.opened() else { return false };
        NETWORK_FILE_SYSTEMS.contains(&self.origin.file_system)
            && page_cache::keeps_reads_of(&file) == Some(false)
    }

    /// Whether the byte at each of `offsets` is in the page cache. `false` if the system cannot
    /// say.
    pub(super) fn are_cached(&self, offsets: impl Iterator<Item = u64> + Clone) -> Vec<bool> {
        let Ok((file, start)) = self.opened() else {
            return Vec::new();
        };
        page_cache::holds(&file, offsets.map(|offset| start + offset))
    }

    /// Drops this range from the page cache. This is advice, so failure is ignored.
    pub(super) fn drop_cached(&self, offset: u64, len: u64) {
        if let Ok((file, start)) = self.opened() {
            let _ = fadvise(&*file, start + offset, NonZeroU64::new(len), Advice::DontNeed);
        }
    }

    /// The file to read from, and the offset at which this archive starts in it.
    pub(super) fn opened(&self) -> Result<(Opened<'_>, u64)> {
        Ok(match &self.bytes {
            Bytes::Local(file) => (Opened::Borrowed(file), 0),
            Bytes::Pooled(pool, slot) => (Opened::Shared(self.pooled(pool, slot)?), 0),
            Bytes::Near { copy, file, number, .. } => (Opened::Borrowed(file), copy.start(*number)),
            Bytes::Remote(_) => {
                let context = format!("{}: not a file of this node", self.path.display());
                return Err(Error::new(Kind::Unsupported, context));
            }
        })
    }

    fn pooled(&self, pool: &FilePool, slot: &Arc<Slot>) -> Result<Arc<File>> {
        pool.file(slot, || self.reopen())
    }

    fn reopen(&self) -> Result<File> {
        let (file, identity, origin) = self.open_again()?;
        match self.version.as_ref().filter(|_| identity.is_file_of(&self.identity)) {
            Some(version) => {
                version.compare(Attributes::of(&identity, &origin), &file, &self.path)?;
            }
            None if identity == self.identity => {}
            None => return Err(self.replaced()),
        }
        Ok(file)
    }

    fn open_again(&self) -> Result<(File, Identity, Origin)> {
        // A missing file is a storage error here, not a missing name in the archive.
        let failed = |error: Error| Error::new(Kind::Io, "cannot reopen").with_source(error);
        opened(&self.path).map_err(failed)
    }

    /// Reads from `other`, which is the same file, or else from the open one.
    fn read_with(
        &self,
        other: Option<&File>,
        buffer: &mut [u8],
        offset: u64,
        what: Wanted,
    ) -> Result<()> {
        let wanted = buffer.len();
        let context = || format!("{}: cannot read", self.path.display());
        let range = format_args!("{wanted} bytes at {offset:#x}");
        let truncated = || {
            Error::corrupt(format!("{}: unexpected end of file", context()))
                .with_detail(range)
                .with_brief("the archive ends before its data")
        };
        // The length is checked here, because in a copy another archive may follow this one.
        let end = offset.checked_add(wanted as u64).ok_or_else(truncated)?;
        self.version.as_ref().map_or(Ok(()), |version| version.check_seen(&self.path))?;
        if end > self.identity.len {
            return Err(truncated());
        }
        let file = match &self.bytes {
            Bytes::Local(file) => Opened::Borrowed(file),
            Bytes::Pooled(pool, slot) => Opened::Shared(self.pooled(pool, slot)?),
            Bytes::Near { copy, file, number, .. } => {
                let file = other.unwrap_or(file);
                return copy.read_exact_at(*number, buffer, offset, file, what);
            }
            Bytes::Remote(file) => return file.read_exact_at(buffer, offset, Requester::Reader),
        };
        // Small reads of tables say nothing about what programs will read.
        let is_watched = what == Wanted::Contents || wanted >= RANDOM_MIN;
        let serving = self.serving.get().filter(|_| is_watched);
        let watch = serving.and_then(|serving| serving.reads.as_ref()).map(BackgroundReads::watch);
        let outcome = other.unwrap_or(&file).read_exact_at(buffer, offset);
        if let Some(watch) = watch {
            watch.note(&(offset..end));
        }
        // After the read, so that it covers these bytes; it also explains a failed read.
        self.version.as_ref().map_or(Ok(()), |version| version.check(&file, &self.path))?;
        outcome.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => truncated(),
            _ => Error::io(context(), error).with_detail(range),
        })
    }

    fn replaced(&self) -> Error {
        let name = self.path.display();
        let context = format!("{name}: replaced or changed while it is mounted");
        Error::new(Kind::Io, context)
    }
}

impl Storage for FileStorage {
    fn len(&self) -> u64 {
        self.identity.len
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read_with(None, buffer, offset, Wanted::Tables)
    }

    fn read_contents_at(&self, buffer: &mut [u8], offset: u64, part: FilePart) -> Result<()> {
        // What the kernel reads around small files may have been served and dropped already, and
        // its large folios cannot be dropped file by file.
        let is_random = |serving: &&Serving| {
            let is_long = buffer.len() >= RANDOM_MIN && !serving.reads_ahead();
            part == FilePart::Later || is_long || serving.drops()
        };
        let random =
            self.serving.get().filter(is_random).and_then(|serving| serving.random.as_ref());
        self.read_with(random, buffer, offset, Wanted::Contents)
    }

    fn position(&self, offset: u64, len: u64) -> Option<FilePosition> {
        offset.checked_add(len).filter(|&end| end <= self.identity.len)?;
        // A FUSE file system may report a rewrite only when it is asked, which a reader does not.
        if self.serving.get().is_some_and(|serving| serving.is_on_fuse) {
            return None;
        }
        match &self.bytes {
            Bytes::Local(file) => {
                // The time of a block device is unrelated to its contents.
                let modified = self.identity.is_regular().then_some(self.identity.modified)?;
                let opened = nanoseconds(self.origin.changed);
                let changed = self.version.as_ref().map_or(opened, Version::changed);
                let valid = Valid::Unmodified { modified, changed };
                Some(FilePosition { file: Arc::clone(file), valid, offset })
            }
            Bytes::Near { copy, file, number, .. } => {
                let offset = copy.start(*number).checked_add(offset)?;
                let (file, valid) = (Arc::clone(file), Valid::Filled(copy.filled()));
                Some(FilePosition { file, valid, offset })
            }
            Bytes::Pooled(..) | Bytes::Remote(_) => None,
        }
    }

    fn drops_served(&self) -> bool {
        self.serving.get().is_some_and(Serving::drops)
    }

    fn drop_served(&self, range: Range<u64>, part: FilePart) {
        // The kernel drops only whole pages, and at the end of a file its last one. The first page
        // of a part of a file belongs to the part before it as well.
        let page = param::page_size() as u64;
        let start = match part {
            FilePart::First => range.start,
            FilePart::Later => range.start - range.start % page,
        };
        let end = range.end.min(self.identity.len);
        if start < end {
            self.drop_cached(start, end - start);
        }
    }

    fn begin_scan(&self) {
        self.note_opened(false);
        // Elsewhere the few bytes that a scan reads of each file take no request each.
        if let Bytes::Near { copy, number, fill: Some(_), .. } = &self.bytes
            && self.is_remote()
        {
            copy.begin_scan(*number);
        }
    }

    fn end_scan(&self) {
        if let Bytes::Near { copy, number, fill: Some(_), .. } = &self.bytes
            && self.is_remote()
        {
            copy.end_scan(*number);
        }
    }

    fn will_need(&self, offset: u64, len: u64) {
        let end = self.identity.len.min(offset.saturating_add(len));
        let serving = self.serving.get();
        let reads = serving.and_then(|serving| serving.reads.as_ref());
        let copy = match (&self.bytes, reads) {
            (Bytes::Near { copy, number, .. }, _) => Some((copy, *number)),
            (_, Some(BackgroundReads { copy, number, .. })) => Some((copy, *number)),
            _ => None,
        };
        if copy.is_some_and(|(copy, number)| copy.will_need(number, &(offset..end))) {
            return;
        }
        // All of it was read before. The page cache may have lost it since.
        if serving.map_or_else(|| self.is_on_fuse(), |serving| serving.is_on_fuse) {
            return;
        }
        let Ok((file, start)) = self.opened() else { return };
        let mut next = offset;
        while let Some(len) = NonZeroU64::new(end.saturating_sub(next).min(WILL_NEED_MAX)) {
            if fadvise(&*file, start.saturating_add(next), Some(len), Advice::WillNeed).is_err() {
                return;
            }
            next = next.saturating_add(len.get());
        }
    }
}

impl Source for FileStorage {
    fn fetch(&self, buffer: &mut [u8], offset: u64, _: Requester) -> Result<()> {
        // A file that is read from its copy should not occupy the page cache as well. But other
        // jobs may be reading the same file, so pages that were cached before stay. One byte stands
        // for all, and is looked at first, because the kernel reads ahead. If the system cannot
        // say, the pages are dropped: to read them again only costs time.
        let last = offset.saturating_add(buffer.len() as u64).saturating_sub(1);
        let was_cached = self.are_cached(std::iter::once(last)).first() == Some(&true);
        self.read_contents_at(buffer, offset, FilePart::First)?;
        if !was_cached {
            self.drop_cached(offset, buffer.len() as u64);
        }
        Ok(())
    }

    fn check_version(&self) -> Result<()> {
        let Some(version) = &self.version else { return Ok(()) };
        // Opens it by its path, because some network file systems ask their server only then.
        match self.open_again() {
            Ok((file, found, origin)) if found.is_file_of(&self.identity) => {
                version.compare(Attributes::of(&found, &origin), &file, &self.path)
            }
            // Another file has its name now. The open one cannot be found by that.
            _ => version.check_now(&self.opened()?.0, &self.path),
        }
    }
}

impl Source for RemoteFile {
    fn fetch(&self, buffer: &mut [u8], offset: u64, requester: Requester) -> Result<()> {
        self.read_exact_at(buffer, offset, requester)
    }

    fn check_version(&self) -> Result<()> {
        // Each answer names its version.
        Ok(())
    }

    fn note_opened(&self, is_read_once: bool) {
        RemoteFile::note_opened(self, is_read_once);
    }

    fn tables_at_once(&self) -> u64 {
        REMOTE_TABLES
    }
}

/// Whether the kernel reads so little around contents, with a readahead of `size` KiB, that it
/// helps.
fn reads_little_ahead(size: Option<u64>) -> bool {
    size.is_some_and(|size| size <= AROUND_MAX)
}

/// The bytes of an open file, which joins `pool` if there is one.
fn local(file: File, pool: Option<&Arc<FilePool>>) -> Bytes {
    let Some(pool) = pool else { return Bytes::Local(Arc::new(file)) };
    let slot = Arc::new(Slot::default());
    pool.keep(&slot, file);
    Bytes::Pooled(Arc::clone(pool), slot)
}
