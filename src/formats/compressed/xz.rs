//! Blocks of .xz files, as their indexes tell, each decoded as a file of its own.
//!
//! Owns the indexes, of any number of streams with padding between them, and the wrapping of one
//! block into a stream; leaves LZMA2 and the checks of blocks to liblzma.
//! Invariant: an index is believed only as far as its checksum, its stream's length and both of the
//! stream's ends agree with it; what they do not is told by decoding forward.

use super::extent::{Size, is_giant};
use super::pipeline::{Next, Note, Task, Walk};
use super::seek_index::Extent;
use crate::codecs::{Streaming, xz_stream};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::{XZ_BLOCKS_MAX, XZ_INDEX_MAX, XZ_PADDING_MAX};
use crate::storage::Storage;

/// What a stream starts and ends with.
pub(super) const HEADER_MAGIC: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];
const FOOTER_MAGIC: [u8; 2] = *b"YZ";

/// Bytes of a header, and of a footer.
const ENDS: u64 = 12;

/// The most that is read at once in search of the start of padding, bytes.
const STRIDE: u64 = 64 << 10;

/// What is read of a block to find its filters, bytes: a header may have 1,024, and has 12 or 24.
const HEADER_MOST: usize = 64;

/// The number of the filter that all blocks end with (.xz format, 5.3.1).
const LZMA2: u64 = 0x21;

/// The blocks of an xz file, from first to last, each with its decoded size.
pub(super) struct Blocks(std::vec::IntoIter<(Extent, u64)>);

/// What may still come of a file.
pub(super) struct Room {
    /// Bytes of stream padding.
    pub(super) padding: u64,
    /// Blocks and streams.
    pub(super) blocks: usize,
}

impl Blocks {
    /// Reads the indexes, from the end of the file to its start.
    ///
    /// # Errors
    /// `Corrupt` where they do not add up to the file, as when it is cut short.
    pub(super) fn read(storage: &dyn Storage) -> Result<Self> {
        Self::within(storage, Room { padding: XZ_PADDING_MAX, blocks: XZ_BLOCKS_MAX })
    }

    /// The same, of a file for which there is `room`.
    pub(super) fn within(storage: &dyn Storage, mut room: Room) -> Result<Self> {
        let mut end = storage.len();
        let mut blocks = Vec::new();
        loop {
            end = before_padding(storage, end, &mut room.padding)?;
            if end == 0 {
                break;
            }
            end = stream(storage, end, &mut room.blocks, &mut blocks)?;
        }
        blocks.reverse();
        Ok(Self(blocks.into_iter()))
    }

    /// Whether one of them is too large to be decoded at once.
    pub(super) fn has_giant(&self) -> bool {
        self.0.as_slice().iter().any(|(extent, decoded)| {
            is_giant(extent.end.saturating_sub(extent.start), Size::Exactly(*decoded))
        })
    }
}

impl Walk for Blocks {
    fn next(&mut self) -> Result<Next> {
        Ok(self.0.next().map_or(Next::End, |(extent, decoded)| {
            Next::Task(Task { extent, size: Size::Exactly(decoded), note: Note::None })
        }))
    }
}

