//! The seek points of a compressed file: where decoding can start, and what it gives.
//!
//! Owns their order and their bounds, and their bytes in a saved index (little-endian); leaves
//! finding them to the walkers and using them to `extent` and `gzip`.
//! Invariants, kept by `parse` too, whose bytes may be hostile: chunks follow each other without a
//! gap from 0 to `len`, none is empty or larger than `GIANT_CHUNK_MAX`, and all lie in the file.

use super::Container;
use super::spool::Spool;
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::{GIANT_CHUNK_MAX, GIANT_EXTENT_MAX, GZIP_WINDOW};
use crate::sync::Arc;

/// What a survey found: all that a `Compressed` needs besides the file.
pub(crate) struct SeekIndex {
    pub(super) container: Container,
    pub(super) len: u64,
    pub(super) chunks: Chunks,
}

/// Where the chunks of a file start.
pub(super) enum Chunks {
    /// Places inside a gzip file, with what came before.
    Points(Vec<Point>),
    /// Parts of the file that can be decoded alone.
    Extents(Vec<Extent>),
    /// None: the file is decoded forward, once, into a temporary file, which may be under way.
    Spooled(Option<Arc<Spool>>),
}

/// A place in a gzip file where decoding can start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// The offset in the decoded bytes.
    pub(super) decoded: u64,
    /// The bit of the compressed file: of a block's first, or of a member's header.
    pub(super) bit: u64,
    /// The bytes before, packed; `None` at the start of a member.
    pub(super) window: Option<Window>,
}

/// Up to 32 KiB of decoded bytes, packed by zstd: they are most of what an index weighs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) len: u16,
    pub(super) packed: Box<[u8]>,
}

/// A part of a compressed file that can be decoded alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// The offset in the decoded bytes.
    pub(super) decoded: u64,
    /// From here in the compressed file: bytes, but bits with bzip2.
    pub(super) start: u64,
    /// To here.
    pub(super) end: u64,
    /// What decoding must know besides: check type (xz), flags (lz4), checksum (bzip2).
    pub(super) detail: u32,
}

/// Bytes of one extent in a saved index.
const EXTENT_BYTES: usize = 28;

/// Fewest bytes of one point.
const POINT_BYTES: usize = 18;

impl SeekIndex {
    /// Decoded bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The largest chunk, decoded bytes: what a cache must hold lest it be decoded for every read.
    pub(crate) fn largest_chunk(&self) -> u64 {
        let starts = self.starts();
        let ends = starts.iter().skip(1).copied().chain([self.len]);
        starts.iter().zip(ends).map(|(start, end)| end.saturating_sub(*start)).max().unwrap_or(0)
    }

    /// Where the chunks start in the decoded bytes; nothing for a file that is spooled.
    fn starts(&self) -> Vec<u64> {
        match &self.chunks {
            Chunks::Points(points) => points.iter().map(|point| point.decoded).collect(),
            Chunks::Extents(extents) => extents.iter().map(|extent| extent.decoded).collect(),
            Chunks::Spooled(_) => Vec::new(),
        }
    }

    /// Appends them to a saved index.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.push(code(self.container));
        out.push(match &self.chunks {
            Chunks::Points(_) => 1,
            Chunks::Extents(_) => 2,
            Chunks::Spooled(_) => 3,
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
            Chunks::Spooled(_) => {}
        }
    }

