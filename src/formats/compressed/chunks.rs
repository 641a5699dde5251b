//! The chunks of a compressed file: where each starts, and what decoding it needs.

use crate::codecs::{Codec, zstd_compress};
use crate::error::{Error, Result};
use crate::formats::limits::{CHUNK_MAX, EXTENT_MAX};

/// What the chunks of a file start with.
pub(super) enum Chunks {
    /// Positions inside a gzip file, each with its window.
    Points(Vec<Point>),
    /// Parts of the file that can be decoded independently.
    Extents(Vec<Extent>),
    /// None, because a chunk is too large for memory: the file is decoded once into a temporary
    /// file.
    Spooled,
}

impl Chunks {
    /// Number of chunks; 0 if the file is spooled.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Points(points) => points.len(),
            Self::Extents(extents) => extents.len(),
            Self::Spooled => 0,
        }
    }

    /// Offset of chunk `number` in the decoded bytes; `None` if there is no such chunk.
    pub(super) fn start(&self, number: usize) -> Option<u64> {
        match self {
            Self::Points(points) => points.get(number).map(|point| point.decoded),
            Self::Extents(extents) => extents.get(number).map(|extent| extent.decoded),
            Self::Spooled => None,
        }
    }

    /// The number of the chunk that `offset` lies in.
    pub(super) fn find(&self, offset: u64) -> usize {
        let after = match self {
            Self::Points(points) => points.partition_point(|point| point.decoded <= offset),
            Self::Extents(extents) => extents.partition_point(|extent| extent.decoded <= offset),
            Self::Spooled => 0,
        };
        after.saturating_sub(1)
    }

    /// Decoded bytes of the largest chunk, if the file has `len` decoded bytes.
    pub(super) fn largest(&self, len: u64) -> u64 {
        let start = |number| self.start(number).unwrap_or(len);
        let sizes = (0..self.count())
            .map(|number| start(number.saturating_add(1)).saturating_sub(start(number)));
        sizes.max().unwrap_or(0)
    }
}

/// A position in a gzip file where decoding can start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// Offset in the decoded bytes.
    pub(super) decoded: u64,
    /// Bit offset in the compressed file, of a block or of the header of a member.
    pub(super) bit: u64,
    /// The decoded bytes before this point; `None` at the start of a member.
    pub(super) window: Option<CompressedWindow>,
}

/// Up to 32 KiB of decoded bytes, compressed by zstd. They are most of the size of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CompressedWindow {
    pub(super) len: u16,
    pub(super) compressed: Box<[u8]>,
}

impl CompressedWindow {
    pub(super) fn compress(bytes: &[u8]) -> Result<Option<Self>> {
        match u16::try_from(bytes.len()) {
            Ok(len) if len > 0 => Ok(Some(Self { len, compressed: zstd_compress(bytes)?.into() })),
            _ => Ok(None),
        }
    }

    pub(super) fn decompress(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::from(self.len)];
        match Codec::Zstd.decode(&self.compressed, &mut bytes)? {
            len if len == bytes.len() => Ok(bytes),
            _ => Err(Error::corrupt("the window of a seek point is cut short")),
        }
    }
}

/// A part of a compressed file that can be decoded independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Offset in the decoded bytes.
    pub(super) decoded: u64,
    /// Offset in the compressed file, in the unit of its container.
    pub(super) start: u64,
    /// End in the compressed file, in the same unit.
    pub(super) end: u64,
    /// What the decoder needs: check type (xz), flags (lz4), checksum (bzip2).
    pub(super) detail: u32,
}

impl Extent {
    /// Its length in the compressed file, in the unit of its container.
    pub(super) fn encoded_len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether it is too large to be decoded at once. For containers whose unit is bytes.
    pub(super) fn is_giant(&self, size: Size) -> bool {
        self.encoded_len() > EXTENT_MAX || size.max() > CHUNK_MAX
    }
}

/// Decoded size of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Exactly(u64),
    /// The exact size is known only after decoding.
    AtMost(u64),
}

impl Size {
    pub(super) fn max(self) -> u64 {
        match self {
            Self::Exactly(size) | Self::AtMost(size) => size,
        }
    }

    /// The size of two extents together.
    pub(super) fn and(self, other: Self) -> Self {
        let sum = self.max().saturating_add(other.max());
        match (self, other) {
            (Self::Exactly(_), Self::Exactly(_)) => Self::Exactly(sum),
            _ => Self::AtMost(sum),
        }
    }
}
