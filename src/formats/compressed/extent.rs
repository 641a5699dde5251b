//! Decoding one extent: a part of a compressed file that stands alone.
//!
//! Owns reading it and checking how much it gives; leaves the rest to the containers.
//! Invariant: what an extent gives is at most the size it was found with, never more than
//! `GIANT_CHUNK_MAX`.

use super::seekable::Extent;
use super::{Container, bzip2, lz4, xz};
use crate::codecs::Codec;
use crate::error::{Error, Result};
use crate::formats::bytes::{index, length};
use crate::formats::limits::{GIANT_CHUNK_MAX, GIANT_EXTENT_MAX};
use crate::storage::Storage;

/// How many bytes an extent decodes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Exactly(u64),
    /// Known better once it is decoded.
    AtMost(u64),
}

impl Size {
    pub(super) fn most(self) -> u64 {
        match self {
            Self::Exactly(size) | Self::AtMost(size) => size,
        }
    }

    /// The size of two extents together.
    pub(super) fn and(self, other: Self) -> Self {
        let sum = self.most().saturating_add(other.most());
        match (self, other) {
            (Self::Exactly(_), Self::Exactly(_)) => Self::Exactly(sum),
            _ => Self::AtMost(sum),
        }
    }
}

/// Whether an extent is too large to be decoded at once; `encoded` in bytes.
pub(super) fn is_giant(encoded: u64, size: Size) -> bool {
    encoded > GIANT_EXTENT_MAX || size.most() > GIANT_CHUNK_MAX
}

/// Decodes `extent`.
pub(super) fn decode(
    container: Container,
    storage: &dyn Storage,
    extent: &Extent,
    size: Size,
) -> Result<Vec<u8>> {
    decode_bare(container, storage, extent, size).map_err(|error| {
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
) -> Result<Vec<u8>> {
    let most = index(size.most());
    if most == 0 {
        return Ok(Vec::new());
    }
    let decoded = match container {
        Container::Gzip => return Err(Error::corrupt("gzip has no extents")),
        Container::Bzip2 => bzip2::decode(storage, extent, most)?,
        Container::Xz => xz::decode(&bytes(storage, extent)?, extent.detail, most)?,
        Container::Zstd => {
            let mut target = vec![0; most];
            let len = Codec::Zstd.decode(&bytes(storage, extent)?, &mut target)?;
            target.truncate(len);
            target
        }
        Container::Lz4 => lz4::decode(&bytes(storage, extent)?, extent.detail, most)?,
    };
    match size {
        Size::Exactly(size) if size != length(decoded.len()) => {
            Err(Error::corrupt(format!("{size} bytes announced, {} are there", decoded.len())))
        }
        _ => Ok(decoded),
    }
}

fn bytes(storage: &dyn Storage, extent: &Extent) -> Result<Vec<u8>> {
    let mut bytes = vec![0; index(extent.end.saturating_sub(extent.start))];
    storage.read_exact_at(&mut bytes, extent.start)?;
    Ok(bytes)
}
