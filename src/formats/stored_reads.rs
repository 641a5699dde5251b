//! Reads of files that an archive stores as they are, with the advice to the kernel that belongs to
//! them: what is read next, and what need not stay in memory.

use std::ops::Range;

use super::bytes::length;
use crate::cache::{ArchiveOrder, Readahead};
use crate::error::Result;
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::{AfterReply, Ino};

/// Reads stored files of one archive.
pub(super) struct StoredReads {
    storage: Arc<dyn Storage>,
    /// Sequential readers of a file.
    readahead: Readahead,
    /// Sequential readers of many files.
    order: ArchiveOrder,
}

impl StoredReads {
    pub(super) fn new(storage: Arc<dyn Storage>) -> Self {
        Self { storage, readahead: Readahead::furthest(), order: ArchiveOrder::default() }
    }

    /// Reads `range` of the file `ino`, which has `len` bytes from `start` on in the archive. If
    /// the answer is longer, it begins with what is before `range` in the archive.
    pub(super) fn read(
        &self,
        ino: Ino,
        (start, len): (u64, u64),
        range: Range<u64>,
        (answer, after_reply): (&mut [u8], &mut AfterReply),
    ) -> Result<()> {
        self.read_ahead(ino, (start, len), range.clone());
        let end = start.saturating_add(range.end);
        let outcome =
            self.storage.read_contents_at(answer, end.saturating_sub(length(answer.len())));
        self.drop_served(start, range, after_reply);
        outcome
    }

    /// Announces what a sequential reader of a file, or of files in the order of the archive, will
    /// read next. `range` of the file is read now.
    pub(super) fn read_ahead(&self, ino: Ino, (start, len): (u64, u64), range: Range<u64>) {
        let announce = |ahead: Range<u64>| {
            self.storage.will_need(ahead.start, ahead.end.saturating_sub(ahead.start));
        };
        let end = Some(start.saturating_add(len));
        if let Some(ahead) = self.order.observe(start, shifted(start, range.clone()), end) {
            announce(ahead);
        }
        if let Some(ahead) = self.readahead.observe(ino.number(), range, len) {
            announce(shifted(start, ahead));
        }
    }

    /// Leaves it to after the reply to drop the served `range` of a file at `start` from the page
    /// cache of the archive.
    pub(super) fn drop_served(&self, start: u64, range: Range<u64>, after_reply: &mut AfterReply) {
        if self.storage.drops_served() {
            let storage = Arc::clone(&self.storage);
            let is_continued = range.start > 0;
            let served = shifted(start, range);
            after_reply.push(Box::new(move || storage.drop_served(served, is_continued)));
        }
    }
}

/// A range of a file that starts at `start`, in the archive.
fn shifted(start: u64, range: Range<u64>) -> Range<u64> {
    start.saturating_add(range.start)..start.saturating_add(range.end)
}
