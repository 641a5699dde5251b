//! Where a scan reads headers from: an archive that can be read at any offset, or a stream that is
//! decompressed from start to end.
//!
//! Invariant: a scan reads only forward, and what it read stays available until the next read.
//!
//! How much to read at once? Reading the data of a member only to discard it costs its length.
//! Reading each header alone costs a call, which is a round trip on a parallel file system. So the
//! window grows while the next header is close (small members). It becomes small again when the
//! data in between would cost more than a call.

use crate::error::Result;
use crate::formats::bytes::{index, length};
use crate::storage::Storage;

/// The smallest read, bytes: a pax header, its body and the member's own header.
const WINDOW_MIN: usize = 2 << 10;

/// The largest read, bytes.
const WINDOW_MAX: usize = 1 << 20;

/// Data up to this length is read rather than skipped, bytes.
const READ_THROUGH: u64 = 16 << 10;

/// Bytes of an archive, read in ascending order.
pub(super) trait Source {
    /// The `len` bytes at `offset`, or `None` if the archive ends before they do.
    fn bytes(&mut self, offset: u64, len: usize) -> Result<Option<&[u8]>>;

    /// The end of the archive, once it is known.
    fn end(&self) -> Option<u64>;
}

/// The `len` bytes at `offset`, or `None` if they reach past `end` or past the archive.
pub(super) fn before(
    source: &mut dyn Source,
    offset: u64,
    len: usize,
    end: u64,
) -> Result<Option<&[u8]>> {
    if offset.checked_add(length(len)).is_none_or(|bytes_end| bytes_end > end) {
        return Ok(None);
    }
    source.bytes(offset, len)
}

/// An archive that can be read at any offset, with a buffer.
pub(super) struct Windowed<'s> {
    storage: &'s dyn Storage,
    end: u64,
    buffer: Vec<u8>,
    /// Number of valid bytes in the buffer, and the offset of the first in the archive.
    filled: usize,
    start: u64,
    window: usize,
}

impl<'s> Windowed<'s> {
    /// Reads the bytes of `storage` before `end`.
    pub(super) fn new(storage: &'s dyn Storage, end: u64) -> Self {
        let end = end.min(storage.len());
        Self { storage, end, buffer: Vec::new(), filled: 0, start: 0, window: WINDOW_MIN }
    }

    fn refill(&mut self, offset: u64, len: usize) -> Result<()> {
        let gap = offset.saturating_sub(self.start.saturating_add(length(self.filled)));
        self.window = match gap {
            0..=READ_THROUGH => self.window.saturating_mul(2).min(WINDOW_MAX),
            _ => WINDOW_MIN,
        };
        let left = index(self.end.saturating_sub(offset));
        let wanted = self.window.max(len).min(left);
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        // If the read fails, the buffer is invalid.
        self.filled = 0;
        self.storage.read_exact_at(self.buffer.get_mut(..wanted).unwrap_or_default(), offset)?;
        (self.start, self.filled) = (offset, wanted);
        Ok(())
    }
}

impl Source for Windowed<'_> {
    fn bytes(&mut self, offset: u64, len: usize) -> Result<Option<&[u8]>> {
        if offset.checked_add(length(len)).is_none_or(|end| end > self.end) {
            return Ok(None);
        }
        let filled_end = self.start.saturating_add(length(self.filled));
        if offset < self.start || offset.saturating_add(length(len)) > filled_end {
            self.refill(offset, len)?;
        }
        let from = index(offset.saturating_sub(self.start));
        Ok(self.buffer.get(from..from.saturating_add(len)))
    }

    fn end(&self) -> Option<u64> {
        Some(self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MemStorage;

    #[test]
    fn reads_many_small_members_in_few_reads_and_little_of_large_ones() {
        let storage = MemStorage::new(vec![7; 64 << 20]);
        let mut source = Windowed::new(&storage, u64::MAX);
        for offset in (0..16 << 20).step_by(1024) {
            assert_eq!(source.bytes(offset, 512).unwrap(), Some(&[7; 512][..]));
        }
        assert!(storage.reads() < 40, "{} reads of 16 MiB", storage.reads());
        let before = storage.bytes_read();
        for offset in (16 << 20..64 << 20).step_by(100 << 10) {
            source.bytes(offset, 512).unwrap();
        }
        let read = storage.bytes_read() - before;
        assert!(read < 5 << 20, "{read} bytes of 48 MiB, whose headers are 0.25 MiB");
    }

    #[test]
    fn ends_at_its_limit() {
        let storage = MemStorage::new(vec![7; 1000]);
        let mut source = Windowed::new(&storage, 900);
        assert!(source.bytes(388, 512).unwrap().is_some());
        assert!(source.bytes(389, 512).unwrap().is_none());
        assert!(source.bytes(u64::MAX, 512).unwrap().is_none());
        assert_eq!(source.end(), Some(900));
        assert_eq!(Windowed::new(&storage, 2000).end(), Some(1000));
    }
}
