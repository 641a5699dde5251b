//! Blocks of .xz files, found by the indexes of the streams, each decoded as a file of its own.
//!
//! A file may have any number of streams with padding between them.
//!
//! Invariant: an index is used only if its checksum, the length of its stream, and the header and
//! footer of the stream agree with it. Otherwise the file is decoded from the start instead.

use super::chunks::{Extent, Size};
use super::format::{ExtentFormat, Next, Note, Pass, Start, Task, Unit, Walk, decode_whole};
use super::streams::{self, StreamFormat};
use crate::codecs::{Streaming, xz_stream};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::{XZ_BLOCKS_MAX, XZ_INDEX_MAX, XZ_PADDING_MAX};
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

/// Magic numbers of a stream header and of a footer.
const HEADER_MAGIC: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];
const FOOTER_MAGIC: [u8; 2] = *b"YZ";

/// Size of a stream header and of a footer, bytes.
const HEADER_LEN: u64 = 12;

/// Most bytes read at a time to find the start of padding.
const PADDING_READ_MAX: u64 = 64 << 10;

/// The blocks of an xz file in order, each with its decoded size.
pub(super) struct Blocks(std::vec::IntoIter<(Extent, u64)>);

/// The unused part of the limits for a file.
pub(super) struct Remaining {
    /// Bytes of stream padding.
    pub(super) padding: u64,
    /// Blocks and streams together.
    pub(super) blocks: usize,
}

impl Blocks {
    /// Reads the indexes, from the end of the file to its start.
    ///
    /// Fails with `Corrupt` if they do not add up to the file, for example because it is cut short.
    pub(super) fn read(storage: &dyn Storage) -> Result<Self> {
        Self::within(storage, Remaining { padding: XZ_PADDING_MAX, blocks: XZ_BLOCKS_MAX })
    }

    /// The same, within `limits`.
    pub(super) fn within(storage: &dyn Storage, mut limits: Remaining) -> Result<Self> {
        let mut end = storage.len();
        let mut blocks = Vec::new();
        loop {
            end = padding_start(storage, end, &mut limits.padding)?;
            if end == 0 {
                break;
            }
            end = parse_stream(storage, end, &mut limits.blocks, &mut blocks)?;
        }
        blocks.reverse();
        Ok(Self(blocks.into_iter()))
    }

    /// Whether a block is too large to be decoded at once.
    pub(super) fn has_giant(&self) -> bool {
        let mut blocks = self.0.as_slice().iter();
        blocks.any(|(extent, decoded)| extent.is_giant(Size::Exactly(*decoded)))
    }
}

impl Walk for Blocks {
    fn next(&mut self) -> Result<Next> {
        Ok(self.0.next().map_or(Next::End, |(extent, decoded)| {
            Next::Task(Task { extent, size: Size::Exactly(decoded), note: Note::None })
        }))
    }
}

/// Returns where the stream padding that ends at `end` starts. Padding is a multiple of four bytes.
/// Its length is subtracted from `left`.
fn padding_start(storage: &dyn Storage, mut end: u64, left: &mut u64) -> Result<u64> {
    // Usually there is little padding or none. Large reads would cost more than all the streams.
    let mut step = 4_u64;
    while end > 0 {
        let size = end.min(step) & !3;
        if size == 0 {
            return Err(damaged_stream(end, "stray bytes"));
        }
        let mut bytes = vec![0; index(size)];
        storage.read_exact_at(&mut bytes, end.saturating_sub(size))?;
        let words = bytes.rchunks_exact(4).take_while(|word| *word == [0; 4]).count();
        let zeros = length(words).saturating_mul(4);
        *left = left.checked_sub(zeros).ok_or_else(|| {
            Error::corrupt("the file ends with zeros, so it was cut off or not written to its end")
        })?;
        end = end.saturating_sub(zeros);
        if zeros < size {
            break;
        }
        step = step.saturating_mul(2).min(PADDING_READ_MAX);
    }
    Ok(end)
}

