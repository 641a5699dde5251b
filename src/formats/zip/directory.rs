//! The end of a ZIP archive: the records that say where its central directory is, and what its
//! numbers lack if they are recorded modulo 4 GiB (`member_order` finds that).
//!
//! Sources: APPNOTE 6.3.10, 4.3.14 (ZIP64 end of central directory record), 4.3.15 (its locator)
//! and 4.3.16 (end of central directory record).
//!
//! The last record may be followed by a comment of up to 64 KiB, which may contain the signature of
//! the record. Other data may come before the archive, for example the program of a self-extracting
//! archive. Offsets in the archive may or may not count that data.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::names::NameEncoding;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::storage::Storage;

/// The first bytes of an archive: of a local header, of the end record of an empty archive, of the
/// first part of a split archive, and the marker of one that was not split after all (APPNOTE 8.5.3
/// and 8.5.4).
const STARTS: [&[u8]; 4] = [b"PK\x03\x04", b"PK\x05\x06", SPLIT_START, b"PK00PK\x03\x04"];
const SPLIT_START: &[u8] = b"PK\x07\x08";

const END: [u8; 4] = *b"PK\x05\x06";
const LOCATOR: [u8; 4] = *b"PK\x06\x07";
const END_64: [u8; 4] = *b"PK\x06\x06";
pub(super) const ENTRY: [u8; 4] = *b"PK\x01\x02";

/// Lengths of the records without comments and extensions, bytes.
const END_LEN: usize = 22;
const LOCATOR_LEN: u64 = 20;
const END_64_LEN: u64 = 56;

/// Most bytes of the comment.
const COMMENT_MAX: usize = 0xffff;

/// Whether a file that starts with `head` is a ZIP archive.
pub(crate) fn recognizes(head: &[u8]) -> bool {
    STARTS.iter().any(|start| head.starts_with(start))
}

/// The central directory of an archive.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CentralDirectory {
    /// Where it starts and ends, bytes.
    pub(super) start: u64,
    pub(super) end: u64,
    /// How many entries it should have.
    pub(super) entries: u64,
    /// Whether `entries` is only the count modulo 65,536.
    pub(super) is_modulo: bool,
    /// What to add to offsets of local headers.
    pub(super) base: i64,
    /// Whether its own offset is recorded modulo 4 GiB, so that others may be.
    pub(super) is_wrapped: bool,
    /// What its entries lack because of that.
    pub(super) wraps: Wraps,
    /// The encoding of names that are not marked, as the user says.
    pub(super) names: Option<NameEncoding>,
}

/// The numbers in an end record.
struct End {
    this_disk: u32,
    directory_disk: u32,
    entries_here: u64,
    entries: u64,
    len: u64,
    offset: u64,
}

/// Whether `storage` ends as a ZIP archive ends, whatever it starts with.
pub(crate) fn has_directory(storage: &dyn Storage) -> Result<bool> {
    match CentralDirectory::find(storage) {
        Ok(directory) => Ok(directory.start < directory.end),
        Err(error) if matches!(error.kind(), Kind::Io | Kind::Unreachable) => Err(error),
        // A split archive: opening it explains that.
        Err(error) if error.kind() == Kind::Unsupported => Ok(true),
        Err(_) => Ok(false),
    }
}

impl CentralDirectory {
    /// Finds the central directory of the archive in `storage`.
    ///
    /// Fails with `Truncated` if the archive has no end; `Corrupt` if it is damaged; `Unsupported`
    /// if it is a part of a split archive.
    pub(super) fn find(storage: &dyn Storage) -> Result<Self> {
        let tail_len = index(storage.len()).min(END_LEN.saturating_add(COMMENT_MAX));
        let mut tail = vec![0; tail_len];
        let tail_start = storage.len().saturating_sub(length(tail_len));
        storage.read_exact_at(&mut tail, tail_start)?;
        let before = |at: usize| {
            let record = tail.get(at..).unwrap_or_default();
            Self::before(storage, tail_start.saturating_add(length(at)), record)
        };
        match find_ends(&tail) {
            Ends::Exact(at) => before(at),
            Ends::Inexact(candidates) => {
                let mut candidates = candidates.into_iter().flatten().map(before);
                let first = candidates.next().ok_or_else(|| no_end(storage))?;
                let found = candidates.find(|_| first.is_err()).filter(Result::is_ok);
                match found.unwrap_or(first) {
                    Err(error) if error.kind() == Kind::Unsupported => Err(no_end(storage)),
                    outcome => outcome,
                }
            }
        }
    }

