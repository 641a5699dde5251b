//! lz4 files, of current and of legacy frames: runs of blocks.
//!
//! Invariant: an extent never extends past its frame, and a block never copies from the frame
//! before its own. If the blocks of a frame are linked, the whole frame is one extent.

mod frame;

use frame::{Event, Frame, Frames, WINDOW, check_block, decode_block};
use xxhash_rust::xxh32::Xxh32;

use super::chunks::{Extent, Size};
use super::format::{
    ExtentFormat, FrameEnd, Next, Note, Output, Pass, Start, Task, Unit, Verdict, Walk,
    buffer_memory, decode_whole,
};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::formats::limits::CHUNK_TARGET;
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::SharedBytes;

pub(super) const NAME: &str = "lz4";

pub(super) const RUNS: &ExtentFormat = &ExtentFormat {
    name: NAME,
    unit: Unit::Bytes,
    walk: |name, storage| Ok(Start::Walk(Box::new(Runs::new(name, Arc::clone(storage))))),
    memory_needed: buffer_memory,
    decode_at_most: |storage, extent, max_len, buffers| {
        decode_whole(storage, extent, max_len, buffers, |run, target| {
            frame::decode_run(run, extent.detail, target)
        })
    },
};

pub(super) fn recognizes(head: &[u8]) -> bool {
    frame::MAGICS.iter().any(|magic| head.starts_with(&magic.to_le_bytes()))
}

/// Starts to decode block after block, for frames of linked blocks that are too large for a chunk.
pub(super) fn open(name: &str, storage: Arc<dyn Storage>) -> Result<Box<dyn Pass>> {
    Ok(Box::new(Blocks::new(name, storage)))
}

/// Finds runs of blocks.
struct Runs {
    frames: Frames,
    /// Whether the next run is the first of its frame.
    starts: bool,
    /// The result that follows the last run.
    found: Option<Result<Next>>,
    content: Content,
}

impl Runs {
    fn new(name: &str, storage: Arc<dyn Storage>) -> Self {
        let frames = Frames::new(name, storage);
        Self { frames, starts: true, found: None, content: Content::new() }
    }

    fn task(&mut self, extent: Extent, decoded_max: u64, ends: Option<FrameEnd>) -> Task {
        let note = Note::Frame { starts: self.starts, ends };
        self.starts = false;
        Task { extent, size: Size::AtMost(decoded_max), note }
    }
}

impl Walk for Runs {
    fn trailing_garbage_at(&self) -> Option<u64> {
        self.frames.trailing_garbage_at()
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
                    if extent.is_giant(Size::AtMost(decoded_max)) {
                        return Ok(Next::ChunkTooLarge);
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

/// A decoder of one block after the other.
struct Blocks {
    frames: Frames,
    storage: Arc<dyn Storage>,
    /// The window, up to 64 KiB decoded before, and room for a block.
    buffer: Vec<u8>,
    window: usize,
    content: Content,
    decoded: u64,
    /// Decoded bytes covered by a checksum that was correct.
    checked: u64,
}

impl Blocks {
    fn new(name: &str, storage: Arc<dyn Storage>) -> Self {
        let frames = Frames::new(name, Arc::clone(&storage));
        let content = Content::new();
        Self { frames, storage, buffer: Vec::new(), window: 0, content, decoded: 0, checked: 0 }
    }
}

impl Pass for Blocks {
    fn next(&mut self) -> Result<Output> {
        loop {
            match self.frames.next()? {
                Event::Start => (self.window, self.content) = (0, Content::new()),
                Event::FrameEnd(at, ends) => {
                    self.content.check(&ends, at)?;
                    self.checked = self.decoded;
                }
                Event::FileEnd => return Ok(Output::End),
                Event::Block(frame, block) => {
                    let mut source = vec![0; index(block.encoded)];
                    self.storage.read_exact_at(&mut source, block.start.saturating_add(4))?;
                    let locate = |error: Error| {
                        let detail = format_args!("lz4 block at {:#x}", block.start);
                        error.within("lz4 block").with_detail(detail)
                    };
                    if frame.block_checksums {
                        let mut sum = [0; 4];
                        self.storage.read_exact_at(&mut sum, block.end.saturating_sub(4))?;
                        check_block(&source, u32::from_le_bytes(sum)).map_err(locate)?;
                    }
                    self.buffer.resize(self.window.saturating_add(index(frame.block_max)), 0);
                    let (target, window) = (&mut self.buffer, self.window);
                    let len = decode_block(&frame, &block, &source, target, window);
                    let end = window.saturating_add(len.map_err(locate)?);
                    let piece: SharedBytes = target.get(window..end).unwrap_or_default().into();
                    self.content.update(&piece);
                    self.decoded = self.decoded.saturating_add(length(piece.len()));
                    if frame.block_checksums {
                        self.checked = self.decoded;
                    }
                    let window_start = end.saturating_sub(WINDOW);
                    target.copy_within(window_start..end, 0);
                    self.window = end.saturating_sub(window_start);
                    return Ok(Output::Piece(piece));
                }
            }
        }
    }

    fn position(&self) -> u64 {
        self.frames.position()
    }

    fn trailing_garbage_at(&self) -> Option<u64> {
        self.frames.trailing_garbage_at()
    }

    fn usable_len(&self, damage: Kind) -> u64 {
        if damage == Kind::Truncated { self.decoded } else { self.checked }
    }
}

/// Checksum and length of the contents of a frame so far.
struct Content {
    sum: Xxh32,
    len: u64,
}

impl Content {
    fn new() -> Self {
        Self { sum: Xxh32::new(0), len: 0 }
    }

    fn update(&mut self, bytes: &[u8]) {
        self.sum.update(bytes);
        self.len = self.len.saturating_add(length(bytes.len()));
    }

    /// Checks the contents against the end of the frame, which is at `at`.
    fn check(&self, ends: &FrameEnd, at: u64) -> Result<()> {
        let end = format_args!("lz4 frame that ends at {at:#x}");
        if let Some(size) = ends.size.filter(|size| *size != self.len) {
            let context = format!("lz4 frame: {size} bytes announced, {} found", self.len);
            return Err(Error::corrupt(context).with_detail(end));
        }
        let sum = self.sum.digest();
        match ends.checksum.filter(|stored| *stored != sum) {
            Some(stored) => Err(Error::corrupt("lz4 frame: wrong checksum")
                .with_detail(format_args!("{stored:#010x}, but its bytes give {sum:#010x}"))
                .with_detail(end)),
            None => Ok(()),
        }
    }
}
