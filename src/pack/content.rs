//! Where the bytes of files come from: a directory or an opened archive.
//!
//! Invariant: a read returns as many bytes as the catalog says, or an error because the file
//! changed.

use std::ops::Range;

use crate::error::Result;

/// The bytes of one file: the number of its source, and its key in that source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ContentId {
    pub(crate) source: u32,
    pub(crate) key: u64,
}

/// A source of bytes. All methods may be called from several threads at once.
pub(crate) trait Content: Send + Sync {
    /// Fills `buffer` with the bytes of the file from `offset`.
    ///
    /// Fails with `Changed` if the file was removed or has another size or time than when it was
    /// listed; `Io`, and the errors of the source.
    fn read(&self, key: u64, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// The next range of stored bytes at or after `offset`; `None` if the rest of the file is a
    /// hole. Called only for files that are `sparse`.
    fn next_data(&self, key: u64, offset: u64) -> Result<Option<Range<u64>>>;

    /// Offset of the bytes in the source. Only the order of these offsets matters. A source returns
    /// 0 for every file if no order is better than that of names.
    fn data_offset(&self, key: u64) -> u64 {
        let _ = key;
        0
    }

    /// The CRC-32 of the file, if its source records one that `read` does not check.
    fn stored_crc32(&self, key: u64) -> Result<Option<u32>> {
        let _ = key;
        Ok(None)
    }

    /// The path of the file in its source, for messages.
    fn origin(&self, key: u64) -> String;
}
