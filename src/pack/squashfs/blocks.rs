//! Compresses blocks: those of one file, and fragment blocks with small files and ends of files.
//!
//! Invariants: a stored block is never longer than the input, and depends only on its bytes. The
//! position of a fragment block depends on what was added, not on the speed of threads.
//!
//! A high zstd level takes seconds for a few hundred megabytes of JPEGs and gains nothing. So a
//! block is checked first. If its entropy is low, it certainly gets smaller. Otherwise zstd at
//! level 1 decides, which is fast where it finds no matches.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, Scope};

use super::geometry::{Geometry, Saving};
use crate::codecs::{Encoder, Method};
use crate::error::{Error, Kind, Result};
use crate::pack::output::Output;
use crate::sync::{Arc, Mutex};

/// Set in the size of an uncompressed data block (squashfs.rst, section 3.4).
pub(super) const UNCOMPRESSED: u32 = 1 << 24;

/// Entropy in bits per byte below which a block gets at least a tenth smaller, even without
/// matches.
const LOW_ENTROPY: f64 = 7.0;

/// Bytes sampled for the entropy, in `PARTS` parts.
const SAMPLED: usize = 16 << 10;
const PARTS: usize = 8;

/// A block as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EncodedBlock {
    pub(super) bytes: Vec<u8>,
    /// Its size on disk, with `UNCOMPRESSED` set if it is not compressed.
    pub(super) size_field: u32,
}

impl EncodedBlock {
    pub(super) fn uncompressed(bytes: Vec<u8>) -> Self {
        // A block is at most 1 MiB long.
        let size_field = bytes.len() as u32 | UNCOMPRESSED;
        Self { bytes, size_field }
    }
}

/// Whether a size field is that of an uncompressed block.
pub(super) fn is_uncompressed(size_field: u32) -> bool {
    size_field & UNCOMPRESSED != 0
}

/// The state that one thread needs to compress blocks.
pub(super) struct BlockEncoder {
    saving: Saving,
    method: Method,
    encoder: Encoder,
    probe: Encoder,
}

impl BlockEncoder {
    fn new(geometry: &Geometry) -> Result<Self> {
        let method = geometry.method();
        let (encoder, probe) = (Encoder::new(method)?, Encoder::new(Method::Zstd(1))?);
        Ok(Self { saving: geometry.saving, method, encoder, probe })
    }

    /// Whether compressing `bytes` is likely to save space.
    pub(super) fn is_worth_it(&mut self, bytes: &[u8]) -> Result<bool> {
        if !self.is_probe_faster() {
            return Ok(self.encoder.encode(bytes, self.saving.limit(bytes.len()))?.is_some());
        }
        if entropy(bytes) < LOW_ENTROPY {
            return Ok(true);
        }
        // zstd level 1 stores input uncompressed if it would save less than a 64th.
        Ok(self.probe.encode(bytes, bytes.len().saturating_sub(1))?.is_some())
    }

    /// Encodes a block, after a check whether compressing is worth it.
    pub(super) fn encode(&mut self, bytes: &[u8]) -> Result<EncodedBlock> {
        let is_probed = self.is_probe_faster() && self.saving == Saving::Fiftieth;
        if is_probed && !self.is_worth_it(bytes)? {
            return Ok(EncodedBlock::uncompressed(bytes.to_vec()));
        }
        self.encode_unchecked(bytes)
    }

    /// Whether checking first is faster than compressing.
    fn is_probe_faster(&self) -> bool {
        !matches!(self.method, Method::None | Method::Lz4 | Method::Zstd(1))
    }

    /// Encodes a block without the check.
    pub(super) fn encode_unchecked(&mut self, bytes: &[u8]) -> Result<EncodedBlock> {
        match self.encoder.encode(bytes, self.saving.limit(bytes.len()))? {
            Some(compressed) => {
                Ok(EncodedBlock { bytes: compressed.to_vec(), size_field: compressed.len() as u32 })
            }
            None => Ok(EncodedBlock::uncompressed(bytes.to_vec())),
        }
    }
}

/// A pool of encoders, at most one per thread.
pub(super) struct BlockEncoders {
    geometry: Geometry,
    /// Guards only the list. Never held with another lock or while an encoder works.
    idle: Mutex<Vec<BlockEncoder>>,
}

impl BlockEncoders {
    pub(super) fn new(geometry: Geometry) -> Self {
        Self { geometry, idle: Mutex::default() }
    }

    pub(super) fn with<T>(&self, work: impl FnOnce(&mut BlockEncoder) -> Result<T>) -> Result<T> {
        let idle = self.idle.lock().pop();
        let mut block_encoder = match idle {
            Some(block_encoder) => block_encoder,
            None => BlockEncoder::new(&self.geometry)?,
        };
        let result = work(&mut block_encoder);
        self.idle.lock().push(block_encoder);
        result
    }
}

