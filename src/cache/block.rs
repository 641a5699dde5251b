//! Decoded blocks, in memory that is used again and again.
//!
//! Owns the buffers: a block that nobody holds any more gives its buffer back, and the next one is
//! decoded into it. Leaves which blocks stay to the cache, and decoding to whoever fills a block.
//! Invariants: at most `FREE_BYTES` of each size (or `FREE_COUNT` buffers, where that is more) wait
//! for use, and no lock is held while one is filled or freed.
//!
//! Why: fresh memory costs a page fault for every 4 KiB, which is as dear as decoding them, and a
//! buffer that was just used still lies in the processor's cache.
//!
//! A block also knows how much of it was handed out. What a mount reads, the kernel keeps in its
//! page cache, so a block of which every byte was read once is of no more use here: a second copy
//! of what the kernel has. Such a block is used up, and leaves the cache. An epoch over an archive
//! many times the size of the budget so keeps in memory what is still to be read, and nothing else.

use crate::cache::{Cached, Permit};
use crate::error::Result;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};

/// How much memory waits for its next use: enough for all threads of a usual node, bytes.
const FREE_BYTES: usize = 8 << 20;

/// The same for large blocks, buffers.
const FREE_COUNT: usize = 4;

/// The pools of a mount, one for each size of block that its archives have.
#[derive(Debug, Default)]
pub struct BlockPools(
    /// Guards the list; held for a look at it, when an archive is opened.
    Mutex<Vec<Arc<BlockPool>>>,
);

/// Memory for blocks of at most one size.
#[derive(Debug)]
pub struct BlockPool {
    /// Bytes of each buffer.
    size: usize,
    /// Guards the buffers that wait, the one used last on top; held for a push or a pop.
    free: Mutex<Vec<Box<[u8]>>>,
}

/// A decoded block.
#[derive(Debug)]
pub struct Block {
    /// The bytes are the first `len` of it.
    buffer: Box<[u8]>,
    len: usize,
    /// Bytes that readers were given, each counted as often as it was.
    handed_out: AtomicU64,
    pool: Arc<BlockPool>,
    /// For the memory of the buffer; given back last.
    permit: Option<Permit>,
}

impl BlockPools {
    /// The pool of buffers of `size` bytes: one for all archives, lest each keep some.
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
        Arc::new(Self { size, free: Mutex::new(Vec::with_capacity(Self::most(size))) })
    }

    /// How many buffers of `size` bytes may wait.
    fn most(size: usize) -> usize {
        (FREE_BYTES / size.max(1)).max(FREE_COUNT)
    }

    /// A block of what `fill` writes into a buffer of unspecified content; it tells how many bytes.
    ///
    /// # Errors
    /// What `fill` reports.
    pub fn block(self: &Arc<Self>, fill: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<Block> {
        let waiting = self.free.lock().pop();
        let buffer = waiting.unwrap_or_else(|| vec![0; self.size].into_boxed_slice());
        let pool = Arc::clone(self);
        let mut block = Block { buffer, len: 0, handed_out: AtomicU64::new(0), pool, permit: None };
        block.len = fill(&mut block.buffer)?.min(self.size);
        Ok(block)
    }

    /// Frees the buffers that wait.
    pub fn release(&self) {
        let room = Vec::with_capacity(Self::most(self.size));
        let waiting = std::mem::replace(&mut *self.free.lock(), room);
        drop(waiting);
    }

    fn take_back(&self, buffer: Box<[u8]>) {
        // Those cut to size have no second use.
        if buffer.len() != self.size {
            return;
        }
        let mut free = self.free.lock();
        if free.len() < Self::most(self.size) {
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

    /// Counts `count` bytes as given to a reader; tells whether the block is used up now.
    pub fn hand_out(&self, count: usize) -> bool {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        let before = self.handed_out.fetch_add(count, Ordering::Relaxed);
        before.saturating_add(count) >= u64::try_from(self.len).unwrap_or(u64::MAX)
    }

    /// The same block, which holds the permit for its memory.
    #[must_use]
    pub fn with(self, permit: Permit) -> Self {
        let mut block = self;
        block.permit = Some(permit);
        block
    }

    /// The same block, in no more memory than it needs where that saves much.
    #[must_use]
    pub fn fitted(mut self) -> Self {
        if self.len < self.buffer.len() / 4 * 3 {
            let whole = std::mem::take(&mut self.buffer);
            self.buffer = whole.get(..self.len).unwrap_or_default().into();
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
    fn uses_the_buffer_again_that_was_freed_last() {
        let pool = BlockPool::new(1000);
        let (first, second) = (filled(&pool, 1, 1000), filled(&pool, 2, 1000));
        let place = second.bytes().as_ptr();
        drop(first);
        drop(second);
        let third = filled(&pool, 3, 900);
        assert_eq!(third.bytes().as_ptr(), place);
        assert_eq!(third.bytes(), [3; 900], "and nothing of what was there before");
    }

    #[test]
    fn a_block_that_could_not_be_filled_gives_its_buffer_back() {
        let pool = BlockPool::new(1000);
        assert!(pool.block(|_| Err(Error::corrupt("no"))).is_err());
        assert_eq!(pool.free.lock().len(), 1);
    }

    #[test]
    fn keeps_a_bounded_number_of_free_buffers() {
        for (size, most) in [(1 << 20, 8), (4 << 20, FREE_COUNT)] {
            let pool = BlockPool::new(size);
            let blocks: Vec<_> = (0..20).map(|_| filled(&pool, 0, 10)).collect();
            drop(blocks);
            assert_eq!(pool.free.lock().len(), most);
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
    fn a_short_block_that_stays_is_cut_to_size() {
        let pool = BlockPool::new(1000);
        for (len, weight) in [(749, 749), (750, 1000)] {
            let block = Arc::new(filled(&pool, 7, len).fitted());
            assert_eq!((block.weight(), block.bytes()), (weight, &vec![7; len][..]));
        }
        assert_eq!(pool.free.lock().len(), 1, "one was cut, and both gave back what they could");
    }

    #[test]
    fn is_used_up_when_as_many_bytes_were_handed_out_as_it_has() {
        let block = Arc::new(filled(&BlockPool::new(1000), 1, 1000));
        assert!(!block.is_used_up());
        assert!(!block.hand_out(600));
        assert!(!block.hand_out(399));
        assert!(block.hand_out(1));
        assert!(block.is_used_up());
    }
}
