//! Checks the decoded bytes of a frame against what its end declares.

use xxhash_rust::xxh32::Xxh32;

use super::super::walk::FrameEnd;
use crate::error::{Error, Result};
use crate::formats::bytes::length;

/// Checksum and length of the contents of a frame so far.
pub(super) struct Content {
    sum: Xxh32,
    len: u64,
}

impl Content {
    pub(super) fn new() -> Self {
        Self { sum: Xxh32::new(0), len: 0 }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.sum.update(bytes);
        self.len = self.len.saturating_add(length(bytes.len()));
    }

    /// Checks the contents against the end of the frame, which is at `at`.
    pub(super) fn check(&self, ends: &FrameEnd, at: u64) -> Result<()> {
        let end = format_args!("lz4 frame that ends at {at:#x}");
        if let Some(size) = ends.size.filter(|size| *size != self.len) {
            let context = format!("lz4 frame: {size} bytes announced, {} found", self.len);
            return Err(Error::corrupt(context).with_detail(end));
        }
        let sum = self.sum.digest();
        match ends.checksum.filter(|stored| *stored != sum) {
            Some(stored) => Err(Error::corrupt("lz4 frame: wrong checksum")
                .with_detail(format_args!("{stored:#010x}, but its bytes give {sum:#010x}"))
                .with_detail(end)),
            None => Ok(()),
        }
    }
}
