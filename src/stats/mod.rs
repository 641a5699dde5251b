//! What a mount did so far: requests, bytes, faults, latencies, work of its caches.
//!
//! Owns counting; leaves how the numbers are told to `lifecycle`.
//! Invariant: counting takes no lock and no memory but for the first request of each thread, and
//! nothing is kept for a file.
//!
//! Sixty-four event loops that add to one counter would pass its cache line around for longer than
//! a cached answer takes. So each thread counts in a stripe of its own, and who asks adds them up.
//! A sum taken while requests are answered may miss the newest of them; one taken when the session
//! has ended is exact. The caches count under the lock of a shard, which they hold anyway, so they
//! are only asked.

use std::cell::Cell;
use std::time::Instant;

use crate::sync::{Arc, AtomicU64, AtomicUsize, Mutex, OnceLock, Ordering};

mod alarm;
mod caches;
mod histogram;
#[cfg(all(test, feature = "model"))]
mod model;

pub use caches::{CacheCounts, CacheKind};
pub use histogram::Latencies;

use alarm::Alarm;
use caches::Caches;
use histogram::Histogram;

/// Stripes there are: one for each of the event loops that a mount has at most by default. More
/// threads share them, which costs time and no count.
const STRIPES: usize = 256;

thread_local! {
    /// The number of this thread among those that count anything.
    static STRIPE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// What the kernel asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of the FUSE protocol")]
pub enum Operation {
    Lookup,
    Getattr,
    Readlink,
    Read,
    Readdir,
    Readdirplus,
    Lseek,
    Getxattr,
    Listxattr,
    /// Everything else, most of it answered without a look at the archive.
    Other,
}

impl Operation {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Lookup,
        Self::Getattr,
        Self::Readlink,
        Self::Read,
        Self::Readdir,
        Self::Readdirplus,
        Self::Lseek,
        Self::Getxattr,
        Self::Listxattr,
        Self::Other,
    ];

    /// Its name, as in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Getattr => "getattr",
            Self::Readlink => "readlink",
            Self::Read => "read",
            Self::Readdir => "readdir",
            Self::Readdirplus => "readdirplus",
            Self::Lseek => "lseek",
            Self::Getxattr => "getxattr",
            Self::Listxattr => "listxattr",
            Self::Other => "other",
        }
    }
}

/// The counters of a mount.
#[derive(Debug)]
pub struct Stats {
    /// Each made by the first thread that counts in it.
    stripes: Box<[OnceLock<Box<Stripe>>]>,
    /// Guards the list of caches, which grows while archives are opened; the lock of a shard is
    /// taken within.
    caches: Mutex<Caches>,
    /// How often their memory was given back.
    releases: AtomicU64,
    /// What they may take now, bytes.
    budget: AtomicU64,
    alarm: Alarm,
}

/// The counters of one thread. Aligned to two cache lines, since they are fetched in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe {
    requests: [AtomicU64; Operation::ALL.len()],
    faults: AtomicU64,
    bytes: AtomicU64,
    archive_reads: AtomicU64,
    archive_bytes: AtomicU64,
    lookups: Histogram,
    reads: Histogram,
}

/// Sums of all that was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    requests: [u64; Operation::ALL.len()],
    /// Faults of the archive, or of reading it, that requests met.
    pub faults: u64,
    /// Bytes of files handed out.
    pub bytes: u64,
    /// Reads from the files of the archives, the bytes of them.
    pub archive_reads: u64,
    /// Bytes that those reads asked for.
    pub archive_bytes: u64,
    /// How long lookups took, from when a request was taken to when the kernel had its answer.
    pub lookups: Latencies,
    /// How long reads took, likewise.
    pub reads: Latencies,
    /// What was kept of decoded metadata.
    pub metadata: CacheCounts,
    /// What was kept of decoded contents.
    pub data: CacheCounts,
    /// How often the memory of both was given back since nobody read.
    pub releases: u64,
    /// What both may take now, bytes.
    pub budget: u64,
}

