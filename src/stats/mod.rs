//! Counters of a mount: requests, bytes, faults, latencies, caches.
//!
//! Invariant: counting takes no lock and allocates nothing, except for the first request of each
//! thread. Nothing is stored per file.
//!
//! If 64 event loops shared one counter, moving its cache line between cores would take longer than
//! a cached reply. So each thread counts in its own stripe, and a query adds them up. A sum taken
//! during requests may miss the newest; a sum taken after the session is exact. The caches count
//! under their shard locks, which they hold anyway, so they are only queried.

use std::cell::Cell;
use std::fmt;
use std::iter::Sum;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::sync::{Arc, AtomicU64, AtomicUsize, Mutex, OnceLock, Ordering};
use crate::units::{counted, format_duration, format_size};

mod alarm;
mod caches;
mod histogram;
#[cfg(all(test, feature = "model"))]
mod model;

pub use alarm::Alarm;
pub use caches::{CacheCounts, CacheKind, LoadClock};
pub use histogram::Latencies;

use caches::Caches;
use histogram::Histogram;

/// Number of stripes: one for each event loop of the largest default. More threads share stripes,
/// which costs time but loses no count.
const STRIPES: usize = 256;

/// A request that takes longer is blocked.
const BLOCKED_AFTER: Duration = Duration::from_secs(1);

thread_local! {
    /// The stripe number of this thread.
    static STRIPE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The kinds of requests.
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
    /// All other requests. Most are answered without access to the archive.
    Other,
}

impl Operation {
    /// All operations and their names in the protocol, in numeric order.
    pub const ALL: [(Self, &str); 10] = [
        (Self::Lookup, "lookup"),
        (Self::Getattr, "getattr"),
        (Self::Readlink, "readlink"),
        (Self::Read, "read"),
        (Self::Readdir, "readdir"),
        (Self::Readdirplus, "readdirplus"),
        (Self::Lseek, "lseek"),
        (Self::Getxattr, "getxattr"),
        (Self::Listxattr, "listxattr"),
        (Self::Other, "other"),
    ];

    /// The name in the protocol.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// The counters of a mount.
pub struct Stats {
    created: Instant,
    /// Each allocated by the first thread that counts in it.
    stripes: Box<[OnceLock<Box<Stripe>>]>,
    /// Guards the list of caches, which grows while archives are opened. Shard locks are taken
    /// within it.
    caches: Mutex<Caches>,
    /// How often the caches' memory was released.
    releases: AtomicU64,
    /// The current budget of the caches, in bytes.
    budget: AtomicU64,
    /// Counts requests.
    pub alarm: Alarm,
    /// Counts lookups that found a name.
    pub lookup_alarm: Alarm,
    /// Direct reads.
    pub direct: Watched<DirectCounts>,
    /// How much is copied to this node.
    pub staged: Watched<StageCounts>,
    /// What was fetched ahead.
    pub readahead: Watched<ReadaheadCounts>,
    /// What the nodes of a job read for each other.
    pub together: Watched<TogetherCounts>,
}

/// Bytes of archives that the nodes of a job share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TogetherCounts {
    /// Other nodes that this one reads from.
    pub peers: u64,
    /// The names of the first 64.
    #[serde(rename = "peer_names")]
    pub names: Vec<String>,
    /// Bytes that this node read from the storage.
    #[serde(rename = "storage_bytes")]
    pub storage: u64,
    /// Bytes that others sent to it.
    #[serde(rename = "from_peers_bytes")]
    pub from_peers: u64,
    /// Bytes that it sent to others.
    #[serde(rename = "to_peers_bytes")]
    pub to_peers: u64,
    /// Bytes that all nodes read from the storage, as far as the others have reported.
    #[serde(rename = "all_storage_bytes")]
    pub all_storage: u64,
    /// Bytes of the archives that this node shares.
    #[serde(rename = "archive_bytes")]
    pub archives: u64,
}

impl fmt::Display for TogetherCounts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self { peers, storage, from_peers, to_peers, all_storage, archives, .. } = self;
        if peers == 0 && from_peers == 0 && to_peers == 0 {
            let storage = format_size(storage);
            return write!(formatter, "{storage} read from storage, nothing from other nodes");
        }
        let [storage, from_peers, to_peers] = [storage, from_peers, to_peers].map(format_size);
        let nodes = counted(peers, "other node");
        write!(
            formatter,
            "{storage} read from storage, {from_peers} from {nodes}, {to_peers} sent to them"
        )?;
        if archives > 0 {
            let times = all_storage as f64 / archives as f64;
            write!(formatter, "; all nodes read {times:.2} times the archives from storage")?;
        }
        Ok(())
    }
}

