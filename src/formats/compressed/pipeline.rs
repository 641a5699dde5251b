//! The first pass over a file of extents: found by one thread, decoded by all, delivered in order.
//!
//! Owns the threads and what is under way; leaves finding extents, and the checks that span them,
//! to a `Walk`. Invariants: at most two extents a thread are under way, and no more than the cache
//! gives permits for; extent n goes to thread n modulo their number and is asked for there, so no
//! order is ever lost. Only a pipeline with nothing under way waits for a permit.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use super::extent::{Size, cost, decode};
use super::first_pass::Found;
use super::seek_index::Extent;
use super::{ChunkCache, Container};
use crate::cache::Permit;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::length;
use crate::formats::limits::{BZIP2_JOINS_MAX, CHUNK_TARGET};
use crate::processors;
use crate::storage::Storage;
use crate::sync::Arc;

/// Extents that wait for each thread or are decoded by it.
const AHEAD: usize = 2;

/// The largest piece that is delivered, bytes; a larger chunk comes in several. So small that the
/// heap has memory for the next.
const PIECE_MAX: usize = 256 << 10;

/// An extent that was found, with its size as far as it is known by then.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) extent: Extent,
    pub(super) size: Size,
    pub(super) note: Note,
}

/// What a walk wants to remember of an extent until it is decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Note {
    None,
    /// bzip2: not data but the end of a stream.
    StreamEnd,
    /// lz4: a part of a frame.
    Frame {
        starts: bool,
        ends: Option<FrameEnd>,
    },
}

/// What an lz4 frame says of its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FrameEnd {
    pub(super) checksum: Option<u32>,
    pub(super) size: Option<u64>,
}

/// What a walk found.
pub(super) enum Next {
    Task(Task),
    /// An extent too large to be decoded at once.
    Giant,
    End,
}

/// What is known of the bytes up to the end of an extent that was decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// They are right, as far as the file holds checksums.
    Checked,
    /// A checksum further on will tell.
    Unchecked,
    /// They are right, and the file ends here.
    End,
}

/// Finds the extents of a file.
pub(super) trait Walk {
    fn next(&mut self) -> Result<Next>;

    /// Checks what `task` gave, in order.
    fn arrived(&mut self, _task: &Task, _bytes: &[u8]) -> Result<Arrival> {
        Ok(Arrival::Checked)
    }

    /// Where something begins that is not of the container, after the end.
    fn garbage(&self) -> Option<u64> {
        None
    }

    /// `failed` and the task after it as one, where what cut them apart may have been chance.
    fn join(&self, _failed: &Task, _next: &Task) -> Option<Task> {
        None
    }

    /// The detail of an extent with `before`'s detail and one with `after`'s, as one extent.
    fn merge(&self, _before: u32, _after: u32) -> Option<u32> {
        None
    }
}

pub(super) struct Pipeline {
    container: Container,
    storage: Arc<dyn Storage>,
    walk: Box<dyn Walk>,
    workers: Vec<Worker>,
    sent: usize,
    received: usize,
    /// Gives room for what is under way.
    cache: Arc<ChunkCache>,
    under_way: VecDeque<(Task, Permit)>,
    /// An extent that was found but for which there is no room yet.
    found: Option<Task>,
    /// How the walk ended, once it has; told when all that was under way is delivered.
    stop: Option<Result<Found>>,
    /// A decoded chunk that is being delivered, and how much of it was.
    pending: (Vec<u8>, usize),
    /// For the memory of that chunk.
    permit: Option<Permit>,
    extents: Vec<Extent>,
    decoded: u64,
    /// Decoded bytes that are known to be right.
    checked: u64,
    position: u64,
}

