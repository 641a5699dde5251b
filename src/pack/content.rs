//! Where the bytes of files come from: a folder, or a tree that an archive is read as.
//!
//! Owns what a writer may ask of them; the sources answer.
//! Invariant: what is read is as long as the catalog says, or an error tells that it changed.

use std::ops::Range;

use crate::error::Result;

/// The bytes of one file: which source, and the source's own number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ContentId {
    pub(crate) source: u32,
    pub(crate) key: u64,
}

/// A source of bytes. All methods may be called from any number of threads at once.
pub(crate) trait Content: Send + Sync {
    /// Fills `buffer` with the bytes of the file from `offset`.
    ///
    /// # Errors
    /// `Io` and what the source meets; `Changed` where the file is not what it was when it was
    /// listed: it has another size or time, or it is gone.
    fn read(&self, key: u64, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// The next range of bytes that are stored, at or after `offset`; `None` where the rest up to
    /// the end is a hole. Asked only of files that are `sparse`.
    ///
    /// # Errors
    /// As `read`.
    fn next_data(&self, key: u64, offset: u64) -> Result<Option<Range<u64>>>;

    /// Where the bytes lie in the source. Only the order of such places means something; 0 for all
    /// where there is no order better than that of names.
    fn data_offset(&self, key: u64) -> u64 {
        let _ = key;
        0
    }

    /// What the file is called there, for messages.
    fn origin(&self, key: u64) -> String;
}
