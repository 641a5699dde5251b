//! Files on a disk that are to be read: where they are, and their state when they were listed.
//!
//! Invariant: device, inode, size and time are compared before and after a read. A file that
//! differs gives an error, never bytes of two versions.
//!
//! Memory: 48 bytes and the name for each file, which are spilled; a range and the number of its
//! parent for each directory.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{OFlags, SeekFrom, fstat, seek};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::disk;
use super::placing::{Found, FoundKind, display_path};
use crate::error::{Error, Kind, Result};
use crate::pack::catalog::{Content, cannot_spill, lost};
use crate::pack::feed::BATCH;
use crate::spilled::Spilled;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};

/// Smallest file that stays open between its reads, bytes. Smaller files are read once.
const HELD_MIN: u64 = BATCH;

/// Number of files that stay open. Threads read different parts of the same one or two.
const HELD: usize = 8;

/// The state of a file when it was listed.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Row {
    inode: u64,
    size: u64,
    seconds: i64,
    /// Where its name is in `Rows::names`.
    name: u64,
    name_len: u32,
    nanoseconds: u32,
    /// Index of its device in `Rows::devices`.
    device: u32,
    /// Index of its directory in `Rows::directories`.
    directory: u32,
}

impl Row {
    fn name_range(&self) -> Range<usize> {
        let start = self.name as usize;
        start..start + self.name_len as usize
    }
}

/// A directory: its parent, and the range of its name.
struct ParentDirectory {
    parent: u32,
    name: Range<usize>,
}

/// Files below one directory.
pub(super) struct Table {
    base: OwnedFd,
    display: Vec<u8>,
    rows: Rows,
    /// Whether the kernel lets this user read without updating access times. Relaxed: a thread that
    /// reads an old value only tries once more.
    traceless: AtomicBool,
    /// Large files that are being read, by key, the latest last. On a parallel file system each
    /// open is a request to the metadata server, and a file has one batch for every MiB. Guards
    /// only the list, and is never held with another lock.
    held: Mutex<Vec<(u64, Arc<File>)>>,
}

impl Table {
    pub(super) fn new(rows: Rows, base: OwnedFd, display: Vec<u8>) -> Self {
        let (traceless, held) = (AtomicBool::new(true), Mutex::default());
        Self { base, display, rows, traceless, held }
    }

    fn path(&self, row: &Row) -> Vec<u8> {
        let Rows { directories, names, .. } = &self.rows;
        let mut parts = vec![&names[row.name_range()]];
        let mut next = row.directory;
        while next != 0 {
            let directory = &directories[next as usize];
            parts.push(&names[directory.name.clone()]);
            next = directory.parent;
        }
        parts.reverse();
        parts.join(&b'/')
    }

    fn row(&self, key: u64) -> Result<&Row> {
        let row = usize::try_from(key).ok().and_then(|key| self.rows.files.get(key));
        row.ok_or_else(|| {
            Error::new(Kind::NotFound, format!("{key} is not a file of this directory"))
        })
    }

    /// An open file that has not changed. A large one stays open for later reads.
    fn opened(&self, key: u64, row: &Row) -> Result<Arc<File>> {
        if row.size <= HELD_MIN {
            return self.open(row).map(Arc::new);
        }
        let found =
            self.held.lock().iter().find(|held| held.0 == key).map(|held| Arc::clone(&held.1));
        if let Some(file) = found {
            self.check(row, &file)?;
            return Ok(file);
        }
        let file = Arc::new(self.open(row)?);
        let mut held = self.held.lock();
        // Another thread may have opened it at the same time. Both descriptors are equally good.
        if held.iter().all(|held| held.0 != key) {
            held.push((key, Arc::clone(&file)));
        }
        let closed = (held.len() > HELD).then(|| held.remove(0));
        drop(held);
        drop(closed);
        Ok(file)
    }

