//! A buffered, forward-only reader of a compressed file, for headers and decoder input.
//!
//! It never reads past the end of the file; data that ends early is a `Truncated` error.

use crate::error::{Error, Result};
use crate::formats::bytes::{index, length};
use crate::storage::Storage;
use crate::sync::Arc;

pub(crate) struct Cursor {
    storage: Arc<dyn Storage>,
    position: u64,
    /// Bytes of the file from offset `start`.
    buffer: Vec<u8>,
    start: u64,
    /// Bytes of the file to read at a time.
    read_size: usize,
}

impl Cursor {
    pub(crate) fn new(storage: Arc<dyn Storage>, position: u64, read_size: usize) -> Self {
        Self { storage, position, buffer: Vec::new(), start: 0, read_size }
    }

    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Bytes from here to the end of the file.
    pub(crate) fn remaining(&self) -> u64 {
        self.storage.len().saturating_sub(self.position)
    }

    /// The next `len` bytes, without advancing; fewer only at the end of the file.
    pub(crate) fn peek(&mut self, len: usize) -> Result<&[u8]> {
        let len = index(self.remaining()).min(len);
        if self.buffered().len() < len {
            let wanted = index(self.remaining()).min(self.read_size.max(len));
            self.buffer.resize(wanted, 0);
            self.start = self.position;
            if let Err(error) = self.storage.read_exact_at(&mut self.buffer, self.start) {
                self.buffer.clear();
                return Err(error);
            }
        }
        Ok(self.buffered().get(..len).unwrap_or_default())
    }

    /// All buffered bytes, at least `min_len` unless the file ends before.
    pub(crate) fn fill_buf(&mut self, min_len: usize) -> Result<&[u8]> {
        self.peek(min_len)?;
        Ok(self.buffered())
    }

    /// Advances by `count` bytes.
    pub(crate) fn skip(&mut self, count: u64) -> Result<()> {
        if count > self.remaining() {
            return Err(self.ends_early());
        }
        self.position = self.position.saturating_add(count);
        Ok(())
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some(array) = self.peek(N)?.first_chunk::<N>().copied() else {
            return Err(self.ends_early());
        };
        self.skip(length(N))?;
        Ok(array)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next four bytes as a magic number, without advancing; `None` at the end of the file.
    pub(crate) fn magic(&mut self) -> Result<Option<u32>> {
        Ok(self.peek(4)?.first_chunk().copied().map(u32::from_le_bytes))
    }

    /// Whether a byte other than zero follows within one read.
    pub(crate) fn has_garbage(&mut self) -> Result<bool> {
        let read_size = self.read_size;
        Ok(self.peek(read_size)?.iter().any(|byte| *byte != 0))
    }

    pub(crate) fn ends_early(&self) -> Error {
        Error::truncated("the file ends early")
            .with_detail(format_args!("file ends at {:#x}", self.storage.len()))
    }

    fn buffered(&self) -> &[u8] {
        let consumed = self.position.checked_sub(self.start).map_or(usize::MAX, index);
        self.buffer.get(consumed..).unwrap_or_default()
    }
}
