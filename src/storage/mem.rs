//! Test storage in memory that counts reads and fails on request.

use super::{InMemory, Storage};
use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Ordering};

/// Bytes in memory.
#[derive(Debug)]
pub struct MemStorage {
    bytes: InMemory,
    /// How many more reads fail with an I/O error.
    failing: AtomicU64,
    reads: AtomicU64,
    bytes_read: AtomicU64,
}

impl MemStorage {
    /// Storage that holds `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        let (failing, reads, bytes_read) = Default::default();
        Self { bytes: InMemory::new(bytes), failing, reads, bytes_read }
    }

    /// Makes the next `count` reads fail.
    pub fn fail_next(&self, count: u64) {
        self.failing.store(count, Ordering::Relaxed);
    }

    /// Reads so far.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Bytes read so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }
}

impl Storage for MemStorage {
    fn len(&self) -> u64 {
        self.bytes.len()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(buffer.len().try_into().unwrap_or(0), Ordering::Relaxed);
        let less = |left: u64| left.checked_sub(1);
        if self.failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            return Err(Error::io("injected fault", std::io::Error::other("no reason")));
        }
        self.bytes.read_exact_at(buffer, offset)
    }
}
