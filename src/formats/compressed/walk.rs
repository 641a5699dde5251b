//! What a container does to find its extents, and to check what spans several of them.

use super::extent::{Extent, Size};
use crate::error::Result;

/// An extent that was found, and what is known of its size before decoding.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) extent: Extent,
    pub(super) size: Size,
    pub(super) note: Note,
}

/// What a walk needs to remember about an extent until it is decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Note {
    None,
    /// bzip2: the end of a stream, without data.
    StreamEnd,
    /// lz4: a part of a frame.
    Frame {
        starts: bool,
        ends: Option<FrameEnd>,
    },
}

/// What the end of an lz4 frame declares about its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FrameEnd {
    pub(super) checksum: Option<u32>,
    pub(super) size: Option<u64>,
}

/// One step of a walk.
pub(super) enum Next {
    Task(Task),
    /// An extent too large to be decoded at once.
    ChunkTooLarge,
    End,
}

/// What is known about the bytes up to the end of a decoded extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// They are correct, as far as the file has checksums.
    Checked,
    /// A later checksum covers them.
    Unchecked,
    /// They are correct, and the file ends here.
    End,
}

/// Finds the extents of a file.
pub(super) trait Walk {
    fn next(&mut self) -> Result<Next>;

    /// Checks the decoded bytes of `task`. Called in order.
    fn on_decoded(&mut self, _task: &Task, _bytes: &[u8]) -> Result<Verdict> {
        Ok(Verdict::Checked)
    }

    /// Offset in the file of other data after the end of the container.
    fn trailing_garbage_at(&self) -> Option<u64> {
        None
    }

    /// Joins `failed` and the task after it, if the boundary between them may be a false match.
    fn join(&self, _failed: &Task, _next: &Task) -> Option<Task> {
        None
    }

    /// The detail of two adjacent extents merged into one. None if they cannot be merged.
    fn merge(&self, _before: u32, _after: u32) -> Option<u32> {
        None
    }
}
