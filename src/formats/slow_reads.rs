//! Whether reads of an archive in random order are slow, by what opening it has read anyway.
//!
//! `info` computes the exact cost, for which it reads all inodes.

use std::fmt;

use crate::units::format_size;

/// A read of a small file decompresses what holds many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlowReads {
    /// Bytes that it decompresses.
    decoded: u64,
    /// Files in them on average.
    files: u64,
}

impl SlowReads {
    /// Reads are slow from that many bytes and that many files on. A read of a file in an image of
    /// mksquashfs with its default block size, 128 KiB, is below.
    const BYTES: u64 = 512 << 10;
    const FILES: u64 = 16;

    /// An archive that decompresses to less is in the cache soon.
    const TOTAL: u64 = 64 << 20;

    /// For `count` parts of `decoded` bytes each that hold `files` files together.
    pub(super) fn of_parts(decoded: u64, count: u64, files: u64) -> Option<Self> {
        let files = files.checked_div(count)?;
        let is_slow = decoded >= Self::BYTES
            && files >= Self::FILES
            && decoded.saturating_mul(count) >= Self::TOTAL;
        is_slow.then_some(Self { decoded, files })
    }
}

impl fmt::Display for SlowReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { decoded, files } = self;
        let decoded = format_size(*decoded);
        write!(
            f,
            "reads in random order are slow: each decompresses {decoded}, which holds about {files} \
             files"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_slow_if_they_are_large_and_hold_many_files() {
        let (bytes, files) = (SlowReads::BYTES, SlowReads::FILES);
        let count = SlowReads::TOTAL / bytes;
        let slow = Some(SlowReads { decoded: bytes, files });
        assert_eq!(SlowReads::of_parts(bytes, count, files * count), slow);
        assert_eq!(SlowReads::of_parts(bytes - 1, count + 1, files * (count + 1)), None);
        assert_eq!(SlowReads::of_parts(bytes, count, files * count - 1), None);
        assert_eq!(SlowReads::of_parts(bytes, count - 1, files * count), None);
        assert_eq!(SlowReads::of_parts(bytes, 0, files), None);
    }
}
