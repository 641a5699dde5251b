//! Counts and times the reads of an archive, including failed ones.

use std::ops::Range;

use super::Storage;
use crate::error::Result;
use crate::os::file_position::FilePosition;
use crate::stats::Stats;
use crate::sync::Arc;

/// Passes reads to `inner`, counts and times them.
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

    fn read_contents_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let _read = self.stats.begin_archive_read(buffer.len());
        self.inner.read_contents_at(buffer, offset)
    }

    fn position(&self, offset: u64, len: u64) -> Option<FilePosition> {
        self.inner.position(offset, len)
    }

    fn drops_served(&self) -> bool {
        self.inner.drops_served()
    }

    fn drop_served(&self, range: Range<u64>, is_continued: bool) {
        self.inner.drop_served(range, is_continued);
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