/// Reads that processes did directly, without a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectCounts {
    /// Number of reads.
    pub reads: u64,
    /// Bytes that they returned.
    pub bytes: u64,
}

/// How much of the archives is copied to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageCounts {
    /// Bytes that are copied.
    #[serde(rename = "copied_bytes")]
    pub copied: u64,
    /// Bytes of all archives.
    #[serde(rename = "total_bytes")]
    pub total: u64,
}

/// Requests that have waited for longer than a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Blocked {
    /// Number of requests.
    pub requests: u64,
    /// How long one of them has waited; 0 if there is none.
    pub longest_seconds: f64,
}

impl fmt::Display for Blocked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = Duration::try_from_secs_f64(self.longest_seconds).unwrap_or_default();
        let longest = format_duration(longest);
        match self.requests {
            1 => write!(formatter, "1 request has waited {longest} for an answer"),
            count => write!(formatter, "{count} requests wait for an answer, one for {longest}"),
        }
    }
}

/// How much of the archives was fetched ahead of readers, in the background.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadaheadCounts {
    /// Whether more is fetched.
    pub state: ReadaheadState,
    /// Bytes that were fetched.
    #[serde(rename = "fetched_bytes")]
    pub fetched: u64,
    /// Bytes of them that readers used later. Counts whole granules of 16 KiB.
    #[serde(rename = "used_bytes")]
    pub used: u64,
}

/// Whether archives are read ahead of readers, and why not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadaheadState {
    /// The user wants none, except for programs that read in order.
    #[default]
    Off,
    /// All was fetched.
    Complete,
    /// No reader has waited for storage.
    NotNeeded,
    /// As much as readers give reason for.
    Active,
    /// What was fetched and not used yet takes the memory that it may take.
    Full,
}

impl Sum for ReadaheadCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            state: sum.state.max(one.state),
            fetched: sum.fetched + one.fetched,
            used: sum.used + one.used,
        })
    }
}

impl fmt::Display for ReadaheadCounts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, fetched, used } = *self;
        let counts =
            format!("{} read ahead, {} of it used", format_size(fetched), format_size(used));
        match state {
            ReadaheadState::Off => formatter.write_str("no readahead in the background"),
            ReadaheadState::NotNeeded => formatter
                .write_str("nothing read ahead, because no finished read waited for storage"),
            ReadaheadState::Complete => write!(formatter, "{counts}; the archives are complete"),
            ReadaheadState::Active => formatter.write_str(&counts),
            ReadaheadState::Full => write!(formatter, "{counts}; no memory for more"),
        }
    }
}

/// Returns counts.
pub type Source<C> = Box<dyn Fn() -> C + Send + Sync>;

/// Counts that are kept elsewhere, if there are any.
pub struct Watched<C>(OnceLock<Source<C>>);

impl<C> Watched<C> {
    /// Registers where they are. Call it once.
    pub fn watch(&self, source: Source<C>) {
        let _ = self.0.set(source);
    }

    /// The counts so far; `None` if nothing is counted.
    pub fn counts(&self) -> Option<C> {
        self.0.get().map(|source| source())
    }
}

impl<C> Default for Watched<C> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

/// The counters of one thread. Aligned to two cache lines, because they are fetched in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe {
    requests: [AtomicU64; Operation::ALL.len()],
    faults: AtomicU64,
    /// When the request began that the thread answers, in nanoseconds since `Stats::created`; 0
    /// without one.
    busy_since: AtomicU64,
    bytes: AtomicU64,
    files_started: AtomicU64,
    archive_reads: AtomicU64,
    archive_bytes: AtomicU64,
    archive_read_ns: AtomicU64,
    lookups: Histogram,
    reads: Histogram,
}

