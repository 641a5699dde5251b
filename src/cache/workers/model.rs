//! Models of the readahead threads, for every interleaving (see the essay in `sync::model`).
//!
//! Only the queue's own state is inspected in addition to what a caller can observe.

use super::*;
use crate::sync::model::check;

/// Records the requests it gets.
#[derive(Default)]
struct Recording {
    /// Guards the list of fetched files. No other lock is taken while it is held.
    fetched: Mutex<Vec<u64>>,
    more: Condvar,
}

impl Fetch for Recording {
    fn fetch(&self, file: u64, _range: Range<u64>) {
        thread::yield_now();
        self.fetched.lock().push(file);
        self.more.notify_all();
    }
}

impl Recording {
    /// Waits until `count` files were fetched; returns their numbers in ascending order.
    fn wait_for(&self, count: usize) -> Vec<u64> {
        let mut fetched = self.fetched.lock();
        while fetched.len() < count {
            self.more.wait(&mut fetched);
        }
        let mut files = fetched.clone();
        files.sort_unstable();
        files
    }
}

fn request(by: &Arc<Recording>, file: u64) -> Request {
    let by: Arc<dyn Fetch> = Arc::clone(by) as _;
    Request { by: Arc::downgrade(&by), file, range: 0..file }
}

/// Waits for all threads of `queue` to exit. If one does not, this spins and the checker reports
/// it.
fn wait_for_threads(queue: &Queue) {
    while queue.state.lock().threads > 0 {
        thread::yield_now();
    }
    assert_eq!(queue.state.lock().idle, 0);
}

#[test]
fn every_request_is_fetched_once_and_no_wake_up_is_lost() {
    check(|| {
        let (workers, by) = (Arc::new(Workers::new(2)), Arc::new(Recording::default()));
        let submit_all = |files: Range<u64>| {
            let (workers, by) = (Arc::clone(&workers), Arc::clone(&by));
            thread::spawn(move || {
                for file in files {
                    assert!(workers.submit(request(&by, file)));
                    assert!(workers.queue.state.lock().threads <= 2);
                }
            })
        };
        let (first, second) = (submit_all(0..3), submit_all(3..5));
        assert_eq!(by.wait_for(5), [0, 1, 2, 3, 4]);
        first.join().unwrap();
        second.join().unwrap();
        // Some threads are waiting, some have timed out, and one has just been notified.
        assert!(workers.submit(request(&by, 5)));
        assert_eq!(by.wait_for(6).len(), 6);
        let queue = Arc::clone(&workers.queue);
        drop(workers);
        wait_for_threads(&queue);
    });
}

#[test]
fn threads_exit_with_the_workers_and_queued_requests_are_dropped() {
    check(|| {
        let (workers, by) = (Workers::new(2), Arc::new(Recording::default()));
        for file in 0..4 {
            assert!(workers.submit(request(&by, file)));
        }
        let queue = Arc::clone(&workers.queue);
        drop(workers);
        assert!(queue.state.lock().requests.is_empty());
        wait_for_threads(&queue);
        let fetched = by.wait_for(0);
        assert!(fetched.iter().all(|file| *file < 4));
        assert!(fetched.windows(2).all(|pair| pair[0] != pair[1]), "none twice");
        // Nothing else holds a reference to the fetcher.
        assert_eq!(Arc::strong_count(&by), 1);
    });
}

#[test]
fn requests_of_a_dropped_fetcher_are_skipped_and_it_is_freed_once() {
    check(|| {
        let (workers, by) = (Workers::new(1), Arc::new(Recording::default()));
        let dropped = Arc::new(Recording::default());
        assert!(workers.submit(request(&dropped, 7)));
        assert!(workers.submit(request(&by, 8)));
        let dropped_weak = Arc::downgrade(&dropped);
        drop(dropped);
        assert_eq!(by.wait_for(1), [8]);
        let queue = Arc::clone(&workers.queue);
        drop(workers);
        wait_for_threads(&queue);
        assert!(dropped_weak.upgrade().is_none());
    });
}

#[test]
fn the_queue_takes_no_more_than_it_has_room_for() {
    check(|| {
        let (workers, by) = (Workers::new(1), Arc::new(Recording::default()));
        {
            // One short of full, set up directly to save model steps.
            let mut state = workers.queue.state.lock();
            state.requests.extend((2..QUEUE as u64 + 1).map(|file| request(&by, file)));
            state.threads = 1;
        }
        let by_other = Arc::clone(&by);
        let workers = Arc::new(workers);
        let other = Arc::clone(&workers);
        let first = thread::spawn(move || other.submit(request(&by_other, 0)));
        let second = workers.submit(request(&by, 1));
        assert!(first.join().unwrap() ^ second, "one of the two");
        assert_eq!(workers.queue.state.lock().requests.len(), QUEUE);
        // If the thread cannot be started after all, the queued requests are dropped.
        workers.queue.give_up_thread();
        assert_eq!(workers.queue.state.lock().requests.len(), 0);
    });
}
