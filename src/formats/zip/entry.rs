//! An entry of the central directory: what a member is, its path, and where its local header is.
//!
//! Source: APPNOTE 6.3.10, 4.3.12 and 4.4. Modes of Unix are in the upper half of the external
//! attributes, as Info-ZIP writes them.

use super::directory::{CentralDirectory, ENTRY};
use super::extra::{DosTime, Extra};
use super::local::{self, Packed};
use super::method::Method;
use super::names::{DOS, Name, NameEncoding, is_unix};
use crate::error::{Error, Result};
use crate::formats::bytes::Cursor;
use crate::formats::bytes::{Reader, index, length};
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::Timestamp;

/// Length of the fixed part of an entry, bytes.
pub(super) const FIXED: usize = 46;

/// Flags (APPNOTE 4.4.4).
const ENCRYPTED: u16 = 1;
const DESCRIPTOR: u16 = 1 << 3;
const PATCH: u16 = 1 << 5;
const UTF8: u16 = 1 << 11;
const MASKED: u16 = 1 << 13;

/// File types in a mode of Unix (inode(7)).
const TYPE: u32 = 0o170_000;
const TYPE_DIRECTORY: u32 = 0o040_000;
const TYPE_SYMLINK: u32 = 0o120_000;

/// Attributes of DOS.
const READ_ONLY: u32 = 1;
const DOS_DIRECTORY: u32 = 0x10;

/// What a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    Regular,
    Directory,
    Symlink,
}

/// An entry, with the numbers of its extra fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry<'e> {
    system: u8,
    flags: u16,
    pub(super) method: u16,
    time: u16,
    date: u16,
    pub(super) crc32: u32,
    /// Length of its data in the archive, bytes.
    pub(super) compressed: u64,
    /// Length of its decoded data, bytes.
    pub(super) size: u64,
    attributes: u32,
    disk: u16,
    /// The offset of its local header as recorded, bytes.
    pub(super) recorded_offset: u64,
    /// Its name as recorded.
    pub(super) name: &'e [u8],
    /// The encoding of its name, as the user says.
    pub(super) encoding: Option<NameEncoding>,
    extra: Extra<'e>,
}

/// The lengths in the fixed part of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths {
    name: usize,
    extra: usize,
    comment: usize,
}

impl Lengths {
    /// Reads them from the fixed part of an entry.
    pub(super) fn read(fixed: &[u8; FIXED]) -> Result<Self> {
        let mut reader = Reader::new("entry", fixed);
        if reader.array()? != ENTRY {
            return Err(Error::corrupt("there is no entry of the central directory"));
        }
        reader.array::<24>()?;
        let mut next = || reader.u16().map(usize::from);
        Ok(Self { name: next()?, extra: next()?, comment: next()? })
    }

    /// Length of the whole entry, bytes.
    pub(super) fn whole(self) -> usize {
        self.without_comment().saturating_add(self.comment)
    }

    pub(super) fn without_comment(self) -> usize {
        FIXED.saturating_add(self.name).saturating_add(self.extra)
    }
}

impl<'e> Entry<'e> {
    /// Parses the entry at the start of `bytes`, which has all of it, perhaps without its comment.
    pub(super) fn parse(bytes: &'e [u8]) -> Result<Self> {
        let mut reader = Reader::new("entry of the central directory", bytes);
        let fixed = reader.array::<FIXED>()?;
        let lengths = Lengths::read(&fixed)?;
        let name = reader.bytes(lengths.name)?;
        let extra = Extra::parse(reader.bytes(lengths.extra)?);
        let mut reader = Reader::new("entry", &fixed);
        let (_, [_, system]) = (reader.u32()?, reader.array()?);
        let (_, flags, method) = (reader.u16()?, reader.u16()?, reader.u16()?);
        let (time, date, crc32) = (reader.u16()?, reader.u16()?, reader.u32()?);
        let (mut compressed, mut size) = (reader.u32()?.into(), reader.u32()?.into());
        reader.array::<6>()?;
        let (disk, _, attributes) = (reader.u16()?, reader.u16()?, reader.u32()?);
        let mut recorded_offset = reader.u32()?.into();
        extra.extend([&mut size, &mut compressed, &mut recorded_offset]);
        Ok(Self {
            system,
            flags,
            method,
            time,
            date,
            crc32,
            compressed,
            size,
            attributes,
            disk,
            recorded_offset,
            name,
            encoding: None,
            extra,
        })
    }

