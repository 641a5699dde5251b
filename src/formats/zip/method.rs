//! The compression methods of entries (APPNOTE 4.4.5), and how much each can compress.

use super::lzma;
use crate::codecs::{Codec, Streaming, bzip2_stream, decode_deflate, lzma_stream, xz_stream};
use crate::error::{Error, Result};
use crate::formats::bytes::length;
use crate::formats::limits::{
    BZIP2_BLOCK_MAX, DEFLATE_RATIO_MAX, MEMBER_OVERHEAD_MAX, ZSTD_BLOCK_MAX,
};

/// A method that archfs reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Method {
    Stored,
    Deflate,
    Bzip2,
    Lzma,
    Zstd,
    Xz,
}

/// Memory of an xz or LZMA decoder of one member, bytes. A decoder uses no more of it than the
/// member has bytes.
const XZ_MEMORY: u64 = 512 << 20;

impl Method {
    /// The method with the number `code`.
    pub(super) fn from_code(code: u16) -> Option<Self> {
        Some(match code {
            0 => Self::Stored,
            8 => Self::Deflate,
            12 => Self::Bzip2,
            14 => Self::Lzma,
            20 | 93 => Self::Zstd,
            95 => Self::Xz,
            _ => return None,
        })
    }

    /// The usual name of the method.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Deflate => "deflate",
            Self::Bzip2 => "bzip2",
            Self::Lzma => "lzma",
            Self::Zstd => "zstd",
            Self::Xz => "xz",
        }
    }

    /// The name of a method that archfs does not read.
    pub(super) fn unsupported_name(code: u16) -> &'static str {
        match code {
            1 => "shrink",
            2..=5 => "reduce",
            6 => "implode",
            9 => "deflate64",
            10 => "DCL implode",
            18 => "IBM TERSE",
            19 => "IBM LZ77",
            94 => "MP3",
            96 => "JPEG",
            97 => "WavPack",
            98 => "PPMd",
            99 => "AES encryption",
            _ => "an unknown method",
        }
    }

    /// The most bytes that `compressed` bytes can decode to.
    pub(super) fn most_decoded(self, compressed: u64) -> u64 {
        match self {
            Self::Stored => compressed,
            Self::Deflate => compressed.saturating_mul(DEFLATE_RATIO_MAX),
            // A block takes at least 32 bytes with its header.
            Self::Bzip2 => (compressed / 32).saturating_add(1).saturating_mul(BZIP2_BLOCK_MAX),
            // A block takes at least 4 bytes.
            Self::Zstd => (compressed / 4).saturating_add(1).saturating_mul(ZSTD_BLOCK_MAX),
            Self::Lzma | Self::Xz => u64::MAX,
        }
    }

    /// Decodes all of `source` to all of `target`.
    ///
    /// Fails with `Corrupt` if `source` is damaged or has another decoded length; `Unsupported` if
    /// decoding takes too much memory.
    pub(super) fn decode(self, source: &[u8], target: &mut [u8]) -> Result<()> {
        let expected = target.len();
        let len = match self {
            Self::Stored => match source.len() == expected {
                true => {
                    target.copy_from_slice(source);
                    expected
                }
                false => source.len(),
            },
            Self::Deflate => decode_deflate(source, target)?,
            Self::Zstd => Codec::Zstd.decode(source, target)?,
            Self::Bzip2 => run(&mut bzip2_stream(), &[source], target)?,
            Self::Xz => run(&mut xz_stream(XZ_MEMORY)?, &[source], target)?,
            Self::Lzma => {
                let (header, data) = lzma::split(source, length(expected))?;
                run(&mut lzma_stream(XZ_MEMORY)?, &[&header, data], target)?
            }
        };
        match len == expected {
            true => Ok(()),
            false => Err(Error::corrupt(format!("{expected} bytes announced, {len} found"))),
        }
    }
}

/// The most bytes that data of `size` bytes takes compressed, by any method: what does not compress
/// grows a little.
pub(super) fn most_compressed(size: u64) -> u64 {
    size.saturating_add(size / 4).saturating_add(MEMBER_OVERHEAD_MAX)
}

/// Runs a decoder over one stream, given in parts. Returns the number of bytes in `target`.
fn run(decoder: &mut dyn Streaming, source: &[&[u8]], target: &mut [u8]) -> Result<usize> {
    let mut filled = 0_usize;
    for (nth, part) in source.iter().enumerate() {
        let is_last = nth.saturating_add(1) == source.len();
        let mut rest = *part;
        loop {
            let output = target.get_mut(filled..).unwrap_or_default();
            let is_full = output.is_empty();
            let step = decoder.step(rest, output)?;
            filled = filled.saturating_add(step.produced);
            rest = rest.get(step.consumed..).unwrap_or_default();
            if step.ended {
                return Ok(filled);
            }
            if step.consumed == 0 && step.produced == 0 {
                match (rest.is_empty(), is_full) {
                    (true, _) if !is_last => break,
                    (true, _) => return Err(Error::corrupt("the compressed data ends early")),
                    (false, true) => {
                        return Err(Error::corrupt("more bytes than the entry announces"));
                    }
                    (false, false) => return Err(Error::corrupt("the decoder does not go on")),
                }
            }
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deflate_cannot_claim_more_than_it_can_hold() {
        assert_eq!(Method::Deflate.most_decoded(2), 2 * 1032);
        assert_eq!(Method::Stored.most_decoded(7), 7);
        let zeros = vec![0; 64 << 20];
        let packed = super::super::tests::deflate(&zeros);
        let most = Method::Deflate.most_decoded(packed.len() as u64);
        assert!((zeros.len()..zeros.len() * 2).contains(&(most as usize)), "{most}");
        let mut decoded = vec![1; zeros.len()];
        Method::Deflate.decode(&packed, &mut decoded).unwrap();
        assert!(decoded == zeros);
    }

    #[test]
    fn a_length_other_than_announced_is_an_error() {
        let mut target = [0; 4];
        Method::Stored.decode(b"abcd", &mut target).unwrap();
        assert_eq!(&target, b"abcd");
        let error = Method::Stored.decode(b"abc", &mut target).unwrap_err();
        assert_eq!(error.to_string(), "4 bytes announced, 3 found");
        Method::Xz.decode(b"\xfd7zXZ\0", &mut target).unwrap_err();
        Method::Lzma.decode(b"\x09\x14\x05\0", &mut target).unwrap_err();
    }
}
