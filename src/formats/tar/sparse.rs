//! Sparse members: which parts of a file the archive stores, in GNU tar's four ways to say it.
//!
//! Owns finding and checking the map: the texts of versions 0.0, 0.1 and 1.0 ("GNU tar manual",
//! "Storing Sparse Files"), and the old form, whose fields are `header`'s.
//! Invariant: the segments of a map ascend, do not overlap, hold at least a byte each, end within
//! the file, and their bytes end within the member's data.

use std::borrow::Cow;

use super::extensions::SparseWords;
use super::header::{self, BLOCK, BLOCK_LEN, Header, Type};
use super::pax;
use super::source::{self, Source};
use crate::error::{Error, Result};
use crate::formats::limits::{FILE_SIZE_MAX, TAR_SPARSE_MAX};

/// A part of a file that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Where in the file it begins, bytes.
    pub(super) offset: u64,
    /// Bytes, at least one.
    pub(super) len: u64,
    /// Where in the archive it is stored.
    pub(super) at: u64,
}

impl Segment {
    /// The byte of the file behind it.
    pub(super) fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// A sparse member.
pub(super) struct Sparse {
    /// Bytes of the file, with its holes.
    pub(super) size: u64,
    pub(super) segments: Vec<Segment>,
    /// Where in the archive the member's data ends.
    pub(super) end: u64,
}

/// The map of the member whose header is `header`, of which `words` were said, with `stored` bytes
/// at `data`; `None` where it is not sparse. Nothing of it lies behind `limit`. What was read ends
/// at `reached`, also where it fails.
///
/// # Errors
/// `Corrupt` where the map can not be true; `Io` where it can not be read.
pub(super) fn read(
    header: Header<'_>,
    words: &SparseWords,
    data: u64,
    stored: u64,
    limit: u64,
    source: &mut dyn Source,
    reached: &mut u64,
) -> Result<Option<Sparse>> {
    if header.kind() == Type::GnuSparse {
        return gnu(header, data, stored, limit, source, reached).map(Some);
    }
    // Where only a size was told, it is a file without holes.
    if words.pieces.is_none() && !words.has_preface {
        return Ok(None);
    }
    let size = words.real_size.filter(|&size| size <= FILE_SIZE_MAX);
    let size =
        size.ok_or_else(|| Error::corrupt("sparse map: the size of the file is not told"))?;
    let end = data.saturating_add(stored);
    let (pieces, at) = match &words.pieces {
        Some(pieces) => (Cow::Borrowed(pieces), data),
        None => {
            let (pieces, at) = preface(data, end.min(limit), source)?;
            (Cow::Owned(pieces), at)
        }
    };
    let segments = map(&pieces, size, at, end.saturating_sub(at))?;
    Ok(Some(Sparse { size, segments, end }))
}

/// The old binary form: four pieces in the header, 21 in each block that follows.
fn gnu(
    header: Header<'_>,
    data: u64,
    stored: u64,
    limit: u64,
    source: &mut dyn Source,
    reached: &mut u64,
) -> Result<Sparse> {
    let (field, mut more) = header.sparse_map();
    let mut pieces = header::sparse_pieces(field)?;
    let mut at = data;
    while more {
        let block = source::before(source, at, BLOCK, limit)?;
        let block = block.ok_or_else(|| Error::corrupt("sparse map: it is cut off"))?;
        let (field, rest) = block.split_at_checked(504).unwrap_or_default();
        at = at.saturating_add(BLOCK_LEN);
        *reached = at;
        pieces.extend(header::sparse_pieces(field)?);
        checked_count(pieces.len())?;
        more = rest.first().is_some_and(|&byte| byte != 0);
    }
    let size = header.real_size()?;
    let segments = map(&pieces, size, at, stored)?;
    Ok(Sparse { size, segments, end: at.saturating_add(stored) })
}

/// Version 1.0: the pieces written before the data, and where the data begins.
fn preface(data: u64, end: u64, source: &mut dyn Source) -> Result<(Vec<(u64, u64)>, u64)> {
    let mut preface = Preface::new();
    loop {
        let at = data.saturating_add(preface.len());
        let block = source::before(source, at, BLOCK, end)?;
        let block = block.ok_or_else(|| Error::corrupt("sparse map: it has no end"))?;
        if let Some(pieces) = preface.take(block)? {
            return Ok((pieces, data.saturating_add(preface.len())));
        }
    }
}

/// The map of a file of `size` bytes whose pieces (offset, length) are stored one behind the other
/// in the `stored` bytes at `at`.
///
/// # Errors
/// `Corrupt` where the pieces can not be true.
fn map(pieces: &[(u64, u64)], size: u64, at: u64, stored: u64) -> Result<Vec<Segment>> {
    let wrong = |why: &str, offset: u64| {
        Error::corrupt(format!("sparse map: the piece at {offset:#x} {why}"))
    };
    let mut segments = Vec::new();
    let (mut behind, mut used) = (0_u64, 0_u64);
    for &(offset, len) in pieces {
        if offset < behind {
            return Err(wrong("overlaps the one before", offset));
        }
        behind = offset
            .checked_add(len)
            .filter(|&end| end <= size)
            .ok_or_else(|| wrong("ends past the end of the file", offset))?;
        let next = used
            .checked_add(len)
            .filter(|&used| used <= stored)
            .ok_or_else(|| wrong("has no bytes in the archive", offset))?;
        if len > 0 {
            segments.push(Segment { offset, len, at: at.saturating_add(used) });
        }
        used = next;
    }
    Ok(segments)
}

/// Version 0.1: `OFFSET,LENGTH,OFFSET,LENGTH...` in one record.
///
/// # Errors
/// `Corrupt` where that is not what it holds, or too much of it.
pub(super) fn listed(text: &[u8]) -> Result<Vec<(u64, u64)>> {
    let mut numbers = text.split(|&byte| byte == b',').map(pax::number);
    let mut pieces = Vec::new();
    if text.is_empty() {
        return Ok(pieces);
    }
    while let Some(offset) = numbers.next() {
        let piece = offset.zip(numbers.next().flatten());
        pieces.push(piece.ok_or_else(|| Error::corrupt("sparse map: no list of pairs"))?);
        checked_count(pieces.len())?;
    }
    Ok(pieces)
}

/// Version 1.0: the map stands before the data, a number a line, padded to whole blocks.
struct Preface {
    /// Numbers read so far; the first says how many pairs follow.
    numbers: Vec<u64>,
    /// The digits of a number that a block's end cut off.
    digits: Vec<u8>,
    /// Blocks read.
    blocks: u64,
}

impl Preface {
    fn new() -> Self {
        Self { numbers: Vec::new(), digits: Vec::new(), blocks: 0 }
    }

