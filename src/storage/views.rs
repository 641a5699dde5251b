//! Views of other storage: a part of it, and all of it with its reads counted.

use std::ops::Range;

use super::{FilePart, Storage};
use crate::error::{Error, Kind, Result};
use crate::os::file_position::FilePosition;
use crate::stats::Stats;
use crate::sync::Arc;

/// The bytes of `inner` from an offset to its end, or to a cut: an image inside a larger file.
/// Nothing outside the range can be read through it.
pub struct FileRange {
    inner: Arc<dyn Storage>,
    start: u64,
    len: u64,
}

impl FileRange {
    /// The part of `inner` from byte `start` on.
    ///
    /// # Errors
    /// `InvalidInput` if `start` is past the end.
    pub fn new(inner: Arc<dyn Storage>, start: u64) -> Result<Self> {
        let total = inner.len();
        let len = total.checked_sub(start).ok_or_else(|| {
            let context = format!("offset {start} is past the end of the file ({total} bytes)");
            Error::new(Kind::InvalidInput, context)
        })?;
        Ok(Self { inner, start, len })
    }

    /// Cuts the range to its first `len` bytes.
    ///
    /// # Errors
    /// `InvalidInput` if it is shorter.
    pub fn cut(self, len: u64) -> Result<Self> {
        if len > self.len {
            let context = format!("{len} bytes needed, {} available", self.len);
            return Err(Error::new(Kind::InvalidInput, context));
        }
        Ok(Self { len, ..self })
    }

    /// Where `len` bytes at `offset` are in the inner storage.
    fn inner_offset(&self, offset: u64, len: usize) -> Result<u64> {
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        self.start.checked_add(offset).filter(|_| is_inside).ok_or_else(|| {
            Error::corrupt("a reference to data outside the image")
                .with_detail(format_args!("{len} bytes at {offset:#x}"))
        })
    }
}

impl Storage for FileRange {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let start = self.inner_offset(offset, buffer.len())?;
        self.inner.read_exact_at(buffer, start)
    }

    fn read_contents_at(&self, buffer: &mut [u8], offset: u64, part: FilePart) -> Result<()> {
        let start = self.inner_offset(offset, buffer.len())?;
        self.inner.read_contents_at(buffer, start, part)
    }

    fn position(&self, offset: u64, len: u64) -> Option<FilePosition> {
        let start = self.inner_offset(offset, usize::try_from(len).ok()?).ok()?;
        self.inner.position(start, len)
    }

    fn drops_served(&self) -> bool {
        self.inner.drops_served()
    }

    fn drop_served(&self, range: Range<u64>, part: FilePart) {
        let end = range.end.min(self.len);
        let [start, end] = [range.start, end].map(|offset| self.start.saturating_add(offset));
        self.inner.drop_served(start..end, part);
    }

    fn begin_scan(&self) {
        self.inner.begin_scan();
    }

    fn end_scan(&self) {
        self.inner.end_scan();
    }

    fn will_need(&self, offset: u64, len: u64) {
        let inside = len.min(self.len.saturating_sub(offset));
        self.inner.will_need(self.start.saturating_add(offset), inside);
    }
}

/// Passes reads to `inner`, and counts and times them, including failed ones.
pub struct Metered {
    inner: Arc<dyn Storage>,
    stats: Arc<Stats>,
}

impl Metered {
    /// Counts the reads of `inner` in `stats`.
    pub fn new(inner: Arc<dyn Storage>, stats: Arc<Stats>) -> Self {
        Self { inner, stats }
    }
}

impl Storage for Metered {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let _read = self.stats.begin_archive_read(buffer.len());
        self.inner.read_exact_at(buffer, offset)
    }

    fn read_contents_at(&self, buffer: &mut [u8], offset: u64, part: FilePart) -> Result<()> {
        let _read = self.stats.begin_archive_read(buffer.len());
        self.inner.read_contents_at(buffer, offset, part)
    }

    fn position(&self, offset: u64, len: u64) -> Option<FilePosition> {
        self.inner.position(offset, len)
    }

    fn drops_served(&self) -> bool {
        self.inner.drops_served()
    }

    fn drop_served(&self, range: Range<u64>, part: FilePart) {
        self.inner.drop_served(range, part);
    }

    fn begin_scan(&self) {
        self.inner.begin_scan();
    }

    fn end_scan(&self) {
        self.inner.end_scan();
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.inner.will_need(offset, len);
    }
}