    /// Its path: the name in the encoding of Linux.
    pub(super) fn path(&self) -> Vec<u8> {
        self.name().path()
    }

    /// Its name and what is known of its encoding.
    pub(super) fn name(&self) -> Name<'e> {
        let Self { name: bytes, system, encoding, .. } = *self;
        let utf8 = match self.flags & UTF8 {
            0 => self.extra.unicode_path(bytes),
            _ => Some(bytes),
        };
        Name { bytes, utf8, system, encoding }
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.flags & (ENCRYPTED | MASKED) != 0
    }

    /// Whether its checksum and lengths are after its data, and not in its local header.
    pub(super) fn has_descriptor(&self) -> bool {
        self.flags & DESCRIPTOR != 0
    }

    /// Why archfs cannot read such members, as their name in the plural, if it cannot.
    pub(super) fn unreadable(&self) -> Option<String> {
        if self.is_encrypted() {
            return Some("encrypted files".to_owned());
        }
        if self.flags & PATCH != 0 {
            return Some("differences to other files".to_owned());
        }
        // 0xffff: the number is in the ZIP64 field. Archives of one file have 0 there.
        if self.disk != 0 && self.disk != u16::MAX {
            return Some("files in other parts of a split archive".to_owned());
        }
        let is_read = Method::from_code(self.method).is_some();
        let name = Method::unsupported_name(self.method);
        (!is_read).then(|| format!("files compressed with {name}"))
    }

    /// Whether its lengths may be recorded modulo 4 GiB: it has no ZIP64 field.
    pub(super) fn has_short_lens(&self) -> bool {
        !self.extra.has_zip64()
    }

    /// The mode of Unix, if it has one.
    fn mode(&self) -> Option<u32> {
        let mode = self.attributes >> 16;
        (is_unix(self.system) && mode != 0).then_some(mode)
    }

    pub(super) fn kind(&self) -> EntryKind {
        let mode_type = self.mode().map_or(0, |mode| mode & TYPE);
        let is_directory =
            self.name.ends_with(b"/") || mode_type == TYPE_DIRECTORY || self.is_dos_directory();
        match is_directory {
            true => EntryKind::Directory,
            // An empty one names nothing.
            false if mode_type == TYPE_SYMLINK && self.size > 0 => EntryKind::Symlink,
            false => EntryKind::Regular,
        }
    }

    /// Whether the attributes of DOS or its separator say that it is a directory.
    fn is_dos_directory(&self) -> bool {
        !is_unix(self.system)
            && self.size == 0
            && (self.attributes & DOS_DIRECTORY != 0 || self.name.ends_with(b"\\"))
    }

    /// Permissions, set-id and sticky bits. Without a mode, those that unzip gives with the umask
    /// 022. PKZIP for Unix and .NET set the system to DOS but store a mode. Like unzip, archfs
    /// takes it if it gives the owner what the attributes of DOS say.
    pub(super) fn permissions(&self) -> u16 {
        if let Some(mode) = self.mode() {
            return u16::try_from(mode & 0o7777).unwrap_or(0);
        }
        let is_read_only = !is_unix(self.system) && self.attributes & READ_ONLY != 0;
        let writable = if is_read_only { 0 } else { 0o200 };
        let usual = match self.kind() {
            EntryKind::Directory => 0o555 | writable,
            _ => 0o444 | writable,
        };
        let mode = u16::try_from(self.attributes >> 16 & 0o7777).unwrap_or(0);
        let is_agreed = self.system == DOS && mode & 0o700 == usual & 0o700;
        if is_agreed { mode } else { usual }
    }

    /// User and group, if it has them.
    pub(super) fn owner(&self) -> Option<(u32, u32)> {
        self.extra.owner
    }

    pub(super) fn modified(&self, dos: &DosTime) -> Timestamp {
        let is_late = self.date >> 9 >= 2038 - 1980;
        self.extra.modified(is_late).unwrap_or_else(|| dos.convert(self.time, self.date))
    }

    /// The offset of its local header in the storage.
    ///
    /// Fails with `Corrupt` if its header and data do not fit before the central directory.
    pub(super) fn header_offset(&self, directory: &CentralDirectory) -> Result<u64> {
        let offset = directory.header_offset(self.recorded_offset);
        offset
            .filter(|offset| {
                let end = offset.checked_add(self.least_len());
                end.is_some_and(|end| end <= directory.start)
            })
            .ok_or_else(|| {
                Error::corrupt("its data is not within the archive").with_detail(format_args!(
                    "{} bytes at {:#x}",
                    self.compressed, self.recorded_offset
                ))
            })
    }

    /// Its data.
    pub(super) fn packed(&self, directory: &CentralDirectory) -> Result<Packed> {
        let header = self.header_offset(directory)?;
        Ok(Packed { header, method: self.method, len: self.compressed })
    }

    /// The least length of its local header and data, bytes.
    pub(super) fn least_len(&self) -> u64 {
        length(local::FIXED).saturating_add(self.compressed)
    }
}

