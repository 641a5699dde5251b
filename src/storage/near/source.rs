//! The original of a part of a near copy.

use crate::error::Result;

/// Bytes that are far away. Reads may run from any number of threads at once.
pub(in crate::storage) trait Source: Send + Sync {
    /// Fills `buffer` with the bytes at `offset`, all of the version that was opened.
    ///
    /// # Errors
    /// `Changed` if there is another version; `Corrupt` if the source ends before the buffer is
    /// full; `Io` if it cannot be read.
    fn fetch(&self, buffer: &mut [u8], offset: u64) -> Result<()>;

    /// Fails if some of what was fetched may be of another version than the one that was opened.
    ///
    /// # Errors
    /// `Changed`; `Io` if the source cannot tell.
    fn check_version(&self) -> Result<()>;
}
