//! An archive in a file or on a block device, read with pread(2).
//!
//! Owns the open descriptor, which is the truth about the archive: a file that is replaced or
//! deleted while mounted goes on being read as it was opened. One that was copied is read from its
//! copy, and stays the file it was in all else: name, length and time.
//! Invariants: length and time are what they were at opening; a file cut short later gives errors,
//! not zeros. A file that is rewritten in place is noticed (`changes`).

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
    /// The pool that it shares with others, also where it is read from a copy.
    pool: Option<Arc<FilePool>>,
    path: PathBuf,
    identity: Identity,
    origin: Origin,
    /// `None` for a block device, whose time is not that of its contents, and for a copy, which is
    /// never written again.
    version: Option<Version>,
}

/// How the file is held.
#[derive(Debug)]
enum Handle {
    /// Open for as long as this lives.
    Open(File),
    /// Open while its pool has room for it.
    Pooled(Arc<FilePool>, Arc<Slot>),
    /// Read from a copy, which starts so many bytes into that file.
    Copied(Arc<File>, u64),
}

/// The file behind a handle, for the time of a call.
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

    /// The same; `changes` says what is done when it is rewritten in place.
    ///
    /// # Errors
    /// As `open`.
    pub(super) fn open_with(path: &Path, changes: Changes) -> Result<Self> {
        let (file, identity, origin) = opened(path)?;
        Ok(Self::new(Handle::Open(file), path, (identity, origin), changes))
    }

    /// A file that is open for reading, without a look at whether it is rewritten. `path` is where
    /// it is, or what it is called in errors.
    ///
    /// # Errors
    /// The system's.
    pub fn of(file: File, path: PathBuf) -> io::Result<Self> {
        let (identity, origin) = known(&file, file.metadata()?.len())?;
        let handle = Handle::Open(file);
        Ok(Self { handle, pool: None, path, identity, origin, version: None })
    }

    /// The same for a file that belongs to this one, and shares its allowance of open files if that
    /// has one. The file must be at `path`.
    ///
    /// # Errors
    /// The system's.
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

    /// The same for one of many files that share an allowance of open ones. What is read later must
    /// still be the file that was there first: one that was replaced gives an error.
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

    /// The same file, read from its copy, which starts at `start` of `copy`.
    pub(super) fn copied(&self, copy: &Arc<File>, start: u64) -> Self {
        let (handle, pool) = (Handle::Copied(Arc::clone(copy), start), self.pool.clone());
        let Self { identity, origin, .. } = *self;
        Self { handle, pool, path: self.path.clone(), identity, origin, version: None }
    }

    /// Where the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the file was when it was opened.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Which file of its file system it was when it was opened.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Whether its bytes are in memory and nowhere else.
    pub fn is_in_memory(&self) -> bool {
        self.opened().is_ok_and(|(file, _)| is_in_memory(&file))
    }

    /// Fails where a copy of the file, made since it was opened, may be of two versions of it.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        // By its path, since some network file systems ask their server only when a file is opened.
        let (_, identity) = self.open_again()?;
        match identity == self.identity {
            true => Ok(()),
            false => Err(self.replaced("was copied")),
        }
    }

    /// Whether the byte at each of `offsets` is in the page cache; `false` where the system does
    /// not tell.
    pub(super) fn are_cached(&self, offsets: impl Iterator<Item = u64> + Clone) -> Vec<bool> {
        let Ok((file, start)) = self.opened() else {
            return Vec::new();
        };
        page_cache::holds(&file, offsets.map(|offset| start + offset))
    }

    /// Lets go of what the page cache holds of these bytes. Advice: that it can not be followed is
    /// no failure.
    pub(super) fn let_go(&self, offset: u64, len: u64) {
        if let Ok((file, start)) = self.opened() {
            let _ = fadvise(&*file, start + offset, NonZeroU64::new(len), Advice::DontNeed);
        }
    }

    /// The file to read from, and where in it this one starts.
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
        // That it is gone is a fault of the storage now, and says nothing of names in the archive.
        let failed =
            |error: Error| Error::new(Kind::Io, "can not be opened again").with_source(error);
        opened(&self.path).map(|(file, identity, _)| (file, identity)).map_err(failed)
    }

    fn replaced(&self, meanwhile: &str) -> Error {
        let context =
            format!("{}: was replaced or changed while it {meanwhile}", self.path.display());
        Error::new(Kind::Io, context)
    }
}

