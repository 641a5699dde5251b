//! Decodes lz4 files from start to end, for frames of linked blocks that are too large for a chunk.
//!
//! Invariant: a block never copies from the frame before its own.

use super::super::forward::Forward;
use super::block::{WINDOW, check_block, decode_block};
use super::content::Content;
use super::frame::{Event, Frames};
use crate::error::{Kind, Result};
use crate::formats::bytes::{index, length};
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::SharedBytes;

/// A decoder of one block after the other.
pub(super) struct Blocks {
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
    pub(super) fn new(name: &str, storage: Arc<dyn Storage>) -> Self {
        let frames = Frames::new(name, Arc::clone(&storage));
        let content = Content::new();
        Self { frames, storage, buffer: Vec::new(), window: 0, content, decoded: 0, checked: 0 }
    }
}

impl Forward for Blocks {
    fn next(&mut self) -> Result<Option<SharedBytes>> {
        loop {
            match self.frames.next()? {
                Event::Start => (self.window, self.content) = (0, Content::new()),
                Event::FrameEnd(at, ends) => {
                    self.content.check(&ends, at)?;
                    self.checked = self.decoded;
                }
                Event::FileEnd => return Ok(None),
                Event::Block(frame, block) => {
                    let mut source = vec![0; index(block.encoded)];
                    self.storage.read_exact_at(&mut source, block.start.saturating_add(4))?;
                    let locate = |error: crate::error::Error| {
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
                    return Ok(Some(piece));
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
