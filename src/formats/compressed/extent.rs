//! Decodes an extent, a part of a compressed file that can be decoded independently.
//!
//! Invariant: an extent decodes to at most the size it was recorded with, and to at most
//! `GIANT_CHUNK_MAX`.

use super::buffers::Buffers;
use super::seek_index::Extent;
use super::{Container, bzip2, lz4, xz};
use crate::codecs::Codec;
use crate::error::{Error, Result};
use crate::formats::bytes::{index, length};
use crate::formats::limits::{GIANT_CHUNK_MAX, GIANT_EXTENT_MAX};
use crate::storage::Storage;

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

/// Whether an extent is too large to be decoded at once; `encoded` is in bytes.
pub(super) fn is_giant(encoded: u64, size: Size) -> bool {
    encoded > GIANT_EXTENT_MAX || size.max() > GIANT_CHUNK_MAX
}

/// Memory of an xz decoder without its window, bytes.
const XZ_DECODER: u64 = 128 << 10;

/// Memory of a bzip2 decoder, bytes.
const BZIP2_DECODER: u64 = 4 << 20;

/// Decoded size of a block of `bzip2 -9` with a few runs in it, bytes. A block of runs only decodes
/// to up to 46 MB.
const BZIP2_USUAL: u64 = 2 << 20;

/// The most memory that decoding `extent` takes, bytes: input, output, and decoder.
pub(super) fn cost(
    container: Container,
    storage: &dyn Storage,
    extent: &Extent,
    size: Size,
) -> u64 {
    let window = match container {
        Container::Xz => xz::window(storage, extent.start),
        _ => None,
    };
    cost_with(container, window, extent, size)
}

/// The same if the window of the decoder is not known.
pub(super) fn max_cost(container: Container, extent: &Extent, size: Size) -> u64 {
    cost_with(container, None, extent, size)
}

fn cost_with(container: Container, window: Option<u64>, extent: &Extent, size: Size) -> u64 {
    let (encoded, decoded) = (extent.end.saturating_sub(extent.start), size.max());
    match container {
        Container::Gzip | Container::Zstd | Container::Lz4 => decoded.saturating_add(encoded),
        // The decoder uses no more of its window than the decoded size.
        Container::Xz => {
            let window = window.map_or(decoded, |window| window.min(decoded));
            decoded.saturating_add(encoded).saturating_add(window).saturating_add(XZ_DECODER)
        }
        Container::Bzip2 => {
            // The size of a block is known only after decoding. It is almost never more than this.
            let output = match size {
                Size::Exactly(decoded) => decoded,
                Size::AtMost(decoded) => decoded.min(BZIP2_USUAL),
            };
            // The input is in bits and is shifted into a second buffer.
            (encoded >> 2).saturating_add(output).saturating_add(BZIP2_DECODER)
        }
    }
}

/// Decodes `extent`.
pub(super) fn decode(
    container: Container,
    storage: &dyn Storage,
    extent: &Extent,
    size: Size,
    buffers: &Buffers,
) -> Result<Vec<u8>> {
    decode_bare(container, storage, extent, size, buffers).map_err(|error| {
        let unit = if container == Container::Bzip2 { "bits" } else { "bytes" };
        let (name, start, end) = (container.name(), extent.start, extent.end);
        error.within(format!("{name} data in {unit} {start:#x} to {end:#x}"))
    })
}

fn decode_bare(
    container: Container,
    storage: &dyn Storage,
    extent: &Extent,
    size: Size,
    buffers: &Buffers,
) -> Result<Vec<u8>> {
    let max_len = index(size.max());
    if max_len == 0 {
        return Ok(Vec::new());
    }
    let decoded = match container {
        Container::Gzip => return Err(Error::corrupt("gzip has no extents")),
        Container::Bzip2 => bzip2::decode(storage, extent, max_len)?,
        Container::Xz | Container::Zstd | Container::Lz4 => {
            let mut source = buffers.take(index(extent.end.saturating_sub(extent.start)));
            storage.read_exact_at(&mut source, extent.start)?;
            let mut target = buffers.take(max_len);
            let len = match container {
                Container::Xz => xz::decode(&source, extent.detail, &mut target)?,
                Container::Lz4 => lz4::decode(&source, extent.detail, &mut target)?,
                _ => Codec::Zstd.decode(&source, &mut target)?,
            };
            buffers.recycle(source);
            target.truncate(len);
            target
        }
    };
    match size {
        Size::Exactly(size) if size != length(decoded.len()) => {
            Err(Error::corrupt(format!("{size} bytes announced, {} are there", decoded.len())))
        }
        _ => Ok(decoded),
    }
}