pub(super) fn is_zero(bytes: &[u8]) -> bool {
    // Compares the bytes with themselves, shifted by one, because memcmp is fastest.
    bytes.first().is_none_or(|&first| first == 0 && bytes[1..] == bytes[..bytes.len() - 1])
}

/// Entropy of samples of `bytes`, in bits per byte.
fn entropy(bytes: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    let mut total = 0_u32;
    let mut count = |part: &[u8]| {
        part.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
        total += part.len() as u32;
    };
    if bytes.len() <= SAMPLED {
        count(bytes);
    } else {
        let step = bytes.len() / PARTS;
        (0..PARTS).for_each(|part| count(&bytes[part * step..part * step + SAMPLED / PARTS]));
    }
    let total = f64::from(total);
    let bits = |&n: &u32| f64::from(n) * (total / f64::from(n)).log2();
    counts.iter().filter(|&&n| n > 0).map(bits).sum::<f64>() / total.max(1.0)
}

/// Bytes of fragment blocks in the queue, enough to keep many threads busy.
const PENDING_BYTES: u32 = 32 << 20;

/// Where a fragment block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fragment {
    pub(super) start: u64,
    /// Its size on disk, with a flag if it is uncompressed.
    pub(super) size_field: u32,
    /// Uncompressed size, bytes.
    pub(super) len: u32,
}

/// A position in a fragment block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) fragment: u32,
    pub(super) offset: u32,
}

/// Where the bytes of a file are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Placement {
    /// Offset of its first block; 0 if no block is stored.
    pub(super) start: u64,
    /// Index of its first entry in `Data::size_fields`.
    pub(super) size_fields: usize,
    pub(super) sparse: u64,
    pub(super) tail: Option<Tail>,
}

/// A block to compress, and the channel for the result.
struct Task {
    bytes: Vec<u8>,
    answer: SyncSender<Result<EncodedBlock>>,
}

impl Task {
    fn run(self, encoders: &BlockEncoders) {
        let stored = encoders.with(|encoder| encoder.encode_unchecked(&self.bytes));
        // The receiver may be gone after an error.
        let _ = self.answer.send(stored);
    }
}

struct Pending {
    len: u32,
    answer: Receiver<Result<EncodedBlock>>,
}

/// The fragment blocks of an image. Threads compress them. Block n is written when block n +
/// `max_pending` is complete, or at the end.
pub(super) struct Fragments<'f> {
    encoders: &'f BlockEncoders,
    /// Leads to the threads, which exit when it is dropped. `None` if there are none.
    tasks: Option<Sender<Task>>,
    capacity: usize,
    /// Number of blocks that may be pending before the first of them must be written.
    max_pending: usize,
    /// The block that is being filled.
    open: Vec<u8>,
    pending: VecDeque<Pending>,
    written: Vec<Fragment>,
}

