//! Blocks of .xz files, found by the indexes of the streams, each decoded as a file of its own.
//!
//! A file may have any number of streams with padding between them.
//!
//! Invariant: an index is used only if its checksum, the length of its stream, and the header and
//! footer of the stream agree with it. Otherwise the file is decoded from the start instead.

pub(super) mod index;

use index::{Blocks, FOOTER_MAGIC, HEADER_MAGIC, stream_header, varint};

use super::chunks::{Extent, Size};
use super::format::{ExtentFormat, Pass, Start, Unit, decode_whole};
use super::streams::{self, StreamFormat};
use crate::codecs::{Streaming, xz_stream};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::XZ_PADDING_MAX;
use crate::storage::Storage;
use crate::sync::Arc;

pub(super) const NAME: &str = "xz";

/// Memory of a decoder without its window, bytes.
const DECODER: u64 = 128 << 10;

/// Bytes of a block read to find its filters. A header may have 1,024 bytes; usually it has 12 or
/// 24.
const HEADER_READ: usize = 64;

/// ID of the filter that every block uses last (.xz format, 5.3.1).
const LZMA2: u64 = 0x21;

pub(super) const BLOCKS: &ExtentFormat = &ExtentFormat {
    name: NAME,
    unit: Unit::Bytes,
    walk: |_name, storage| match Blocks::read(&**storage) {
        Ok(blocks) if blocks.has_giant() => Ok(Start::ChunkTooLarge),
        Ok(blocks) => Ok(Start::Walk(Box::new(blocks))),
        Err(error) if error.is_damage() => Ok(Start::NoIndex(error)),
        Err(error) => Err(error),
    },
    memory_needed: |storage, extent, size| {
        memory_needed(storage.and_then(|storage| window(storage, extent.start)), extent, size)
    },
    decode_at_most: |storage, extent, max_len, buffers| {
        decode_whole(storage, extent, max_len, buffers, |source, target| {
            decode(source, extent.detail, target)
        })
    },
};

static STREAMS: StreamFormat = StreamFormat {
    name: NAME,
    padding_max: Some(XZ_PADDING_MAX),
    decoder_per_stream: true,
    decoder: |memory| Ok(Box::new(xz_stream(memory)?)),
    is_stream: |cursor| Ok(cursor.peek(HEADER_MAGIC.len())? == HEADER_MAGIC),
};

pub(super) fn recognizes(head: &[u8]) -> bool {
    head.starts_with(&HEADER_MAGIC)
}

pub(super) fn open(name: &str, storage: Arc<dyn Storage>) -> Result<Box<dyn Pass>> {
    streams::open(&STREAMS, name, storage)
}

/// The most memory that decoding takes with a window of `window` bytes, or of any size.
fn memory_needed(window: Option<u64>, extent: &Extent, size: Size) -> u64 {
    // The decoder uses no more of its window than the decoded size.
    let decoded = size.max();
    let window = window.map_or(decoded, |window| window.min(decoded));
    let buffers = decoded.saturating_add(extent.encoded_len());
    buffers.saturating_add(window).saturating_add(DECODER)
}

/// Decodes the block `block`, including its padding. `detail` holds the check type of its stream.
/// Returns how many bytes of `target` it fills.
fn decode(block: &[u8], detail: u32, target: &mut [u8]) -> Result<usize> {
    let [check, padding, ..] = detail.to_le_bytes();
    let size = block.len().saturating_sub(usize::from(padding));
    let flags = [0, check];
    let mut end = vec![0];
    push_varint(&mut end, 1);
    push_varint(&mut end, length(size));
    push_varint(&mut end, length(target.len()));
    while end.len() & 3 != 0 {
        end.push(0);
    }
    let sum = crc32fast::hash(&end);
    end.extend(sum.to_le_bytes());
    let backward = u32::try_from((end.len() >> 2).saturating_sub(1)).unwrap_or(0);
    let mut covered = backward.to_le_bytes().to_vec();
    covered.extend(flags);
    end.extend(crc32fast::hash(&covered).to_le_bytes());
    end.extend(covered);
    end.extend(FOOTER_MAGIC);
    run([&stream_header(flags), block, &end], target)
}

/// Decodes a stream given in three parts; joining them would copy the block.
fn run(parts: [&[u8]; 3], output: &mut [u8]) -> Result<usize> {
    let mut decoder = xz_stream(u64::MAX)?;
    let mut produced = 0_usize;
    for mut input in parts {
        while !input.is_empty() {
            let step = decoder.step(input, output.get_mut(produced..).unwrap_or_default())?;
            input = input.get(step.consumed..).unwrap_or_default();
            produced = produced.saturating_add(step.produced);
            if step.ended {
                return Ok(produced);
            }
            if step.consumed == 0 && step.produced == 0 {
                return Err(Error::corrupt("the block has no end"));
            }
        }
    }
    Err(Error::corrupt("the block has no end"))
}

/// The window size in the header of the block at `start` (.xz format, 3.1), bytes. `None` if the
/// header is damaged; decoding will report that.
pub(super) fn window(storage: &dyn Storage, start: u64) -> Option<u64> {
    let mut header = [0; HEADER_READ];
    let len = header.len().min(index(storage.len().saturating_sub(start)));
    let header = header.get_mut(..len)?;
    storage.read_exact_at(header, start).ok()?;
    let mut reader = Reader::new("xz block header", header);
    let [_, flags] = reader.array().ok()?;
    for size in [0x40, 0x80] {
        if flags & size != 0 {
            varint(&mut reader).ok()?;
        }
    }
    for _ in 0..=flags & 3 {
        let (filter, len) = (varint(&mut reader).ok()?, varint(&mut reader).ok()?);
        let properties = reader.bytes(index(len)).ok()?;
        if filter == LZMA2 {
            let size = u32::from(*properties.first()?);
            let [odd, shift] = [size & 1, (size >> 1).saturating_add(11)];
            return u64::from(odd | 2).checked_shl(shift).filter(|_| size <= 40);
        }
    }
    None
}

fn push_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        let [low, ..] = number.to_le_bytes();
        out.push(low | 0x80);
        number >>= 7;
    }
    let [low, ..] = number.to_le_bytes();
    out.push(low);
}
