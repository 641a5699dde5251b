//! The bytes of an index, which are checked when they are first used.
//!
//! Problem: the index of 14 million members has 900 MB. A mount that reads and checks all of it
//! takes seconds and keeps all of it in memory, in each daemon of a node, although a job may look
//! up only a thousand names. A memory mapping would be immediate and shared. But any process that
//! may write to the file can change the mapping. If it truncates the file, the daemon dies
//! (SIGBUS). If it overwrites the file, the data changes after the check.
//!
//! Idea: the bytes are divided into blocks. The file has a checksum for each. When something in a
//! block is first needed, pread(2) copies the block into private memory, where it is checked and
//! can no longer change. An unused block costs only its checksum and its slot, and the page cache
//! holds the file once for all daemons.
//!
//! Cost: a copy of each block in use. All indexes of a process share an allowance. If they exceed
//! it, blocks that were not used recently are dropped. Reading and checking a dropped block again
//! takes some microseconds from the page cache. A hit takes the lock of one block to copy some
//! bytes. No lock is held over I/O, so two readers that miss a block at once may both read it.

use crate::error::{Error, Result};
use crate::formats::bytes::{index, length};
use crate::storage::Storage;
use crate::sync::{Arc, AtomicUsize, Mutex, Ordering};

/// Size of a block, bytes. Smaller blocks make a miss cheaper but the checksum table larger.
pub(super) const BLOCK: usize = 16 << 10;

/// Blocks that an index may keep even if the allowance is used up: enough for the path from the
/// root to one file.
const MIN_BLOCKS: usize = 8;

/// Memory for blocks, shared by the indexes of a process.
#[derive(Debug)]
pub(crate) struct Allowance {
    /// Most blocks in memory.
    limit: usize,
    held: AtomicUsize,
}

impl Allowance {
    /// An allowance of about `bytes`.
    pub(crate) fn new(bytes: u64) -> Self {
        let limit = index(bytes).checked_div(BLOCK).unwrap_or(0);
        Self { limit, held: AtomicUsize::new(0) }
    }

    /// Number of blocks in memory.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

/// The source of the bytes.
pub(super) enum Backing {
    /// Private memory. If the bytes come from a file, they were checked when they were read.
    Memory(Vec<u8>),
    /// A file that other processes may be able to change.
    Checked(Checked),
}

/// Reads bytes at an offset. Invariant: it returns the right bytes or an error.
pub(super) struct Blocks {
    len: u64,
    backing: Backing,
}

/// The blocks of a file, and their checksums.
pub(super) struct Checked {
    storage: Arc<dyn Storage>,
    /// Offset of the first block in the file.
    start: u64,
    /// The CRC-32 of each block.
    sums: Vec<u32>,
    slots: Vec<Mutex<Slot>>,
    allowance: Arc<Allowance>,
    /// Blocks in memory.
    held: AtomicUsize,
    /// The next slot to consider for eviction (a clock hand).
    hand: AtomicUsize,
}

/// One block, if it is in memory. The lock guards only the slot. A thread holds one such lock at a
/// time, and never over I/O.
#[derive(Default)]
struct Slot {
    block: Option<Box<[u8]>>,
    /// Whether the block was used since the hand passed it.
    is_used: bool,
}

impl Blocks {
    /// The `len` bytes of `backing`.
    pub(super) fn new(len: u64, backing: Backing) -> Self {
        Self { len, backing }
    }

    /// Fills `buffer` with the bytes from `offset`.
    ///
    /// Fails with `Corrupt` if they are damaged or missing. `Io` if they cannot be read.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        match &self.backing {
            Backing::Memory(bytes) => {
                let start = index(offset);
                let found = bytes.get(start..start.saturating_add(buffer.len()));
                buffer.copy_from_slice(found.ok_or_else(|| self.outside(offset))?);
                Ok(())
            }
            Backing::Checked(checked) => self.read_checked(checked, offset, buffer),
        }
    }

    fn read_checked(
        &self,
        checked: &Checked,
        mut offset: u64,
        mut buffer: &mut [u8],
    ) -> Result<()> {
        let block_len = length(BLOCK);
        while !buffer.is_empty() {
            let nth = index(offset.checked_div(block_len).unwrap_or(0));
            let within = index(offset.checked_rem(block_len).unwrap_or(0));
            let len = BLOCK.saturating_sub(within).min(buffer.len());
            let (head, rest) = buffer.split_at_mut_checked(len).unwrap_or_default();
            self.copy(checked, nth, within, head)?;
            offset = offset.saturating_add(length(len));
            buffer = rest;
        }
        Ok(())
    }

    /// Fills `buffer` from one block, starting `within` bytes into it.
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

    /// Reads a block and checks it.
    fn load(&self, checked: &Checked, nth: usize) -> Result<Box<[u8]>> {
        let start = length(nth).saturating_mul(length(BLOCK));
        let len = self.len.saturating_sub(start).min(length(BLOCK));
        let mut block = vec![0; index(len)];
        let at = checked.start.saturating_add(start);
        checked.storage.read_exact_at(&mut block, at)?;
        match checked.sums.get(nth) {
            Some(&sum) if crc32fast::hash(&block) == sum => Ok(block.into_boxed_slice()),
            _ => Err(Error::corrupt("the index is damaged")
                .with_detail(format_args!("index block at {at:#x}"))),
        }
    }

    fn outside(&self, at: u64) -> Error {
        Error::corrupt("the index points past its end")
            .with_detail(format_args!("byte {at:#x} of {:#x}", self.len))
    }

    /// Copies all bytes into memory and checks them.
    pub(super) fn into_memory(self) -> Result<Self> {
        let mut bytes = vec![0; index(self.len)];
        self.read(0, &mut bytes)?;
        Ok(Self { len: self.len, backing: Backing::Memory(bytes) })
    }

    /// Drops all blocks that came from a file. They are read again on demand.
    pub(super) fn release(&self) {
        if let Backing::Checked(checked) = &self.backing {
            for slot in &checked.slots {
                checked.evict(slot);
            }
        }
    }
}

impl Checked {
    /// The blocks of `storage` from `start` on, with the checksums `sums`.
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

    /// Puts `block` into its slot, and evicts others if there are too many.
    fn keep(&self, slot: &Mutex<Slot>, block: Box<[u8]>) {
        {
            let mut slot = slot.lock();
            if slot.block.is_some() {
                return;
            }
            // Counted before another thread can drop the block and subtract it.
            self.held.fetch_add(1, Ordering::Relaxed);
            self.allowance.held.fetch_add(1, Ordering::Relaxed);
            slot.block = Some(block);
            slot.is_used = true;
        }
        // At most two rounds: the first clears the marks.
        let mut tries = self.slots.len().saturating_mul(2);
        while self.is_over() && tries > 0 {
            tries = tries.saturating_sub(1);
            let hand = self.hand.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = hand.checked_rem(self.slots.len()).and_then(|nth| self.slots.get(nth))
            else {
                return;
            };
            let mut locked = slot.lock();
            if !std::mem::take(&mut locked.is_used) {
                drop(locked);
                self.evict(slot);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.held.load(Ordering::Relaxed) > MIN_BLOCKS
            && self.allowance.held.load(Ordering::Relaxed) > self.allowance.limit
    }

    fn evict(&self, slot: &Mutex<Slot>) {
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
