//! Threads that compress fragment blocks.
//!
//! Invariant: every block gets an answer, an error if a thread died.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, Scope};

use crate::error::{Error, Kind, Result};
use crate::sync::{Condvar, Mutex};

use super::block::{BlockEncoders, EncodedBlock};

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
