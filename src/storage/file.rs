//! An archive in a regular file or on a block device, read with pread(2).
//!
//! The open descriptor pins the archive: if the file is replaced or deleted while mounted, reads
//! continue from the opened one. A staged archive is read from its copy but keeps its own name,
//! length and time. Invariants: length and time stay as they were at open; a file truncated later
//! gives errors, not zeros. `changes` detects a file that is rewritten in place.

use std::ffi::OsStr;
use std::fs::{File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::ops::Deref;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, OFlags, fadvise, fstatfs};

use super::changes::{Changes, Version};
use super::pool::{FilePool, Slot};
use super::unlinked::is_in_memory;
use super::{Storage, page_cache, trust};
use crate::error::{Error, Kind, Result};
use crate::sync::{Arc, Mutex};

/// A file opened for reading.
#[derive(Debug)]
pub struct FileStorage {
    handle: Handle,
    /// The pool of open files it belongs to, even if it is read from a copy.
    pool: Option<Arc<FilePool>>,
    path: PathBuf,
    identity: Identity,
    origin: Origin,
    /// `None` for a block device, whose time is unrelated to its contents, and for a copy, which is
    /// never written again.
    version: Option<Version>,
}

/// How the open file is kept.
#[derive(Debug)]
enum Handle {
    /// Open as long as this value lives.
    Open(File),
    /// Open while its pool has room for it.
    Pooled(Arc<FilePool>, Arc<Slot>),
    /// Read from a copy, which starts at this offset of the file.
    Copied(Arc<File>, u64),
}

/// The file behind a handle, borrowed for one call.
enum Opened<'h> {
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
        Self::open_with(path, Changes::default())
    }

    /// Like `open`; `changes` says what to do if the file is rewritten in place.
    ///
    /// # Errors
    /// As `open`.
    pub(super) fn open_with(path: &Path, changes: Changes) -> Result<Self> {
        let (file, identity, origin) = opened(path)?;
        Ok(Self::new(Handle::Open(file), path, (identity, origin), changes))
    }

    /// Wraps an open file, without checks for rewrites. `path` is its path, or a name for errors.
    ///
    /// # Errors
    /// Those of the system.
    pub fn of(file: File, path: PathBuf) -> io::Result<Self> {
        let (identity, origin) = identified(&file, file.metadata()?.len())?;
        let handle = Handle::Open(file);
        Ok(Self { handle, pool: None, path, identity, origin, version: None })
    }

    /// Like `of`, for a file that belongs to this one. It joins this file's pool of open files, if
    /// there is one. The file must be at `path`.
    ///
    /// # Errors
    /// Those of the system.
    pub fn with(&self, file: File, path: PathBuf) -> io::Result<Self> {
        let opened = Self::of(file, std::path::absolute(path)?)?;
        let (Some(pool), Handle::Open(file)) = (&self.pool, &opened.handle) else {
            return Ok(opened);
        };
        let slot = Arc::new(Mutex::new(None));
        pool.keep(&slot, file.try_clone()?);
        let (handle, pool) = (Handle::Pooled(Arc::clone(pool), slot), Some(Arc::clone(pool)));
        Ok(Self { handle, pool, ..opened })
    }

    /// Like `open`, for one of many files that share a pool of open files. If the file is replaced
    /// while it is closed, later reads fail.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_in(path: &Path, pool: &Arc<FilePool>, changes: Changes) -> Result<Self> {
        let (file, identity, origin) = opened(path)?;
        let slot = Arc::new(Mutex::new(None));
        pool.keep(&slot, file);
        let handle = Handle::Pooled(Arc::clone(pool), slot);
        let opened = Self::new(handle, path, (identity, origin), changes);
        Ok(Self { pool: Some(Arc::clone(pool)), ..opened })
    }

    fn new(
        handle: Handle,
        path: &Path,
        (identity, origin): (Identity, Origin),
        changes: Changes,
    ) -> Self {
        let version = identity.is_regular().then(|| Version::of(&identity, changes));
        Self { handle, pool: None, path: path.to_owned(), identity, origin, version }
    }

    /// The same file, read from its copy at offset `start` of `copy`.
    pub(super) fn copied(&self, copy: &Arc<File>, start: u64) -> Self {
        let (handle, pool) = (Handle::Copied(Arc::clone(copy), start), self.pool.clone());
        let Self { identity, origin, .. } = *self;
        Self { handle, pool, path: self.path.clone(), identity, origin, version: None }
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

    /// Fails if a copy made since the file was opened may mix two of its versions.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        // Reopens by path, because some network file systems ask their server only on open.
        let (_, identity) = self.open_again()?;
        match identity == self.identity {
            true => Ok(()),
            false => Err(self.replaced("was copied")),
        }
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
    fn opened(&self) -> Result<(Opened<'_>, u64)> {
        Ok(match &self.handle {
            Handle::Open(file) => (Opened::Borrowed(file), 0),
            Handle::Pooled(pool, slot) => (Opened::Shared(pool.file(slot, || self.reopen())?), 0),
            Handle::Copied(file, start) => (Opened::Borrowed(file), *start),
        })
    }

    fn reopen(&self) -> Result<File> {
        let (file, identity) = self.open_again()?;
        if identity == self.identity {
            return Ok(file);
        }
        match self.version.as_ref().filter(|_| identity.is_file_of(&self.identity)) {
            Some(version) => version.compare(identity.len, identity.modified, &self.path)?,
            None => return Err(self.replaced("is mounted")),
        }
        Ok(file)
    }

    fn open_again(&self) -> Result<(File, Identity)> {
        // A missing file is a storage error here, not a missing name in the archive.
        let failed =
            |error: Error| Error::new(Kind::Io, "can not be opened again").with_source(error);
        opened(&self.path).map(|(file, identity, _)| (file, identity)).map_err(failed)
    }

    fn replaced(&self, operation: &str) -> Error {
        let context =
            format!("{}: was replaced or changed while it {operation}", self.path.display());
        Error::new(Kind::Io, context)
    }
}

