//! Points inside a compressed stream where decoding can start.

use super::buffers::Buffers;
use crate::codecs::{Codec, zstd_compress};
use crate::error::{Error, Result};
use crate::storage::Storage;
use crate::sync::Arc;

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

/// Decodes the chunks of a container that start with points.
pub(super) trait PointDecoder: Sync {
    /// The most memory that decoding a chunk of `len` bytes takes, bytes.
    fn memory_needed(&self, len: u64) -> u64;

    /// Decodes the `len` bytes from `point` on. `end` is the bit of the next point, if there is
    /// one.
    fn decode(
        &self,
        storage: &Arc<dyn Storage>,
        point: &Point,
        end: Option<u64>,
        len: u64,
        buffers: &Buffers,
    ) -> Result<Vec<u8>>;
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
