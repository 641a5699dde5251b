//! An entry of the central directory: what a member is, its path, and where its local header is.
//!
//! Source: APPNOTE 6.3.10, 4.3.12 and 4.4. Modes of Unix are in the upper half of the external
//! attributes, as Info-ZIP writes them.

use super::directory::{CentralDirectory, ENTRY};
use super::extra::{DosTime, Extra};
use super::local::{self, Packed};
use super::method::Method;
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
            extra,
        })
    }

    /// Its path: the name in the encoding of Linux.
    pub(super) fn path(&self) -> Vec<u8> {
        match self.extra.unicode_path(self.name) {
            Some(path) if !self.is_utf8() => path.to_vec(),
            _ => path_of(self.name, self.is_utf8(), self.system),
        }
    }

    fn is_utf8(&self) -> bool {
        self.flags & UTF8 != 0
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
        let mut entry = Entry::parse(bytes)?;
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

/// The systems that made an entry and whose names are bytes (APPNOTE 4.4.2.2): Unix, BeOS, OS X.
const UNIX: u8 = 3;
const BE_OS: u8 = 16;
const OS_X: u8 = 19;

/// DOS, and also most programs on Windows.
const DOS: u8 = 0;

/// Code page 437 from 0x80 on, as Unicode code points (CP437.TXT of the Unicode consortium).
const UPPER_HALF: [u16; 128] = [
    0x00c7, 0x00fc, 0x00e9, 0x00e2, 0x00e4, 0x00e0, 0x00e5, 0x00e7, 0x00ea, 0x00eb, 0x00e8, 0x00ef,
    0x00ee, 0x00ec, 0x00c4, 0x00c5, 0x00c9, 0x00e6, 0x00c6, 0x00f4, 0x00f6, 0x00f2, 0x00fb, 0x00f9,
    0x00ff, 0x00d6, 0x00dc, 0x00a2, 0x00a3, 0x00a5, 0x20a7, 0x0192, 0x00e1, 0x00ed, 0x00f3, 0x00fa,
    0x00f1, 0x00d1, 0x00aa, 0x00ba, 0x00bf, 0x2310, 0x00ac, 0x00bd, 0x00bc, 0x00a1, 0x00ab, 0x00bb,
    0x2591, 0x2592, 0x2593, 0x2502, 0x2524, 0x2561, 0x2562, 0x2556, 0x2555, 0x2563, 0x2551, 0x2557,
    0x255d, 0x255c, 0x255b, 0x2510, 0x2514, 0x2534, 0x252c, 0x251c, 0x2500, 0x253c, 0x255e, 0x255f,
    0x255a, 0x2554, 0x2569, 0x2566, 0x2560, 0x2550, 0x256c, 0x2567, 0x2568, 0x2564, 0x2565, 0x2559,
    0x2558, 0x2552, 0x2553, 0x256b, 0x256a, 0x2518, 0x250c, 0x2588, 0x2584, 0x258c, 0x2590, 0x2580,
    0x03b1, 0x00df, 0x0393, 0x03c0, 0x03a3, 0x03c3, 0x00b5, 0x03c4, 0x03a6, 0x0398, 0x03a9, 0x03b4,
    0x221e, 0x03c6, 0x03b5, 0x2229, 0x2261, 0x00b1, 0x2265, 0x2264, 0x2320, 0x2321, 0x00f7, 0x2248,
    0x00b0, 0x2219, 0x00b7, 0x221a, 0x207f, 0x00b2, 0x25a0, 0x00a0,
];

/// Whether names of entries that `system` made are bytes of a Unix file system.
fn is_unix(system: u8) -> bool {
    matches!(system, UNIX | BE_OS | OS_X)
}

/// The path of an entry with the name `name`, which `system` made. An entry with flag 11 has its
/// name in UTF-8 (APPNOTE, appendix D). Without it, programs on Unix store the bytes that the file
/// system has, and programs on DOS store code page 437.
fn path_of(name: &[u8], is_utf8: bool, system: u8) -> Vec<u8> {
    let mut path = match is_utf8 || is_unix(system) || name.is_ascii() {
        true => name.to_vec(),
        false => from_code_page_437(name),
    };
    // Some programs on Windows store its separator, against APPNOTE 4.4.17.1.
    if system == DOS && !path.contains(&b'/') {
        path.iter_mut().filter(|byte| **byte == b'\\').for_each(|byte| *byte = b'/');
    }
    path
}

fn from_code_page_437(name: &[u8]) -> Vec<u8> {
    let decoded = |&byte: &u8| match byte.checked_sub(0x80) {
        None => char::from(byte),
        Some(upper) => {
            let code_point = UPPER_HALF.get(usize::from(upper)).copied().unwrap_or(0);
            char::from_u32(code_point.into()).unwrap_or_default()
        }
    };
    name.iter().map(decoded).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_dos_are_in_code_page_437() {
        let text = |name: &[u8]| String::from_utf8(path_of(name, false, DOS)).unwrap();
        assert_eq!(text(b"gr\x81n"), "gr\u{fc}n");
        assert_eq!(text(b"\xff\x80"), "\u{a0}\u{c7}");
        assert_eq!(text(b"a\\b\\c.jpg"), "a/b/c.jpg");
        assert_eq!(text(b"a/b\\c.jpg"), "a/b\\c.jpg");
    }

    #[test]
    fn names_of_unix_are_bytes() {
        assert_eq!(path_of(b"gr\xfcn", false, UNIX), b"gr\xfcn");
        assert_eq!(path_of("gr\u{fc}n".as_bytes(), false, OS_X), "gr\u{fc}n".as_bytes());
        assert_eq!(path_of(b"a\\b", false, UNIX), b"a\\b");
        assert_eq!(path_of("gr\u{fc}n".as_bytes(), true, DOS), "gr\u{fc}n".as_bytes());
    }
}