    /// Reads what `write` wrote, for a compressed file of `encoded_len` bytes.
    ///
    /// # Errors
    /// `Corrupt` where any of it can not be true of such a file.
    pub(crate) fn parse(reader: &mut Reader<'_>, encoded_len: u64) -> Result<Self> {
        let [container, kind] = reader.array()?;
        let container = match container {
            1 => Container::Gzip,
            2 => Container::Bzip2,
            3 => Container::Xz,
            4 => Container::Zstd,
            5 => Container::Lz4,
            other => return Err(wrong(format!("container {other}"))),
        };
        let len = reader.u64()?;
        let chunks = match (kind, container) {
            (1, Container::Gzip) => Chunks::Points(parse_points(reader, len, encoded_len)?),
            (2, Container::Bzip2) => {
                let bits = encoded_len.saturating_mul(8);
                Chunks::Extents(parse_extents(reader, len, bits, GIANT_EXTENT_MAX)?)
            }
            (2, Container::Xz | Container::Zstd | Container::Lz4) => {
                Chunks::Extents(parse_extents(reader, len, encoded_len, GIANT_EXTENT_MAX)?)
            }
            (3, container) if container != Container::Bzip2 => Chunks::Spooled(None),
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
            let packed = u32::try_from(window.packed.len()).unwrap_or(u32::MAX);
            out.extend(packed.to_le_bytes());
            out.extend(&window.packed);
        }
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self> {
        let (decoded, bit, len) = (reader.u64()?, reader.u64()?, reader.u16()?);
        let window = match len {
            0 => None,
            len if usize::from(len) <= GZIP_WINDOW => {
                let packed = reader.u32().map(index)?;
                Some(Window { len, packed: reader.bytes(packed)?.into() })
            }
            len => return Err(wrong(format!("a window of {len} bytes"))),
        };
        // A member starts at a byte.
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

fn parse_points(reader: &mut Reader<'_>, len: u64, encoded_len: u64) -> Result<Vec<Point>> {
    let count = counted(reader, POINT_BYTES)?;
    let mut points = Vec::with_capacity(count);
    let (mut bit, bits) = (None, encoded_len.saturating_mul(8));
    for _ in 0..count {
        let point = Point::parse(reader)?;
        if bit.is_some_and(|before| before >= point.bit) || point.bit >= bits {
            return Err(wrong(format!("bit {} out of place", point.bit)));
        }
        bit = Some(point.bit);
        points.push(point);
    }
    check_chunks(points.iter().map(|point| point.decoded), len)?;
    Ok(points)
}

fn parse_extents(
    reader: &mut Reader<'_>,
    len: u64,
    encoded_len: u64,
    longest: u64,
) -> Result<Vec<Extent>> {
    let count = counted(reader, EXTENT_BYTES)?;
    let mut extents = Vec::with_capacity(count);
    let mut end = 0;
    for _ in 0..count {
        let extent = Extent::parse(reader)?;
        let inside = end <= extent.start && extent.end <= encoded_len;
        let size = extent.end.checked_sub(extent.start);
        if !inside || !size.is_some_and(|size| (1..=longest).contains(&size)) {
            return Err(wrong(format!("bytes {:#x} to {:#x}", extent.start, extent.end)));
        }
        end = extent.end;
        extents.push(extent);
    }
    check_chunks(extents.iter().map(|extent| extent.decoded), len)?;
    Ok(extents)
}

/// A count of entries that take at least `size` bytes each, checked against what is left.
fn counted(reader: &mut Reader<'_>, size: usize) -> Result<usize> {
    let count = reader.u64().map(index)?;
    match count.checked_mul(size) {
        Some(bytes) if bytes <= reader.remaining() => Ok(count),
        _ => Err(wrong(format!("{count} seek points in {} bytes", reader.remaining()))),
    }
}

/// Checks that chunks starting at `starts` cover the bytes from 0 to `len`.
fn check_chunks(starts: impl Iterator<Item = u64>, len: u64) -> Result<()> {
    let mut before = None;
    for start in starts.chain([len]) {
        let fits = match before {
            None => start == 0,
            Some(before) => start > before && start.saturating_sub(before) <= GIANT_CHUNK_MAX,
        };
        if !fits {
            return Err(wrong(format!("a chunk at {start:#x} of {len:#x} bytes")));
        }
        before = Some(start);
    }
    Ok(())
}

fn code(container: Container) -> u8 {
    match container {
        Container::Gzip => 1,
        Container::Bzip2 => 2,
        Container::Xz => 3,
        Container::Zstd => 4,
        Container::Lz4 => 5,
    }
}

fn wrong(what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("saved seek points: {what} can not be"))
}