/// Sums over all threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    requests: [u64; Operation::ALL.len()],
    /// Faults of the archive or its storage that requests ran into.
    pub faults: u64,
    /// Bytes of files returned to readers.
    pub bytes: u64,
    /// Reads at the start of a file.
    pub files_started: u64,
    /// Reads of the archive files.
    pub archive_reads: u64,
    /// Bytes requested by those reads.
    pub archive_bytes: u64,
    /// Time that those reads took.
    pub archive_read_ns: u64,
    /// Latency of lookups, from receiving the request to the reply.
    pub lookups: Latencies,
    /// Latency of reads, measured in the same way.
    pub reads: Latencies,
    /// Counters of the metadata caches.
    pub metadata: CacheCounts,
    /// Counters of the data caches.
    pub data: CacheCounts,
    /// How often the memory of both was released because the mount was idle.
    pub releases: u64,
    /// The current budget of both, in bytes.
    pub budget: u64,
    /// Reads that needed no request, and are not among `requests` and `bytes`.
    pub direct: DirectCounts,
    /// The copy on this node; `None` without one.
    pub staged: Option<StageCounts>,
    /// What was fetched ahead; `None` if nothing can be.
    pub readahead: Option<ReadaheadCounts>,
    /// What the nodes of the job read for each other; `None` if they do not.
    pub together: Option<TogetherCounts>,
}

impl Totals {
    /// The number of requests for `operation`.
    pub fn requests(&self, operation: Operation) -> u64 {
        self.requests[operation as usize]
    }

    /// The number of all requests.
    pub fn all_requests(&self) -> u64 {
        self.requests.iter().sum()
    }
}

impl Stats {
    /// Counts a request. Its latency is measured until the guard is dropped.
    pub fn begin(&self, operation: Operation) -> Pending<'_> {
        let stripe = self.stripe();
        stripe.requests[operation as usize].fetch_add(1, Ordering::Relaxed);
        self.alarm.on_event();
        let start = Instant::now();
        stripe.busy_since.store(self.nanoseconds(start).max(1), Ordering::Relaxed);
        Pending { stripe, operation, start }
    }

    /// The requests that wait for long and are not answered yet.
    pub fn blocked(&self) -> Blocked {
        let now = self.nanoseconds(Instant::now());
        let limit = u64::try_from(BLOCKED_AFTER.as_nanos()).unwrap_or(u64::MAX);
        let since = self.in_use().map(|stripe| stripe.busy_since.load(Ordering::Relaxed));
        let times = since.filter(|since| *since > 0).map(|since| now.saturating_sub(since));
        let blocked: Vec<_> = times.filter(|time| *time > limit).collect();
        let longest = Duration::from_nanos(blocked.iter().copied().max().unwrap_or(0));
        Blocked { requests: blocked.len() as u64, longest_seconds: longest.as_secs_f64() }
    }

    /// Time from the creation of these counters to `time`.
    fn nanoseconds(&self, time: Instant) -> u64 {
        let time = time.saturating_duration_since(self.created);
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Counts a request without measuring its latency.
    pub fn count(&self, operation: Operation) {
        self.stripe().requests[operation as usize].fetch_add(1, Ordering::Relaxed);
        self.alarm.on_event();
    }

    /// Counts one read of `bytes` bytes from an archive file. Its time is measured until the guard
    /// is dropped.
    pub fn begin_archive_read(&self, bytes: usize) -> ArchiveRead<'_> {
        let stripe = self.stripe();
        stripe.archive_reads.fetch_add(1, Ordering::Relaxed);
        stripe.archive_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        ArchiveRead { stripe, start: Instant::now() }
    }

    /// Registers `source` for the counters of a cache of `kind`.
    pub fn watch_cache(&self, kind: CacheKind, source: Arc<dyn Fn() -> CacheCounts + Send + Sync>) {
        self.caches.lock().push(kind, source);
    }

    /// Counts a release of the caches' memory.
    pub fn count_release(&self) {
        self.releases.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the new budget of the caches, in bytes.
    pub fn set_budget(&self, bytes: u64) {
        self.budget.store(bytes, Ordering::Relaxed);
    }

    /// The number of all requests so far; it grows with every request.
    pub fn requests(&self) -> u64 {
        let sum = |stripe: &Stripe| {
            stripe.requests.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>()
        };
        self.in_use().map(sum).sum()
    }

    /// The number of direct reads so far.
    pub fn direct_reads(&self) -> u64 {
        self.direct.counts().unwrap_or_default().reads
    }

    /// Grows with every request and every direct read: a sign that the mount is in use.
    pub fn uses(&self) -> u64 {
        self.requests().wrapping_add(self.direct_reads())
    }

    /// All counters so far.
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
            totals.archive_read_ns += stripe.archive_read_ns.load(Ordering::Relaxed);
            totals.files_started += stripe.files_started.load(Ordering::Relaxed);
            totals.lookups.add(&stripe.lookups);
            totals.reads.add(&stripe.reads);
        }
        let caches = self.caches.lock();
        totals.metadata = caches.counts(CacheKind::Metadata);
        totals.data = caches.counts(CacheKind::Data);
        totals.releases = self.releases.load(Ordering::Relaxed);
        totals.budget = self.budget.load(Ordering::Relaxed);
        totals.direct = self.direct.counts().unwrap_or_default();
        totals.staged = self.staged.counts();
        totals.readahead = self.readahead.counts();
        totals.together = self.together.counts();
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
        let (caches, alarm, lookup_alarm) = Default::default();
        let [releases, budget] = [const { AtomicU64::new(0) }; 2];
        Self {
            created: Instant::now(),
            stripes,
            caches,
            releases,
            budget,
            alarm,
            lookup_alarm,
            direct: Watched::default(),
            staged: Watched::default(),
            readahead: Watched::default(),
            together: Watched::default(),
        }
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

