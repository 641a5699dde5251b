//! Frames of an lz4 file and their blocks (lz4_Frame_format.md, 1.6.3).
//!
//! Invariant: every block returned lies within the file, and its sizes are within the limit of its
//! frame.

use xxhash_rust::xxh32::xxh32;

use super::NAME;
use crate::codecs::{Codec, lz4_linked};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::Cursor;
use crate::formats::bytes::{Reader, index};
use crate::formats::compressed::format::FrameEnd;
use crate::formats::compressed::skippable::{end_of_frames, skip_to_frame};
use crate::formats::limits::LZ4_LEGACY_BLOCK;
use crate::storage::Storage;
use crate::sync::Arc;

const MAGIC: u32 = 0x184d_2204;
const LEGACY_MAGIC: u32 = 0x184c_2102;
pub(super) const MAGICS: [u32; 2] = [MAGIC, LEGACY_MAGIC];

/// How far back a block may copy from, bytes.
pub(super) const WINDOW: usize = 64 << 10;

/// The bit of a block's size that marks an uncompressed block.
const STORED: u32 = 1 << 31;

/// Bytes of the file that a `Cursor` reads at a time.
const READ_SIZE: usize = 64 << 10;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) linked: bool,
    pub(super) block_checksums: bool,
    pub(super) legacy: bool,
    /// Most decoded bytes of a block.
    pub(super) block_max: u64,
    /// Decoded bytes of the whole frame, if declared.
    pub(super) size: Option<u64>,
    content_checksum: bool,
}

/// A block of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Offset of its header in the file.
    pub(super) start: u64,
    /// Offset of its end, including the checksum.
    pub(super) end: u64,
    pub(super) encoded: u64,
    pub(super) stored: bool,
}

/// The next part of a file.
pub(super) enum Event {
    Start,
    Block(Frame, Block),
    FrameEnd(u64, FrameEnd),
    FileEnd,
}

/// Walks over the frames of a file.
pub(super) struct Frames {
    name: String,
    cursor: Cursor,
    frame: Option<Frame>,
    /// Offset of other data after the last frame.
    trailing_garbage_at: Option<u64>,
}

impl Frame {
    /// The fields that decoding a block needs, packed for the seek index.
    pub(super) fn detail(&self) -> u32 {
        let code = self.block_max.trailing_zeros() & 31;
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        code | flag(self.block_checksums, 32) | flag(self.linked, 64) | flag(self.legacy, 128)
    }

    pub(super) fn from_detail(detail: u32) -> Self {
        Self {
            linked: detail & 64 != 0,
            block_checksums: detail & 32 != 0,
            legacy: detail & 128 != 0,
            // Saved seek points may hold any bits. No block is larger than 8 MiB.
            block_max: 1_u64.wrapping_shl((detail & 31).min(23)),
            size: None,
            content_checksum: false,
        }
    }

    fn parse(cursor: &mut Cursor) -> Result<Self> {
        let [flags, sizes] = *cursor.peek(2)? else {
            return Err(cursor.ends_early());
        };
        if flags & 0xc2 != 0x40 || sizes & 0x8f != 0 {
            return Err(Error::corrupt("unknown flags")
                .with_detail(format_args!("{flags:#04x} {sizes:#04x}")));
        }
        let has = |bit: u8| flags & bit != 0;
        let optional = (if has(8) { 8_usize } else { 0 }, if has(1) { 4_usize } else { 0 });
        let len = optional.0.saturating_add(optional.1).saturating_add(2);
        let descriptor = cursor.peek(len)?.to_vec();
        let [_, sum, ..] = xxh32(&descriptor, 0).to_le_bytes();
        cursor.skip(2)?;
        let size = match has(8) {
            true => Some(cursor.array().map(u64::from_le_bytes)?),
            false => None,
        };
        let dictionary = if has(1) { Some(cursor.u32()?) } else { None };
        if cursor.array()? != [sum] {
            return Err(Error::corrupt("wrong checksum of its header"));
        }
        if let Some(dictionary) = dictionary {
            let error = format!("it needs the dictionary {dictionary}, which archfs does not have");
            return Err(Error::new(Kind::Unsupported, error));
        }
        let block_max = match sizes >> 4 {
            4 => 64 << 10,
            5 => 256 << 10,
            6 => 1 << 20,
            7 => 4 << 20,
            other => return Err(Error::corrupt(format!("unknown block size {other}"))),
        };
        Ok(Self {
            linked: !has(32),
            block_checksums: has(16),
            legacy: false,
            block_max,
            size,
            content_checksum: has(4),
        })
    }

