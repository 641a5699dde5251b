//! Finds extents of lz4 files: runs of blocks.
//!
//! Invariant: an extent never extends past its frame. If the blocks of a frame are linked, the
//! whole frame is one extent.

use super::super::extent::{Extent, Size, is_giant};
use super::super::walk::{FrameEnd, Next, Note, Task, Verdict, Walk};
use super::content::Content;
use super::frame::{Event, Frame, Frames};
use crate::error::Result;
use crate::formats::limits::CHUNK_TARGET;
use crate::storage::Storage;
use crate::sync::Arc;

/// Finds runs of blocks.
pub(super) struct Runs {
    frames: Frames,
    /// Whether the next run is the first of its frame.
    starts: bool,
    /// The result that follows the last run.
    found: Option<Result<Next>>,
    content: Content,
}

impl Runs {
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
                    if is_giant(extent.end.saturating_sub(extent.start), Size::AtMost(decoded_max))
                    {
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
