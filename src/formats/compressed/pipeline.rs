//! The first pass over a file of extents: one thread finds them, all threads decode them, and the
//! results are delivered in order.
//!
//! Invariants: at most two extents per thread are in flight, and no more than the cache gives
//! permits for. Extent n is sent to thread n modulo the number of threads, and its result is
//! received from there; this keeps the order. Only a pipeline with nothing in flight waits for a
//! permit.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use super::chunk_cache::ChunkCache;
use super::chunks::{Chunks, Extent, Size};
use super::format::{ExtentFormat, Next, Output, PIECE_MAX, Pass, Task, Verdict, Walk};
use crate::cache::Permit;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::length;
use crate::formats::limits::{BZIP2_JOINS_MAX, CHUNK_TARGET};
use crate::os::processors;
use crate::storage::Storage;
use crate::sync::Arc;

/// Most extents queued or being decoded per thread.
const IN_FLIGHT_PER_THREAD: usize = 2;

/// A first pass over a file of extents.
pub(super) struct Pipeline {
    format: &'static ExtentFormat,
    storage: Arc<dyn Storage>,
    walk: Box<dyn Walk>,
    workers: Vec<Worker>,
    sent: usize,
    received: usize,
    /// Provides permits for the extents in flight.
    cache: Arc<ChunkCache>,
    in_flight: VecDeque<(Task, Permit)>,
    /// An extent that was found but has no permit yet.
    next_task: Option<Task>,
    /// How the walk ended. Returned once everything in flight is delivered.
    stop: Option<Result<Output>>,
    /// A decoded chunk that is being delivered, and how many of its bytes were.
    pending: (Vec<u8>, usize),
    /// For the memory of that chunk.
    permit: Option<Permit>,
    extents: Vec<Extent>,
    decoded: u64,
    /// Decoded bytes that are known to be correct.
    checked: u64,
    position: u64,
}

impl Pipeline {
    pub(super) fn start(
        format: &'static ExtentFormat,
        storage: Arc<dyn Storage>,
        walk: Box<dyn Walk>,
        cache: Arc<ChunkCache>,
    ) -> Result<Self> {
        // If a process limit is reached, the threads that could be started do the work.
        let mut workers = vec![Worker::start(format, Arc::clone(&storage), Arc::clone(&cache))?];
        let more = (1..processors::count())
            .map_while(|_| Worker::start(format, Arc::clone(&storage), Arc::clone(&cache)).ok());
        workers.extend(more);
        Ok(Self {
            format,
            workers,
            storage,
            walk,
            sent: 0,
            received: 0,
            cache,
            in_flight: VecDeque::new(),
            next_task: None,
            stop: None,
            pending: (Vec::new(), 0),
            permit: None,
            extents: Vec::new(),
            decoded: 0,
            checked: 0,
            position: 0,
        })
    }

    /// The next part of the chunk that is being delivered.
    fn take_piece(&mut self) -> Option<Output> {
        let (bytes, taken) = &mut self.pending;
        let rest = bytes.get(*taken..).filter(|rest| !rest.is_empty())?;
        let piece = rest.get(..PIECE_MAX).unwrap_or(rest);
        let output = Output::Piece(piece.into());
        *taken = taken.saturating_add(piece.len());
        if *taken >= bytes.len() {
            let (delivered, _) = std::mem::take(&mut self.pending);
            self.cache.buffers().recycle(delivered);
            self.permit = None;
        }
        Some(output)
    }

    /// Finds extents and sends them to the threads, up to the limit.
    fn look_ahead(&mut self) -> Result<()> {
        let in_flight_max = self.workers.len().saturating_mul(IN_FLIGHT_PER_THREAD);
        while self.stop.is_none() && self.in_flight.len() < in_flight_max {
            let next = match self.next_task.take() {
                Some(task) => Ok(Next::Task(task)),
                None => self.walk.next(),
            };
            match next {
                Ok(Next::Task(task)) => {
                    let storage = Some(&*self.storage);
                    let bytes = (self.format.memory_needed)(storage, &task.extent, task.size);
                    let permit = match self.in_flight.is_empty() {
                        true => {
                            self.cache.check(bytes)?;
                            Some(self.cache.wait(bytes))
                        }
                        false => self.cache.now(bytes),
                    };
                    let Some(permit) = permit else {
                        self.next_task = Some(task);
                        break;
                    };
                    let worker = worker(&mut self.workers, self.sent)?;
                    worker.send(task.extent, task.size)?;
                    self.sent = self.sent.wrapping_add(1);
                    self.in_flight.push_back((task, permit));
                }
                Ok(Next::ChunkTooLarge) => self.stop = Some(Ok(Output::ChunkTooLarge)),
                Ok(Next::End) => self.stop = Some(Ok(Output::End)),
                Err(error) => self.stop = Some(Err(error)),
            }
        }
        Ok(())
    }

    /// Waits for the oldest extent in flight.
    fn receive(&mut self) -> Option<(Task, Permit, Result<Vec<u8>>)> {
        let (task, permit) = self.in_flight.pop_front()?;
        let decoded = worker(&mut self.workers, self.received).and_then(|worker| worker.receive());
        self.received = self.received.wrapping_add(1);
        Some((task, permit, decoded))
    }