    /// The central directory before the end record `record` at `at`.
    fn before(storage: &dyn Storage, at: u64, record: &[u8]) -> Result<Self> {
        let mut end = End::parse(record)?;
        let (mut end_at, mut is_modulo) = (at, true);
        match find_end_64(storage, at)? {
            Some(end_64) => (end_at, end, is_modulo) = (end_64.0, end_64.1, false),
            None if end.needs_end_64() => {
                return Err(Error::corrupt("the ZIP64 end record is not where its locator says"));
            }
            None => {}
        }
        if end.is_split() {
            return Err(split(storage, SplitFile::WithEnd));
        }
        let starts_at = |start: u64| -> Result<bool> {
            let mut signature = [0; 4];
            if end.len == 0 {
                return Ok(true);
            }
            if start.saturating_add(4) > end_at {
                return Ok(false);
            }
            storage.read_exact_at(&mut signature, start)?;
            Ok(signature == ENTRY)
        };
        let Some(before) = end_at.checked_sub(end.len) else {
            return Err(Error::corrupt("the central directory is longer than the archive"));
        };
        // Usually it ends where the end record starts. A signature may lie in between.
        let mut start = before;
        if !starts_at(start)? {
            start = end.offset;
            if start.checked_add(end.len).is_none_or(|end| end > end_at) || !starts_at(start)? {
                return Err(Error::corrupt("there is no central directory where its end says")
                    .with_detail(format_args!("looked at {before:#x} and {start:#x}")));
            }
        }
        let base = i128::from(start).saturating_sub(i128::from(end.offset));
        // Data before the archive is not a multiple of 4 GiB long.
        let lacking = start.saturating_sub(end.offset);
        let is_wrapped = is_modulo && lacking >= SPAN && lacking % SPAN == 0;
        Ok(Self {
            start,
            end: start.saturating_add(end.len),
            entries: end.entries,
            is_modulo,
            base: if is_wrapped { 0 } else { i64::try_from(base).unwrap_or(0) },
            is_wrapped,
            wraps: Wraps::default(),
            names: None,
        })
    }

    /// The offset in the storage of a local header, from its offset in an entry.
    pub(super) fn header_offset(&self, recorded: u64) -> Option<u64> {
        recorded.checked_add_signed(self.base)
    }
}

/// Positions of end records in the last bytes of an archive.
enum Ends {
    /// That of the record whose comment ends with the file. A comment may contain another one.
    Exact(usize),
    /// Those of the last record with bytes behind its comment, and of the last one whose comment is
    /// cut off. The later one first.
    Inexact([Option<usize>; 2]),
}

fn find_ends(tail: &[u8]) -> Ends {
    let (mut longer, mut cut) = (None, None);
    for at in (0..=tail.len().saturating_sub(END_LEN)).rev() {
        let rest = tail.get(at..).unwrap_or_default();
        let (true, Some(&[low, high])) =
            (rest.starts_with(&END), rest.get(20..22).and_then(<[u8]>::first_chunk))
        else {
            continue;
        };
        let comment = usize::from(u16::from_le_bytes([low, high]));
        let fallback = match END_LEN.saturating_add(comment).cmp(&rest.len()) {
            Ordering::Equal => return Ends::Exact(at),
            Ordering::Less => &mut longer,
            Ordering::Greater => &mut cut,
        };
        *fallback = fallback.or(Some(at));
    }
    Ends::Inexact(if longer > cut { [longer, cut] } else { [cut, longer] })
}

/// The ZIP64 end record before the end record at `end`, and its offset. `None` if there is none: a
/// name may end with what looks like its locator.
fn find_end_64(storage: &dyn Storage, end: u64) -> Result<Option<(u64, End)>> {
    let Some(locator_at) = end.checked_sub(LOCATOR_LEN) else { return Ok(None) };
    let mut locator = [0; 20];
    storage.read_exact_at(&mut locator, locator_at)?;
    let mut reader = Reader::new("ZIP64 locator", &locator);
    if reader.array()? != LOCATOR {
        return Ok(None);
    }
    let (_, recorded, disks) = (reader.u32()?, reader.u64()?, reader.u32()?);
    let candidates = [recorded, locator_at.saturating_sub(END_64_LEN)];
    for at in candidates {
        if at.checked_add(END_64_LEN).is_none_or(|end| end > locator_at) {
            continue;
        }
        let mut record = [0; 56];
        storage.read_exact_at(&mut record, at)?;
        let mut reader = Reader::new("ZIP64 end record", &record);
        if reader.array()? == END_64 {
            return match disks {
                0 | 1 => End::parse_64(&mut reader).map(|end| Some((at, end))),
                _ => Err(split(storage, SplitFile::WithEnd)),
            };
        }
    }
    Ok(None)
}

impl End {
    fn parse(record: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("end record", record);
        reader.array::<4>()?;
        Ok(Self {
            this_disk: reader.u16()?.into(),
            directory_disk: reader.u16()?.into(),
            entries_here: reader.u16()?.into(),
            entries: reader.u16()?.into(),
            len: reader.u32()?.into(),
            offset: reader.u32()?.into(),
        })
    }

