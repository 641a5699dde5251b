//! Decides whether a block is compressed, and compresses it.
//!
//! Invariant: a stored block is never longer than the input, and depends only on its bytes.
//!
//! A high zstd level takes seconds for a few hundred megabytes of JPEGs and gains nothing. So a
//! block is checked first. If its entropy is low, it certainly gets smaller. Otherwise zstd at
//! level 1 decides, which is fast where it finds no matches.

use crate::codecs::{Encoder, Method};
use crate::error::Result;
use crate::sync::Mutex;

use super::geometry::{Geometry, Saving};

/// Set in the size of an uncompressed data block (squashfs.rst, section 3.4).
const UNCOMPRESSED: u32 = 1 << 24;

/// Entropy in bits per byte below which a block gets at least a tenth smaller, even without
/// matches.
const LOW_ENTROPY: f64 = 7.0;

/// Bytes sampled for the entropy, in `PARTS` parts.
const SAMPLED: usize = 16 << 10;
const PARTS: usize = 8;

/// A block as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EncodedBlock {
    pub(super) bytes: Vec<u8>,
    /// Its size on disk, with `UNCOMPRESSED` set if it is not compressed.
    pub(super) size_field: u32,
}

impl EncodedBlock {
    /// A block that is stored uncompressed.
    pub(super) fn uncompressed(bytes: Vec<u8>) -> Self {
        // A block is at most 1 MiB long.
        let size_field = bytes.len() as u32 | UNCOMPRESSED;
        Self { bytes, size_field }
    }
}

/// Whether a size field is that of an uncompressed block.
pub(super) fn is_uncompressed(size_field: u32) -> bool {
    size_field & UNCOMPRESSED != 0
}

/// The state that one thread needs to compress blocks.
pub(super) struct BlockEncoder {
    saving: Saving,
    method: Method,
    encoder: Encoder,
    probe: Encoder,
}

impl BlockEncoder {
    fn new(geometry: &Geometry) -> Result<Self> {
        let method = geometry.method();
        let (encoder, probe) = (Encoder::new(method)?, Encoder::new(Method::Zstd(1))?);
        Ok(Self { saving: geometry.saving, method, encoder, probe })
    }

    /// Whether compressing `bytes` is likely to save space.
    pub(super) fn is_worth_it(&mut self, bytes: &[u8]) -> Result<bool> {
        if !self.is_probe_faster() {
            return Ok(self.encoder.encode(bytes, self.saving.limit(bytes.len()))?.is_some());
        }
        if entropy(bytes) < LOW_ENTROPY {
            return Ok(true);
        }
        // zstd level 1 stores input uncompressed if it would save less than a 64th.
        Ok(self.probe.encode(bytes, bytes.len().saturating_sub(1))?.is_some())
    }

    /// Encodes a block, after a check whether compressing is worth it.
    pub(super) fn encode(&mut self, bytes: &[u8]) -> Result<EncodedBlock> {
        let is_probed = self.is_probe_faster() && self.saving == Saving::Fiftieth;
        if is_probed && !self.is_worth_it(bytes)? {
            return Ok(EncodedBlock::uncompressed(bytes.to_vec()));
        }
        self.encode_unchecked(bytes)
    }

    /// Whether checking first is faster than compressing.
    fn is_probe_faster(&self) -> bool {
        !matches!(self.method, Method::None | Method::Lz4 | Method::Zstd(1))
    }

    /// Encodes a block without the check.
    pub(super) fn encode_unchecked(&mut self, bytes: &[u8]) -> Result<EncodedBlock> {
        match self.encoder.encode(bytes, self.saving.limit(bytes.len()))? {
            Some(compressed) => {
                Ok(EncodedBlock { bytes: compressed.to_vec(), size_field: compressed.len() as u32 })
            }
            None => Ok(EncodedBlock::uncompressed(bytes.to_vec())),
        }
    }
}

/// A pool of encoders, at most one per thread.
pub(super) struct BlockEncoders {
    geometry: Geometry,
    /// Guards only the list. Never held with another lock or while an encoder works.
    idle: Mutex<Vec<BlockEncoder>>,
}

impl BlockEncoders {
    /// An empty pool.
    pub(super) fn new(geometry: Geometry) -> Self {
        Self { geometry, idle: Mutex::default() }
    }

