//! Threads that compress fragment blocks, which the serial part of the work puts together.
//!
//! Owns the threads and the blocks that wait for them; leaves how many may wait to `fragments`.
//! Invariant: each block that is given is answered, by an error if a thread is lost.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, Scope};

use crate::error::{Error, Kind, Result};
use crate::sync::{Condvar, Mutex};

use super::block::{BlockEncoders, EncodedBlock};

/// A block to compress, and who waits for it.
struct Task {
    bytes: Vec<u8>,
    answer: SyncSender<Result<EncodedBlock>>,
}

/// What the threads share.
#[derive(Default)]
struct Waiting {
    tasks: VecDeque<Task>,
    /// No more will come.
    is_closed: bool,
}

/// The threads, and the blocks that wait for one.
pub(super) struct Encoders<'e> {
    block_encoders: &'e BlockEncoders,
    /// Guards only the list; taken alone.
    waiting: Mutex<Waiting>,
    /// That there is a task, or the end.
    changed: Condvar,
}

/// A block that will be compressed.
pub(super) struct Pending(Receiver<Result<EncodedBlock>>);

impl<'e> Encoders<'e> {
    /// No threads yet.
    pub(super) fn new(block_encoders: &'e BlockEncoders) -> Self {
        Self { block_encoders, waiting: Mutex::default(), changed: Condvar::new() }
    }

    /// Starts up to `count` threads; the number that could be started.
    pub(super) fn start<'s>(&'s self, scope: &'s Scope<'s, '_>, count: usize) -> usize {
        let start = |_: &usize| Builder::new().spawn_scoped(scope, || self.run()).is_ok();
        (0..count).take_while(start).count()
    }

    /// Has a block compressed, by the caller if there is no thread.
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

    /// Lets the threads end when there is nothing more to do.
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
            self.block_encoders.with(|block_encoder| block_encoder.store_unseen(&task.bytes));
        // Whoever asked may have given up.
        let _ = task.answer.send(stored);
    }
}

impl Pending {
    /// Waits for it.
    ///
    /// # Errors
    /// What the library reports.
    pub(super) fn wait(self) -> Result<EncodedBlock> {
        self.0.recv().unwrap_or_else(|_| Err(Error::new(Kind::Io, "a thread has ended early")))
    }
}

/// Closes when dropped, for a panic must let the threads end, too.
pub(super) struct Closing<'c, 'e>(pub(super) &'c Encoders<'e>);

impl Drop for Closing<'_, '_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
