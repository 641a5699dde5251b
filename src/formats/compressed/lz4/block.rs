//! Decodes blocks and runs of blocks.

use xxhash_rust::xxh32::xxh32;

use super::frame::{Block, Frame};
use crate::codecs::{Codec, lz4_linked};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index};

/// How far back a block may copy from, bytes.
pub(super) const WINDOW: usize = 64 << 10;

/// Decodes a run of blocks into `target`. `detail` describes their frame. Returns how many bytes of
/// `target` are filled.
pub(super) fn decode_run(run: &[u8], detail: u32, target: &mut [u8]) -> Result<usize> {
    let frame = Frame::from_detail(detail);
    let mut reader = Reader::new("run of lz4 blocks", run);
    let mut filled = 0_usize;
    while reader.remaining() > 0 {
        let header = reader.u32()?;
        let block = Block::parse(header, 0, &frame)?;
        let source = reader.bytes(index(block.encoded))?;
        if frame.block_checksums {
            check_block(source, reader.u32()?)?;
        }
        filled = filled.saturating_add(decode_block(&frame, &block, source, target, filled)?);
    }
    Ok(filled)
}

/// Decodes one block into `target` at `filled`. Returns its length.
pub(super) fn decode_block(
    frame: &Frame,
    block: &Block,
    source: &[u8],
    target: &mut [u8],
    filled: usize,
) -> Result<usize> {
    let (before, rest) = target.split_at_mut_checked(filled).unwrap_or_default();
    let capacity = rest.len().min(index(block.decoded_max(frame)));
    let rest = rest.get_mut(..capacity).unwrap_or_default();
    if block.stored {
        let Some(destination) = rest.get_mut(..source.len()) else {
            return Err(Error::corrupt("more bytes than announced"));
        };
        destination.copy_from_slice(source);
        return Ok(source.len());
    }
    match frame.linked {
        true => {
            let window = before.len().saturating_sub(WINDOW);
            lz4_linked(source, rest, before.get(window..).unwrap_or_default())
        }
        false => Codec::Lz4.decode(source, rest),
    }
}

/// Checks the checksum of a block, which covers its bytes in the file.
pub(super) fn check_block(source: &[u8], stored: u32) -> Result<()> {
    let sum = xxh32(source, 0);
    match sum == stored {
        true => Ok(()),
        false => {
            let detail = format_args!("{stored:#010x}, but its bytes give {sum:#010x}");
            Err(Error::corrupt("wrong block checksum").with_detail(detail))
        }
    }
}
