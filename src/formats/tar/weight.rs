//! Whether the index of a tar fits in the memory that the job has left.
//!
//! An index takes about 80 bytes a member while it is made, in memory where temporary files are in
//! memory. A job that cannot hold it gets an error when it mounts, because otherwise the kernel
//! would kill one of its processes. A saved index is read block by block, so it needs no weighing.

use crate::error::{Error, Kind, Result};
use crate::kernel_file;
use crate::memory;
use crate::units::Size;

/// Members between two checks: they take about 10 MiB.
const EVERY: usize = 1 << 16;

/// Memory that stays free beside the index, bytes.
const SPARE: u64 = 16 << 20;

/// Counts members of an index that is being made.
#[derive(Debug)]
pub(super) struct Weight {
    since: usize,
    /// What the process had before, bytes.
    before: u64,
}

impl Weight {
    pub(super) fn new() -> Self {
        Self { since: 0, before: taken() }
    }

    /// Takes note of `members` that were added.
    ///
    /// # Errors
    /// `Io` where the job has no room for an index of those there are.
    pub(super) fn add(&mut self, members: usize) -> Result<()> {
        self.since = self.since.saturating_add(members);
        if self.since < EVERY {
            return Ok(());
        }
        self.since = 0;
        // When all members are known, their order takes up to a quarter of what they take.
        let taken = taken().saturating_sub(self.before);
        check(taken / 4)
    }
}

/// Checks that an index can take `bytes` more.
///
/// # Errors
/// `Io` where the job has less left.
pub(super) fn check(bytes: u64) -> Result<()> {
    memory::headroom().map_or(Ok(()), |left| fits(bytes, left))
}

fn fits(bytes: u64, left: memory::Headroom) -> Result<()> {
    if bytes.saturating_add(SPARE) <= left.bytes {
        return Ok(());
    }
    let context = format!(
        "the index of its files does not fit in memory: it takes {} more, but {} {}",
        Size(bytes.saturating_add(SPARE)),
        left.bound.leaves(),
        Size(left.bytes)
    );
    Err(Error::new(Kind::Io, context).with_hint(
        "set TMPDIR to a directory on a local disk (ext4, XFS), give the job more memory, or mount an image: \
         archfs pack ARCHIVE IMAGE.sqfs",
    ))
}

/// Memory of this process that is no file's, bytes.
fn taken() -> u64 {
    kernel_file::own_memory("RssAnon").unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Bound, Headroom};

    #[test]
    fn an_index_needs_its_bytes_and_some_to_spare() {
        let left = |bytes| Headroom { bytes, bound: Bound::ControlGroup };
        fits(100, left(SPARE + 100)).unwrap();
        let error = fits(100, left(SPARE + 99)).unwrap_err();
        assert_eq!(error.kind(), Kind::Io);
        assert!(error.to_string().contains("the limit of the job leaves"), "{error}");
        assert!(error.hint().is_some());
        fits(u64::MAX, left(u64::MAX - 1)).unwrap_err();
    }

    #[test]
    fn looks_at_the_memory_once_in_many_members() {
        let mut weight = Weight::new();
        assert!(weight.before > 0);
        (0..EVERY).for_each(|_| weight.add(1).unwrap());
        assert_eq!(weight.since, 0);
        weight.add(EVERY - 1).unwrap();
        assert_eq!(weight.since, EVERY - 1);
    }
}
