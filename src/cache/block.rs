//! Decoded blocks, in buffers that are reused.
//!
//! Fresh memory costs a page fault per 4 KiB, which is as expensive as decoding the page, and a
//! buffer that was just used is still in the CPU cache. So a dropped block returns its buffer to a
//! pool, and the next block is decoded into it. Invariants: at most `FREE_BYTES` of each size (or
//! `FREE_COUNT` buffers, if that is more) are kept, and no lock is held while a buffer is filled or
//! freed.
//!
//! A block also counts how much of it was handed out. The kernel keeps what a mount reads in its
//! page cache, so a block whose every byte was read once would only be a second copy. Such a block
//! is used up and leaves the cache. During an epoch over an archive much larger than the budget,
//! memory then holds only data that is still to be read.

use crate::cache::{Cached, Permit};
use crate::error::Result;
use crate::os::page_aligned::PageAligned;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};

/// Free buffers kept per size, in bytes: enough for all threads of a typical node.
const FREE_BYTES: usize = 8 << 20;

/// Free buffers kept if the blocks are large.
const FREE_COUNT: usize = 4;

/// The pools of a mount, one per block size of its archives.
#[derive(Debug, Default)]
pub struct BlockPools(
    /// Guards the list. Held for a lookup when an archive is opened.
    Mutex<Vec<Arc<BlockPool>>>,
);

/// Reusable buffers for blocks of at most one size.
#[derive(Debug)]
pub struct BlockPool {
    /// Size of each buffer, in bytes.
    size: usize,
    /// Guards the free buffers, most recently used on top. Held for a push or a pop.
    free: Mutex<Vec<PageAligned>>,
}

/// A decoded block.
#[derive(Debug)]
pub struct Block {
    /// The first `len` bytes are the content.
    buffer: PageAligned,
    len: usize,
    /// Bytes handed to readers; repeated reads count again.
    handed_out: AtomicU64,
    pool: Arc<BlockPool>,
    /// The permit for the buffer's memory; returned last.
    permit: Option<Permit>,
}

impl BlockPools {
    /// The pool of buffers of `size` bytes. All archives share it, so that each does not keep its
    /// own.
    pub fn of(&self, size: usize) -> Arc<BlockPool> {
        let mut pools = self.0.lock();
        if let Some(pool) = pools.iter().find(|pool| pool.size == size) {
            return Arc::clone(pool);
        }
        let pool = BlockPool::new(size);
        pools.push(Arc::clone(&pool));
        pool
    }
}

impl BlockPool {
    /// A pool of buffers of `size` bytes.
    pub fn new(size: usize) -> Arc<Self> {
        Arc::new(Self { size, free: Mutex::new(Vec::with_capacity(Self::free_max(size))) })
    }

    /// How many free buffers of `size` bytes a pool keeps.
    fn free_max(size: usize) -> usize {
        (FREE_BYTES / size.max(1)).max(FREE_COUNT)
    }

    /// A block filled by `fill`, which gets a buffer of unspecified content and returns the number
    /// of bytes it wrote.
    pub fn block(self: &Arc<Self>, fill: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<Block> {
        let free = self.free.lock().pop();
        let buffer = free.unwrap_or_else(|| PageAligned::zeroed(self.size));
        let pool = Arc::clone(self);
        let mut block = Block { buffer, len: 0, handed_out: AtomicU64::new(0), pool, permit: None };
        block.len = fill(&mut block.buffer)?.min(self.size);
        Ok(block)
    }

    /// Frees all buffers in the pool.
    pub fn release(&self) {
        let room = Vec::with_capacity(Self::free_max(self.size));
        let free = std::mem::replace(&mut *self.free.lock(), room);
        drop(free);
    }

    fn take_back(&self, buffer: PageAligned) {
        // A buffer that `fitted` cut to size cannot be reused.
        if buffer.len() != self.size {
            return;
        }
        let mut free = self.free.lock();
        if free.len() < Self::free_max(self.size) {
            free.push(buffer);
            return;
        }
        drop(free);
        drop(buffer);
    }
}

impl Block {
    /// The decoded bytes.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(..self.len).unwrap_or_default()
    }

