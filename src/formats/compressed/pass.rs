//! What a container does in the first pass over a file.

use super::seek_index::Chunks;
use crate::error::{Kind, Result};
use crate::vfs::SharedBytes;

/// One step of a pass.
pub(super) enum Output {
    Piece(SharedBytes),
    /// A chunk that is too large to be decoded at once.
    ChunkTooLarge,
    End,
}

/// Decodes a file from start to end and finds its chunks.
///
/// Invariant: `next` returns each decoded byte once and in order, and those before an error first.
pub(super) trait Pass {
    fn next(&mut self) -> Result<Output>;

    /// Compressed bytes consumed so far.
    fn position(&self) -> u64;

    /// Offset in the file of other data after the end of the container.
    fn trailing_garbage_at(&self) -> Option<u64>;

    /// Decoded bytes that readers may get after damage of the kind `damage`.
    fn usable_len(&self, damage: Kind) -> u64;

    /// The chunks of the first `len` decoded bytes.
    fn into_chunks(self: Box<Self>, len: u64) -> Chunks;
}

/// How a first pass starts.
pub(super) enum Start {
    Pass(Box<dyn Pass>),
    /// The file must be decoded into a temporary file; `why` completes "it has ...".
    Spool {
        why: String,
    },
}
