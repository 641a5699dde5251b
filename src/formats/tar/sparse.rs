//! The maps of sparse members: which parts of a file the archive stores, in the four formats of GNU
//! tar.
//!
//! Versions 0.0 and 0.1 are pax records ("GNU tar manual", "Storing Sparse Files"). Version 1.0 is
//! text before the data. The old format is binary, with fields in the header.
//!
//! Invariant: the segments of a map ascend, do not overlap, and have at least one byte each. They
//! end within the file, and their bytes end within the member's data.

use std::borrow::Cow;

use super::header::{self, BLOCK, Header, MemberType, Type, decimal};
use super::source::{self, Source};
use crate::error::{Error, Result};
use crate::formats::index::HeaderRun;
use crate::formats::index::members::Segment;
use crate::formats::limits::{FILE_SIZE_MAX, MEMBER_PATH_MAX, TAR_SPARSE_MAX};

/// A sparse member.
pub(super) struct Sparse {
    /// Size of the file with its holes, bytes.
    pub(super) size: u64,
    pub(super) segments: Vec<Segment>,
    /// The end of the member's data in the archive.
    pub(super) end: u64,
}

/// Reads the map of the member with `header`, pax `records`, and `stored` bytes after `headers`.
/// Returns `None` if it is not sparse. Reads nothing past `limit`. Adds to `headers` what was read,
/// even if it fails.
///
/// Fails with `Corrupt` if the map contradicts itself or the file. `Io` if it cannot be read.
pub(super) fn read(
    header: Header<'_>,
    records: &SparseRecords,
    stored: u64,
    limit: u64,
    source: &mut dyn Source,
    headers: &mut HeaderRun,
) -> Result<Option<Sparse>> {
    if header.kind() == Type::Member(MemberType::GnuSparse) {
        return read_old(header, stored, limit, source, headers).map(Some);
    }
    // A record of the size alone means a file without holes.
    if records.pieces.is_none() && !records.has_preface {
        return Ok(None);
    }
    let size = records.real_size.filter(|&size| size <= FILE_SIZE_MAX);
    let size = size.ok_or_else(|| Error::corrupt("sparse map: the size of the file is missing"))?;
    let end = headers.end().saturating_add(stored);
    let pieces = match &records.pieces {
        Some(pieces) => Cow::Borrowed(pieces),
        None => Cow::Owned(read_preface(end.min(limit), source, headers)?),
    };
    let data = headers.end();
    let segments = map(&pieces, size, data, end.saturating_sub(data))?;
    Ok(Some(Sparse { size, segments, end }))
}

/// The old binary format: four pieces in the header, and 21 in each block that follows.
fn read_old(
    header: Header<'_>,
    stored: u64,
    limit: u64,
    source: &mut dyn Source,
    headers: &mut HeaderRun,
) -> Result<Sparse> {
    let (field, mut more) = header.sparse_map();
    let mut pieces = header::sparse_pieces(field)?;
    while more {
        let block = source::before(source, headers.end(), BLOCK, limit)?;
        let block = block.ok_or_else(|| Error::corrupt("sparse map: it is cut off"))?;
        let (field, rest) = block.split_at_checked(504).unwrap_or_default();
        headers.add(block);
        pieces.extend(header::sparse_pieces(field)?);
        check_count(pieces.len())?;
        more = rest.first().is_some_and(|&byte| byte != 0);
    }
    let (size, data) = (header.real_size()?, headers.end());
    let segments = map(&pieces, size, data, stored)?;
    Ok(Sparse { size, segments, end: data.saturating_add(stored) })
}

/// Version 1.0: reads the pieces before the data.
fn read_preface(
    end: u64,
    source: &mut dyn Source,
    headers: &mut HeaderRun,
) -> Result<Vec<(u64, u64)>> {
    let mut preface = Preface::new();
    loop {
        let block = source::before(source, headers.end(), BLOCK, end)?;
        let block = block.ok_or_else(|| Error::corrupt("sparse map: it has no end"))?;
        headers.add(block);
        if let Some(pieces) = preface.take(block)? {
            return Ok(pieces);
        }
    }
}

/// The map of a file of `size` bytes. Its pieces (offset, length) are stored without gaps in the
/// `stored` bytes at `archive_offset`.
fn map(pieces: &[(u64, u64)], size: u64, archive_offset: u64, stored: u64) -> Result<Vec<Segment>> {
    let wrong = |why: &str, offset: u64| {
        Error::corrupt(format!("sparse map: a segment {why}"))
            .with_detail(format_args!("segment at {offset:#x}"))
    };
    let mut segments = Vec::new();
    let (mut previous_end, mut used) = (0_u64, 0_u64);
    for &(offset, len) in pieces {
        if offset < previous_end {
            return Err(wrong("overlaps the one before", offset));
        }
        previous_end = offset
            .checked_add(len)
            .filter(|&end| end <= size)
            .ok_or_else(|| wrong("ends past the end of the file", offset))?;
        let used_after = used
            .checked_add(len)
            .filter(|&used| used <= stored)
            .ok_or_else(|| wrong("has no bytes in the archive", offset))?;
        if len > 0 {
            let archive_offset = archive_offset.saturating_add(used);
            segments.push(Segment { offset, len, archive_offset });
        }
        used = used_after;
    }
    Ok(segments)
}

/// Decoder for version 1.0: a map before the data, with one number per line, padded to whole
/// blocks.
struct Preface {
    /// Numbers so far. The first is the number of pairs.
    numbers: Vec<u64>,
    /// The digits of a number that continues in the next block.
    digits: Vec<u8>,
}

