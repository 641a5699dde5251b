//! The seek points of a compressed file, and their format in a saved index (little-endian).
//!
//! Invariant: chunks follow each other without a gap from 0 to `len`, none is empty or larger than
//! `CHUNK_MAX`, and all lie in the file. `parse` checks this, because a saved index may be
//! hostile.

use super::chunks::{Chunks, CompressedWindow, Extent, Point};
use super::container::Container;
use super::format::{ChunkFormat, Unit};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::{CHUNK_MAX, EXTENT_MAX, GZIP_WINDOW};

/// Where the chunks of a compressed file start.
pub(crate) struct SeekIndex {
    pub(super) container: Container,
    pub(super) len: u64,
    pub(super) chunks: Chunks,
}

/// Size of an extent in a saved index, bytes.
const EXTENT_BYTES: usize = 28;

/// Least size of a point in a saved index, bytes.
const POINT_BYTES: usize = 18;

impl SeekIndex {
    /// Decoded bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Decoded bytes of the largest chunk. A cache must have room for it; otherwise it is decoded
    /// again for every read.
    pub(crate) fn largest_chunk(&self) -> u64 {
        self.chunks.largest(self.len)
    }

    /// Memory that the seek points take, bytes.
    pub(crate) fn weight(&self) -> u64 {
        length(match &self.chunks {
            Chunks::Points(points) => {
                points.iter().fold(size_of_val(points.as_slice()), |sum, point| {
                    let window = point.window.as_ref().map_or(0, |window| window.compressed.len());
                    sum.saturating_add(window)
                })
            }
            Chunks::Extents(extents) => size_of_val(extents.as_slice()),
            Chunks::Spooled => 0,
        })
    }

    /// Appends the seek points to a saved index.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.push(self.container.format().number);
        out.push(match &self.chunks {
            Chunks::Points(_) => 1,
            Chunks::Extents(_) => 2,
            Chunks::Spooled => 3,
        });
        out.extend(self.len.to_le_bytes());
        match &self.chunks {
            Chunks::Points(points) => {
                out.extend(length(points.len()).to_le_bytes());
                points.iter().for_each(|point| point.write(out));
            }
            Chunks::Extents(extents) => {
                out.extend(length(extents.len()).to_le_bytes());
                extents.iter().for_each(|extent| extent.write(out));
            }
            Chunks::Spooled => {}
        }
    }

    /// Parses seek points that `write` wrote, for a compressed file of `encoded_len` bytes.
    ///
    /// # Errors
    /// `Corrupt` if they cannot belong to such a file.
    pub(crate) fn parse(reader: &mut Reader<'_>, encoded_len: u64) -> Result<Self> {
        let [container, kind] = reader.array()?;
        let other = || wrong(format!("container {container}"));
        let container = Container::from_number(container).ok_or_else(other)?;
        let len = reader.u64()?;
        let format = container.format();
        let chunks = match (kind, &format.chunks) {
            (1, ChunkFormat::Points) => {
                Chunks::Points(parse_points(reader, len, Unit::Bits.of_byte(encoded_len))?)
            }
            (2, ChunkFormat::Extents(extents)) => {
                Chunks::Extents(parse_extents(reader, len, extents.unit.of_byte(encoded_len))?)
            }
            (3, _) if format.spooled.is_some() => Chunks::Spooled,
            (other, _) => return Err(wrong(format!("seek points of kind {other}"))),
        };
        Ok(Self { container, len, chunks })
    }
}

impl Point {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.decoded.to_le_bytes());
        out.extend(self.bit.to_le_bytes());
        let len = self.window.as_ref().map_or(0, |window| window.len);
        out.extend(len.to_le_bytes());
        if let Some(window) = &self.window {
            let compressed_len = u32::try_from(window.compressed.len()).unwrap_or(u32::MAX);
            out.extend(compressed_len.to_le_bytes());
            out.extend(&window.compressed);
        }
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self> {
        let (decoded, bit, len) = (reader.u64()?, reader.u64()?, reader.u16()?);
        let window = match len {
            0 => None,
            len if usize::from(len) <= GZIP_WINDOW => {
                let compressed_len = reader.u32().map(index)?;
                Some(CompressedWindow { len, compressed: reader.bytes(compressed_len)?.into() })
            }
            len => return Err(wrong(format!("a window of {len} bytes"))),
        };
        // A member starts at a byte boundary.
        match window.is_none() && bit & 7 != 0 {
            true => Err(wrong(format!("a gzip member at bit {bit}"))),
            false => Ok(Self { decoded, bit, window }),
        }
    }
}

impl Extent {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.decoded.to_le_bytes());
        out.extend(self.start.to_le_bytes());
        out.extend(self.end.to_le_bytes());
        out.extend(self.detail.to_le_bytes());
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self> {
        let (decoded, start, end) = (reader.u64()?, reader.u64()?, reader.u64()?);
        Ok(Self { decoded, start, end, detail: reader.u32()? })
    }
}

/// Parses the points of a file that ends at bit `end`.
fn parse_points(reader: &mut Reader<'_>, len: u64, end: u64) -> Result<Vec<Point>> {
    let count = parse_count(reader, POINT_BYTES)?;
    let mut points = Vec::with_capacity(count);
    let mut bit = None;
    for _ in 0..count {
        let point = Point::parse(reader)?;
        if bit.is_some_and(|previous| previous >= point.bit) || point.bit >= end {
            return Err(wrong(format!("bit {} out of place", point.bit)));
        }
        bit = Some(point.bit);
        points.push(point);
    }
    check_chunks(points.iter().map(|point| point.decoded), len)?;
    Ok(points)
}

/// Parses the extents of a file that ends at `file_end`, in the unit of their offsets.
fn parse_extents(reader: &mut Reader<'_>, len: u64, file_end: u64) -> Result<Vec<Extent>> {
    let count = parse_count(reader, EXTENT_BYTES)?;
    let mut extents = Vec::with_capacity(count);
    let mut end = 0;
    for _ in 0..count {
        let extent = Extent::parse(reader)?;
        let inside = end <= extent.start && extent.end <= file_end;
        let size = extent.end.checked_sub(extent.start);
        if !inside || !size.is_some_and(|size| (1..=EXTENT_MAX).contains(&size)) {
            return Err(wrong("a chunk outside the file")
                .with_detail(format_args!("bytes {:#x} to {:#x}", extent.start, extent.end)));
        }
        end = extent.end;
        extents.push(extent);
    }
    check_chunks(extents.iter().map(|extent| extent.decoded), len)?;
    Ok(extents)
}

/// Reads a count of entries of at least `size` bytes each, and checks that they fit in the rest.
fn parse_count(reader: &mut Reader<'_>, size: usize) -> Result<usize> {
    let count = reader.u64().map(index)?;
    match count.checked_mul(size) {
        Some(bytes) if bytes <= reader.remaining() => Ok(count),
        _ => Err(wrong(format!("{count} seek points in {} bytes", reader.remaining()))),
    }
}

/// Checks that chunks that start at `starts` cover the bytes from 0 to `len`.
fn check_chunks(starts: impl Iterator<Item = u64>, len: u64) -> Result<()> {
    let mut previous = None;
    for start in starts.chain([len]) {
        let fits = match previous {
            None => start == 0,
            Some(previous) => start > previous && start.saturating_sub(previous) <= CHUNK_MAX,
        };
        if !fits {
            return Err(wrong("the chunks do not cover the data")
                .with_detail(format_args!("chunk at {start:#x} of {len:#x} bytes")));
        }
        previous = Some(start);
    }
    Ok(())
}

fn wrong(what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("saved seek points: not valid: {what}"))
}
