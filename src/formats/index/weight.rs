//! Checks that the index of an archive fits in the memory that the job has left.
//!
//! A new index takes about 90 bytes per member, in memory if temporary files are in memory. If a
//! job has too little memory left, the mount fails with an error. Otherwise the kernel would kill
//! one of its processes. A saved index is read block by block, so it needs no such check.

use crate::error::{Error, Kind, Result};
use crate::os::kernel_file;
use crate::os::memory;
use crate::units::Size;

/// Members between two checks. They take about 10 MiB.
const CHECK_INTERVAL: usize = 1 << 16;

/// Memory to leave free, bytes.
const RESERVE: u64 = 16 << 20;

/// Checks the memory that a new index takes, every few members.
#[derive(Debug)]
pub(crate) struct Weight {
    since_check: usize,
    /// Memory that the process had in use at the start, bytes.
    initial: u64,
}

impl Weight {
    pub(crate) fn new() -> Self {
        Self { since_check: 0, initial: anonymous_memory() }
    }

    /// Counts `members` that were added, and checks the memory if it is time.
    pub(crate) fn add(&mut self, members: usize) -> Result<()> {
        self.since_check = self.since_check.saturating_add(members);
        if self.since_check < CHECK_INTERVAL {
            return Ok(());
        }
        self.since_check = 0;
        // In the end, the order of the members takes up to a quarter of what they take.
        let taken = anonymous_memory().saturating_sub(self.initial);
        check(taken / 4)
    }
}

/// Checks that an index can take `bytes` more.
pub(crate) fn check(bytes: u64) -> Result<()> {
    memory::headroom().map_or(Ok(()), |left| fits(bytes, left))
}

fn fits(bytes: u64, left: memory::Headroom) -> Result<()> {
    if bytes.saturating_add(RESERVE) <= left.bytes {
        return Ok(());
    }
    let context = format!(
        "too little memory for the index of its files: it takes {} more, {} {}",
        Size(bytes.saturating_add(RESERVE)),
        left.bound.leaves(),
        Size(left.bytes)
    );
    Err(Error::new(Kind::Io, context).with_hint(
        "set TMPDIR to a directory on a local disk, or give the job more memory, or mount an image \
         (archfs pack ARCHIVE IMAGE.sqfs)",
    ))
}

/// Anonymous memory of this process, bytes.
fn anonymous_memory() -> u64 {
    kernel_file::own_memory("RssAnon").unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory::{Bound, Headroom};

    #[test]
    fn an_index_needs_its_size_and_a_reserve() {
        let left = |bytes| Headroom { bytes, bound: Bound::ControlGroup };
        fits(100, left(RESERVE + 100)).unwrap();
        let error = fits(100, left(RESERVE + 99)).unwrap_err();
        assert_eq!(error.kind(), Kind::Io);
        assert!(error.to_string().contains("the limit of the job leaves"), "{error}");
        assert!(error.hint().is_some());
        fits(u64::MAX, left(u64::MAX - 1)).unwrap_err();
    }

    #[test]
    fn checks_memory_once_in_many_members() {
        let mut weight = Weight::new();
        assert!(weight.initial > 0);
        (0..CHECK_INTERVAL).for_each(|_| weight.add(1).unwrap());
        assert_eq!(weight.since_check, 0);
        weight.add(CHECK_INTERVAL - 1).unwrap();
        assert_eq!(weight.since_check, CHECK_INTERVAL - 1);
    }
}
