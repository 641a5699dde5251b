//! Test storage that fails at random: the same seed and order of reads give the same faults.
//!
//! Invariant: a read returns the right bytes or an error, unless `changed` is set.

use std::thread;
use std::time::Duration;

use super::Storage;
use crate::error::{Error, Result};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};

/// Which reads go wrong. Everything but `from` is random.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// One read in this many fails with an I/O error; 0 for none, 1 for all.
    pub failing: u64,
    /// One read in this many ends early, as at the end of the file.
    pub short: u64,
    /// One read in this many returns one wrong byte.
    pub changed: u64,
    /// One read in this many is delayed.
    pub late: u64,
    /// Only reads that reach past this offset can fail.
    pub from: u64,
}

/// Storage with injected faults.
pub struct FaultyStorage {
    inner: Arc<dyn Storage>,
    /// Guards the faults and the state of the random number generator. Held for a few operations.
    faults: Mutex<(Faults, u64)>,
    reads: AtomicU64,
    failed: AtomicU64,
}

impl FaultyStorage {
    /// The bytes of `inner`, without faults at first.
    pub fn new(inner: Arc<dyn Storage>, seed: u64) -> Self {
        let faults = Mutex::new((Faults::default(), seed.wrapping_mul(2).wrapping_add(1)));
        Self { inner, faults, reads: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }

    /// Sets the faults of all further reads.
    pub fn set(&self, faults: Faults) {
        self.faults.lock().0 = faults;
    }

    /// Reads so far.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Reads that failed or returned wrong bytes.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Decides what happens to a read that ends at `end`: each fault or not, and a random number.
    fn draw(&self, end: u64) -> ([bool; 4], u64) {
        let mut guard = self.faults.lock();
        let (faults, state) = &mut *guard;
        let mut random = || {
            let next = state.wrapping_mul(6_364_136_223_846_793_005);
            *state = next.wrapping_add(1_442_695_040_888_963_407);
            *state >> 33
        };
        let is_in_range = end > faults.from;
        let mut hits = |one_in: u64| one_in > 0 && random().is_multiple_of(one_in) && is_in_range;
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
            // A failed pread(2) may have written to the buffer.
            buffer.fill(0xee);
            return Err(Error::io("injected fault", std::io::Error::from_raw_os_error(5)));
        }
        self.inner.read_exact_at(buffer, offset)?;
        if short {
            let position = (random % wanted.max(1)) as usize;
            buffer[position..].fill(0xee);
            return Err(Error::corrupt("injected: unexpected end of file"));
        }
        if changed && !buffer.is_empty() {
            let position = (random % wanted) as usize;
            buffer[position] ^= 1 << (random >> 28 & 7);
        }
        Ok(())
    }
}