/// Opens `path` and looks at what was opened.
fn opened(path: &Path) -> Result<(File, Identity, Origin)> {
    let shown = path.display();
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => missing(path),
        ErrorKind::PermissionDenied => Error::io(format!("{shown}: can not open"), error)
            .with_hint("namei -l PATH shows which folder on the way, or the file, is not for you"),
        _ => Error::io(format!("{shown}: can not open"), error),
    };
    // Before it is opened, which other devices than block devices may notice.
    check_kind(path, std::fs::metadata(path).map_err(failed)?.file_type())?;
    // A pipe that has taken its place meanwhile would wait for its writer.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let mut file =
        OpenOptions::new().read(true).custom_flags(nonblocking).open(path).map_err(failed)?;
    check_kind(path, file.metadata().map_err(failed)?.file_type())?;
    // The metadata of a block device has no size, its end has.
    let len = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let (identity, origin) = known(&file, len).map_err(failed)?;
    Ok((file, identity, origin))
}

/// What tells `file`, which has `len` bytes, from others.
fn known(file: &File, len: u64) -> io::Result<(Identity, Origin)> {
    let found = file.metadata()?;
    let nanoseconds = |number: i64| u32::try_from(number).unwrap_or(0);
    let identity = Identity {
        len,
        modified: (found.mtime(), nanoseconds(found.mtime_nsec())),
        inode: (found.dev(), found.ino()),
        owner: found.uid(),
        mode: found.mode(),
    };
    let origin = Origin {
        // The width of the number differs among machines.
        file_system: fstatfs(file)?.f_type as u64,
        changed: (found.ctime(), nanoseconds(found.ctime_nsec())),
        group: found.gid(),
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

/// The error for a file that is not there, with what its name lets one think of.
fn missing(path: &Path) -> Error {
    let error = Error::new(Kind::NotFound, format!("{}: no such file", path.display()));
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    // A path that was made absolute has but one slash behind the scheme.
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

/// What tells one version of a file from another, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Bytes.
    pub len: u64,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// The number of the device and of the inode.
    pub inode: (u64, u64),
    /// The owner's number.
    pub owner: u32,
    /// Kind and permissions (st_mode).
    pub mode: u32,
}

impl Identity {
    /// Whether it is a regular file.
    fn is_regular(&self) -> bool {
        rustix::fs::FileType::from_raw_mode(self.mode).is_file()
    }

    /// Whether it may be another version of the file that `other` is: in the same inode, with the
    /// same owner and mode.
    fn is_file_of(&self, other: &Self) -> bool {
        (self.inode, self.owner, self.mode) == (other.inode, other.owner, other.mode)
    }
}

/// What tells a file from a copy of it, besides its inode and owner. Unlike `Identity` it changes
/// when the file is linked or renamed: nobody can set the time of a change (inode(7), ctime).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The kind of the file system (statfs(2), f_type). Its device number is no use: nodes that
    /// mount the same file system give it different ones.
    pub file_system: u64,
    /// When it was last changed in any way: seconds since 1970 and nanoseconds.
    pub changed: (i64, u32),
    /// The group's number.
    pub group: u32,
}

impl Origin {
    /// Whether a process says what is in the file system, and so who owns its files.
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
        let early = || Error::corrupt(format!("{}: the file ends before that", context()));
        // Behind a copy there may be another one.
        let end = offset.checked_add(wanted as u64).ok_or_else(early)?;
        self.version.as_ref().map_or(Ok(()), |version| version.check_known(&self.path))?;
        let (file, start) = self.opened()?;
        if end > self.identity.len {
            return Err(early());
        }
        let outcome = file.read_exact_at(buffer, start + offset);
        // Behind the read, so that it vouches for the bytes; it also explains a read that failed.
        self.version.as_ref().map_or(Ok(()), |version| version.check(&file, &self.path))?;
        outcome.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => early(),
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