/// A request in progress.
#[derive(Debug)]
#[must_use = "dropped when it has been answered"]
pub struct Pending<'s> {
    stripe: &'s Stripe,
    operation: Operation,
    start: Instant,
}

impl Pending<'_> {
    /// The requested operation.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Counts a fault of this request.
    pub fn meet_fault(&self) {
        self.stripe.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes of a file from `offset` on that are about to be returned.
    pub fn hand_out(&self, offset: u64, bytes: usize) {
        self.stripe.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if offset == 0 && bytes > 0 {
            self.stripe.files_started.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(histogram) = self.stripe.histogram(self.operation) {
            histogram.record(self.start.elapsed());
        }
        self.stripe.busy_since.store(0, Ordering::Relaxed);
    }
}

/// A read of an archive file in progress.
#[derive(Debug)]
#[must_use = "dropped when the bytes have been read"]
pub struct ArchiveRead<'s> {
    stripe: &'s Stripe,
    start: Instant,
}

impl Drop for ArchiveRead<'_> {
    fn drop(&mut self) {
        let time = self.start.elapsed();
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.stripe.archive_read_ns.fetch_add(nanoseconds, Ordering::Relaxed);
        caches::add_reading(time);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn operation_numbers_are_their_indices() {
        for (index, (operation, _)) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, index);
        }
    }

    #[test]
    fn counts_of_all_threads_add_up() {
        // More threads than stripes, so that some stripes are shared.
        const THREADS: usize = STRIPES + 50;
        const EACH: u64 = 100;
        let stats = Stats::default();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let read = stats.begin(Operation::Read);
                        read.hand_out(0, 3);
                        drop(read);
                        stats.begin(Operation::Lookup).meet_fault();
                        stats.count(Operation::Other);
                        drop(stats.begin_archive_read(5));
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
        assert_eq!(totals.files_started, all);
        assert!(totals.archive_read_ns > 0);
        assert!(totals.reads.sum() >= totals.reads.longest().unwrap());
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
    fn an_alarm_fires_once_each_time_it_was_set() {
        let stats = Stats::default();
        let calls = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&calls);
        let call = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        stats.alarm.connect(Box::new(call));
        let request = |stats: &Stats| {
            drop(stats.begin(Operation::Read));
            stats.count(Operation::Other);
        };
        request(&stats);
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        for times in 1..4 {
            stats.alarm.set(1);
            // Of all concurrent requests, one runs the callback.
            thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(|| request(&stats)))));
            assert_eq!(calls.load(Ordering::Relaxed), times);
        }
    }

    #[test]
    fn cache_counts_add_up_by_kind() {
        let stats = Stats::default();
        for (held, hits) in [(CacheKind::Data, 1), (CacheKind::Metadata, 2), (CacheKind::Data, 4)] {
            let counts = CacheCounts { hits, ..CacheCounts::default() };
            stats.watch_cache(held, Arc::new(move || counts));
        }
        let totals = stats.totals();
        assert_eq!((totals.data.hits, totals.metadata.hits), (5, 2));
    }
}