    /// Counts `count` bytes as handed to a reader. Returns whether the block is used up now.
    pub fn hand_out(&self, count: usize) -> bool {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        let before = self.handed_out.fetch_add(count, Ordering::Relaxed);
        before.saturating_add(count) >= u64::try_from(self.len).unwrap_or(u64::MAX)
    }

    /// Attaches the permit for the block's memory.
    #[must_use]
    pub fn with(self, permit: Permit) -> Self {
        let mut block = self;
        block.permit = Some(permit);
        block
    }

    /// Moves the bytes to a smaller buffer if that saves at least a quarter.
    #[must_use]
    pub fn fitted(mut self) -> Self {
        if self.len < self.buffer.len() / 4 * 3 {
            let whole = std::mem::take(&mut self.buffer);
            self.buffer = PageAligned::zeroed(self.len);
            self.buffer.copy_from_slice(whole.get(..self.len).unwrap_or_default());
            self.pool.take_back(whole);
            if let Some(permit) = &mut self.permit {
                permit.shrink(u64::try_from(self.len).unwrap_or(u64::MAX));
            }
        }
        self
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Cached for Arc<Block> {
    fn weight(&self) -> u64 {
        u64::try_from(self.buffer.len()).unwrap_or(u64::MAX)
    }

    fn decoded_len(&self) -> u64 {
        u64::try_from(self.len).unwrap_or(u64::MAX)
    }

    fn is_used_up(&self) -> bool {
        self.hand_out(0)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.pool.take_back(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn filled(pool: &Arc<BlockPool>, byte: u8, len: usize) -> Block {
        let fill = |buffer: &mut [u8]| {
            buffer[..len].fill(byte);
            Ok(len)
        };
        pool.block(fill).unwrap()
    }

    #[test]
    fn reuses_the_most_recently_freed_buffer() {
        let pool = BlockPool::new(1000);
        let (first, second) = (filled(&pool, 1, 1000), filled(&pool, 2, 1000));
        let address = second.bytes().as_ptr();
        drop(first);
        drop(second);
        let third = filled(&pool, 3, 900);
        assert_eq!(third.bytes().as_ptr(), address);
        assert_eq!(third.bytes(), [3; 900], "and none of the earlier bytes");
    }

    #[test]
    fn a_block_that_could_not_be_filled_returns_its_buffer() {
        let pool = BlockPool::new(1000);
        assert!(pool.block(|_| Err(Error::corrupt("no"))).is_err());
        assert_eq!(pool.free.lock().len(), 1);
    }

    #[test]
    fn keeps_a_bounded_number_of_free_buffers() {
        for (size, free_max) in [(1 << 20, 8), (4 << 20, FREE_COUNT)] {
            let pool = BlockPool::new(size);
            let blocks: Vec<_> = (0..20).map(|_| filled(&pool, 0, 10)).collect();
            drop(blocks);
            assert_eq!(pool.free.lock().len(), free_max);
            pool.release();
            assert_eq!(pool.free.lock().len(), 0);
        }
    }

    #[test]
    fn archives_with_blocks_of_one_size_share_a_pool() {
        let pools = BlockPools::default();
        let (one, other) = (pools.of(1000), pools.of(2000));
        assert!(Arc::ptr_eq(&one, &pools.of(1000)));
        assert!(!Arc::ptr_eq(&one, &other));
    }

    #[test]
    fn a_short_block_is_cut_to_size() {
        let pool = BlockPool::new(1000);
        for (len, weight) in [(749, 749), (750, 1000)] {
            let block = Arc::new(filled(&pool, 7, len).fitted());
            assert_eq!((block.weight(), block.bytes()), (weight, &vec![7; len][..]));
        }
        assert_eq!(pool.free.lock().len(), 1, "one was cut, and both gave back what they could");
    }

    #[test]
    fn is_used_up_when_all_its_bytes_were_handed_out() {
        let block = Arc::new(filled(&BlockPool::new(1000), 1, 1000));
        assert!(!block.is_used_up());
        assert!(!block.hand_out(600));
        assert!(!block.hand_out(399));
        assert!(block.hand_out(1));
        assert!(block.is_used_up());
    }
}