/// Where the stream padding that ends at `end` starts, which comes in fours; takes its length from
/// `left`.
fn before_padding(storage: &dyn Storage, mut end: u64, left: &mut u64) -> Result<u64> {
    // Mostly there is none or little; to read much each time would cost more than all streams.
    let mut step = 4_u64;
    while end > 0 {
        let size = end.min(step) & !3;
        if size == 0 {
            return Err(wrong(end, "stray bytes"));
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
        step = step.saturating_mul(2).min(STRIDE);
    }
    Ok(end)
}

/// Adds the blocks of the stream that ends at `end`, the last first, and takes their number and
/// one from `left`; tells where it starts.
fn stream(
    storage: &dyn Storage,
    end: u64,
    left: &mut usize,
    blocks: &mut Vec<(Extent, u64)>,
) -> Result<u64> {
    let footer_start = end.checked_sub(ENDS).ok_or_else(|| wrong(end, "no footer"))?;
    let mut footer = [0; 12];
    storage.read_exact_at(&mut footer, footer_start)?;
    let [c0, c1, c2, c3, covered @ .., y, z] = footer;
    let [b0, b1, b2, b3, f0, f1] = covered;
    let sum = u32::from_le_bytes([c0, c1, c2, c3]);
    if [y, z] != FOOTER_MAGIC || crc32fast::hash(&covered) != sum {
        return Err(wrong(end, "no footer"));
    }
    let backward = u64::from(u32::from_le_bytes([b0, b1, b2, b3]));
    let index_size = backward.saturating_add(1).saturating_mul(4);
    let start = footer_start.checked_sub(index_size).filter(|_| index_size <= XZ_INDEX_MAX);
    let index_start = start.ok_or_else(|| wrong(end, "the index is too large"))?;
    let mut bytes = vec![0; index(index_size)];
    storage.read_exact_at(&mut bytes, index_start)?;
    let too_many = || wrong(end, "too many blocks");
    *left = left.checked_sub(1).ok_or_else(too_many)?;
    let records = parse_index(&bytes, *left)?.ok_or_else(too_many)?;
    *left = left.saturating_sub(records.len());
    let sizes = records.iter().map(|(size, _)| padded(*size));
    let sum = sizes.fold(0_u64, u64::saturating_add);
    let stream_start = index_start.checked_sub(sum).and_then(|start| start.checked_sub(ENDS));
    let stream_start = stream_start.ok_or_else(|| wrong(end, "the index claims too much"))?;
    let mut header = [0; 12];
    storage.read_exact_at(&mut header, stream_start)?;
    if header != stream_header([f0, f1]) {
        return Err(wrong(end, "the header is not where the index says"));
    }
    let mut block_end = index_start;
    for (size, decoded) in records.into_iter().rev() {
        let start = block_end.saturating_sub(padded(size));
        // The size without padding is not kept: what the padding is, the wrapped index tells.
        let detail =
            u32::from(f1 & 15) | u32::try_from(padded(size).saturating_sub(size) << 8).unwrap_or(0);
        let extent = Extent { decoded: 0, start, end: block_end, detail };
        // The format allows blocks of nothing.
        if decoded > 0 {
            blocks.push((extent, decoded));
        }
        block_end = start;
    }
    Ok(stream_start)
}

/// The records of an index: sizes of the blocks without padding, and decoded; `None` if there are
/// more than `most`.
fn parse_index(bytes: &[u8], most: usize) -> Result<Option<Vec<(u64, u64)>>> {
    let damaged = || Error::corrupt("the index of an xz stream is damaged");
    let (body, sum) = bytes.split_last_chunk::<4>().ok_or_else(damaged)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return Err(damaged());
    }
    let mut reader = Reader::new("xz index", body);
    let [indicator] = reader.array()?;
    let count = index(varint(&mut reader)?);
    // A record takes two bytes at least.
    if indicator != 0 || count.saturating_mul(2) > reader.remaining() {
        return Err(damaged());
    }
    if count > most {
        return Ok(None);
    }
    let mut records = Vec::with_capacity(count);
    for _ in 0..count {
        let record = (varint(&mut reader)?, varint(&mut reader)?);
        // The least is a block header of 8 bytes; more than 63 bits are not allowed.
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

/// Decodes the block `block`, padding and all, whose stream's check type is in `detail`.
/// Returns how many bytes of `target` it fills.
pub(super) fn decode(block: &[u8], detail: u32, target: &mut [u8]) -> Result<usize> {
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

/// Decodes a stream that comes in three parts, so that the block is not copied to join them.
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

/// The bytes of the window that the block at `start` wants (.xz format, 3.1); `None` where its
/// header does not tell, which decoding will find wrong.
pub(super) fn window(storage: &dyn Storage, start: u64) -> Option<u64> {
    let mut header = [0; HEADER_MOST];
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

/// The header of a stream of these flags.
fn stream_header(flags: [u8; 2]) -> [u8; 12] {
    let [m0, m1, m2, m3, m4, m5] = HEADER_MAGIC;
    let ([f0, f1], [c0, c1, c2, c3]) = (flags, crc32fast::hash(&flags).to_le_bytes());
    [m0, m1, m2, m3, m4, m5, f0, f1, c0, c1, c2, c3]
}

/// A number of up to 63 bits, seven a byte, the lowest first (.xz format, 1.2).
fn varint(reader: &mut Reader<'_>) -> Result<u64> {
    let mut number = 0_u64;
    for place in 0..9_u32 {
        let [byte] = reader.array()?;
        number |= u64::from(byte & 0x7f).wrapping_shl(place.saturating_mul(7));
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Error::corrupt("a number in an xz index has more than nine bytes"))
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

/// A size with its padding to a multiple of four.
fn padded(size: u64) -> u64 {
    size.saturating_add(3) & !3
}

fn wrong(end: u64, what: &str) -> Error {
    Error::corrupt(format!("xz stream that ends at {end:#x}: {what}"))
}
