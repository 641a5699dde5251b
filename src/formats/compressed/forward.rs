//! Decoding a file from start to end, for files whose chunks are too large for memory.

use crate::error::{Kind, Result};
use crate::vfs::SharedBytes;

/// A decoder of a whole file.
///
/// Invariant: everything decoded before damage is delivered before the error.
pub(super) trait Forward: Send {
    /// The next decoded bytes, which may be empty; `None` at the end.
    fn next(&mut self) -> Result<Option<SharedBytes>>;

    /// Compressed bytes read so far.
    fn position(&self) -> u64;

    /// Offset in the file of other data after the end of the container.
    fn trailing_garbage_at(&self) -> Option<u64>;

    /// Decoded bytes that readers may get after damage of the kind `damage`.
    fn usable_len(&self, damage: Kind) -> u64;
}
