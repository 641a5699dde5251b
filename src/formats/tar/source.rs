//! Where a scan for headers reads from: an archive that can be read anywhere, or one that is
//! decoded from its start to its end.
//!
//! Owns how much is read at once; leaves what the bytes mean to `chain`.
//! Invariant: a scan asks forward only; what it asked for stays available until it asks for more.
//!
//! How much to read. Reading the data of a member only to throw it away costs what the member is
//! large; reading each header by itself costs a call, on a parallel file system a round trip. So
//! the window grows while the next header lies just behind it (small members), and is small again
//! as soon as there is more data in between than a call costs to read.

use crate::error::Result;
use crate::formats::bytes::{index, length};
use crate::storage::Storage;

/// The smallest read: a pax header, its body and the member's own header.
const WINDOW_MIN: usize = 2 << 10;

/// The largest read.
const WINDOW_MAX: usize = 1 << 20;

/// Data that is rather read than skipped, bytes.
const READ_THROUGH: u64 = 16 << 10;

/// Bytes of an archive, asked for in ascending order.
pub(super) trait Source {
    /// The `len` bytes at `at`, or `None` where the archive ends before them.
    ///
    /// # Errors
    /// `Io` where they can not be read.
    fn bytes(&mut self, at: u64, len: usize) -> Result<Option<&[u8]>>;

    /// Where the archive ends, once that is known.
    fn end(&self) -> Option<u64>;
}

/// The `len` bytes at `at`, or `None` where they do not end before `end`, or the archive does.
///
/// # Errors
/// As `Source::bytes`.
pub(super) fn before(
    source: &mut dyn Source,
    at: u64,
    len: usize,
    end: u64,
) -> Result<Option<&[u8]>> {
    if at.checked_add(length(len)).is_none_or(|behind| behind > end) {
        return Ok(None);
    }
    source.bytes(at, len)
}

/// An archive that can be read anywhere.
pub(super) struct Windowed<'s> {
    storage: &'s dyn Storage,
    end: u64,
    buffer: Vec<u8>,
    /// What part of the buffer holds bytes, and where in the archive they begin.
    filled: usize,
    start: u64,
    window: usize,
}

impl<'s> Windowed<'s> {
    /// The bytes of `storage` before `end`.
    pub(super) fn new(storage: &'s dyn Storage, end: u64) -> Self {
        let end = end.min(storage.len());
        Self { storage, end, buffer: Vec::new(), filled: 0, start: 0, window: WINDOW_MIN }
    }

    fn refill(&mut self, at: u64, len: usize) -> Result<()> {
        let gap = at.saturating_sub(self.start.saturating_add(length(self.filled)));
        self.window = match gap {
            0..=READ_THROUGH => self.window.saturating_mul(2).min(WINDOW_MAX),
            _ => WINDOW_MIN,
        };
        let left = index(self.end.saturating_sub(at));
        let wanted = self.window.max(len).min(left);
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        // Nothing is there if the read fails.
        self.filled = 0;
        self.storage.read_exact_at(self.buffer.get_mut(..wanted).unwrap_or_default(), at)?;
        (self.start, self.filled) = (at, wanted);
        Ok(())
    }
}

impl Source for Windowed<'_> {
    fn bytes(&mut self, at: u64, len: usize) -> Result<Option<&[u8]>> {
        if at.checked_add(length(len)).is_none_or(|end| end > self.end) {
            return Ok(None);
        }
        let behind = self.start.saturating_add(length(self.filled));
        if at < self.start || at.saturating_add(length(len)) > behind {
            self.refill(at, len)?;
        }
        let from = index(at.saturating_sub(self.start));
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
        for at in (0..16 << 20).step_by(1024) {
            assert_eq!(source.bytes(at, 512).unwrap(), Some(&[7; 512][..]));
        }
        assert!(storage.reads() < 40, "{} reads of 16 MiB", storage.reads());
        let before = storage.bytes_read();
        for at in (16 << 20..64 << 20).step_by(100 << 10) {
            source.bytes(at, 512).unwrap();
        }
        let read = storage.bytes_read() - before;
        assert!(read < 5 << 20, "{read} bytes of 48 MiB, whose headers are 0.25 MiB");
    }

    #[test]
    fn ends_where_it_is_told_to() {
        let storage = MemStorage::new(vec![7; 1000]);
        let mut source = Windowed::new(&storage, 900);
        assert!(source.bytes(388, 512).unwrap().is_some());
        assert!(source.bytes(389, 512).unwrap().is_none());
        assert!(source.bytes(u64::MAX, 512).unwrap().is_none());
        assert_eq!(source.end(), Some(900));
        assert_eq!(Windowed::new(&storage, 2000).end(), Some(1000));
    }
}