impl Totals {
    /// Requests for `operation`.
    pub fn requests(&self, operation: Operation) -> u64 {
        self.requests[operation as usize]
    }

    /// All requests.
    pub fn all_requests(&self) -> u64 {
        self.requests.iter().sum()
    }
}

impl Stats {
    /// Counts a request that is about to be answered; it is timed until the guard is dropped.
    pub fn begin(&self, operation: Operation) -> Pending<'_> {
        let stripe = self.stripe();
        stripe.requests[operation as usize].fetch_add(1, Ordering::Relaxed);
        self.alarm.notice();
        let clock = stripe.histogram(operation).map(|histogram| (histogram, Instant::now()));
        Pending { stripe, operation, clock }
    }

    /// Counts a request whose answer costs nothing.
    pub fn count(&self, operation: Operation) {
        self.stripe().requests[operation as usize].fetch_add(1, Ordering::Relaxed);
        self.alarm.notice();
    }

    /// Counts one read of `bytes` bytes from the file of an archive.
    pub fn archive_read(&self, bytes: usize) {
        let stripe = self.stripe();
        stripe.archive_reads.fetch_add(1, Ordering::Relaxed);
        stripe.archive_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Asks `source` from now on for the counts of a cache of what is `held`.
    pub fn watch_cache(&self, kind: CacheKind, source: Arc<dyn Fn() -> CacheCounts + Send + Sync>) {
        self.caches.lock().push(kind, source);
    }

    /// Counts that the memory of the caches was given back.
    pub fn count_release(&self) {
        self.releases.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the caches may take `bytes` from now on.
    pub fn set_budget(&self, bytes: u64) {
        self.budget.store(bytes, Ordering::Relaxed);
    }

    /// Has `call` made by the next request after each `set_alarm`. To be called once.
    pub fn connect_alarm(&self, call: Box<dyn Fn() + Send + Sync>) {
        self.alarm.connect(call);
    }

    /// Has the next request make the call. One that begins at the same moment may not, so who must
    /// know of it asks for `requests` afterwards.
    pub fn set_alarm(&self) {
        self.alarm.set();
    }

    /// All requests so far. One that came since the last time makes it larger.
    pub fn requests(&self) -> u64 {
        let sum = |stripe: &Stripe| {
            stripe.requests.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>()
        };
        self.in_use().map(sum).sum()
    }

    /// Everything counted so far.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for stripe in self.in_use() {
            for (sum, count) in totals.requests.iter_mut().zip(&stripe.requests) {
                *sum += count.load(Ordering::Relaxed);
            }
            totals.faults += stripe.faults.load(Ordering::Relaxed);
            totals.bytes += stripe.bytes.load(Ordering::Relaxed);
            totals.archive_reads += stripe.archive_reads.load(Ordering::Relaxed);
            totals.archive_bytes += stripe.archive_bytes.load(Ordering::Relaxed);
            totals.lookups.add(&stripe.lookups);
            totals.reads.add(&stripe.reads);
        }
        let caches = self.caches.lock();
        totals.metadata = caches.counts(CacheKind::Metadata);
        totals.data = caches.counts(CacheKind::Data);
        totals.releases = self.releases.load(Ordering::Relaxed);
        totals.budget = self.budget.load(Ordering::Relaxed);
        totals
    }

    fn in_use(&self) -> impl Iterator<Item = &Stripe> {
        self.stripes.iter().filter_map(|stripe| stripe.get()).map(Box::as_ref)
    }

    fn stripe(&self) -> &Stripe {
        let number = STRIPE.get().unwrap_or_else(number_this_thread);
        self.stripes[number % STRIPES].get_or_init(Box::default)
    }
}

