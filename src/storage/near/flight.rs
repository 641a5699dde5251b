//! Who fetches a range, so that no other thread does.

use std::ops::Range;
use std::time::Instant;

use super::NearCopy;
use crate::remote::Requester;

/// What a reader does about the first bytes that it wants.
pub(super) enum Claim<'c> {
    /// They are there.
    Read(Range<u64>),
    /// It fetches them. The flight may begin before them.
    Fetch(Flight<'c>),
    /// It reads them from the source, and they are not kept.
    ReadThrough(Range<u64>),
}

/// The right to fetch a range. Ends when dropped; then waiting readers look again.
pub(super) struct Flight<'c> {
    pub(super) copy: &'c NearCopy,
    pub(super) range: Range<u64>,
    pub(super) requester: Requester,
}

impl Flight<'_> {
    pub(super) fn len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.copy.schedule.lock().end(&self.range, Instant::now());
        self.copy.landed.notify_all();
        self.copy.progressed.notify_one();
    }
}
