//! What the threads that decode ahead promise, whatever the order (`sync::model` has the essay).
//!
//! Owns the models of the queue and of how it ends. Invariant: only the queue's own state is looked
//! at besides what a user sees.

use super::*;
use crate::sync::model::check;

/// Notes what it was asked for.
#[derive(Default)]
struct Noting {
    /// Guards what was fetched; no other lock is taken within.
    fetched: Mutex<Vec<u64>>,
    more: Condvar,
}

impl Fetch for Noting {
    fn fetch(&self, file: u64, _range: Range<u64>) {
        thread::yield_now();
        self.fetched.lock().push(file);
        self.more.notify_all();
    }
}

impl Noting {
    /// Waits until `count` were fetched; these, in order of their numbers.
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

fn request(by: &Arc<Noting>, file: u64) -> Request {
    let by: Arc<dyn Fetch> = Arc::clone(by) as _;
    Request { by: Arc::downgrade(&by), file, range: 0..file }
}

/// Waits for all threads of `queue` to end; runs for ever, and is told so, if one does not.
fn wait_for_threads(queue: &Queue) {
    while queue.state.lock().threads > 0 {
        thread::yield_now();
    }
    assert_eq!(queue.state.lock().idle, 0);
}

#[test]
fn all_that_was_asked_is_fetched_once_and_no_wake_up_is_lost() {
    check(|| {
        let (workers, by) = (Arc::new(Workers::new(2)), Arc::new(Noting::default()));
        let asks = |files: Range<u64>| {
            let (workers, by) = (Arc::clone(&workers), Arc::clone(&by));
            thread::spawn(move || {
                for file in files {
                    assert!(workers.submit(request(&by, file)));
                    assert!(workers.queue.state.lock().threads <= 2);
                }
            })
        };
        let (first, second) = (asks(0..3), asks(3..5));
        assert_eq!(by.wait_for(5), [0, 1, 2, 3, 4]);
        first.join().unwrap();
        second.join().unwrap();
        // Threads that wait, and some that did so for too long, and one that was just asked.
        assert!(workers.submit(request(&by, 5)));
        assert_eq!(by.wait_for(6).len(), 6);
        let queue = Arc::clone(&workers.queue);
        drop(workers);
        wait_for_threads(&queue);
    });
}

#[test]
fn threads_end_with_the_workers_and_the_rest_is_dropped() {
    check(|| {
        let (workers, by) = (Workers::new(2), Arc::new(Noting::default()));
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
        // Nobody else keeps what is fetched for.
        assert_eq!(Arc::strong_count(&by), 1);
    });
}

#[test]
fn one_who_is_gone_is_fetched_for_no_more_and_freed_once() {
    check(|| {
        let (workers, by) = (Workers::new(1), Arc::new(Noting::default()));
        let gone = Arc::new(Noting::default());
        assert!(workers.submit(request(&gone, 7)));
        assert!(workers.submit(request(&by, 8)));
        let weak = Arc::downgrade(&gone);
        drop(gone);
        assert_eq!(by.wait_for(1), [8]);
        let queue = Arc::clone(&workers.queue);
        drop(workers);
        wait_for_threads(&queue);
        assert!(weak.upgrade().is_none());
    });
}

#[test]
fn the_queue_takes_no_more_than_it_has_room_for() {
    check(|| {
        let (workers, by) = (Workers::new(1), Arc::new(Noting::default()));
        {
            // As full as it gets but for one, without the steps that this takes.
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
        // The thread could not be had after all, so what waits is dropped.
        workers.queue.go_without();
        assert_eq!(workers.queue.state.lock().requests.len(), 0);
    });
}
