//! Blocks of bzip2 files. A block starts at any bit, marked only by a 48-bit magic number (pi).
//!
//! A scan for the magic numbers cuts the file into extents. Each is wrapped into a stream of its
//! own to decode it, as bzip2recover does. Data may contain the magic numbers by chance or on
//! purpose.
//!
//! Invariant: a false match never changes the decoded bytes. It cuts a block in two, the first part
//! fails to decode, and the parts are joined and decoded again. A block that is cut more than
//! `BZIP2_JOINS_MAX` times is reported as damage.

use super::chunks::{Extent, Size};
use super::format::{ExtentFormat, Next, Note, Start, Task, Unit, Verdict, Walk, trailing_garbage};
use crate::codecs::{Streaming, bzip2_stream};
use crate::error::{Error, Result};
use crate::formats::bytes::{Cursor, index, length};
use crate::formats::limits::{BZIP2_BLOCK_BITS_MAX, BZIP2_BLOCK_MAX};
use crate::storage::Storage;
use crate::sync::Arc;

pub(super) const NAME: &str = "bzip2";

/// Memory of a decoder, bytes.
const DECODER: u64 = 4 << 20;

/// Decoded size of a block of `bzip2 -9` with a few runs in it, bytes. A block of runs only decodes
/// to up to 46 MB.
const USUAL_BLOCK: u64 = 2 << 20;

/// Initial size of the output buffer, bytes: a block of `bzip2 -9` with few runs.
const FIRST_GUESS: usize = 1 << 20;

pub(super) const BLOCKS: &ExtentFormat = &ExtentFormat {
    name: NAME,
    unit: Unit::Bits,
    walk: |name, storage| Ok(Start::Walk(Box::new(Blocks::new(name, Arc::clone(storage))))),
    memory_needed: |_storage, extent, size| memory_needed(extent, size),
    decode_at_most: |storage, extent, max_len, _buffers| decode(storage, extent, max_len),
};

pub(super) fn recognizes(head: &[u8]) -> bool {
    matches!(head, [b'B', b'Z', b'h', b'1'..=b'9', rest @ ..]
        if rest.starts_with(&BLOCK) || rest.starts_with(&END))
}

fn memory_needed(extent: &Extent, size: Size) -> u64 {
    // The size of a block is known only after decoding. It is almost never more than this.
    let output = match size {
        Size::Exactly(decoded) => decoded,
        Size::AtMost(decoded) => decoded.min(USUAL_BLOCK),
    };
    // The input is in bits and is shifted into a second buffer.
    (extent.encoded_len() >> 2).saturating_add(output).saturating_add(DECODER)
}

/// Decodes the blocks of `extent`, whose detail is their combined checksum.
fn decode(storage: &dyn Storage, extent: &Extent, most: usize) -> Result<Vec<u8>> {
    let input = wrap(storage, extent)?;
    let mut decoder = bzip2_stream();
    let (mut consumed, mut produced) = (0_usize, 0_usize);
    let mut output = vec![0; FIRST_GUESS.min(most)];
    loop {
        let rest = input.get(consumed..).unwrap_or_default();
        let step = decoder.step(rest, output.get_mut(produced..).unwrap_or_default())?;
        consumed = consumed.saturating_add(step.consumed);
        produced = produced.saturating_add(step.produced);
        if step.ended && consumed == input.len() {
            output.truncate(produced);
            return Ok(output);
        }
        let is_full = produced == output.len();
        if is_full && produced < most {
            output.resize(produced.saturating_mul(2).min(most), 0);
        } else if step.ended || (step.consumed == 0 && step.produced == 0) {
            return Err(Error::corrupt(match is_full {
                true => format!("it decodes to more than {most} bytes"),
                false => "the block does not end where the next one starts".to_owned(),
            }));
        }
    }
}

/// Makes a stream of the blocks of `extent`: a header, the blocks shifted to a byte boundary, and
/// an end.
fn wrap(storage: &dyn Storage, extent: &Extent) -> Result<Vec<u8>> {
    let (first, last) = (extent.start >> 3, extent.end.div_ceil(8));
    let mut source = vec![0; index(last.saturating_sub(first))];
    storage.read_exact_at(&mut source, first)?;
    source.push(0);
    let bits = extent.end.saturating_sub(extent.start);
    let mut stream = Vec::with_capacity(source.len().saturating_add(16));
    stream.extend(b"BZh9");
    let shift = u32::try_from(extent.start & 7).unwrap_or(0);
    stream.extend(source.windows(2).map(|pair| match *pair {
        [high, low] => {
            let [shifted, _] = u16::from_be_bytes([high, low]).wrapping_shl(shift).to_be_bytes();
            shifted
        }
        _ => 0,
    }));
    stream.truncate(index(bits >> 3).saturating_add(4));
    // The end follows the last bit of the blocks, which may be inside a byte.
    let used = u32::try_from(bits & 7).unwrap_or(0);
    let end = u128::from(number(END)).wrapping_shl(32) | u128::from(extent.detail);
    let mut end = end.wrapping_shl(48_u32.saturating_sub(used));
    if used > 0 {
        let tail_start = extent.end.saturating_sub(u64::from(used));
        let mut tail = [0; 2];
        let tail_byte = index((tail_start >> 3).saturating_sub(first));
        for (byte, source) in tail.iter_mut().zip(source.get(tail_byte..).unwrap_or_default()) {
            *byte = *source;
        }
        let shift = u32::try_from(tail_start & 7).unwrap_or(0);
        let [byte, _] = u16::from_be_bytes(tail).wrapping_shl(shift).to_be_bytes();
        let tail_bits = byte & 0xff_u8.wrapping_shl(8_u32.saturating_sub(used));
        end |= u128::from(tail_bits).wrapping_shl(120);
    }
    let len = index(u64::from(used).saturating_add(END_BITS).div_ceil(8));
    stream.extend(end.to_be_bytes().get(..len).unwrap_or_default());
    Ok(stream)
}

