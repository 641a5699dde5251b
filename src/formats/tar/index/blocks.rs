//! The bytes of an index, which are checked when they are first touched.
//!
//! Problem: the index of 14 million members has 900 MB. A mount that reads and checks all of it
//! takes seconds and keeps all of it in memory, in each daemon of a node, although a job may look
//! up a thousand names. A mapping would be there at once and shared. But every process that may
//! write to the file can change what is mapped: cut short, it kills the daemon (SIGBUS);
//! overwritten, it changes under the reader after it was checked.
//!
//! Idea: the bytes are cut into blocks, each with a checksum that the head of the file holds. A
//! block is read with pread(2) into memory of ours and compared with its checksum when something
//! in it is first wanted. From then on it cannot change. What is not touched costs nothing but its
//! checksum and its slot, and the page cache holds the file once for all daemons.
//!
//! Cost: a copy of each block that is in use. Blocks that were not used lately are dropped when all
//! indexes of the process together hold more than their allowance, and read and checked again when
//! they are wanted again, which takes some microseconds from the page cache. A hit takes the lock
//! of one block for a copy of some bytes. No lock is held over I/O, so two readers that miss a
//! block at once may both read it.

use crate::error::{Error, Result};
use crate::formats::bytes::{index, length};
use crate::storage::Storage;
use crate::sync::{Arc, AtomicUsize, Mutex, Ordering};

/// Bytes of a block. Small ones make a miss cheap, and large ones the table of checksums small.
pub(super) const BLOCK: usize = 16 << 10;

/// Blocks that an index may keep even if others have used up the allowance: the way from the root
/// to one file.
const LEAST: usize = 8;

/// Memory for blocks, shared by the indexes of a process.
#[derive(Debug)]
pub(in crate::formats) struct Allowance {
    /// Blocks.
    limit: usize,
    held: AtomicUsize,
}

impl Allowance {
    /// An allowance of about `bytes`.
    pub(in crate::formats) fn new(bytes: u64) -> Self {
        let limit = index(bytes).checked_div(BLOCK).unwrap_or(0);
        Self { limit, held: AtomicUsize::new(0) }
    }

    /// Blocks that are held.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

/// Where the bytes come from.
pub(super) enum Backing {
    /// Memory that no other process can change, or that was checked when it was read.
    Memory(Vec<u8>),
    /// A file that others may be able to change.
    Checked(Checked),
}

/// Bytes at an offset, right or an error.
pub(super) struct Blocks {
    len: u64,
    backing: Backing,
}

/// Blocks of a file with their checksums.
pub(super) struct Checked {
    storage: Arc<dyn Storage>,
    /// Where in the file the first block begins.
    start: u64,
    /// The CRC-32 of each block.
    sums: Vec<u32>,
    slots: Vec<Mutex<Slot>>,
    allowance: Arc<Allowance>,
    /// Blocks that are held.
    held: AtomicUsize,
    /// The slot to try next for one to drop.
    hand: AtomicUsize,
}

/// A block, if it is held. The lock guards only that; taken alone, never over I/O.
#[derive(Default)]
struct Slot {
    block: Option<Box<[u8]>>,
    /// Whether it was used since the hand came by.
    is_used: bool,
}

impl Blocks {
    /// The `len` bytes of `backing`.
    pub(super) fn new(len: u64, backing: Backing) -> Self {
        Self { len, backing }
    }

    /// Fills `buffer` with the bytes from `at`.
    ///
    /// # Errors
    /// `Corrupt` where they are damaged or missing; `Io` where they cannot be read.
    pub(super) fn read(&self, at: u64, buffer: &mut [u8]) -> Result<()> {
        match &self.backing {
            Backing::Memory(bytes) => {
                let start = index(at);
                let found = bytes.get(start..start.saturating_add(buffer.len()));
                buffer.copy_from_slice(found.ok_or_else(|| self.outside(at))?);
                Ok(())
            }
            Backing::Checked(checked) => self.read_checked(checked, at, buffer),
        }
    }

    fn read_checked(&self, checked: &Checked, mut at: u64, mut buffer: &mut [u8]) -> Result<()> {
        let block_len = length(BLOCK);
        while !buffer.is_empty() {
            let nth = index(at.checked_div(block_len).unwrap_or(0));
            let within = index(at.checked_rem(block_len).unwrap_or(0));
            let now = BLOCK.saturating_sub(within).min(buffer.len());
            let (here, behind) = buffer.split_at_mut_checked(now).unwrap_or_default();
            self.copy(checked, nth, within, here)?;
            at = at.saturating_add(length(now));
            buffer = behind;
        }
        Ok(())
    }