/// Adds the blocks of the stream that ends at `end`, the last one first. Subtracts their number and
/// one for the stream from `left`. Returns where the stream starts.
fn parse_stream(
    storage: &dyn Storage,
    end: u64,
    left: &mut usize,
    blocks: &mut Vec<(Extent, u64)>,
) -> Result<u64> {
    let footer_start =
        end.checked_sub(HEADER_LEN).ok_or_else(|| damaged_stream(end, "no footer"))?;
    let mut footer = [0; 12];
    storage.read_exact_at(&mut footer, footer_start)?;
    let [c0, c1, c2, c3, covered @ .., y, z] = footer;
    let [b0, b1, b2, b3, f0, f1] = covered;
    let sum = u32::from_le_bytes([c0, c1, c2, c3]);
    if [y, z] != FOOTER_MAGIC || crc32fast::hash(&covered) != sum {
        return Err(damaged_stream(end, "no footer"));
    }
    let backward = u64::from(u32::from_le_bytes([b0, b1, b2, b3]));
    let index_size = backward.saturating_add(1).saturating_mul(4);
    let start = footer_start.checked_sub(index_size).filter(|_| index_size <= XZ_INDEX_MAX);
    let index_start = start.ok_or_else(|| damaged_stream(end, "the index is too large"))?;
    let mut bytes = vec![0; index(index_size)];
    storage.read_exact_at(&mut bytes, index_start)?;
    let too_many = || damaged_stream(end, "too many blocks");
    *left = left.checked_sub(1).ok_or_else(too_many)?;
    let records = parse_index(&bytes, *left)?.ok_or_else(too_many)?;
    *left = left.saturating_sub(records.len());
    let sizes = records.iter().map(|(size, _)| padded(*size));
    let sum = sizes.fold(0_u64, u64::saturating_add);
    let stream_start = index_start.checked_sub(sum).and_then(|start| start.checked_sub(HEADER_LEN));
    let stream_start =
        stream_start.ok_or_else(|| damaged_stream(end, "the index claims too much"))?;
    let mut header = [0; 12];
    storage.read_exact_at(&mut header, stream_start)?;
    if header != stream_header([f0, f1]) {
        return Err(damaged_stream(end, "the header is not where the index says"));
    }
    let mut block_end = index_start;
    for (size, decoded) in records.into_iter().rev() {
        let start = block_end.saturating_sub(padded(size));
        // Only the length of the padding is kept; decoding writes it into the index of the wrapped
        // block.
        let detail =
            u32::from(f1 & 15) | u32::try_from(padded(size).saturating_sub(size) << 8).unwrap_or(0);
        let extent = Extent { decoded: 0, start, end: block_end, detail };
        // The format allows empty blocks.
        if decoded > 0 {
            blocks.push((extent, decoded));
        }
        block_end = start;
    }
    Ok(stream_start)
}

/// The records of an index: size of the block without padding, decoded size. `None` if there are
/// more than `records_max`.
fn parse_index(bytes: &[u8], records_max: usize) -> Result<Option<Vec<(u64, u64)>>> {
    let damaged = || Error::corrupt("the index of an xz stream is damaged");
    let (body, sum) = bytes.split_last_chunk::<4>().ok_or_else(damaged)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return Err(damaged());
    }
    let mut reader = Reader::new("xz index", body);
    let [indicator] = reader.array()?;
    let count = index(varint(&mut reader)?);
    // A record takes at least two bytes.
    if indicator != 0 || count.saturating_mul(2) > reader.remaining() {
        return Err(damaged());
    }
    if count > records_max {
        return Ok(None);
    }
    let mut records = Vec::with_capacity(count);
    for _ in 0..count {
        let record = (varint(&mut reader)?, varint(&mut reader)?);
        // The format requires at least 5 bytes. No file has a block of 2^62 bytes.
        if record.0 < 5 || record.0 >= 1 << 62 {
            return Err(damaged());
        }
        records.push(record);
    }
    match reader.remaining() < 4 {
        true => Ok(Some(records)),
        false => Err(damaged()),
    }
}

/// The size rounded up to a multiple of four.
fn padded(size: u64) -> u64 {
    size.saturating_add(3) & !3
}

fn damaged_stream(end: u64, what: &str) -> Error {
    Error::corrupt(format!("xz stream: {what}"))
        .with_detail(format_args!("xz stream that ends at {end:#x}"))
}

/// The header of a stream with these flags.
fn stream_header(flags: [u8; 2]) -> [u8; 12] {
    let [m0, m1, m2, m3, m4, m5] = HEADER_MAGIC;
    let ([f0, f1], [c0, c1, c2, c3]) = (flags, crc32fast::hash(&flags).to_le_bytes());
    [m0, m1, m2, m3, m4, m5, f0, f1, c0, c1, c2, c3]
}

/// A number of up to 63 bits, seven bits per byte, the lowest first (.xz format, 1.2).
fn varint(reader: &mut Reader<'_>) -> Result<u64> {
    let mut number = 0_u64;
    for position in 0..9_u32 {
        let [byte] = reader.array()?;
        number |= u64::from(byte & 0x7f).wrapping_shl(position.saturating_mul(7));
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Error::corrupt("a number in an xz index has more than nine bytes"))
}