/// Opens `path`, checks its kind and reads its identity.
fn opened(path: &Path) -> Result<(File, Identity, Origin)> {
    let shown = path.display();
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => missing(path),
        ErrorKind::PermissionDenied => Error::io(format!("{shown}: can not open"), error)
            .with_hint("namei -l PATH shows which folder on the way, or the file, is not for you"),
        _ => Error::io(format!("{shown}: can not open"), error),
    };
    // Checked before opening, because opening a character device can have side effects.
    check_kind(path, std::fs::metadata(path).map_err(failed)?.file_type())?;
    // If a pipe has replaced the file since, a blocking open would wait for its writer.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let mut file =
        OpenOptions::new().read(true).custom_flags(nonblocking).open(path).map_err(failed)?;
    check_kind(path, file.metadata().map_err(failed)?.file_type())?;
    // The metadata of a block device has no size, so it is found by seeking to the end.
    let len = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let (identity, origin) = identified(&file, len).map_err(failed)?;
    Ok((file, identity, origin))
}

/// The identity of `file`, which has `len` bytes.
fn identified(file: &File, len: u64) -> io::Result<(Identity, Origin)> {
    let metadata = file.metadata()?;
    let nanoseconds = |number: i64| u32::try_from(number).unwrap_or(0);
    let identity = Identity {
        len,
        modified: (metadata.mtime(), nanoseconds(metadata.mtime_nsec())),
        inode: (metadata.dev(), metadata.ino()),
        owner: metadata.uid(),
        mode: metadata.mode(),
    };
    let origin = Origin {
        // The width of this number depends on the architecture.
        file_system: fstatfs(file)?.f_type as u64,
        changed: (metadata.ctime(), nanoseconds(metadata.ctime_nsec())),
        group: metadata.gid(),
    };
    Ok((identity, origin))
}

