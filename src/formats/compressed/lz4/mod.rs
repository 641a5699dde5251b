//! Extents of lz4 files: runs of blocks, from current and legacy frames.
//!
//! Invariant: an extent never extends past its frame. If the blocks of a frame are linked, the
//! whole frame is one extent.

mod forward;
mod frame;

use xxhash_rust::xxh32::{Xxh32, xxh32};

pub(super) use forward::Forward;
use frame::{Block, Event, Frame, Frames};

use super::extent::{Size, is_giant};
use super::pipeline::{FrameEnd, Next, Note, Task, Verdict, Walk};
use super::seek_index::Extent;
use crate::codecs::{Codec, lz4_linked};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::CHUNK_TARGET;
use crate::storage::Storage;
use crate::sync::Arc;

/// How far back a block may copy from, bytes.
const WINDOW: usize = 64 << 10;

/// Finds runs of blocks.
pub(super) struct Blocks {
    frames: Frames,
    /// Whether the next run is the first of its frame.
    starts: bool,
    /// The result that follows the last run.
    found: Option<Result<Next>>,
    content: Content,
}

/// Checksum and length of the contents of a frame so far.
struct Content {
    sum: Xxh32,
    len: u64,
}

impl Blocks {
    pub(super) fn new(name: &str, storage: Arc<dyn Storage>) -> Self {
        let frames = Frames::new(name, storage);
        Self { frames, starts: true, found: None, content: Content::new() }
    }

    fn task(&mut self, extent: Extent, decoded_max: u64, ends: Option<FrameEnd>) -> Task {
        let note = Note::Frame { starts: self.starts, ends };
        self.starts = false;
        Task { extent, size: Size::AtMost(decoded_max), note }
    }
}

impl Walk for Blocks {
    fn garbage(&self) -> Option<u64> {
        self.frames.garbage()
    }

    fn next(&mut self) -> Result<Next> {
        if let Some(found) = self.found.take() {
            return found;
        }
        let mut run: Option<(Extent, u64)> = None;
        loop {
            let event = match self.frames.next() {
                Ok(event) => event,
                // Return the blocks before the error first.
                Err(error) => {
                    let Some((extent, decoded_max)) = run else {
                        return Err(error);
                    };
                    self.found = Some(Err(error));
                    return Ok(Next::Task(self.task(extent, decoded_max, None)));
                }
            };
            match event {
                Event::Start => self.starts = true,
                Event::Block(frame, block) => {
                    let (extent, decoded_max) = run.get_or_insert_with(|| {
                        let (start, end) = (block.start, block.end);
                        (Extent { decoded: 0, start, end, detail: frame.detail() }, 0)
                    });
                    extent.end = block.end;
                    *decoded_max = decoded_max.saturating_add(block.decoded_max(&frame));
                    if frame.linked {
                        *decoded_max = frame.size.map_or(*decoded_max, |size| size.max(1));
                    }
                    let (extent, decoded_max) = (*extent, *decoded_max);
                    if is_giant(extent.end.saturating_sub(extent.start), Size::AtMost(decoded_max))
                    {
                        return Ok(Next::Giant);
                    }
                    let next = decoded_max.saturating_add(frame.block_max);
                    if !frame.linked && next > CHUNK_TARGET {
                        return Ok(Next::Task(self.task(extent, decoded_max, None)));
                    }
                }
                Event::FrameEnd(at, ends) => {
                    let empty = Extent { decoded: 0, start: at, end: at, detail: 0 };
                    let (extent, decoded_max) = run.unwrap_or((empty, 0));
                    return Ok(Next::Task(self.task(extent, decoded_max, Some(ends))));
                }
                Event::FileEnd => return Ok(Next::End),
            }
        }
    }

    fn on_decoded(&mut self, task: &Task, bytes: &[u8]) -> Result<Verdict> {
        if let Note::Frame { starts, ends } = &task.note {
            if *starts {
                self.content = Content::new();
            }
            self.content.update(bytes);
            if let Some(ends) = ends {
                self.content.check(ends, task.extent.end)?;
                return Ok(Verdict::Checked);
            }
        }
        // If blocks have no checksums, the frame may have one.
        Ok(match Frame::from_detail(task.extent.detail).block_checksums {
            true => Verdict::Checked,
            false => Verdict::Unchecked,
        })
    }

    fn merge(&self, before: u32, after: u32) -> Option<u32> {
        // A frame of linked blocks is already one extent.
        (before == after && !Frame::from_detail(before).linked).then_some(before)
    }
}

impl Content {
    pub(super) fn new() -> Self {
        Self { sum: Xxh32::new(0), len: 0 }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.sum.update(bytes);
        self.len = self.len.saturating_add(length(bytes.len()));
    }

    /// Checks the contents against the end of the frame, which is at `at`.
    pub(super) fn check(&self, ends: &FrameEnd, at: u64) -> Result<()> {
        if let Some(size) = ends.size.filter(|size| *size != self.len) {
            return Err(Error::corrupt(format!(
                "lz4 frame that ends at {at:#x}: {size} bytes announced, {} are there",
                self.len
            )));
        }
        let sum = self.sum.digest();
        match ends.checksum.filter(|stored| *stored != sum) {
            Some(stored) => Err(Error::corrupt(format!(
                "lz4 frame that ends at {at:#x}: checksum {stored:#010x}, but its bytes give \
                 {sum:#010x}"
            ))),
            None => Ok(()),
        }
    }
}

/// Decodes a run of blocks into `target`. `detail` describes their frame. Returns how many bytes of
/// `target` are filled.
pub(super) fn decode(run: &[u8], detail: u32, target: &mut [u8]) -> Result<usize> {
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
fn decode_block(
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
fn check_block(source: &[u8], stored: u32) -> Result<()> {
    let sum = xxh32(source, 0);
    match sum == stored {
        true => Ok(()),
        false => {
            let error = format!("block checksum {stored:#010x}, but its bytes give {sum:#010x}");
            Err(Error::corrupt(error))
        }
    }
}
