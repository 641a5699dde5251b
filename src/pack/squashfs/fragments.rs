//! Fragment blocks: small files, and ends of files, several to a block.
//!
//! Invariant: the position of a fragment block depends on what was added, not on the speed of
//! threads. Block n is written when block n + `max_pending` is complete, or at the end.
//!
//! Threads compress the blocks. Every block gets an answer, an error if a thread died.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, Scope};

use super::block::{BlockEncoders, EncodedBlock};
use super::geometry::Geometry;
use crate::error::{Error, Kind, Result};
use crate::pack::output::Output;
use crate::sync::{Condvar, Mutex};

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

/// The fragment blocks of an image.
pub(super) struct Fragments<'f> {
    encoders: &'f Encoders<'f>,
    threads: usize,
    capacity: usize,
    /// Number of blocks that may be pending before the first of them must be written.
    max_pending: usize,
    /// The block that is being filled.
    open: Vec<u8>,
    pending: VecDeque<(u32, Pending)>,
    written: Vec<Fragment>,
}

impl<'f> Fragments<'f> {
    /// No blocks yet. `encoders` has `threads` threads.
    pub(super) fn new(geometry: &Geometry, encoders: &'f Encoders<'f>, threads: usize) -> Self {
        Self {
            encoders,
            threads,
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
        let number = u32::try_from(self.written.len() + self.pending.len());
        // The largest number means "no fragment".
        let fragment = number.ok().filter(|&number| number < u32::MAX).ok_or_else(|| {
            Error::new(Kind::InvalidInput, "a SquashFS image has at most 2^32 - 1 fragment blocks")
        })?;
        let offset = self.open.len() as u32;
        self.open.extend_from_slice(bytes);
        Ok(Tail { fragment, offset })
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
        self.pending.push_back((len, self.encoders.compress(bytes, self.threads)));
        match self.pending.len() > self.max_pending {
            true => self.write_first(output),
            false => Ok(()),
        }
    }

    fn write_first(&mut self, output: &mut Output) -> Result<()> {
        let Some((len, pending)) = self.pending.pop_front() else { return Ok(()) };
        let stored = pending.wait()?;
        self.written.push(Fragment { start: output.len(), size_field: stored.size_field, len });
        output.append(&stored.bytes)
    }
}

/// A block to compress, and the channel for the result.
struct Task {
    bytes: Vec<u8>,
    answer: SyncSender<Result<EncodedBlock>>,
}

/// The queue that the threads share.
#[derive(Default)]
struct Waiting {
    tasks: VecDeque<Task>,
    /// No more tasks will be added.
    is_closed: bool,
}

/// The threads and their queue.
pub(super) struct Encoders<'e> {
    block_encoders: &'e BlockEncoders,
    /// Guards only the queue; never held with another lock.
    waiting: Mutex<Waiting>,
    /// Signalled for a new task and when the queue is closed.
    changed: Condvar,
}

/// The result of a task that may still be running.
pub(super) struct Pending(Receiver<Result<EncodedBlock>>);

impl<'e> Encoders<'e> {
    /// A queue without threads.
    pub(super) fn new(block_encoders: &'e BlockEncoders) -> Self {
        Self { block_encoders, waiting: Mutex::default(), changed: Condvar::new() }
    }

    /// Starts up to `count` threads and returns how many could be started.
    pub(super) fn start<'s>(&'s self, scope: &'s Scope<'s, '_>, count: usize) -> usize {
        let start = |_: &usize| Builder::new().spawn_scoped(scope, || self.run()).is_ok();
        (0..count).take_while(start).count()
    }

    /// Compresses a block on a thread, or on the caller's if there is none.
    pub(super) fn compress(&self, bytes: Vec<u8>, threads: usize) -> Pending {
        let (answer, pending) = sync_channel(1);
        let task = Task { bytes, answer };
        if threads == 0 {
            self.work(&task);
        } else {
            self.waiting.lock().tasks.push_back(task);
            self.changed.notify_one();
        }
        Pending(pending)
    }

    /// Makes the threads exit when the queue is empty.
    pub(super) fn close(&self) {
        self.waiting.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn run(&self) {
        while let Some(task) = self.next() {
            self.work(&task);
        }
    }

    fn next(&self) -> Option<Task> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(task) = waiting.tasks.pop_front() {
                return Some(task);
            }
            if waiting.is_closed {
                return None;
            }
            self.changed.wait(&mut waiting);
        }
    }

    fn work(&self, task: &Task) {
        let stored =
            self.block_encoders.with(|block_encoder| block_encoder.encode_unchecked(&task.bytes));
        // The receiver may be gone after an error.
        let _ = task.answer.send(stored);
    }
}

impl Pending {
    /// Waits for the block.
    pub(super) fn wait(self) -> Result<EncodedBlock> {
        self.0.recv().unwrap_or_else(|_| Err(Error::new(Kind::Io, "a thread has ended early")))
    }
}

/// Closes the queue when dropped, so that the threads also exit after a panic.
pub(super) struct Closing<'c, 'e>(pub(super) &'c Encoders<'e>);

impl Drop for Closing<'_, '_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
