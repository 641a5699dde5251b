//! Goes through the entries of a central directory, in their order.

use super::end::CentralDirectory;
use super::entry::{Entry, FIXED, Lengths};
use crate::error::{Error, Result};
use crate::formats::bytes::length;
use crate::formats::cursor::Cursor;
use crate::storage::Storage;
use crate::sync::Arc;

/// Bytes of the directory to read at a time.
const READ_SIZE: usize = 1 << 20;

/// The entries of a central directory.
pub(super) struct EntryWalk {
    cursor: Cursor,
    directory: CentralDirectory,
    /// Length of the entry that was returned last, bytes.
    len: usize,
}

impl EntryWalk {
    pub(super) fn new(storage: &Arc<dyn Storage>, directory: &CentralDirectory) -> Self {
        let cursor = Cursor::new(Arc::clone(storage), directory.start, READ_SIZE);
        Self { cursor, directory: directory.clone(), len: 0 }
    }

    /// The next entry and its offset. `None` at the end of the directory.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Entry<'_>)>> {
        self.cursor.skip(length(std::mem::take(&mut self.len)))?;
        let at = self.cursor.position();
        if at >= self.directory.end {
            return Ok(None);
        }
        let damaged = |error: Error| error.with_detail(format_args!("at {at:#x}"));
        let fixed = self.cursor.peek(FIXED)?.first_chunk::<FIXED>();
        let lengths = fixed.map(Lengths::read).transpose().map_err(damaged)?;
        let len = lengths.map_or(usize::MAX, Lengths::whole);
        let left = self.directory.end.saturating_sub(at);
        if length(len) > left {
            return Err(damaged(Error::corrupt(
                "the last entry of the central directory is cut off",
            )));
        }
        self.len = len;
        let mut entry = Entry::parse(self.cursor.peek(len)?).map_err(damaged)?;
        entry.resolve(at, &self.directory.wraps);
        Ok(Some((at, entry)))
    }
}