/// Bytes of the directory to read at a time.
const READ_SIZE: usize = 1 << 20;

/// Bytes that hold most entries, with their names and extra fields.
const USUAL_ENTRY: usize = 384;

/// The entries of a central directory, in their order.
pub(super) struct EntryWalk<'d> {
    cursor: Cursor,
    directory: &'d CentralDirectory,
    /// Length of the entry that was returned last, bytes.
    len: usize,
}

impl<'d> EntryWalk<'d> {
    pub(super) fn new(storage: &Arc<dyn Storage>, directory: &'d CentralDirectory) -> Self {
        let cursor = Cursor::new(Arc::clone(storage), directory.start, READ_SIZE);
        Self { cursor, directory, len: 0 }
    }

    /// The next entry and its offset. `None` at the end of the directory.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Entry<'_>)>> {
        self.cursor.skip(length(std::mem::take(&mut self.len)))?;
        let at = self.cursor.position();
        if at >= self.directory.end {
            return Ok(None);
        }
        let damaged = |error: Error| error.with_detail(format_args!("at {at:#x}"));
        let fixed = self.cursor.peek(FIXED)?.first_chunk::<FIXED>();
        let lengths = fixed.map(Lengths::read).transpose().map_err(damaged)?;
        let len = lengths.map_or(usize::MAX, Lengths::whole);
        let left = self.directory.end.saturating_sub(at);
        if length(len) > left {
            return Err(damaged(Error::corrupt(
                "the last entry of the central directory is cut off",
            )));
        }
        self.len = len;
        let entry = self.directory.entry(at, self.cursor.peek(len)?).map_err(damaged)?;
        Ok(Some((at, entry)))
    }
}

impl CentralDirectory {
    /// The entry at `at`, whose bytes are at the start of `bytes`.
    fn entry<'e>(&self, at: u64, bytes: &'e [u8]) -> Result<Entry<'e>> {
        let mut entry = Entry { encoding: self.names, ..Entry::parse(bytes)? };
        let Entry { size, compressed, recorded_offset, .. } = &mut entry;
        self.wraps.resolve(at, [size, compressed, recorded_offset]);
        Ok(entry)
    }

    /// Calls `take` with the entry at `at`.
    pub(super) fn with_entry<T>(
        &self,
        storage: &dyn Storage,
        at: u64,
        take: impl FnOnce(Entry<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut bytes = [0; USUAL_ENTRY];
        let left = index(self.end.saturating_sub(at));
        let (bytes, _) = bytes.split_at_mut_checked(left.min(USUAL_ENTRY)).unwrap_or_default();
        storage.read_exact_at(bytes, at)?;
        let fixed = bytes.first_chunk::<FIXED>();
        let lengths = fixed.map(Lengths::read).transpose()?;
        match lengths.map_or(0, Lengths::without_comment) {
            len if len <= bytes.len() => take(self.entry(at, bytes)?),
            len => {
                let mut bytes = vec![0; len];
                storage.read_exact_at(&mut bytes, at)?;
                take(self.entry(at, &bytes)?)
            }
        }
    }
}