impl Preface {
    fn new() -> Self {
        Self { numbers: Vec::new(), digits: Vec::new() }
    }

    /// Decodes the next block of the member's data. Returns the pieces once the map is complete.
    ///
    /// Fails with `Corrupt` if it contains anything but numbers, or too many of them.
    fn take(&mut self, block: &[u8]) -> Result<Option<Vec<(u64, u64)>>> {
        for &byte in block {
            if byte != b'\n' {
                self.digits.push(byte);
                if self.digits.len() > 20 {
                    break;
                }
                continue;
            }
            let number = decimal(&self.digits);
            self.numbers.push(number.ok_or_else(|| Error::corrupt("sparse map: no number"))?);
            self.digits.clear();
            if let Some((&count, rest)) = self.numbers.split_first() {
                check_count(usize::try_from(count).unwrap_or(usize::MAX))?;
                let (pairs, _) = rest.as_chunks::<2>();
                if u64::try_from(pairs.len()) == Ok(count) {
                    return Ok(Some(pairs.iter().map(|&[offset, len]| (offset, len)).collect()));
                }
            }
        }
        if self.digits.len() > 20 {
            return Err(Error::corrupt("sparse map: no number"));
        }
        Ok(None)
    }
}

/// The records of GNU tar for a sparse member.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SparseRecords {
    /// The real path. The path in the header is artificial.
    pub(super) name: Option<Vec<u8>>,
    /// Size of the file with its holes.
    pub(super) real_size: Option<u64>,
    /// Versions 0.0 and 0.1: the pieces.
    pub(super) pieces: Option<Vec<(u64, u64)>>,
    /// Version 0.0: an offset whose length has not been read yet.
    offset: Option<u64>,
    /// Version 1.0: the map is before the data.
    pub(super) has_preface: bool,
}

impl SparseRecords {
    /// Applies the record `GNU.sparse.` followed by `suffix`.
    pub(super) fn apply(&mut self, suffix: &[u8], value: &[u8]) -> Result<()> {
        let number = || decimal(value);
        match suffix {
            b"name" if value.len() <= MEMBER_PATH_MAX => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.real_size = number(),
            b"map" => self.pieces = Some(parse_list(value)?),
            // A map without pieces has no other record: the file is one hole.
            b"numblocks" => _ = self.pieces.get_or_insert_default(),
            b"offset" => self.offset = number(),
            b"numbytes" => {
                let pieces = self.pieces.get_or_insert_default();
                pieces.extend(self.offset.take().zip(number()));
                check_count(pieces.len())?;
            }
            b"major" => self.has_preface = number() == Some(1),
            _ => {}
        }
        Ok(())
    }
}

/// Version 0.1: decodes `OFFSET,LENGTH,OFFSET,LENGTH...` from one record.
fn parse_list(text: &[u8]) -> Result<Vec<(u64, u64)>> {
    let mut numbers = text.split(|&byte| byte == b',').map(decimal);
    let mut pieces = Vec::new();
    if text.is_empty() {
        return Ok(pieces);
    }
    while let Some(offset) = numbers.next() {
        let piece = offset.zip(numbers.next().flatten());
        pieces.push(piece.ok_or_else(|| Error::corrupt("sparse map: no list of pairs"))?);
        check_count(pieces.len())?;
    }
    Ok(pieces)
}

/// Rejects more pieces than memory should be spent on.
fn check_count(count: usize) -> Result<()> {
    if count <= TAR_SPARSE_MAX {
        return Ok(());
    }
    Err(Error::corrupt(format!("sparse map: {count} segments, limit {TAR_SPARSE_MAX}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_stored_without_gaps() {
        let found = map(&[(0, 10), (10, 0), (512, 5), (1000, 0)], 1000, 4096, 15).unwrap();
        let expected = [
            Segment { offset: 0, len: 10, archive_offset: 4096 },
            Segment { offset: 512, len: 5, archive_offset: 4106 },
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn rejects_maps_that_contradict_themselves() {
        for (pieces, size, stored) in [
            (&[(0, 10), (9, 5)][..], 100, 100),
            (&[(0, 101)], 100, 101),
            (&[(u64::MAX, 2)], 100, 2),
            (&[(0, 50), (50, 50)], 100, 99),
        ] {
            assert!(map(pieces, size, 0, stored).is_err(), "{pieces:?}");
        }
    }

    #[test]
    fn reads_a_map_before_the_data_across_blocks() {
        let mut preface = Preface::new();
        assert_eq!(preface.take(b"2\n0\n1").unwrap(), None);
        assert_eq!(preface.take(b"00\n512\n7\n\0\0").unwrap(), Some(vec![(0, 100), (512, 7)]));
        assert_eq!(Preface::new().take(b"0\n").unwrap(), Some(vec![]));
        assert!(Preface::new().take(b"x\n").is_err());
        assert!(Preface::new().take(&[b'1'; 512]).is_err());
        assert!(Preface::new().take(b"99999999\n").is_err());
    }

    #[test]
    fn reads_a_list_of_pairs() {
        assert_eq!(parse_list(b"0,512,1024,1").unwrap(), [(0, 512), (1024, 1)]);
        assert_eq!(parse_list(b"").unwrap(), []);
        for text in [&b"1"[..], b"1,2,3", b"1,x", b",", b"1,2,"] {
            assert!(parse_list(text).is_err(), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn accepts_as_many_pieces_as_the_limit_and_no_more() {
        assert!(check_count(TAR_SPARSE_MAX).is_ok());
        assert!(check_count(TAR_SPARSE_MAX + 1).is_err());
    }
}
