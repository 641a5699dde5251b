//! Extents: parts of a compressed file that can be decoded independently.
//!
//! Invariant: an extent decodes to at most the size it was recorded with, and to at most
//! `CHUNK_MAX`.

use super::buffers::Buffers;
use super::container::Container;
use crate::error::{Error, Result};
use crate::formats::bytes::{index, length};
use crate::formats::limits::{CHUNK_MAX, EXTENT_MAX};
use crate::storage::Storage;

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

/// Whether an extent is too large to be decoded at once; `encoded` is in bytes.
pub(super) fn is_giant(encoded: u64, size: Size) -> bool {
    encoded > EXTENT_MAX || size.max() > CHUNK_MAX
}

/// Decodes the extents of a container.
pub(super) trait ExtentDecoder: Sync {
    fn container(&self) -> Container;

    /// The most memory that decoding `extent` takes, bytes: input, output, and decoder. May read
    /// the header of the extent.
    fn memory_needed(&self, _storage: &dyn Storage, extent: &Extent, size: Size) -> u64 {
        self.max_memory_needed(extent, size)
    }

    /// The same for any header.
    fn max_memory_needed(&self, extent: &Extent, size: Size) -> u64 {
        size.max().saturating_add(extent.encoded_len())
    }

    /// Decodes `extent` to at most `max_len` bytes, at least one.
    fn decode(
        &self,
        storage: &dyn Storage,
        extent: &Extent,
        max_len: usize,
        buffers: &Buffers,
    ) -> Result<Vec<u8>>;
}

/// Decodes `extent` and checks its size.
pub(super) fn decode(
    decoder: &dyn ExtentDecoder,
    storage: &dyn Storage,
    extent: &Extent,
    size: Size,
    buffers: &Buffers,
) -> Result<Vec<u8>> {
    let max_len = index(size.max());
    if max_len == 0 {
        return Ok(Vec::new());
    }
    let decoded = decoder.decode(storage, extent, max_len, buffers);
    decoded.and_then(|decoded| check(decoded, size)).map_err(|error| {
        let container = decoder.container();
        let (name, unit) = (container.name(), container.unit().name());
        let (start, end) = (extent.start, extent.end);
        error
            .within(format_args!("{name} data"))
            .with_detail(format_args!("{name} data in {unit} {start:#x} to {end:#x}"))
    })
}

fn check(decoded: Vec<u8>, size: Size) -> Result<Vec<u8>> {
    match size {
        Size::Exactly(size) if size != length(decoded.len()) => {
            Err(Error::corrupt(format!("{size} bytes announced, {} found", decoded.len())))
        }
        _ => Ok(decoded),
    }
}

/// Reads the bytes of `extent` and has `decode` fill a buffer of `max_len` bytes from them;
/// `decode` returns the decoded length.
pub(super) fn decode_whole(
    storage: &dyn Storage,
    extent: &Extent,
    max_len: usize,
    buffers: &Buffers,
    decode: impl FnOnce(&[u8], &mut [u8]) -> Result<usize>,
) -> Result<Vec<u8>> {
    let mut source = buffers.take(index(extent.encoded_len()));
    storage.read_exact_at(&mut source, extent.start)?;
    let mut target = buffers.take(max_len);
    let len = decode(&source, &mut target)?;
    buffers.recycle(source);
    target.truncate(len);
    Ok(target)
}