impl<'f> Fragments<'f> {
    /// No blocks yet. Starts up to `threads` threads.
    pub(super) fn new<'e>(
        geometry: &Geometry,
        encoders: &'f BlockEncoders,
        scope: &'f Scope<'f, 'e>,
        threads: usize,
    ) -> Self {
        let (tasks, queue) = channel::<Task>();
        // Guards the receiver: the threads wait for tasks one after the other.
        let queue = Arc::new(Mutex::new(queue));
        let start = |_: &usize| {
            let queue = Arc::clone(&queue);
            let next = move || queue.lock().recv().ok();
            let run = move || {
                while let Some(task) = next() {
                    task.run(encoders);
                }
            };
            Builder::new().spawn_scoped(scope, run).is_ok()
        };
        let is_started = (0..threads).take_while(start).count() > 0;
        Self {
            encoders,
            tasks: is_started.then_some(tasks),
            capacity: geometry.fragment_size as usize,
            max_pending: (PENDING_BYTES / geometry.fragment_size.max(1)).clamp(32, 1024) as usize,
            open: Vec::new(),
            pending: VecDeque::new(),
            written: Vec::new(),
        }
    }

    /// Adds `bytes`, at most as many as a fragment block holds. May write an earlier block, so the
    /// caller must not be between two blocks of a file.
    ///
    /// Fails with `InvalidInput` if there are too many blocks for 32 bits; errors of compressing
    /// and writing.
    pub(super) fn add(&mut self, bytes: &[u8], output: &mut Output) -> Result<Tail> {
        if !self.open.is_empty() && self.open.len() + bytes.len() > self.capacity {
            self.complete(output)?;
        }
        let fragment = self.next_number()?;
        let offset = self.open.len() as u32;
        self.open.extend_from_slice(bytes);
        Ok(Tail { fragment, offset })
    }

    /// Adds a block that was written already, before all others. Returns its number.
    ///
    /// Fails with `InvalidInput` if there are too many blocks for 32 bits.
    pub(super) fn add_stored(&mut self, fragment: Fragment) -> Result<u32> {
        let number = self.next_number()?;
        self.written.push(fragment);
        Ok(number)
    }

    /// The number of the block that is being filled.
    fn next_number(&self) -> Result<u32> {
        let number = u32::try_from(self.written.len() + self.pending.len());
        // The largest number means "no fragment".
        number.ok().filter(|&number| number < u32::MAX).ok_or_else(|| {
            Error::new(Kind::InvalidInput, "a SquashFS image has at most 2^32 - 1 fragment blocks")
        })
    }

    /// Writes all remaining blocks and returns the table.
    pub(super) fn finish(mut self, output: &mut Output) -> Result<Vec<Fragment>> {
        if !self.open.is_empty() {
            self.complete(output)?;
        }
        while !self.pending.is_empty() {
            self.write_first(output)?;
        }
        Ok(self.written)
    }

    fn complete(&mut self, output: &mut Output) -> Result<()> {
        let bytes = std::mem::replace(&mut self.open, Vec::with_capacity(self.capacity));
        let len = bytes.len() as u32;
        let (sender, answer) = sync_channel(1);
        let task = Task { bytes, answer: sender };
        match &self.tasks {
            // If all threads have died, there is no answer.
            Some(tasks) => drop(tasks.send(task)),
            None => task.run(self.encoders),
        }
        self.pending.push_back(Pending { len, answer });
        match self.pending.len() > self.max_pending {
            true => self.write_first(output),
            false => Ok(()),
        }
    }

    fn write_first(&mut self, output: &mut Output) -> Result<()> {
        let Some(Pending { len, answer }) = self.pending.pop_front() else { return Ok(()) };
        let ended = |_| Err(Error::new(Kind::Io, "a thread has ended early"));
        let stored = answer.recv().unwrap_or_else(ended)?;
        self.written.push(Fragment { start: output.len(), size_field: stored.size_field, len });
        output.append(&stored.bytes)
    }
}

/// Incompressible bytes (SplitMix64).
#[cfg(test)]
pub(super) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let word = |n: u64| {
        let mut z = (seed + n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..len as u64 / 8 + 1).flat_map(word).collect();
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::squashfs::geometry::{Compressor, Tails};

    fn geometry(compressor: Compressor, saving: Saving) -> Geometry {
        let (block_size, fragment_size) = (128 << 10, 128 << 10);
        Geometry { block_size, fragment_size, tails: Tails::SmallFiles, saving, compressor }
    }

    fn stored(compressor: Compressor, saving: Saving, bytes: &[u8]) -> EncodedBlock {
        BlockEncoders::new(geometry(compressor, saving))
            .with(|block_encoder| block_encoder.encode(bytes))
            .unwrap()
    }

    #[test]
    fn noise_is_stored_uncompressed_and_text_is_not() {
        let text = b"so it goes on and on; ".repeat(3000);
        for compressor in
            [Compressor::Zstd(15), Compressor::Gzip(9), Compressor::Xz, Compressor::Lz4]
        {
            let noise = noise(50_000, 1);
            let uncompressed = stored(compressor, Saving::Fiftieth, &noise);
            assert_eq!(
                (uncompressed.size_field, &uncompressed.bytes),
                (50_000 | UNCOMPRESSED, &noise),
                "{compressor:?}"
            );
            let compressed = stored(compressor, Saving::Fiftieth, &text);
            assert!(
                !is_uncompressed(compressed.size_field) && compressed.bytes.len() < 2000,
                "{compressor:?}"
            );
            assert_eq!(compressed.size_field as usize, compressed.bytes.len());
        }
        assert!(stored(Compressor::None, Saving::Anything, &text).size_field & UNCOMPRESSED != 0);
    }

    #[test]
    fn saves_less_than_a_fiftieth_only_for_archives() {
        let mut bytes = noise(50_000, 2);
        bytes[..700].fill(0);
        assert!(
            stored(Compressor::Zstd(15), Saving::Fiftieth, &bytes).size_field & UNCOMPRESSED != 0
        );
        assert!(
            stored(Compressor::Gzip(9), Saving::Anything, &bytes).size_field & UNCOMPRESSED == 0
        );
        bytes[..1100].fill(0);
        assert!(
            stored(Compressor::Zstd(15), Saving::Fiftieth, &bytes).size_field & UNCOMPRESSED == 0
        );
    }

    #[test]
    fn recognizes_zeros() {
        assert!(is_zero(&[]) && is_zero(&[0]) && is_zero(&[0; 4097]));
        for position in [0, 1, 2048, 4096] {
            let mut bytes = [0; 4097];
            bytes[position] = 1;
            assert!(!is_zero(&bytes), "{position}");
        }
        assert!(!is_zero(&[7; 100]));
    }
}