    /// Decodes an extent that failed together with the extents after it. Returns the first error if
    /// that also fails.
    fn decode_joined(&mut self, mut failed: Task, error: Error) -> Result<(Task, Vec<u8>)> {
        for _ in 0..BZIP2_JOINS_MAX {
            self.look_ahead()?;
            let next = self.in_flight.front();
            let Some(joined) = next.and_then(|(next, _)| self.walk.join(&failed, next)) else {
                break;
            };
            // The result of the part alone is useless.
            drop(self.receive());
            let (storage, buffers) = (&*self.storage, self.cache.buffers());
            let decoded = self.format.decode(storage, &joined.extent, joined.size, buffers);
            match decoded {
                Ok(bytes) => return Ok((joined, bytes)),
                Err(_) => failed = joined,
            }
        }
        Err(error)
    }

    fn accept(&mut self, task: &Task, bytes: Vec<u8>) {
        let decoded_end = self.decoded.saturating_add(length(bytes.len()));
        match self.walk.on_decoded(task, &bytes) {
            Ok(Verdict::Checked) => self.checked = decoded_end,
            Ok(Verdict::Unchecked) => {}
            Ok(Verdict::End) => {
                self.checked = decoded_end;
                self.end(Ok(Output::End));
            }
            // The bytes are delivered before the error.
            Err(error) => self.end(Err(error)),
        }
        self.position = self.format.unit.byte(task.extent.end);
        if bytes.is_empty() {
            self.permit = None;
        } else {
            self.record(&task.extent, length(bytes.len()));
            self.pending = (bytes, 0);
        }
    }

    /// Records an extent of `len` decoded bytes. Merges it with the last one if both are small.
    fn record(&mut self, extent: &Extent, len: u64) {
        let decoded = self.decoded;
        self.decoded = decoded.saturating_add(len);
        let walk = &self.walk;
        if let Some(last) = self.extents.last_mut()
            && last.end == extent.start
            && self.decoded.saturating_sub(last.decoded) <= CHUNK_TARGET
            && let Some(detail) = walk.merge(last.detail, extent.detail)
        {
            (last.end, last.detail) = (extent.end, detail);
            return;
        }
        self.extents.push(Extent { decoded, ..*extent });
    }

    /// Discards everything in flight.
    fn end(&mut self, how: Result<Output>) {
        self.in_flight.clear();
        self.next_task = None;
        self.stop = Some(how);
    }
}

impl Pass for Pipeline {
    fn next(&mut self) -> Result<Output> {
        loop {
            if let Some(piece) = self.take_piece() {
                return Ok(piece);
            }
            self.look_ahead()?;
            let Some((task, permit, decoded)) = self.receive() else {
                let stop = self.stop.replace(Ok(Output::End));
                return stop.unwrap_or(Ok(Output::End));
            };
            let outcome = match decoded {
                Ok(bytes) => {
                    self.permit = Some(permit);
                    Ok((task, bytes))
                }
                Err(error) => {
                    // Return the permit before waiting for other extents.
                    drop(permit);
                    self.decode_joined(task, error)
                }
            };
            match outcome {
                Ok((task, bytes)) => self.accept(&task, bytes),
                Err(error) => self.end(Err(error)),
            }
        }
    }

    /// Compressed bytes whose contents were delivered.
    fn position(&self) -> u64 {
        self.position
    }

    fn trailing_garbage_at(&self) -> Option<u64> {
        self.walk.trailing_garbage_at()
    }

    fn usable_len(&self, damage: Kind) -> u64 {
        if damage == Kind::Truncated { self.decoded } else { self.checked }
    }

    /// The extents of the first `len` decoded bytes. `len` is the end of an extent.
    fn into_chunks(mut self: Box<Self>, len: u64) -> Chunks {
        self.extents.retain(|extent| extent.decoded < len);
        Chunks::Extents(self.extents)
    }
}

/// The thread that extent number `count` is sent to.
fn worker(workers: &mut [Worker], count: usize) -> Result<&mut Worker> {
    let worker_index = count.checked_rem(workers.len()).unwrap_or(0);
    workers.get_mut(worker_index).ok_or_else(thread_ended)
}

/// A thread that decodes extents.
struct Worker {
    /// None while it is being dropped.
    channels: Option<Channels>,
    thread: Option<JoinHandle<()>>,
}

/// The channels to and from a thread.
struct Channels {
    tasks: SyncSender<(Extent, Size)>,
    results: Receiver<Result<Vec<u8>>>,
}

impl Worker {
    fn start(
        format: &'static ExtentFormat,
        storage: Arc<dyn Storage>,
        cache: Arc<ChunkCache>,
    ) -> Result<Self> {
        let (tasks, inbox) = sync_channel::<(Extent, Size)>(IN_FLIGHT_PER_THREAD);
        let (outbox, results) = channel();
        let work = move || {
            for (extent, size) in inbox {
                let decoded = format.decode(&*storage, &extent, size, cache.buffers());
                if outbox.send(decoded).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("archfs-decode".into()).spawn(work);
        let thread = thread.map_err(|error| Error::io("cannot start a decoding thread", error))?;
        Ok(Self { channels: Some(Channels { tasks, results }), thread: Some(thread) })
    }

    fn send(&self, extent: Extent, size: Size) -> Result<()> {
        let channels = self.channels.as_ref().ok_or_else(thread_ended)?;
        channels.tasks.send((extent, size)).map_err(|_| thread_ended())
    }

    fn receive(&self) -> Result<Vec<u8>> {
        let channels = self.channels.as_ref().ok_or_else(thread_ended)?;
        channels.results.recv().unwrap_or_else(|_| Err(thread_ended()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Closing both channels ends the thread after its current extent.
        self.channels = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn thread_ended() -> Error {
    Error::io("decoding", io::Error::other("a decoding thread has ended"))
}