/// Magic number of a block: pi.
pub(super) const BLOCK: [u8; 6] = [0x31, 0x41, 0x59, 0x26, 0x53, 0x59];

/// Magic number of the end of a stream: the square root of pi.
const END: [u8; 6] = [0x17, 0x72, 0x45, 0x38, 0x50, 0x90];

/// Length of a magic number.
const MAGIC_BITS: u64 = 48;

/// Length of the end of a stream, bits: magic number and checksum.
const END_BITS: u64 = 80;

/// What starts at a magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Boundary {
    Block,
    End,
}

/// Bytes of the file that a `Cursor` reads at a time.
const READ_SIZE: usize = 1 << 20;

/// Finds the blocks of a bzip2 file.
pub(super) struct Blocks {
    name: String,
    cursor: Cursor,
    /// Pairs of bytes that are part of a magic number at any shift. Looked up for each pair of the
    /// file.
    pairs: Box<[bool]>,
    /// The bit where the next extent starts. None after the last.
    start: Option<(u64, Boundary)>,
    last: Boundary,
    /// Combined checksum of the blocks of this stream so far.
    combined: u32,
    /// Offset of other data after the last stream.
    trailing_garbage_at: Option<u64>,
}

impl Blocks {
    pub(super) fn new(name: &str, storage: Arc<dyn Storage>) -> Self {
        let mut pairs = vec![false; 1 << 16].into_boxed_slice();
        for magic in [BLOCK, END].map(number) {
            for shift in 17..=32_u32 {
                let pair = index(magic.wrapping_shr(shift) & 0xffff);
                if let Some(pair) = pairs.get_mut(pair) {
                    *pair = true;
                }
            }
        }
        Self {
            name: name.to_owned(),
            cursor: Cursor::new(storage, 4, READ_SIZE),
            pairs,
            start: Some((32, Boundary::Block)),
            last: Boundary::Block,
            combined: 0,
            trailing_garbage_at: None,
        }
    }

    /// The first boundary in the bits from `from` to `limit`.
    fn scan(&mut self, from: u64, limit: u64) -> Result<Option<(u64, Boundary)>> {
        let ahead = (from >> 3).saturating_sub(self.cursor.position());
        self.cursor.skip(ahead.min(self.cursor.remaining()))?;
        loop {
            let base = self.cursor.position().saturating_mul(8);
            let left = self.cursor.remaining();
            let data = self.cursor.fill_buf(64)?;
            let scanned = length(data.len());
            for (number, pair) in data.chunks_exact(2).enumerate() {
                let &[first, second] = pair else { continue };
                let pair = usize::from(u16::from_be_bytes([first, second]));
                if self.pairs.get(pair) != Some(&true) {
                    continue;
                }
                // The pair is the first one in the magic number that starts at an even byte of
                // `data`.
                let pair_bit = length(number).saturating_mul(16);
                for bit in pair_bit.saturating_sub(15)..=pair_bit {
                    let position = base.saturating_add(bit);
                    if let Some(found) = boundary(data, bit)
                        && (from..limit).contains(&position)
                    {
                        return Ok(Some((position, found)));
                    }
                }
            }
            if scanned >= left || base >= limit {
                return Ok(None);
            }
            // A magic number that straddles the end is found in the next round.
            self.cursor.skip(scanned.saturating_sub(16))?;
        }
    }

