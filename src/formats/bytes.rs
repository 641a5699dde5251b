//! Checked readers of bytes: `Reader` of a structure in memory, `Cursor` of a file from start to
//! end. Also checked conversions between integer types.
//!
//! Invariant: a read past the end is an error that names the structure, or `Truncated`.

use crate::error::{Error, Result};
use crate::storage::Storage;
use crate::sync::Arc;

/// A cursor over the bytes of one structure.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    structure: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes`. `structure` is their name in errors.
    pub(crate) fn new(structure: &'static str, bytes: &'a [u8]) -> Self {
        Self { structure, rest: bytes }
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((array, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.short(N));
        };
        self.rest = rest;
        Ok(*array)
    }

    /// The next `len` bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let Some((bytes, rest)) = self.rest.split_at_checked(len) else {
            return Err(self.short(len));
        };
        self.rest = rest;
        Ok(bytes)
    }

    /// Number of bytes not read yet.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn i16(&mut self) -> Result<i16> {
        self.array().map(i16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn short(&self, wanted: usize) -> Error {
        let has = self.rest.len();
        Error::corrupt(format!("{} ends early: {wanted} bytes wanted, {has} left", self.structure))
    }
}

/// Converts `number` to an index. If it does not fit, the result is larger than any slice.
pub(crate) fn index(number: impl TryInto<usize>) -> usize {
    number.try_into().unwrap_or(usize::MAX)
}

/// Converts a length in memory to the 64 bits that the formats use.
pub(crate) fn length(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// A buffered, forward-only reader of a file, for headers and decoder input. Data that ends early
/// is a `Truncated` error.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_little_endian_numbers_in_turn() {
        let bytes = [1, 2, 0xff, 0xff, 4, 3, 2, 1, 8, 7, 6, 5, 4, 3, 2, 1];
        let mut reader = Reader::new("thing", &bytes);
        assert_eq!(reader.u16().unwrap(), 0x0201);
        assert_eq!(reader.i16().unwrap(), -1);
        assert_eq!(reader.u32().unwrap(), 0x0102_0304);
        assert_eq!(reader.u64().unwrap(), 0x0102_0304_0506_0708);
        assert!(reader.u16().is_err());
    }

    #[test]
    fn names_the_structure_that_ends_early() {
        let error = Reader::new("superblock", &[0; 3]).u32().unwrap_err();
        assert_eq!(error.to_string(), "superblock ends early: 4 bytes wanted, 3 left");
        assert_eq!(index(u64::MAX), usize::MAX);
    }
}