    /// Calls `work` with an encoder of the pool.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut BlockEncoder) -> Result<T>) -> Result<T> {
        let idle = self.idle.lock().pop();
        let mut block_encoder = match idle {
            Some(block_encoder) => block_encoder,
            None => BlockEncoder::new(&self.geometry)?,
        };
        let result = work(&mut block_encoder);
        self.idle.lock().push(block_encoder);
        result
    }
}

/// Whether all bytes are zero.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    // Compares the bytes with themselves, shifted by one, because memcmp is fastest.
    bytes.first().is_none_or(|&first| first == 0 && bytes[1..] == bytes[..bytes.len() - 1])
}

/// Entropy of samples of `bytes`, in bits per byte.
fn entropy(bytes: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    let mut total = 0_u32;
    let mut count = |part: &[u8]| {
        part.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
        total += part.len() as u32;
    };
    if bytes.len() <= SAMPLED {
        count(bytes);
    } else {
        let step = bytes.len() / PARTS;
        (0..PARTS).for_each(|part| count(&bytes[part * step..part * step + SAMPLED / PARTS]));
    }
    let total = f64::from(total);
    let bits = |&n: &u32| f64::from(n) * (total / f64::from(n)).log2();
    counts.iter().filter(|&&n| n > 0).map(bits).sum::<f64>() / total.max(1.0)
}

/// Incompressible bytes (SplitMix64).
#[cfg(test)]
pub(super) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let word = |n: u64| {
        let mut z = (seed + n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..len as u64 / 8 + 1).flat_map(word).collect();
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::squashfs::geometry::{Compressor, Tails};

    fn geometry(compressor: Compressor, saving: Saving) -> Geometry {
        let (block_size, fragment_size) = (128 << 10, 128 << 10);
        Geometry { block_size, fragment_size, tails: Tails::SmallFiles, saving, compressor }
    }

    fn stored(compressor: Compressor, saving: Saving, bytes: &[u8]) -> EncodedBlock {
        BlockEncoders::new(geometry(compressor, saving))
            .with(|block_encoder| block_encoder.encode(bytes))
            .unwrap()
    }

    #[test]
    fn noise_is_stored_uncompressed_and_text_is_not() {
        let text = b"so it goes on and on; ".repeat(3000);
        for compressor in
            [Compressor::Zstd(15), Compressor::Gzip(9), Compressor::Xz, Compressor::Lz4]
        {
            let noise = noise(50_000, 1);
            let uncompressed = stored(compressor, Saving::Fiftieth, &noise);
            assert_eq!(
                (uncompressed.size_field, &uncompressed.bytes),
                (50_000 | UNCOMPRESSED, &noise),
                "{compressor:?}"
            );
            let compressed = stored(compressor, Saving::Fiftieth, &text);
            assert!(
                !is_uncompressed(compressed.size_field) && compressed.bytes.len() < 2000,
                "{compressor:?}"
            );
            assert_eq!(compressed.size_field as usize, compressed.bytes.len());
        }
        assert!(stored(Compressor::None, Saving::Anything, &text).size_field & UNCOMPRESSED != 0);
    }

    #[test]
    fn saves_less_than_a_fiftieth_only_for_archives() {
        let mut bytes = noise(50_000, 2);
        bytes[..700].fill(0);
        assert!(
            stored(Compressor::Zstd(15), Saving::Fiftieth, &bytes).size_field & UNCOMPRESSED != 0
        );
        assert!(
            stored(Compressor::Gzip(9), Saving::Anything, &bytes).size_field & UNCOMPRESSED == 0
        );
        bytes[..1100].fill(0);
        assert!(
            stored(Compressor::Zstd(15), Saving::Fiftieth, &bytes).size_field & UNCOMPRESSED == 0
        );
    }

    #[test]
    fn recognizes_zeros() {
        assert!(is_zero(&[]) && is_zero(&[0]) && is_zero(&[0; 4097]));
        for position in [0, 1, 2048, 4096] {
            let mut bytes = [0; 4097];
            bytes[position] = 1;
            assert!(!is_zero(&bytes), "{position}");
        }
        assert!(!is_zero(&[7; 100]));
    }
}
