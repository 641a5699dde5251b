//! Blocks of lz4 files: frames, and the legacy frames that came before them.
//!
//! Owns joining blocks into chunks, decoding those, and the checksum of a frame's contents; leaves
//! headers to `frame` and the blocks themselves to `codecs`.
//! Invariant: a chunk never reaches past its frame, and holds the whole frame where its blocks
//! refer back to each other.

mod forward;
mod frame;

use xxhash_rust::xxh32::{Xxh32, xxh32};

pub(super) use forward::Forward;
use frame::{Block, Event, Frame, Frames};

use super::extent::{Size, is_giant};
use super::pipeline::{Arrival, FrameEnd, Next, Note, Task, Walk};
use super::seek_index::Extent;
use crate::codecs::{Codec, lz4_linked};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::CHUNK_TARGET;
use crate::storage::Storage;
use crate::sync::Arc;

/// How far back a block may refer, bytes.
const WINDOW: usize = 64 << 10;

/// Finds runs of blocks.
pub(super) struct Blocks {
    frames: Frames,
    /// Whether the next run is the first of its frame.
    starts: bool,
    /// What came after the run that was told last.
    found: Option<Result<Next>>,
    content: Content,
}

/// What was seen of a frame's contents.
struct Content {
    sum: Xxh32,
    len: u64,
}

impl Blocks {
    pub(super) fn new(name: &str, storage: Arc<dyn Storage>) -> Self {
        let frames = Frames::new(name, storage);
        Self { frames, starts: true, found: None, content: Content::new() }
    }

    fn task(&mut self, extent: Extent, most: u64, ends: Option<FrameEnd>) -> Task {
        let note = Note::Frame { starts: self.starts, ends };
        self.starts = false;
        Task { extent, size: Size::AtMost(most), note }
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
                // What is whole comes first.
                Err(error) => {
                    let Some((extent, most)) = run else {
                        return Err(error);
                    };
                    self.found = Some(Err(error));
                    return Ok(Next::Task(self.task(extent, most, None)));
                }
            };
            match event {
                Event::Start => self.starts = true,
                Event::Block(frame, block) => {
                    let (extent, most) = run.get_or_insert_with(|| {
                        let (start, end) = (block.start, block.end);
                        (Extent { decoded: 0, start, end, detail: frame.detail() }, 0)
                    });
                    extent.end = block.end;
                    *most = most.saturating_add(block.most(&frame));
                    if frame.linked {
                        *most = frame.size.map_or(*most, |size| size.max(1));
                    }
                    let (extent, most) = (*extent, *most);
                    if is_giant(extent.end.saturating_sub(extent.start), Size::AtMost(most)) {
                        return Ok(Next::Giant);
                    }
                    let next = most.saturating_add(frame.block_max);
                    if !frame.linked && next > CHUNK_TARGET {
                        return Ok(Next::Task(self.task(extent, most, None)));
                    }
                }
                Event::FrameEnd(at, ends) => {
                    let empty = Extent { decoded: 0, start: at, end: at, detail: 0 };
                    let (extent, most) = run.unwrap_or((empty, 0));
                    return Ok(Next::Task(self.task(extent, most, Some(ends))));
                }
                Event::FileEnd => return Ok(Next::End),
            }
        }
    }

    fn arrived(&mut self, task: &Task, bytes: &[u8]) -> Result<Arrival> {
        if let Note::Frame { starts, ends } = &task.note {
            if *starts {
                self.content = Content::new();
            }
            self.content.update(bytes);
            if let Some(ends) = ends {
                self.content.check(ends, task.extent.end)?;
                return Ok(Arrival::Checked);
            }
        }
        // Blocks may have checksums of their own, and else the whole frame may have one.
        Ok(match Frame::of_detail(task.extent.detail).block_checksums {
            true => Arrival::Checked,
            false => Arrival::Unchecked,
        })
    }

    fn merge(&self, before: u32, after: u32) -> Option<u32> {
        // Blocks that refer back can not: then the frame is one chunk.
        (before == after && !Frame::of_detail(before).linked).then_some(before)
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

    /// Checks it against what the end of its frame, at `at`, says.
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

/// Decodes a run of blocks, of whose frame `detail` tells what matters, into `target`; returns how
/// many bytes of it are filled.
pub(super) fn decode(run: &[u8], detail: u32, target: &mut [u8]) -> Result<usize> {
    let frame = Frame::of_detail(detail);
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

/// Decodes one block to `filled` in `target`; tells its length.
fn decode_block(
    frame: &Frame,
    block: &Block,
    source: &[u8],
    target: &mut [u8],
    filled: usize,
) -> Result<usize> {
    let (before, rest) = target.split_at_mut_checked(filled).unwrap_or_default();
    let room = rest.len().min(index(block.most(frame)));
    let rest = rest.get_mut(..room).unwrap_or_default();
    if block.stored {
        let Some(room) = rest.get_mut(..source.len()) else {
            return Err(Error::corrupt("more bytes than announced"));
        };
        room.copy_from_slice(source);
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

/// Checks the checksum of a block, which is over its bytes as they lie in the file.
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
