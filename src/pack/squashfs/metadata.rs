//! Chains of metadata blocks, each 8 KiB before compression (squashfs.rst, section 3.1).
//!
//! Invariant: a position stays valid, because a full block never moves.

use crate::codecs::Encoder;
use crate::error::{Error, Kind, Result};

/// Bytes of a block before compression.
pub(super) const BLOCK: usize = 8192;

/// Set in the size of an uncompressed block.
const UNCOMPRESSED: u16 = 0x8000;

/// A position in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// Offset of its block in the stored chain.
    pub(super) block: u64,
    /// Offset in the uncompressed block.
    pub(super) offset: u16,
}

impl Position {
    /// The position as an on-disk reference: 48 bits of the block, 16 of the offset.
    pub(super) fn reference(self) -> u64 {
        self.block << 16 | u64::from(self.offset)
    }

    /// The offset of the block in 32 bits, as directories store it.
    pub(super) fn block32(self, table: &str) -> Result<u32> {
        u32::try_from(self.block).map_err(|_| {
            let message =
                format!("the {table} table would take more than 4 GiB, the limit of SquashFS");
            Error::new(Kind::InvalidInput, message)
        })
    }
}

/// A chain under construction.
#[derive(Default)]
pub(super) struct Chain {
    stored: Vec<u8>,
    /// The block that is being filled: less than `BLOCK` bytes between calls.
    open: Vec<u8>,
    /// Offset of each block from the start of the chain.
    starts: Vec<u64>,
    /// Bytes before compression.
    len: u64,
}

impl Chain {
    /// The position of the next byte.
    pub(super) fn position(&self) -> Position {
        Position { block: self.stored.len() as u64, offset: self.open.len() as u16 }
    }

    /// Bytes so far, before compression.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Appends `bytes`.
    pub(super) fn put(&mut self, encoder: &mut Encoder, mut bytes: &[u8]) -> Result<()> {
        self.len += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - self.open.len()));
            self.open.extend_from_slice(now);
            bytes = later;
            if self.open.len() == BLOCK {
                self.close(encoder)?;
            }
        }
        Ok(())
    }

    /// The stored chain, and the offset of each of its blocks.
    pub(super) fn finish(mut self, encoder: &mut Encoder) -> Result<(Vec<u8>, Vec<u64>)> {
        if !self.open.is_empty() {
            self.close(encoder)?;
        }
        Ok((self.stored, self.starts))
    }

    fn close(&mut self, encoder: &mut Encoder) -> Result<()> {
        self.starts.push(self.stored.len() as u64);
        // A block is at most 8192 bytes long, so the upper bit of its length is free.
        let len = self.open.len();
        match encoder.encode(&self.open, len - 1)? {
            Some(compressed) => {
                self.stored.extend((compressed.len() as u16).to_le_bytes());
                self.stored.extend_from_slice(compressed);
            }
            None => {
                self.stored.extend((len as u16 | UNCOMPRESSED).to_le_bytes());
                self.stored.extend_from_slice(&self.open);
            }
        }
        self.open.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codecs::{Codec, Method};

    fn decoded(mut stored: &[u8]) -> (Vec<u8>, Vec<usize>) {
        let (mut all, mut lens) = (Vec::new(), Vec::new());
        while let [low, high, rest @ ..] = stored {
            let size_field = u16::from_le_bytes([*low, *high]);
            let (block, later) = rest.split_at(usize::from(size_field & !UNCOMPRESSED));
            let mut bytes = block.to_vec();
            if size_field & UNCOMPRESSED == 0 {
                bytes = vec![0; BLOCK];
                let len = Codec::Zstd.decode(block, &mut bytes).unwrap();
                bytes.truncate(len);
            }
            lens.push(bytes.len());
            all.extend(bytes);
            stored = later;
        }
        (all, lens)
    }

    #[test]
    fn all_blocks_but_the_last_are_full() {
        for method in [Method::Zstd(3), Method::None] {
            for len in [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 5] {
                let bytes: Vec<u8> = (0..len).map(|n| (n / 7 % 251) as u8).collect();
                let mut encoder = Encoder::new(method).unwrap();
                for step in [1, 1000, BLOCK, len] {
                    let mut chain = Chain::default();
                    for part in bytes.chunks(step) {
                        chain.put(&mut encoder, part).unwrap();
                    }
                    assert_eq!(chain.len(), len as u64);
                    let (stored, starts) = chain.finish(&mut encoder).unwrap();
                    let (back, lens) = decoded(&stored);
                    assert_eq!(back, bytes);
                    assert_eq!(lens.len(), len.div_ceil(BLOCK));
                    assert_eq!(starts.len(), lens.len());
                    assert!(lens[..lens.len() - 1].iter().all(|&len| len == BLOCK));
                }
            }
        }
    }

    #[test]
    fn a_full_block_ends_where_the_next_begins() {
        let mut encoder = Encoder::new(Method::None).unwrap();
        let mut chain = Chain::default();
        chain.put(&mut encoder, &[7; BLOCK - 1]).unwrap();
        assert_eq!(chain.position(), Position { block: 0, offset: BLOCK as u16 - 1 });
        chain.put(&mut encoder, &[7]).unwrap();
        let next = Position { block: BLOCK as u64 + 2, offset: 0 };
        assert_eq!(chain.position(), next);
        assert_eq!(next.reference(), 8194 << 16);
        assert!(Position { block: u64::from(u32::MAX), offset: 1 }.block32("x").is_ok());
        assert!(Position { block: 1 << 32, offset: 1 }.block32("x").is_err());
    }
}
