//! Readahead threads and their queue.
//!
//! Threads start when there is work and exit when idle. Readahead is optional: a request is dropped
//! if the queue is full or its archive is no longer mounted. Invariants: no lock is held while a
//! request runs, and submitting a request allocates only when it starts a thread.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crate::failpoint;
use crate::os::processors;
use crate::sync::{Arc, Condvar, Mutex, Weak, thread};

#[cfg(all(test, feature = "model"))]
mod model;

/// Requests the queue can hold.
const QUEUE: usize = 256;

/// Requests that are dropped after a thread failed to start, before the next attempt.
const PAUSE: u32 = 256;

/// How long an idle thread waits for work before it exits.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Fetches parts of files into a cache.
pub trait Fetch: Send + Sync {
    /// Fetches `range` of `file`, in bytes. Errors are ignored; a reader of the range gets them.
    fn fetch(&self, file: u64, range: Range<u64>);
}

/// A part of a file that will be read soon.
pub struct Request {
    /// The fetcher.
    pub by: Weak<dyn Fetch>,
    /// A file number, assigned by `by`.
    pub file: u64,
    /// Byte range of the file.
    pub range: Range<u64>,
}

/// A bounded number of threads with a bounded queue.
pub struct Workers {
    queue: Arc<Queue>,
    /// Maximum number of threads.
    most: usize,
}

#[derive(Default)]
struct Queue {
    /// Guards the requests and the thread counts. Held for a push or a pop.
    state: Mutex<State>,
    /// Signals a new request or the closing of the queue.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    requests: VecDeque<Request>,
    threads: usize,
    idle: usize,
    /// Requests still to be dropped, because there is no thread and none could be started.
    pause: u32,
    is_closed: bool,
}

impl Workers {
    /// At most `most` threads. They are started on demand.
    pub fn new(most: usize) -> Self {
        let queue = Queue::default();
        queue.state.lock().requests.reserve_exact(QUEUE);
        Self { queue: Arc::new(queue), most }
    }

    /// Queues `request` if there is room. Returns whether it was queued.
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
            self.queue.give_up_thread();
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
        // Threads are not joined: this drop may run on one of them, if it held the last reference.
        self.queue.changed.notify_all();
    }
}

impl Queue {
    /// Called when a thread could not be started because the node is at its process limit. If there
    /// is no other thread, readers decode by themselves.
    fn give_up_thread(&self) {
        let mut state = self.state.lock();
        state.threads -= 1;
        if state.threads == 0 {
            state.pause = PAUSE;
            let waiting: Vec<_> = state.requests.drain(..).collect();
            drop(state);
            drop(waiting);
        }
    }

    /// Runs requests until the queue closes or stays empty for `IDLE_TIMEOUT`.
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
            let timed_out = self.changed.wait_for(&mut state, IDLE_TIMEOUT).timed_out();
            state.idle -= 1;
            if timed_out && state.requests.is_empty() {
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

    /// Reports what it fetches, once the gate is open.
    struct Reporting {
        fetched: Mutex<Sender<(u64, Range<u64>)>>,
        /// Held by a test that wants the threads to wait.
        gate: Mutex<()>,
    }

    impl Fetch for Reporting {
        fn fetch(&self, file: u64, range: Range<u64>) {
            drop(self.gate.lock());
            self.fetched.lock().send((file, range)).unwrap();
        }
    }

    fn request(by: &Arc<Reporting>, file: u64) -> Request {
        let weak = Arc::downgrade(by);
        Request { by: weak, file, range: 0..file }
    }

    #[test]
    fn fetches_a_full_queue_with_a_bounded_number_of_threads() {
        let (sender, fetched) = channel();
        let by = Arc::new(Reporting { fetched: Mutex::new(sender), gate: Mutex::new(()) });
        let workers = Workers::new(3);
        let gate = by.gate.lock();
        for file in 0..1000 {
            workers.submit(request(&by, file));
        }
        let state = workers.queue.state.lock();
        assert_eq!(state.threads, 3);
        // The three threads have taken at most three requests.
        assert!((QUEUE - 3..=QUEUE).contains(&state.requests.len()));
        drop(state);
        drop(gate);
        let mut found: Vec<_> = fetched.iter().take(QUEUE).collect();
        found.sort_by_key(|(file, _)| *file);
        assert!(found.iter().enumerate().all(|(nth, (file, _))| *file >= nth as u64));
    }

    #[test]
    fn skips_requests_of_a_dropped_fetcher() {
        let (sender, fetched) = channel();
        let by = Arc::new(Reporting { fetched: Mutex::new(sender), gate: Mutex::new(()) });
        let workers = Workers::new(1);
        let dropped =
            Arc::new(Reporting { fetched: Mutex::new(channel().0), gate: Mutex::new(()) });
        let stale = request(&dropped, 1);
        drop(dropped);
        workers.submit(stale);
        workers.submit(request(&by, 2));
        assert_eq!(fetched.recv().unwrap(), (2, 0..2));
    }

    #[test]
    fn recovers_when_threads_can_be_started_again() {
        let (sender, fetched) = channel();
        let by = Arc::new(Reporting { fetched: Mutex::new(sender), gate: Mutex::new(()) });
        let workers = Workers::new(1);
        {
            // As if a thread had failed to start.
            let mut state = workers.queue.state.lock();
            state.requests.push_back(request(&by, 1));
            state.threads = 1;
        }
        workers.queue.give_up_thread();
        {
            let state = workers.queue.state.lock();
            assert_eq!((state.requests.len(), state.threads), (0, 0));
        }
        let taken = (0..=PAUSE).filter(|_| workers.submit(request(&by, 2))).count();
        assert_eq!(taken, 1, "the last one");
        assert_eq!(fetched.recv().unwrap(), (2, 0..2));
    }

    #[test]
    fn threads_exit_with_the_workers() {
        let (sender, fetched) = channel();
        let by = Arc::new(Reporting { fetched: Mutex::new(sender), gate: Mutex::new(()) });
        let workers = Workers::new(2);
        for file in 0..10 {
            workers.submit(request(&by, file));
        }
        drop(workers);
        // The sender is part of `by`, which the threads hold while they fetch.
        drop(by);
        assert!(fetched.iter().count() <= 10);
    }
}
