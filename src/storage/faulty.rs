//! Storage that fails at random, for tests: the same faults for the same seed and order of reads.
//!
//! Owns injected faults; is not part of the program. Invariant: a read is right, or it is an error,
//! unless bytes are to be changed.

use std::thread;
use std::time::Duration;

use super::Storage;
use crate::error::{Error, Result};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};

/// What becomes of reads. All of it at random but `from`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// One in so many fails with an I/O error; 0 for none, 1 for all.
    pub failing: u64,
    /// One in so many finds the end of the file in the middle of what it wants.
    pub short: u64,
    /// One in so many gets one byte of another value.
    pub changed: u64,
    /// One in so many takes a while.
    pub late: u64,
    /// Only reads of bytes from here on fail.
    pub from: u64,
}

/// Storage beneath which things go wrong.
pub struct FaultyStorage {
    inner: Arc<dyn Storage>,
    /// Guards what is to go wrong, and the state of the random numbers; held for a few operations.
    faults: Mutex<(Faults, u64)>,
    reads: AtomicU64,
    failed: AtomicU64,
}

impl FaultyStorage {
    /// The bytes of `inner`, without faults for now.
    pub fn new(inner: Arc<dyn Storage>, seed: u64) -> Self {
        let faults = Mutex::new((Faults::default(), seed.wrapping_mul(2).wrapping_add(1)));
        Self { inner, faults, reads: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }

    /// What becomes of reads from now on.
    pub fn set(&self, faults: Faults) {
        self.faults.lock().0 = faults;
    }

    /// Reads so far.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Reads that failed or gave other bytes.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// What happens to a read that ends at `end`: each fault or not, and a random number.
    fn draw(&self, end: u64) -> ([bool; 4], u64) {
        let mut guard = self.faults.lock();
        let (faults, state) = &mut *guard;
        let mut random = || {
            let next = state.wrapping_mul(6_364_136_223_846_793_005);
            *state = next.wrapping_add(1_442_695_040_888_963_407);
            *state >> 33
        };
        let is_there = end > faults.from;
        let mut hits = |one_in: u64| one_in > 0 && random().is_multiple_of(one_in) && is_there;
        let kinds = [faults.failing, faults.short, faults.changed, faults.late];
        let drawn = kinds.map(&mut hits);
        (drawn, random())
    }
}

impl Storage for FaultyStorage {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let wanted = buffer.len() as u64;
        let ([failing, short, changed, late], random) = self.draw(offset.saturating_add(wanted));
        if late {
            thread::sleep(Duration::from_micros(200));
        }
        if failing || short || (changed && !buffer.is_empty()) {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        if failing {
            // What pread(2) had put there by then.
            buffer.fill(0xee);
            return Err(Error::io("injected fault", std::io::Error::from_raw_os_error(5)));
        }
        self.inner.read_exact_at(buffer, offset)?;
        if short {
            let at = (random % wanted.max(1)) as usize;
            buffer[at..].fill(0xee);
            return Err(Error::corrupt("injected: the file ends before that"));
        }
        if changed && !buffer.is_empty() {
            let at = (random % wanted) as usize;
            buffer[at] ^= 1 << (random >> 28 & 7);
        }
        Ok(())
    }
}