    /// Opens a file after checking that it has not changed.
    fn open(&self, row: &Row) -> Result<File> {
        let path = self.path(row);
        // A pipe may have replaced the file, and opening it would block.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let open = |flags| disk::open_below(self.base.as_fd(), &path, flags);
        let opened = if self.traceless.load(Ordering::Relaxed) {
            open(flags | OFlags::NOATIME).or_else(|error| {
                if Errno::from_io_error(&error) != Some(Errno::PERM) {
                    return Err(error);
                }
                self.traceless.store(false, Ordering::Relaxed);
                open(flags)
            })
        } else {
            open(flags)
        };
        let file = opened.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO | Errno::STALE) => {
                self.changed(row)
            }
            _ => self.failed(row, error),
        })?;
        let file = File::from(file);
        self.check(row, &file)?;
        Ok(file)
    }

    fn check(&self, row: &Row, file: &File) -> Result<()> {
        let stat = fstat(file).map_err(|error| self.failed(row, error.into()))?;
        let found = disk::of(&stat);
        let modified = found.meta.modified;
        let device = self.rows.devices.get(row.device as usize).copied();
        let same = Some(found.id.device) == device
            && found.id.number == row.inode
            && matches!(found.kind, FoundKind::File { size, .. } if size == row.size)
            && (modified.seconds, modified.nanoseconds) == (row.seconds, row.nanoseconds);
        if same { Ok(()) } else { Err(self.changed(row)) }
    }

    fn changed(&self, row: &Row) -> Error {
        Error::new(Kind::Changed, format!("{}: changed while it was read", self.origin_of(row)))
    }

    fn failed(&self, row: &Row, error: std::io::Error) -> Error {
        Error::io(format!("{}: cannot read", self.origin_of(row)), error)
    }

    fn origin_of(&self, row: &Row) -> String {
        display_path(&self.display, &self.path(row))
    }
}

impl Content for Table {
    fn read(&self, key: u64, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let row = self.row(key)?;
        let file = self.opened(key, row)?;
        file.read_exact_at(buffer, offset).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => self.changed(row),
            _ => self.failed(row, error),
        })?;
        self.check(row, &file)
    }

    fn next_data(&self, key: u64, offset: u64) -> Result<Option<Range<u64>>> {
        let row = self.row(key)?;
        // Other threads may move the offset of the open file, which nothing here depends on.
        let file = self.opened(key, row)?;
        let start = match seek(&file, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return self.check(row, &file).map(|()| None),
            // The file system does not report holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => offset,
            Err(error) => return Err(self.failed(row, error.into())),
        };
        let end = match seek(&file, SeekFrom::Hole(start)) {
            Ok(end) => end,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => row.size,
            Err(Errno::NXIO) => return Err(self.changed(row)),
            Err(error) => return Err(self.failed(row, error.into())),
        };
        self.check(row, &file)?;
        Ok((start < end).then_some(start..end))
    }

    fn origin(&self, key: u64) -> String {
        self.row(key).map_or_else(|_| String::new(), |row| self.origin_of(row))
    }

    fn check_spilled(&self) -> Result<()> {
        self.rows.files.check().and_then(|()| self.rows.names.check()).map_err(lost)
    }
}

/// The rows of a table.
pub(super) struct Rows {
    directories: Vec<ParentDirectory>,
    files: Spilled<Row>,
    names: Spilled<u8>,
    devices: Vec<u64>,
}

impl Rows {
    /// Only the base directory, which has the number 0.
    pub(super) fn new() -> Self {
        let directories = vec![ParentDirectory { parent: 0, name: 0..0 }];
        Self {
            directories,
            files: Spilled::default(),
            names: Spilled::default(),
            devices: Vec::new(),
        }
    }

    /// Adds the file `name` to the directory with this number. Returns the number of a directory or
    /// the key of a regular file; 0 for any other kind.
    pub(super) fn add(&mut self, directory: u64, name: &[u8], found: &Found) -> Result<u64> {
        let many = |_| Error::new(Kind::InvalidInput, "more than 2^32 directories or devices");
        let directory = u32::try_from(directory).map_err(many)?;
        let name_start = self.names.len();
        match found.kind {
            FoundKind::Directory { .. } => {
                self.names.extend_from_slice(name).map_err(cannot_spill)?;
                self.directories.push(ParentDirectory {
                    parent: directory,
                    name: name_start..self.names.len(),
                });
                let number = u32::try_from(self.directories.len() - 1).map_err(many)?;
                Ok(u64::from(number))
            }
            FoundKind::File { size, .. } => {
                self.names.extend_from_slice(name).map_err(cannot_spill)?;
                let device = self.devices.iter().rposition(|&other| other == found.id.device);
                let device = device.unwrap_or_else(|| {
                    self.devices.push(found.id.device);
                    self.devices.len() - 1
                });
                let row = Row {
                    inode: found.id.number,
                    size,
                    seconds: found.meta.modified.seconds,
                    name: name_start as u64,
                    // A name has 255 bytes at most, and a path that the kernel accepts 4095.
                    name_len: name.len() as u32,
                    nanoseconds: found.meta.modified.nanoseconds,
                    device: u32::try_from(device).map_err(many)?,
                    directory,
                };
                self.files.push(row).map_err(cannot_spill)?;
                Ok(self.files.len() as u64 - 1)
            }
            _ => Ok(0),
        }
    }
}
