//! The headers of a member, as an index keeps them to recognize the member in its archive.
//!
//! An index that was made of another file may name a position at which there is another member. So
//! a node has the CRC-32 of the blocks that end where the data starts: the header with name, size
//! and time, the extensions before it, and the map of a sparse file. One read gets them with the
//! data.

use crc32fast::Hasher;

use crate::error::Result;
use crate::formats::bytes::{Reader, length};

/// Size of a block of headers, bytes.
const BLOCK: usize = 512;

/// The blocks before the data of a member. Of more than 255 blocks, only the last ones count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers {
    /// Number of blocks. 0 if nothing is known.
    pub(super) blocks: u8,
    pub(super) crc32: u32,
}

impl Headers {
    /// Their length in bytes.
    pub(crate) fn len(self) -> usize {
        usize::from(self.blocks).saturating_mul(BLOCK)
    }

    /// The record in an index.
    pub(super) fn to_bytes(self) -> [u8; 5] {
        let [a, b, c, d] = self.crc32.to_le_bytes();
        [self.blocks, a, b, c, d]
    }

    /// Decodes the record.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let [blocks] = reader.array()?;
        Ok(Self { blocks, crc32: reader.u32()? })
    }

    /// Whether `bytes` are these headers.
    pub(crate) fn are(self, bytes: &[u8]) -> bool {
        bytes.len() == self.len() && crc32fast::hash(bytes) == self.crc32
    }
}

/// Headers that a scan reads one after the other.
pub(crate) struct HeaderRun {
    hasher: Hasher,
    blocks: u8,
    end: u64,
}

impl HeaderRun {
    /// Headers that start at `start`.
    pub(crate) fn new(start: u64) -> Self {
        Self { hasher: Hasher::new(), blocks: 0, end: start }
    }

    /// The offset after the last header.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Appends whole blocks.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.end = self.end.saturating_add(length(bytes.len()));
        let most = usize::from(u8::MAX).saturating_mul(BLOCK);
        let bytes = bytes.get(bytes.len().saturating_sub(most)..).unwrap_or_default();
        let blocks = u8::try_from(bytes.len().div_euclid(BLOCK)).unwrap_or(u8::MAX);
        match self.blocks.checked_add(blocks) {
            Some(sum) => self.blocks = sum,
            None => (self.hasher, self.blocks) = (Hasher::new(), blocks),
        }
        self.hasher.update(bytes);
    }

    /// The headers so far.
    pub(crate) fn headers(&self) -> Headers {
        Headers { blocks: self.blocks, crc32: self.hasher.clone().finalize() }
    }
}