    /// Parses a ZIP64 end record after its signature.
    fn parse_64(reader: &mut Reader<'_>) -> Result<Self> {
        // Its length, and the versions of the writer and for the reader.
        reader.array::<12>()?;
        Ok(Self {
            this_disk: reader.u32()?,
            directory_disk: reader.u32()?,
            entries_here: reader.u64()?,
            entries: reader.u64()?,
            len: reader.u64()?,
            offset: reader.u64()?,
        })
    }

    /// Whether a number did not fit, so that it is in the ZIP64 end record.
    fn needs_end_64(&self) -> bool {
        let full = u64::from(u32::MAX);
        self.entries == u64::from(u16::MAX) && self.len == full || self.offset == full
    }

    fn is_split(&self) -> bool {
        self.this_disk != 0 || self.directory_disk != 0 || self.entries_here != self.entries
    }
}

/// What a file has of a split archive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SplitFile {
    WithEnd,
    WithoutEnd,
}

/// The error for a file of a split archive. If it has the start of the first part and the end of
/// the last one, its parts were joined without correcting the offsets.
fn split(storage: &dyn Storage, file: SplitFile) -> Error {
    let mut head = [0; 4];
    let is_first = storage.read_exact_at(&mut head, 0).is_ok() && head == SPLIT_START;
    let (what, hint) = match (is_first, file) {
        (true, SplitFile::WithEnd) => (
            "the parts of a split ZIP archive, joined by cat: its offsets count from the start of \
             each part",
            "join the parts with `zip -s 0 SPLIT.zip --out WHOLE.zip`, or unpack them with `7z x \
             SPLIT.zip`; if only this file is left, unpack it with `bsdtar -xf`",
        ),
        _ => {
            ("a part of a split ZIP archive", "join all parts: zip -s 0 SPLIT.zip --out WHOLE.zip")
        }
    };
    Error::new(Kind::Unsupported, what).with_hint(hint)
}

/// The error for an archive without an end record.
fn no_end(storage: &dyn Storage) -> Error {
    let mut head = [0; 4];
    if storage.read_exact_at(&mut head, 0).is_ok() && head == SPLIT_START {
        return split(storage, SplitFile::WithoutEnd);
    }
    Error::truncated("a ZIP archive without the central directory at its end: cut off")
        .with_hint("copy or download it again")
}

/// Offsets and lengths are recorded modulo this.
pub(super) const SPAN: u64 = 1 << 32;

/// What to add to the numbers of entries, by the offsets of these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wraps {
    /// The entries from which on offsets are `SPAN` larger than before, ascending. An entry occurs
    /// several times if it is several `SPAN` further.
    offsets: Vec<u64>,
    /// The lengths of members of `SPAN` and more: of their data, and decoded.
    lens: BTreeMap<u64, (u64, u64)>,
}

impl Wraps {
    /// Makes the member of an entry longer if more than a `SPAN` follows its recorded end.
    pub(super) fn extend(&mut self, (at, compressed, size): (u64, u64, u64), gap: u64) {
        if gap >= SPAN {
            let long = compressed.saturating_add(gap.saturating_sub(gap % SPAN));
            self.lens.insert(at, (long, size));
        }
    }

    /// Corrects the numbers of the entry at `at`: the length of the decoded data, that of the data,
    /// and the offset of the local header.
    pub(super) fn resolve(&self, at: u64, [size, compressed, offset]: [&mut u64; 3]) {
        let turns = self.offsets.partition_point(|&first| first <= at);
        *offset = offset.saturating_add(length(turns).saturating_mul(SPAN));
        if let Some(&lens) = self.lens.get(&at) {
            (*compressed, *size) = lens;
        }
    }

    /// The local headers of the entry at `at` and of those behind it are a `SPAN` further.
    pub(super) fn turn(&mut self, at: u64) {
        self.offsets.push(at);
    }

    /// Whether the data of the member of the entry at `at` is longer than recorded.
    pub(super) fn is_long(&self, at: u64) -> bool {
        self.lens.contains_key(&at)
    }

    /// Sets the lengths of a member: of its data, and decoded.
    pub(super) fn set_lens(&mut self, at: u64, lens: (u64, u64)) {
        self.lens.insert(at, lens);
    }
}

/// The error for an archive with numbers that do not fit.
pub(super) fn no_zip64(what: &str) -> Error {
    Error::new(
        Kind::Unsupported,
        format!("{what}: probably made by the archive program of macOS, which writes no ZIP64"),
    )
    .with_hint("make it again with `ditto -c -k`, zip or 7z")
}
