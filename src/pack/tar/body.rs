//! Writes the bytes of one member, piece by piece, and the map of a sparse file.
//!
//! Invariant: from `begin` to `end` or `discard` this member is the last one in the output. The
//! ranges of a map ascend, are not empty and do not touch.
//!
//! The map has GNU tar's format (GNU tar manual, "Storing Sparse Files", "PAX Format, Version
//! 1.0").

use std::ops::Range;

use super::header::{pad, padding};
use crate::error::{Error, Kind, Result};
use crate::pack::catalog::{Content, ContentId};
use crate::pack::feed::{Data, Piece};
use crate::pack::output::Output;

const ZEROS: &[u8] = &[0; 64 << 10];

pub(crate) struct Body {
    /// Offset of its header in the archive.
    start: u64,
    /// Bytes of the file written so far, out of `size`.
    written: u64,
    size: u64,
    map: Option<SparseMap>,
}

impl Body {
    /// Writes the header of a file of `size` bytes and its map. Without a map, holes become zeros.
    pub(crate) fn begin(
        output: &mut Output,
        header: &[u8],
        size: u64,
        map: Option<SparseMap>,
    ) -> Result<Self> {
        let start = output.len();
        output.append(header)?;
        if let Some(map) = &map {
            output.append(map.text())?;
        }
        Ok(Self { start, written: 0, size, map })
    }

    /// Writes the next pieces. The inner error is `Changed`: they do not match the header. Then the
    /// caller discards the member.
    pub(crate) fn put(&mut self, output: &mut Output, pieces: &[Piece]) -> Result<Result<()>> {
        for Piece { offset, data } in pieces {
            let (len, end) = (data.len(), offset.saturating_add(data.len()));
            let mapped = self.map.as_ref().map_or(len, |map| map.stored_within(*offset..end));
            let is_bytes = matches!(data, Data::Bytes(_));
            if *offset != self.written || end > self.size || (is_bytes && mapped < len) {
                return Ok(Err(changed()));
            }
            match data {
                Data::Bytes(bytes) => output.append(bytes)?,
                Data::Hole(_) => zeros(output, mapped)?,
            }
            self.written = end;
        }
        Ok(Ok(()))
    }

    pub(super) fn is_sparse(&self) -> bool {
        self.map.is_some()
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.written == self.size
    }

    pub(crate) fn end(self, output: &mut Output) -> Result<()> {
        let stored = self.map.as_ref().map_or(self.size, SparseMap::stored);
        output.append(padding(stored))
    }

    pub(crate) fn discard(self, output: &mut Output) -> Result<()> {
        output.truncate(self.start)
    }
}

/// The error for a file that differs from what was listed.
pub(crate) fn changed() -> Error {
    Error::new(Kind::Changed, "changed while it was read")
}

/// Writes the blocks that end an archive, up to a whole record of `tar -b 20`.
pub(crate) fn finish(output: &mut Output) -> Result<()> {
    zeros(output, finished(output.len()) - output.len())
}

/// Total size of an archive whose members take `len` bytes.
pub(crate) fn finished(len: u64) -> u64 {
    (len + 1024).next_multiple_of(10_240)
}

fn zeros(output: &mut Output, mut len: u64) -> Result<()> {
    while len > 0 {
        let step = len.min(ZEROS.len() as u64);
        output.append(&ZEROS[..step as usize])?;
        len -= step;
    }
    Ok(())
}

/// Maximum number of ranges in one file, to bound the memory of writers and readers.
const RANGES: usize = 1 << 16;

/// Bytes that a sparse member takes in addition to its map: the pax records and their header.
const RECORDS: u64 = 1024;

pub(crate) struct SparseMap {
    ranges: Vec<Range<u64>>,
    /// The map as text, which comes before the data.
    text: Vec<u8>,
    data: u64,
}

impl SparseMap {
    /// The map of a file of `size` bytes; `None` if storing the zeros takes no more space.
    pub(super) fn of(source: &dyn Content, id: ContentId, size: u64) -> Result<Option<Self>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut offset = 0;
        while offset < size {
            let Some(found) = source.next_data(id.key, offset)? else { break };
            let found = found.start.clamp(offset, size)..found.end.min(size);
            if found.is_empty() {
                break;
            }
            offset = found.end;
            match ranges.last_mut() {
                Some(last) if last.end == found.start => last.end = found.end,
                _ => ranges.push(found),
            }
            if ranges.len() > RANGES {
                return Ok(None);
            }
        }
        let map = Self::new(ranges, size);
        Ok((map.stored().next_multiple_of(512) + RECORDS < size.next_multiple_of(512))
            .then_some(map))
    }

    fn new(ranges: Vec<Range<u64>>, size: u64) -> Self {
        let mut listed: Vec<(u64, u64)> =
            ranges.iter().map(|range| (range.start, range.end - range.start)).collect();
        // A hole at the end is marked by an empty range at the end of the file.
        if ranges.last().is_none_or(|last| last.end < size) {
            listed.push((size, 0));
        }
        let mut text = format!("{}\n", listed.len());
        for (offset, len) in &listed {
            text.push_str(&format!("{offset}\n{len}\n"));
        }
        let mut text = text.into_bytes();
        pad(&mut text);
        let data = listed.iter().map(|(_, len)| len).sum();
        Self { ranges, text, data }
    }

    /// Bytes of the member: the text and the ranges.
    pub(super) fn stored(&self) -> u64 {
        self.text.len() as u64 + self.data
    }

    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Number of bytes of `range` that are stored.
    pub(super) fn stored_within(&self, range: Range<u64>) -> u64 {
        let first = self.ranges.partition_point(|stored| stored.end <= range.start);
        let later = self.ranges[first..].iter().take_while(|stored| stored.start < range.end);
        later.map(|stored| stored.end.min(range.end) - stored.start.max(range.start)).sum()
    }
}

#[cfg_attr(test, expect(clippy::single_range_in_vec_init, reason = "a list of one range is meant"))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_stored_ranges_and_the_end_of_the_file() {
        let text = |ranges, size| {
            let map = SparseMap::new(ranges, size);
            assert_eq!(map.text().len() % 512, 0);
            String::from_utf8(map.text().to_vec()).unwrap().trim_end_matches('\0').to_owned()
        };
        assert_eq!(text(vec![4096..8192], 8192), "1\n4096\n4096\n");
        assert_eq!(text(vec![0..10, 20..30], 40), "3\n0\n10\n20\n10\n40\n0\n");
        assert_eq!(text(vec![], 40), "1\n40\n0\n");
    }

    #[test]
    fn counts_stored_bytes_in_a_range() {
        let map = SparseMap::new(vec![10..20, 30..40], 100);
        for (range, stored) in
            [(0..100, 20), (15..35, 10), (20..30, 0), (40..50, 0), (12..14, 2), (9..11, 1)]
        {
            assert_eq!(map.stored_within(range.clone()), stored, "{range:?}");
        }
    }
}
