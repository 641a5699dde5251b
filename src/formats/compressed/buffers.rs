//! Reuses the memory of freed chunks and of their compressed input.
//!
//! Fresh memory costs a page fault for every 4 KiB; a freed chunk therefore returns its buffer
//! here. Free buffers are a small fraction of the cache and do not count toward its capacity.

use crate::formats::bytes::index;
use crate::sync::Mutex;

/// The smallest buffer that is kept, bytes. The allocator reuses smaller ones well.
const SIZE_MIN: usize = 256 << 10;

/// Buffer sizes are rounded up to this, bytes, so that chunks of similar size can share buffers.
const STEP: usize = 64 << 10;

/// The most free buffers: enough for the chunks that CPU cores decode at once.
const COUNT_MAX: usize = 16;

/// The most bytes in all free buffers. They are also limited to 1/16 of the cache.
const BYTES_MAX: u64 = 8 << 20;

/// The free buffers.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// Guards the free buffers, most recently used last. Held for a push or a scan.
    free: Mutex<Vec<Vec<u8>>>,
    /// The most bytes they may hold together.
    bytes_max: u64,
}

impl Buffers {
    /// Buffers for a cache of `capacity` bytes.
    pub(super) fn for_cache(capacity: u64) -> Self {
        Self { free: Mutex::default(), bytes_max: (capacity / 16).min(BYTES_MAX) }
    }

    /// A buffer of `len` bytes of unspecified content. Its capacity is at most 1/4 or `STEP`
    /// larger.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        let capacity_max = len.saturating_add((len / 4).max(STEP));
        let fits = |buffer: &Vec<u8>| (len..=capacity_max).contains(&buffer.capacity());
        let found = {
            let mut free = self.free.lock();
            free.iter().rposition(fits).map(|nth| free.remove(nth))
        };
        // The kernel provides zeroed pages only when they are first written.
        let fresh = || vec![0; len.checked_next_multiple_of(STEP).unwrap_or(len)];
        let mut buffer = found.unwrap_or_else(fresh);
        buffer.resize(len, 0);
        buffer
    }

    /// Keeps `buffer` for later, or frees it.
    pub(crate) fn recycle(&self, buffer: Vec<u8>) {
        if buffer.capacity() < SIZE_MIN {
            return;
        }
        let mut free = self.free.lock();
        let free_bytes: usize = free.iter().map(Vec::capacity).fold(0, usize::saturating_add);
        let has_room = free_bytes.saturating_add(buffer.capacity()) <= index(self.bytes_max);
        if has_room && free.len() < COUNT_MAX {
            free.push(buffer);
            return;
        }
        drop(free);
        drop(buffer);
    }

    /// Frees all buffers.
    pub(super) fn release(&self) {
        let freed = std::mem::take(&mut *self.free.lock());
        drop(freed);
    }

    #[cfg(test)]
    fn free_bytes(&self) -> u64 {
        self.free.lock().iter().map(Vec::capacity).sum::<usize>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn reuses_a_buffer_of_similar_size() {
        let buffers = Buffers::for_cache(1 << 30);
        let buffer = buffers.take(MIB);
        let address = buffer.as_ptr();
        buffers.recycle(buffer);
        let other = buffers.take(MIB / 2);
        assert_ne!(other.as_ptr(), address, "twice as large");
        assert_eq!(buffers.free_bytes(), 1 << 20);
        let again = buffers.take(MIB - 1000);
        assert_eq!((again.as_ptr(), again.len()), (address, MIB - 1000));
        assert_eq!(buffers.free_bytes(), 0);
    }

    #[test]
    fn limits_the_free_buffers() {
        let buffers = Buffers::for_cache(64 << 20);
        (0..10).for_each(|_| buffers.recycle(vec![0; MIB]));
        assert_eq!(buffers.free_bytes(), 4 << 20, "a sixteenth of the cache");
        buffers.release();
        assert_eq!(buffers.free_bytes(), 0);
        let buffers = Buffers::for_cache(1 << 30);
        (0..100).for_each(|_| buffers.recycle(vec![0; SIZE_MIN]));
        assert_eq!(buffers.free_bytes(), 4 << 20, "sixteen");
        buffers.recycle(vec![0; SIZE_MIN - 1]);
        assert_eq!(buffers.free_bytes(), 4 << 20);
    }
}
