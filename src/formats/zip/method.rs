//! The compression methods of entries (APPNOTE 4.4.5): how much each can compress, and the format
//! of its data as a file.

use crate::codecs::{Codec, Streaming, bzip2_stream, decode_deflate, lzma_stream, xz_stream};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::compressed::Container;
use crate::formats::limits::{
    BZIP2_BLOCK_MAX, DEFLATE_RATIO_MAX, MEMBER_OVERHEAD_MAX, ZSTD_BLOCK_MAX,
};
use crate::storage::{FilePart, FileRange, InMemory, Storage};
use crate::sync::Arc;

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
                let (header, data) = split_lzma(source, length(expected))?;
                run(&mut lzma_stream(XZ_MEMORY)?, &[&header, data], target)?
            }
        };
        match len == expected {
            true => Ok(()),
            false => Err(Error::corrupt(format!("{expected} bytes announced, {len} found"))),
        }
    }

    /// The data of a member as a file of the format that the method comes from, with a header and a
    /// trailer around it: its container, and its bytes. `size` is the length of the decoded data.
    ///
    /// Fails with `Corrupt` or `Unsupported` if the data does not start as the method demands;
    /// `Io`.
    pub(super) fn file_of(
        self,
        data: FileRange,
        size: u64,
        crc32: u32,
    ) -> Result<(Container, Arc<dyn Storage>)> {
        Ok(match self {
            Self::Stored => return Err(Error::corrupt("stored data has no container")),
            Self::Bzip2 => (Container::Bzip2, Arc::new(data)),
            Self::Zstd => (Container::Zstd, Arc::new(data)),
            Self::Xz => (Container::Xz, Arc::new(data)),
            Self::Deflate => {
                // ISIZE: the length modulo 2^32.
                let [a, b, c, d, ..] = size.to_le_bytes();
                let tail = [crc32.to_le_bytes(), [a, b, c, d]].concat();
                (Container::Gzip, framed(GZIP_HEADER.to_vec(), data, tail))
            }
            Self::Lzma => {
                let mut start = [0; 9];
                let len = LZMA_PREFIX.min(data.len());
                data.read_exact_at(start.get_mut(..index(len)).unwrap_or_default(), 0)?;
                let (head, _) = split_lzma(&start, size)?;
                let rest = FileRange::new(Arc::new(data), LZMA_PREFIX)?;
                (Container::Lzma, framed(head.to_vec(), rest, Vec::new()))
            }
        })
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

/// A gzip header without a name or a time (RFC 1952, 2.3): the method is DEFLATE.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

/// Storage that is the bytes of several storages, one after the other.
struct Framed(Vec<Arc<dyn Storage>>);

fn framed(head: Vec<u8>, data: FileRange, tail: Vec<u8>) -> Arc<dyn Storage> {
    let (head, tail) = (Arc::new(InMemory::new(head)), Arc::new(InMemory::new(tail)));
    Arc::new(Framed(vec![head, Arc::new(data), tail]))
}

impl Storage for Framed {
    fn len(&self) -> u64 {
        self.0.iter().fold(0, |sum: u64, part| sum.saturating_add(part.len()))
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let (mut rest, mut skipped) = (buffer, offset);
        for part in &self.0 {
            let left = part.len().saturating_sub(skipped);
            let len = index(left).min(rest.len());
            let (target, remaining) = rest.split_at_mut_checked(len).unwrap_or_default();
            if !target.is_empty() {
                part.read_contents_at(target, skipped, FilePart::at(skipped))?;
            }
            skipped = skipped.saturating_sub(part.len());
            rest = remaining;
        }
        match rest.is_empty() {
            true => Ok(()),
            false => Err(Error::truncated("a read past the end of the data")),
        }
    }
}

/// Length of what comes before LZMA data (APPNOTE 5.8.8): the version of the writer, the length of
/// the properties, and the properties.
const LZMA_PREFIX: u64 = 9;

/// The smallest dictionary of LZMA, bytes.
const DICTIONARY_MIN: u32 = 4 << 10;

/// The header of an LZMA file ("LZMA alone" in liblzma) for data that decodes to `size` bytes, from
/// the first bytes of the member, and the data after them.
fn split_lzma(source: &[u8], size: u64) -> Result<([u8; 13], &[u8])> {
    let mut reader = Reader::new("LZMA header", source);
    let (_, len) = (reader.u16()?, reader.u16()?);
    if len != 5 {
        let context = format!("LZMA data with properties of {len} bytes");
        return Err(Error::new(Kind::Unsupported, context));
    }
    let ([a], dictionary) = (reader.array()?, reader.u32()?);
    // 7-Zip writes sizes that readers of LZMA files take for another format. No distance is longer
    // than the data.
    let data = u32::try_from(size).unwrap_or(u32::MAX);
    let dictionary = dictionary.min(data).max(DICTIONARY_MIN).checked_next_power_of_two();
    let [b, c, d, e] = dictionary.unwrap_or(u32::MAX).to_le_bytes();
    let [s, t, u, v, w, x, y, z] = size.to_le_bytes();
    let header = [a, b, c, d, e, s, t, u, v, w, x, y, z];
    Ok((header, reader.bytes(reader.remaining())?))
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

    #[test]
    fn reads_across_the_parts() {
        let data: Arc<dyn Storage> = Arc::new(InMemory::new(b"..data..".to_vec()));
        let data = FileRange::new(data, 2).unwrap().cut(4).unwrap();
        let storage = framed(b"head".to_vec(), data, b"tl".to_vec());
        let whole = b"headdatatl";
        assert_eq!(storage.len(), 10);
        for start in 0..=10_usize {
            for end in start..=10 {
                let mut buffer = vec![0; end - start];
                storage.read_exact_at(&mut buffer, start as u64).unwrap();
                assert_eq!(buffer, &whole[start..end]);
            }
        }
        storage.read_exact_at(&mut [0; 2], 9).unwrap_err();
    }
}