    fn legacy() -> Self {
        Self { legacy: true, ..Self::from_detail(LZ4_LEGACY_BLOCK.trailing_zeros()) }
    }

    /// Most bytes of a block in the file: lz4's bound for incompressible data.
    fn encoded_max(&self) -> u64 {
        match self.legacy {
            true => self.block_max.saturating_add(self.block_max / 255).saturating_add(16),
            false => self.block_max,
        }
    }
}

impl Block {
    /// Parses the header `header` of a block at offset `start`.
    pub(super) fn parse(header: u32, start: u64, frame: &Frame) -> Result<Self> {
        let stored = !frame.legacy && header & STORED != 0;
        let encoded = u64::from(if stored { header & !STORED } else { header });
        if encoded > frame.encoded_max() {
            let most = frame.encoded_max();
            return Err(Error::corrupt(format!("a block of {encoded} bytes, limit {most}")));
        }
        let checksum = if frame.block_checksums { 4 } else { 0 };
        let end = start.saturating_add(4).saturating_add(encoded).saturating_add(checksum);
        Ok(Self { start, end, encoded, stored })
    }

    /// Most decoded bytes of this block.
    pub(super) fn decoded_max(&self, frame: &Frame) -> u64 {
        if self.stored { self.encoded } else { frame.block_max }
    }
}

impl Frames {
    pub(super) fn new(name: &str, storage: Arc<dyn Storage>) -> Self {
        let cursor = Cursor::new(storage, 0, READ_SIZE);
        Self { name: name.to_owned(), cursor, frame: None, trailing_garbage_at: None }
    }

    /// Offset of other data after the last frame.
    pub(super) fn trailing_garbage_at(&self) -> Option<u64> {
        self.trailing_garbage_at
    }

    pub(super) fn position(&self) -> u64 {
        self.cursor.position()
    }

    pub(super) fn next(&mut self) -> Result<Event> {
        let at = self.cursor.position();
        let event = match self.frame {
            None => self.start(),
            Some(frame) => self.block(frame),
        };
        event.map_err(|error| {
            error.within("lz4 data").with_detail(format_args!("lz4 data at {at:#x}"))
        })
    }

    fn start(&mut self) -> Result<Event> {
        let Some(magic) = skip_to_frame(&mut self.cursor, &MAGICS)? else {
            self.trailing_garbage_at = end_of_frames(&mut self.cursor, &self.name, NAME)?;
            return Ok(Event::FileEnd);
        };
        self.cursor.skip(4)?;
        self.frame = Some(match magic {
            MAGIC => Frame::parse(&mut self.cursor)?,
            _ => Frame::legacy(),
        });
        Ok(Event::Start)
    }

    fn block(&mut self, frame: Frame) -> Result<Event> {
        let start = self.cursor.position();
        // A legacy frame ends at the end of the file, or where no block header follows.
        if frame.legacy {
            let is_block_len = |size: u32| size > 0 && u64::from(size) <= frame.encoded_max();
            if self.cursor.remaining() == 0
                || self.cursor.magic()?.is_some_and(|size| !is_block_len(size))
            {
                self.frame = None;
                return Ok(Event::FrameEnd(start, FrameEnd { checksum: None, size: None }));
            }
        }
        let header = self.cursor.u32()?;
        if header == 0 {
            let checksum = match frame.content_checksum {
                true => Some(self.cursor.u32()?),
                false => None,
            };
            self.frame = None;
            return Ok(Event::FrameEnd(start, FrameEnd { checksum, size: frame.size }));
        }
        let block = Block::parse(header, start, &frame)?;
        self.cursor.skip(block.end.saturating_sub(start).saturating_sub(4))?;
        Ok(Event::Block(frame, block))
    }
}

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
