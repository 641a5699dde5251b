//! Threads that decode ahead.
//!
//! Owns the queue and the threads, which come with the work and go when there is none; leaves what
//! is fetched to whoever asks. Invariants: work is a favour, so it is dropped when the queue is
//! full or what it was for is gone; no lock is held while it is done; asking allocates nothing but
//! what starting a thread takes.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::failpoint;
use crate::processors;
use crate::sync::{Arc, Condvar, Mutex, Weak, thread};

#[cfg(all(test, feature = "model"))]
#[path = "workers_model.rs"]
mod model;

/// Requests that may wait.
const QUEUE: usize = 256;

/// Requests that are dropped after a thread could not be started, until that is tried again.
const PAUSE: u32 = 256;

/// How long a thread waits for work until it ends.
const PATIENCE: Duration = Duration::from_secs(10);

/// Fetches parts of files into a cache.
pub trait Fetch: Send + Sync {
    /// Fetches `range` of `file`, bytes. What fails is found again by whoever reads it.
    fn fetch(&self, file: u64, range: Range<u64>);
}

/// A part of a file that somebody will want.
pub struct Request {
    /// Who fetches it.
    pub by: Weak<dyn Fetch>,
    /// A number that `by` knows.
    pub file: u64,
    /// Bytes of the file.
    pub range: Range<u64>,
}

/// A bounded number of threads with a bounded queue.
pub struct Workers {
    queue: Arc<Queue>,
    /// Threads there may be.
    most: usize,
}

#[derive(Default)]
struct Queue {
    /// Guards requests and the counts of threads; held for a push or a pop.
    state: Mutex<State>,
    /// A request came, or the queue was closed.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    requests: VecDeque<Request>,
    threads: usize,
    idle: usize,
    /// Requests to be dropped, since there is no thread and none can be had.
    pause: u32,
    is_closed: bool,
}

impl Workers {
    /// At most `most` threads, none of which is started yet.
    pub fn new(most: usize) -> Self {
        let queue = Queue::default();
        queue.state.lock().requests.reserve_exact(QUEUE);
        Self { queue: Arc::new(queue), most }
    }

    /// Has `request` fetched soon, if there is room in the queue; tells whether there was.
    pub fn submit(&self, request: Request) -> bool {
        let starts = {
            let mut state = self.queue.state.lock();
            if state.pause > 0 || state.requests.len() >= QUEUE {
                state.pause = state.pause.saturating_sub(1);
                return false;
            }
            state.requests.push_back(request);
            let starts = state.requests.len() > state.idle && state.threads < self.most;
            state.threads += usize::from(starts);
            starts
        };
        if !starts {
            self.queue.changed.notify_one();
            return true;
        }
        let queue = Arc::clone(&self.queue);
        let started = thread::Builder::new().name("ahead".into()).spawn(move || queue.work());
        if started.is_err() {
            self.queue.go_without();
        }
        started.is_ok()
    }
}

impl Default for Workers {
    /// As many threads as CPU cores, and at least 8, because on a slow file system they wait.
    fn default() -> Self {
        Self::new(processors::count().clamp(8, 64))
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let requests = {
            let mut state = self.queue.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.requests)
        };
        drop(requests);
        // Threads end by themselves: the last one to let go of what they fetch for may be here.
        self.queue.changed.notify_all();
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} threads", self.most)
    }
}

impl Queue {
    /// No thread could be started, on a node at its limit of processes. If there is none at all,
    /// whoever reads decodes for himself.
    fn go_without(&self) {
        let mut state = self.state.lock();
        state.threads -= 1;
        if state.threads == 0 {
            state.pause = PAUSE;
            let waiting: Vec<_> = state.requests.drain(..).collect();
            drop(state);
            drop(waiting);
        }
    }

    /// Does what is asked until nothing was for a while.
    fn work(&self) {
        while let Some(Request { by, file, range }) = self.next() {
            failpoint::panic_at("ahead");
            if let Some(by) = by.upgrade() {
                by.fetch(file, range);
            }
        }
    }

    fn next(&self) -> Option<Request> {
        let mut state = self.state.lock();
        loop {
            if let Some(request) = state.requests.pop_front() {
                return Some(request);
            }
            if state.is_closed {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            let was_quiet = self.changed.wait_for(&mut state, PATIENCE).timed_out();
            state.idle -= 1;
            if was_quiet && state.requests.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Tells what it fetches, once it may.
    struct Telling {
        fetched: Mutex<Sender<(u64, Range<u64>)>>,
        /// CacheKind by a test that wants the threads to wait.
        gate: Mutex<()>,
    }

    impl Fetch for Telling {
        fn fetch(&self, file: u64, range: Range<u64>) {
            drop(self.gate.lock());
            self.fetched.lock().send((file, range)).unwrap();
        }
    }

    fn request(by: &Arc<Telling>, file: u64) -> Request {
        let weak = Arc::downgrade(by);
        Request { by: weak, file, range: 0..file }
    }

    #[test]
    fn fetches_all_that_fits_the_queue_with_a_bounded_number_of_threads() {
        let (sender, fetched) = channel();
        let by = Arc::new(Telling { fetched: Mutex::new(sender), gate: Mutex::new(()) });
        let workers = Workers::new(3);
        let gate = by.gate.lock();
        for file in 0..1000 {
            workers.submit(request(&by, file));
        }
        let state = workers.queue.state.lock();
        assert_eq!(state.threads, 3);
        // Three at most were taken out by then.
        assert!((QUEUE - 3..=QUEUE).contains(&state.requests.len()));
        drop(state);
        drop(gate);
        let mut found: Vec<_> = fetched.iter().take(QUEUE).collect();
        found.sort_by_key(|(file, _)| *file);
        assert!(found.iter().enumerate().all(|(nth, (file, _))| *file >= nth as u64));
    }

    #[test]
    fn nothing_is_fetched_for_one_who_is_gone() {
        let (sender, fetched) = channel();
        let by = Arc::new(Telling { fetched: Mutex::new(sender), gate: Mutex::new(()) });
        let workers = Workers::new(1);
        let gone = Arc::new(Telling { fetched: Mutex::new(channel().0), gate: Mutex::new(()) });
        let in_vain = request(&gone, 1);
        drop(gone);
        workers.submit(in_vain);
        workers.submit(request(&by, 2));
        assert_eq!(fetched.recv().unwrap(), (2, 0..2));
    }

    #[test]
    fn goes_on_when_threads_can_be_had_again() {
        let (sender, fetched) = channel();
        let by = Arc::new(Telling { fetched: Mutex::new(sender), gate: Mutex::new(()) });
        let workers = Workers::new(1);
        {
            // As if a thread had been refused.
            let mut state = workers.queue.state.lock();
            state.requests.push_back(request(&by, 1));
            state.threads = 1;
        }
        workers.queue.go_without();
        {
            let state = workers.queue.state.lock();
            assert_eq!((state.requests.len(), state.threads), (0, 0));
        }
        let taken = (0..=PAUSE).filter(|_| workers.submit(request(&by, 2))).count();
        assert_eq!(taken, 1, "the last one");
        assert_eq!(fetched.recv().unwrap(), (2, 0..2));
    }

    #[test]
    fn threads_end_with_the_workers() {
        let (sender, fetched) = channel();
        let by = Arc::new(Telling { fetched: Mutex::new(sender), gate: Mutex::new(()) });
        let workers = Workers::new(2);
        for file in 0..10 {
            workers.submit(request(&by, file));
        }
        drop(workers);
        // The sender lives in `by`, which the threads hold while they fetch.
        drop(by);
        assert!(fetched.iter().count() <= 10);
    }
}