impl Default for Stats {
    fn default() -> Self {
        let stripes = (0..STRIPES).map(|_| OnceLock::new()).collect();
        let (caches, alarm) = (Mutex::default(), Alarm::default());
        let [releases, budget] = [const { AtomicU64::new(0) }; 2];
        Self { stripes, caches, releases, budget, alarm }
    }
}

impl Stripe {
    fn histogram(&self, operation: Operation) -> Option<&Histogram> {
        match operation {
            Operation::Lookup => Some(&self.lookups),
            Operation::Read => Some(&self.reads),
            _ => None,
        }
    }
}

#[cold]
fn number_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    STRIPE.set(Some(number));
    number
}

/// A request that is being answered.
#[derive(Debug)]
#[must_use = "dropped when it has been answered"]
pub struct Pending<'s> {
    stripe: &'s Stripe,
    operation: Operation,
    clock: Option<(&'s Histogram, Instant)>,
}

impl Pending<'_> {
    /// What was asked for.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Counts a fault that it met.
    pub fn meet_fault(&self) {
        self.stripe.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes of a file that are about to be handed out.
    pub fn hand_out(&self, bytes: usize) {
        self.stripe.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some((histogram, start)) = &self.clock {
            histogram.record(start.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn numbers_of_operations_are_their_places() {
        for (place, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, place);
        }
    }

    #[test]
    fn counts_of_all_threads_add_up() {
        // More than there are stripes, so that some are shared.
        const THREADS: usize = STRIPES + 50;
        const EACH: u64 = 100;
        let stats = Stats::default();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let read = stats.begin(Operation::Read);
                        read.hand_out(3);
                        drop(read);
                        stats.begin(Operation::Lookup).meet_fault();
                        stats.count(Operation::Other);
                        stats.archive_read(5);
                    }
                });
            }
        });
        let all = EACH * THREADS as u64;
        let totals = stats.totals();
        assert_eq!(totals.requests(Operation::Read), all);
        assert_eq!(totals.requests(Operation::Lookup), all);
        assert_eq!(totals.requests(Operation::Other), all);
        assert_eq!(totals.requests(Operation::Getattr), 0);
        assert_eq!((totals.all_requests(), stats.requests()), (3 * all, 3 * all));
        assert_eq!((totals.bytes, totals.faults), (3 * all, all));
        assert_eq!((totals.archive_reads, totals.archive_bytes), (all, 5 * all));
        assert_eq!((totals.reads.count(), totals.lookups.count()), (all, all));
    }

    #[test]
    fn a_request_counts_before_it_is_answered_and_is_timed_after() {
        let stats = Stats::default();
        let read = stats.begin(Operation::Read);
        assert_eq!((stats.requests(), stats.totals().reads.count()), (1, 0));
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(100) {}
        drop(read);
        let longest = stats.totals().reads.longest().unwrap();
        assert!(longest >= Duration::from_micros(100), "{longest:?}");
    }

    #[test]
    fn an_alarm_goes_off_once_for_each_time_that_it_was_set() {
        let stats = Stats::default();
        let calls = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&calls);
        let call = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        stats.connect_alarm(Box::new(call));
        let asks = |stats: &Stats| {
            drop(stats.begin(Operation::Read));
            stats.count(Operation::Other);
        };
        asks(&stats);
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        for times in 1..4 {
            stats.set_alarm();
            // Of all that come at once, one makes the call.
            thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(|| asks(&stats)))));
            assert_eq!(calls.load(Ordering::Relaxed), times);
        }
    }

    #[test]
    fn caches_add_up_by_what_they_hold() {
        let stats = Stats::default();
        for (held, hits) in [(CacheKind::Data, 1), (CacheKind::Metadata, 2), (CacheKind::Data, 4)] {
            let counts = CacheCounts { hits, ..CacheCounts::default() };
            stats.watch_cache(held, Arc::new(move || counts));
        }
        let totals = stats.totals();
        assert_eq!((totals.data.hits, totals.metadata.hits), (5, 2));
    }
}