impl Pipeline {
    pub(super) fn start(
        container: Container,
        storage: Arc<dyn Storage>,
        walk: Box<dyn Walk>,
        cache: Arc<ChunkCache>,
    ) -> Result<Self> {
        // At a limit of processes those that there are do it.
        let mut workers = vec![Worker::start(container, Arc::clone(&storage), Arc::clone(&cache))?];
        let more = (1..processors::count())
            .map_while(|_| Worker::start(container, Arc::clone(&storage), Arc::clone(&cache)).ok());
        workers.extend(more);
        Ok(Self {
            container,
            workers,
            storage,
            walk,
            sent: 0,
            received: 0,
            cache,
            under_way: VecDeque::new(),
            found: None,
            stop: None,
            pending: (Vec::new(), 0),
            permit: None,
            extents: Vec::new(),
            decoded: 0,
            checked: 0,
            position: 0,
        })
    }

    /// Compressed bytes whose contents were delivered.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Decoded bytes that are right for all that is known, after damage of the kind `damage`.
    pub(super) fn verified_len(&self, damage: Kind) -> u64 {
        if damage == Kind::Truncated { self.decoded } else { self.checked }
    }

    /// The extents of the first `len` decoded bytes, which end where one of them does.
    pub(super) fn into_extents(mut self, len: u64) -> Vec<Extent> {
        self.extents.retain(|extent| extent.decoded < len);
        self.extents
    }

    pub(super) fn next(&mut self) -> Result<Found> {
        loop {
            if let Some(piece) = self.take_piece() {
                return Ok(piece);
            }
            self.look_ahead()?;
            let Some((task, permit, decoded)) = self.receive() else {
                let stop = self.stop.replace(Ok(Found::End));
                return stop.unwrap_or(Ok(Found::End));
            };
            let rejoined = match decoded {
                Ok(bytes) => {
                    self.permit = Some(permit);
                    Ok((task, bytes))
                }
                Err(error) => {
                    // Given back before others are waited for.
                    drop(permit);
                    self.rejoined(task, error)
                }
            };
            match rejoined {
                Ok((task, bytes)) => self.accept(&task, bytes),
                Err(error) => self.end(Err(error)),
            }
        }
    }

    /// The next part of the chunk that is being delivered.
    fn take_piece(&mut self) -> Option<Found> {
        let (bytes, taken) = &mut self.pending;
        let rest = bytes.get(*taken..).filter(|rest| !rest.is_empty())?;
        let piece = rest.get(..PIECE_MAX).unwrap_or(rest);
        let found = Found::Piece(piece.into());
        *taken = taken.saturating_add(piece.len());
        if *taken >= bytes.len() {
            let (delivered, _) = std::mem::take(&mut self.pending);
            self.cache.buffers().give(delivered);
            self.permit = None;
        }
        Some(found)
    }

    /// Finds extents and hands them out, up to what may be under way.
    fn look_ahead(&mut self) -> Result<()> {
        let most = self.workers.len().saturating_mul(AHEAD);
        while self.stop.is_none() && self.under_way.len() < most {
            let next = match self.found.take() {
                Some(task) => Ok(Next::Task(task)),
                None => self.walk.next(),
            };
            match next {
                Ok(Next::Task(task)) => {
                    let storage = &*self.storage;
                    let bytes = cost(self.container, storage, &task.extent, task.size);
                    let permit = match self.under_way.is_empty() {
                        true => {
                            self.cache.check(bytes)?;
                            Some(self.cache.wait(bytes))
                        }
                        false => self.cache.now(bytes),
                    };
                    let Some(permit) = permit else {
                        self.found = Some(task);
                        break;
                    };
                    let worker = worker(&mut self.workers, self.sent)?;
                    worker.send(task.extent, task.size)?;
                    self.sent = self.sent.wrapping_add(1);
                    self.under_way.push_back((task, permit));
                }
                Ok(Next::Giant) => self.stop = Some(Ok(Found::Giant)),
                Ok(Next::End) => self.stop = Some(Ok(Found::End)),
                Err(error) => self.stop = Some(Err(error)),
            }
        }
        Ok(())
    }

    /// Waits for the oldest extent that is under way.
    fn receive(&mut self) -> Option<(Task, Permit, Result<Vec<u8>>)> {
        let (task, permit) = self.under_way.pop_front()?;
        let decoded = worker(&mut self.workers, self.received).and_then(|worker| worker.receive());
        self.received = self.received.wrapping_add(1);
        Some((task, permit, decoded))
    }