    /// Fills `buffer` from one block.
    fn copy(&self, checked: &Checked, nth: usize, within: usize, buffer: &mut [u8]) -> Result<()> {
        let outside = || self.outside(length(nth).saturating_mul(length(BLOCK)));
        let range = within..within.saturating_add(buffer.len());
        let slot = checked.slots.get(nth).ok_or_else(outside)?;
        {
            let mut slot = slot.lock();
            if let Some(block) = &slot.block {
                buffer.copy_from_slice(block.get(range).ok_or_else(outside)?);
                slot.is_used = true;
                return Ok(());
            }
        }
        let block = self.load(checked, nth)?;
        buffer.copy_from_slice(block.get(range).ok_or_else(outside)?);
        checked.keep(slot, block);
        Ok(())
    }

    /// Reads a block and compares it with its checksum.
    fn load(&self, checked: &Checked, nth: usize) -> Result<Box<[u8]>> {
        let start = length(nth).saturating_mul(length(BLOCK));
        let len = self.len.saturating_sub(start).min(length(BLOCK));
        let mut block = vec![0; index(len)];
        let at = checked.start.saturating_add(start);
        checked.storage.read_exact_at(&mut block, at)?;
        match checked.sums.get(nth) {
            Some(&sum) if crc32fast::hash(&block) == sum => Ok(block.into_boxed_slice()),
            _ => Err(Error::corrupt(format!("the index is damaged at {at:#x}"))),
        }
    }

    fn outside(&self, at: u64) -> Error {
        Error::corrupt(format!("the index points to byte {at:#x} of {:#x}", self.len))
    }

    /// The same bytes in memory, all of them checked.
    ///
    /// # Errors
    /// As `read`.
    pub(super) fn into_memory(self) -> Result<Self> {
        let mut bytes = vec![0; index(self.len)];
        self.read(0, &mut bytes)?;
        Ok(Self { len: self.len, backing: Backing::Memory(bytes) })
    }

    /// Drops all blocks of a file. They are read again when they are wanted again.
    pub(super) fn release(&self) {
        if let Backing::Checked(checked) = &self.backing {
            for slot in &checked.slots {
                checked.drop_from(slot);
            }
        }
    }
}

impl Checked {
    /// The blocks of `storage` from `start` on, whose checksums are `sums`.
    pub(super) fn new(
        storage: Arc<dyn Storage>,
        start: u64,
        sums: Vec<u32>,
        allowance: Arc<Allowance>,
    ) -> Self {
        let slots = sums.iter().map(|_| Mutex::default()).collect();
        let (held, hand) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { storage, start, sums, slots, allowance, held, hand }
    }

    /// Keeps `block` in its slot, and drops others where there are too many.
    fn keep(&self, slot: &Mutex<Slot>, block: Box<[u8]>) {
        {
            let mut slot = slot.lock();
            if slot.block.is_some() {
                return;
            }
            // Before another thread can drop the block and count it down.
            self.held.fetch_add(1, Ordering::Relaxed);
            self.allowance.held.fetch_add(1, Ordering::Relaxed);
            slot.block = Some(block);
            slot.is_used = true;
        }
        // Each slot is tried twice at most: the first time clears its mark.
        let mut looks = self.slots.len().saturating_mul(2);
        while self.is_over() && looks > 0 {
            looks = looks.saturating_sub(1);
            let hand = self.hand.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = hand.checked_rem(self.slots.len()).and_then(|at| self.slots.get(at))
            else {
                return;
            };
            let mut found = slot.lock();
            if !std::mem::take(&mut found.is_used) {
                drop(found);
                self.drop_from(slot);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.held.load(Ordering::Relaxed) > LEAST
            && self.allowance.held.load(Ordering::Relaxed) > self.allowance.limit
    }

    fn drop_from(&self, slot: &Mutex<Slot>) {
        let block = slot.lock().block.take();
        if block.is_some() {
            self.held.fetch_sub(1, Ordering::Relaxed);
            self.allowance.held.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        let held = self.held.load(Ordering::Relaxed);
        self.allowance.held.fetch_sub(held, Ordering::Relaxed);
    }
}
