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
    fn garbage(&self) -> Option<u64>;

    /// Decoded bytes that count as correct after damage of the kind `damage`.
    fn verified_len(&self, damage: Kind) -> u64;
}