    /// What could not be decoded alone, together with the extents after it, if that helps.
    fn rejoined(&mut self, mut failed: Task, error: Error) -> Result<(Task, Vec<u8>)> {
        for _ in 0..BZIP2_JOINS_MAX {
            self.look_ahead()?;
            let next = self.under_way.front();
            let Some(joined) = next.and_then(|(next, _)| self.walk.join(&failed, next)) else {
                break;
            };
            // What the part gave is of no use.
            drop(self.receive());
            let (storage, buffers) = (&*self.storage, self.cache.buffers());
            let decoded = decode(self.container, storage, &joined.extent, joined.size, buffers);
            match decoded {
                Ok(bytes) => return Ok((joined, bytes)),
                Err(_) => failed = joined,
            }
        }
        Err(error)
    }

    /// Where something begins that is not of the container, after the end.
    pub(super) fn garbage(&self) -> Option<u64> {
        self.walk.garbage()
    }

    fn accept(&mut self, task: &Task, bytes: Vec<u8>) {
        let behind = self.decoded.saturating_add(length(bytes.len()));
        match self.walk.arrived(task, &bytes) {
            Ok(Arrival::Checked) => self.checked = behind,
            Ok(Arrival::Unchecked) => {}
            Ok(Arrival::End) => {
                self.checked = behind;
                self.end(Ok(Found::End));
            }
            // What it gave is delivered before the error.
            Err(error) => self.end(Err(error)),
        }
        let end = task.extent.end;
        self.position = if self.container == Container::Bzip2 { end >> 3 } else { end };
        if bytes.is_empty() {
            self.permit = None;
        } else {
            self.record(&task.extent, length(bytes.len()));
            self.pending = (bytes, 0);
        }
    }

    /// Keeps an extent of `len` decoded bytes, together with the last one where both are small.
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

    /// Gives up what is under way.
    fn end(&mut self, how: Result<Found>) {
        self.under_way.clear();
        self.found = None;
        self.stop = Some(how);
    }
}

/// The thread that extent number `count` goes to.
fn worker(workers: &mut [Worker], count: usize) -> Result<&mut Worker> {
    let turn = count.checked_rem(workers.len()).unwrap_or(0);
    workers.get_mut(turn).ok_or_else(gone)
}

/// A thread that decodes extents.
struct Worker {
    /// None while it is being dropped.
    lines: Option<Lines>,
    thread: Option<JoinHandle<()>>,
}

/// What goes to a thread and what comes back.
struct Lines {
    tasks: SyncSender<(Extent, Size)>,
    results: Receiver<Result<Vec<u8>>>,
}

impl Worker {
    fn start(
        container: Container,
        storage: Arc<dyn Storage>,
        cache: Arc<ChunkCache>,
    ) -> Result<Self> {
        let (tasks, inbox) = sync_channel::<(Extent, Size)>(AHEAD);
        let (outbox, results) = channel();
        let work = move || {
            for (extent, size) in inbox {
                let decoded = decode(container, &*storage, &extent, size, cache.buffers());
                if outbox.send(decoded).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("archfs-decode".into()).spawn(work);
        let thread = thread.map_err(|error| Error::io("starting a decoding thread", error))?;
        Ok(Self { lines: Some(Lines { tasks, results }), thread: Some(thread) })
    }

    fn send(&self, extent: Extent, size: Size) -> Result<()> {
        let lines = self.lines.as_ref().ok_or_else(gone)?;
        lines.tasks.send((extent, size)).map_err(|_| gone())
    }

    fn receive(&self) -> Result<Vec<u8>> {
        let lines = self.lines.as_ref().ok_or_else(gone)?;
        lines.results.recv().unwrap_or_else(|_| Err(gone()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Hanging up on both ends it after the extent it is at.
        self.lines = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn gone() -> Error {
    Error::io("decoding", io::Error::other("a decoding thread has ended"))
}