    fn stream_end(&mut self, task: &Task) -> Result<Verdict> {
        let storage = Arc::clone(self.cursor.storage());
        let start = task.extent.start;
        let Some(stored) = bits32(&*storage, start.saturating_add(MAGIC_BITS))? else {
            return Err(self.cursor.ends_early());
        };
        if stored != self.combined {
            let combined = self.combined;
            return Err(Error::corrupt("bzip2 stream: wrong checksum")
                .with_detail(format_args!("{stored:#010x}, but its blocks give {combined:#010x}"))
                .with_detail(format_args!("bzip2 stream that ends at bit {start:#x}")));
        }
        self.combined = 0;
        let end = start.saturating_add(END_BITS).div_ceil(8);
        let mut rest = Cursor::new(storage, end, READ_SIZE);
        let has_next = matches!(rest.peek(4)?, [b'B', b'Z', b'h', b'1'..=b'9']);
        if has_next && task.extent.end == end.saturating_add(4).saturating_mul(8) {
            return Ok(Verdict::Checked);
        }
        self.trailing_garbage_at = trailing_garbage(&mut rest, &self.name, NAME)?;
        Ok(Verdict::End)
    }
}

impl Walk for Blocks {
    fn trailing_garbage_at(&self) -> Option<u64> {
        self.trailing_garbage_at
    }

    fn next(&mut self) -> Result<Next> {
        let Some((start, mut kind)) = self.start else {
            return match self.last {
                Boundary::End => Ok(Next::End),
                Boundary::Block => Err(self.cursor.ends_early()),
            };
        };
        let storage = Arc::clone(self.cursor.storage());
        if start == 32 {
            // The first block starts right after the stream header.
            let mut head = [0; 10];
            storage.read_exact_at(&mut head, 0)?;
            kind = boundary(&head, start)
                .ok_or_else(|| Error::corrupt("bzip2 stream at 0x0: it has no block"))?;
        }
        self.last = kind;
        let file_end = storage.len().saturating_mul(8);
        let limit = start.saturating_add(BZIP2_BLOCK_BITS_MAX).min(file_end);
        self.start = self.scan(start.saturating_add(MAGIC_BITS), limit)?;
        let end = self.start.map_or(limit, |(bit, _)| bit);
        let detail = bits32(&*storage, start.saturating_add(MAGIC_BITS))?.unwrap_or(0);
        let extent = Extent { decoded: 0, start, end, detail };
        Ok(Next::Task(match kind {
            Boundary::Block => {
                Task { extent, size: Size::AtMost(BZIP2_BLOCK_MAX), note: Note::None }
            }
            Boundary::End => Task { extent, size: Size::AtMost(0), note: Note::StreamEnd },
        }))
    }

    fn on_decoded(&mut self, task: &Task, _bytes: &[u8]) -> Result<Verdict> {
        match task.note {
            Note::StreamEnd => self.stream_end(task),
            _ => {
                self.combined = combine(self.combined, task.extent.detail);
                Ok(Verdict::Checked)
            }
        }
    }

    fn join(&self, failed: &Task, next: &Task) -> Option<Task> {
        let extent = Extent { end: next.extent.end, ..failed.extent };
        let joined = Task { extent, ..failed.clone() };
        let bits = extent.end.saturating_sub(extent.start);
        (failed.extent.end == next.extent.start && bits <= BZIP2_BLOCK_BITS_MAX).then_some(joined)
    }

    fn merge(&self, before: u32, after: u32) -> Option<u32> {
        Some(combine(before, after))
    }
}

/// The 32 bits at `bit`. None if the file ends before.
fn bits32(storage: &dyn Storage, bit: u64) -> Result<Option<u32>> {
    let start = bit >> 3;
    let left = storage.len().saturating_sub(start);
    if left == 0 {
        return Ok(None);
    }
    let mut bytes = [0; 8];
    let len = index(left).min(5);
    storage.read_exact_at(bytes.get_mut(..len).unwrap_or_default(), start)?;
    let shifted = u64::from_be_bytes(bytes).wrapping_shl(u32::try_from(bit & 7).unwrap_or(0));
    let is_whole = left.saturating_mul(8) >= (bit & 7).saturating_add(32);
    Ok(is_whole.then(|| u32::try_from(shifted.wrapping_shr(32)).unwrap_or(0)))
}

/// The checksum of a stream after another block (bzip2's BZ_FINALISE_CRC and its use).
fn combine(before: u32, block: u32) -> u32 {
    before.rotate_left(1) ^ block
}

/// The boundary that starts at `bit` of `data`, if there is one.
fn boundary(data: &[u8], bit: u64) -> Option<Boundary> {
    let rest = data.get(index(bit >> 3)..)?;
    let mut bytes = [0; 8];
    for (byte, source) in bytes.iter_mut().zip(rest) {
        *byte = *source;
    }
    let found =
        u64::from_be_bytes(bytes).wrapping_shl(u32::try_from(bit & 7).ok()?).wrapping_shr(16);
    let is_whole = length(rest.len()).saturating_mul(8) >= (bit & 7).saturating_add(MAGIC_BITS);
    match found {
        _ if !is_whole => None,
        found if found == number(BLOCK) => Some(Boundary::Block),
        found if found == number(END) => Some(Boundary::End),
        _ => None,
    }
}

/// A magic number as a number.
fn number(magic: [u8; 6]) -> u64 {
    magic.iter().fold(0, |number, byte| number.wrapping_shl(8) | u64::from(*byte))
}
