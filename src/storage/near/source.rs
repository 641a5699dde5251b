//! The original of a part of a near copy.

use crate::error::Result;
use crate::remote::Requester;

/// Bytes that are far away. Reads may run from any number of threads at once.
pub(in crate::storage) trait Source: Send + Sync {
    /// Fills `buffer` with the bytes at `offset`, all of the version that was opened. If an error
    /// may pass, a reader waits longer for that than the fill, which tries again later.
    ///
    /// Fails with `Changed` if there is another version; `Corrupt` if the source ends before the
    /// buffer is full; `Io` if it cannot be read.
    fn fetch(&self, buffer: &mut [u8], offset: u64, requester: Requester) -> Result<()>;

    /// Fails if some of what was fetched may be of another version than the one that was opened.
    fn check_version(&self) -> Result<()>;

    /// Notes that the archive was opened, or that all of it is being read for that. Reads then wait
    /// longer for errors to pass.
    fn note_opened(&self) {}

    /// Bytes of tables that are fetched with one read, because those after the wanted ones will be
    /// read soon. 0 if a read costs little.
    fn tables_at_once(&self) -> u64 {
        0
    }
}
