//! Blocks of bzip2 files. A block starts at any bit, marked only by a 48-bit magic number (pi).
//!
//! A scan for the magic numbers cuts the file into extents. Each is wrapped into a stream of its
//! own to decode it, as bzip2recover does. Data may contain the magic numbers by chance or on
//! purpose.
//!
//! Invariant: a false match never changes the decoded bytes. It cuts a block in two, the first part
//! fails to decode, and the parts are joined and decoded again. A block that is cut more than
//! `BZIP2_JOINS_MAX` times is reported as damage.

pub(super) mod blocks;

use blocks::{Blocks, END, END_BITS};

use super::chunks::{Extent, Size};
use super::format::{ExtentFormat, Start, Unit};
use crate::codecs::{Streaming, bzip2_stream};
use crate::error::{Error, Result};
use crate::formats::bytes::index;
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
        if rest.starts_with(&blocks::BLOCK) || rest.starts_with(&END))
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
    let end = u128::from(blocks::number(END)).wrapping_shl(32) | u128::from(extent.detail);
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