    /// Takes the next block of the member's data; returns the pieces once the map is whole.
    ///
    /// # Errors
    /// `Corrupt` where it holds anything but numbers, or too many.
    fn take(&mut self, block: &[u8]) -> Result<Option<Vec<(u64, u64)>>> {
        self.blocks = self.blocks.saturating_add(1);
        for &byte in block {
            if byte != b'\n' {
                self.digits.push(byte);
                if self.digits.len() > 20 {
                    break;
                }
                continue;
            }
            let number = pax::number(&self.digits);
            self.numbers.push(number.ok_or_else(|| Error::corrupt("sparse map: no number"))?);
            self.digits.clear();
            if let Some((&count, rest)) = self.numbers.split_first() {
                checked_count(usize::try_from(count).unwrap_or(usize::MAX))?;
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

    /// Bytes of the member's data that the map took.
    fn len(&self) -> u64 {
        self.blocks.saturating_mul(BLOCK_LEN)
    }
}

/// Refuses more pieces than memory should be spent on.
pub(super) fn checked_count(count: usize) -> Result<()> {
    if count <= TAR_SPARSE_MAX {
        return Ok(());
    }
    Err(Error::corrupt(format!("sparse map: {count} pieces, limit {TAR_SPARSE_MAX}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_pieces_one_behind_the_other() {
        let found = map(&[(0, 10), (10, 0), (512, 5), (1000, 0)], 1000, 4096, 15).unwrap();
        let expected =
            [Segment { offset: 0, len: 10, at: 4096 }, Segment { offset: 512, len: 5, at: 4106 }];
        assert_eq!(found, expected);
    }

    #[test]
    fn refuses_a_map_that_can_not_be_true() {
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
    fn reads_a_list_of_pairs() {
        assert_eq!(listed(b"0,512,1024,1").unwrap(), [(0, 512), (1024, 1)]);
        assert_eq!(listed(b"").unwrap(), []);
        for text in [&b"1"[..], b"1,2,3", b"1,x", b",", b"1,2,"] {
            assert!(listed(text).is_err(), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn reads_a_map_before_the_data_across_blocks() {
        let mut preface = Preface::new();
        assert_eq!(preface.take(b"2\n0\n1").unwrap(), None);
        assert_eq!(preface.take(b"00\n512\n7\n\0\0").unwrap(), Some(vec![(0, 100), (512, 7)]));
        assert_eq!(preface.len(), 1024);
        assert_eq!(Preface::new().take(b"0\n").unwrap(), Some(vec![]));
        assert!(Preface::new().take(b"x\n").is_err());
        assert!(Preface::new().take(&[b'1'; 512]).is_err());
        assert!(Preface::new().take(b"99999999\n").is_err());
    }

    #[test]
    fn takes_as_many_pieces_as_the_limit_and_not_one_more() {
        assert!(checked_count(TAR_SPARSE_MAX).is_ok());
        assert!(checked_count(TAR_SPARSE_MAX + 1).is_err());
    }
}
