//! Memory for chunks and what they are decoded from, used again and again.
//!
//! Fresh memory costs a page fault for every 4 KiB, so a chunk that is freed leaves its buffer to
//! the next one. Waiting buffers are a small part of the cache, and do not count in it.

use crate::formats::bytes::index;
use crate::sync::Mutex;

/// The smallest buffer that is kept, bytes: the heap keeps smaller ones itself.
const LEAST: usize = 256 << 10;

/// Sizes of buffers are multiples of this, bytes, so that chunks of about one size find theirs.
const STEP: usize = 64 << 10;

/// Buffers that are kept: enough for what CPU cores decode at once.
const COUNT_MAX: usize = 16;

/// All of them together, bytes: at most this, and at most a sixteenth of the cache.
const BYTES_MAX: u64 = 8 << 20;

/// Buffers that wait for their next use.
#[derive(Debug)]
pub(super) struct Buffers {
    /// Guards the buffers, the one used last on top; held for a push, or a look at each.
    free: Mutex<Vec<Vec<u8>>>,
    /// What they may take together, bytes.
    most: u64,
}

impl Buffers {
    /// For a cache of `capacity` bytes.
    pub(super) fn beside(capacity: u64) -> Self {
        Self { free: Mutex::default(), most: (capacity / 16).min(BYTES_MAX) }
    }

    /// A buffer of `len` bytes of unspecified content, which is at most a fourth larger.
    pub(super) fn take(&self, len: usize) -> Vec<u8> {
        let most = len.saturating_add((len / 4).max(STEP));
        let fits = |buffer: &Vec<u8>| (len..=most).contains(&buffer.capacity());
        let found = {
            let mut free = self.free.lock();
            free.iter().rposition(fits).map(|nth| free.remove(nth))
        };
        // What is not written takes no memory yet.
        let fresh = || vec![0; len.checked_next_multiple_of(STEP).unwrap_or(len)];
        let mut buffer = found.unwrap_or_else(fresh);
        buffer.resize(len, 0);
        buffer
    }

    /// Keeps `buffer` for later, or frees it.
    pub(super) fn give(&self, buffer: Vec<u8>) {
        if buffer.capacity() < LEAST {
            return;
        }
        let mut free = self.free.lock();
        let waiting: usize = free.iter().map(Vec::capacity).fold(0, usize::saturating_add);
        let has_room = waiting.saturating_add(buffer.capacity()) <= index(self.most);
        if has_room && free.len() < COUNT_MAX {
            free.push(buffer);
            return;
        }
        drop(free);
        drop(buffer);
    }

    /// Frees all.
    pub(super) fn release(&self) {
        let waiting = std::mem::take(&mut *self.free.lock());
        drop(waiting);
    }

    #[cfg(test)]
    fn waiting(&self) -> u64 {
        self.free.lock().iter().map(Vec::capacity).sum::<usize>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn a_buffer_is_used_again_for_what_fits_it_well() {
        let buffers = Buffers::beside(1 << 30);
        let buffer = buffers.take(MIB);
        let place = buffer.as_ptr();
        buffers.give(buffer);
        let other = buffers.take(MIB / 2);
        assert_ne!(other.as_ptr(), place, "twice as large");
        assert_eq!(buffers.waiting(), 1 << 20);
        let again = buffers.take(MIB - 1000);
        assert_eq!((again.as_ptr(), again.len()), (place, MIB - 1000));
        assert_eq!(buffers.waiting(), 0);
    }

    #[test]
    fn what_waits_is_bounded() {
        let buffers = Buffers::beside(64 << 20);
        (0..10).for_each(|_| buffers.give(vec![0; MIB]));
        assert_eq!(buffers.waiting(), 4 << 20, "a sixteenth of the cache");
        buffers.release();
        assert_eq!(buffers.waiting(), 0);
        let buffers = Buffers::beside(1 << 30);
        (0..100).for_each(|_| buffers.give(vec![0; LEAST]));
        assert_eq!(buffers.waiting(), 4 << 20, "sixteen");
        buffers.give(vec![0; LEAST - 1]);
        assert_eq!(buffers.waiting(), 4 << 20);
    }
}