/// Fails unless a file of this kind can be an archive.
fn check_kind(path: &Path, kind: FileType) -> Result<()> {
    let shown = path.display();
    if kind.is_dir() {
        let context = format!("{shown}: is a directory, not an archive");
        return Err(Error::new(Kind::IsADirectory, context)
            .with_hint("pack it first: archfs pack DIRECTORY data.sqfs"));
    }
    if kind.is_fifo() {
        let context = format!("{shown}: a pipe; archfs needs a file");
        return Err(Error::new(Kind::Usage, context)
            .with_hint("an archive is read at any offset: write the output to a file first"));
    }
    if !kind.is_file() && !kind.is_block_device() {
        let context = format!("{shown}: neither a file nor a block device");
        return Err(Error::new(Kind::UnknownFormat, context));
    }
    Ok(())
}

/// The error for a missing file, with a hint if the name suggests the cause.
fn missing(path: &Path) -> Error {
    let error = Error::new(Kind::NotFound, format!("{}: no such file", path.display()));
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    // A path that was made absolute has a single slash after the scheme.
    let is_scheme = |part: &OsStr| {
        let part = part.as_encoded_bytes();
        let name = part.strip_suffix(b":").unwrap_or_default();
        name.len() > 1 && name.iter().all(u8::is_ascii_alphanumeric)
    };
    if path.iter().any(is_scheme) {
        error.with_hint("archfs reads files, not addresses: download it first")
    } else if name.iter().any(|byte| b"*?[".contains(byte)) {
        error.with_hint("no file matches the pattern, so the shell has left it as it is")
    } else {
        error
    }
}

/// Identifies one version of a file, and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Size in bytes.
    pub len: u64,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// Device number and inode number.
    pub inode: (u64, u64),
    /// Owner (uid).
    pub owner: u32,
    /// Type and permissions (st_mode).
    pub mode: u32,
}

impl Identity {
    /// Whether it is a regular file.
    fn is_regular(&self) -> bool {
        rustix::fs::FileType::from_raw_mode(self.mode).is_file()
    }

    /// Whether it may be another version of `other`: same inode, owner and mode.
    fn is_file_of(&self, other: &Self) -> bool {
        (self.inode, self.owner, self.mode) == (other.inode, other.owner, other.mode)
    }
}

/// Distinguishes a file from a copy of it, together with inode and owner. Unlike `Identity` it
/// changes when the file is linked or renamed, because no user can set the change time (inode(7),
/// ctime).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The file system's type (statfs(2), f_type). The device number would not do: nodes that mount
    /// the same file system assign different ones.
    pub file_system: u64,
    /// Change time: seconds since 1970 and nanoseconds.
    pub changed: (i64, u32),
    /// Group (gid).
    pub group: u32,
}

impl Origin {
    /// Whether the file system is served by a user process, which then controls the owners of its
    /// files.
    pub fn is_served_by_process(&self) -> bool {
        self.file_system == trust::FUSE
    }
}

impl Storage for FileStorage {
    fn len(&self) -> u64 {
        self.identity.len
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let wanted = buffer.len();
        let context = || format!("{}: reading {wanted} bytes at {offset:#x}", self.path.display());
        let truncated = || Error::corrupt(format!("{}: the file ends before that", context()));
        // The length is checked here, because in a copy another archive may follow this one.
        let end = offset.checked_add(wanted as u64).ok_or_else(truncated)?;
        self.version.as_ref().map_or(Ok(()), |version| version.check_seen(&self.path))?;
        let (file, start) = self.opened()?;
        if end > self.identity.len {
            return Err(truncated());
        }
        let outcome = file.read_exact_at(buffer, start + offset);
        // After the read, so that it covers these bytes; it also explains a failed read.
        self.version.as_ref().map_or(Ok(()), |version| version.check(&file, &self.path))?;
        outcome.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => truncated(),
            _ => Error::io(context(), error),
        })
    }

    fn will_need(&self, offset: u64, len: u64) {
        let inside = len.min(self.identity.len.saturating_sub(offset));
        if let (Some(len), Ok((file, start))) = (NonZeroU64::new(inside), self.opened()) {
            let _ = fadvise(&*file, start.saturating_add(offset), Some(len), Advice::WillNeed);
        }
    }
}
