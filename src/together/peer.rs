//! Another daemon of the job: its state, and how long it may take to answer.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use super::record::Record;
use crate::remote::{PeerFailure, PeerIdentity, PeerServer, PeerWanted, Requester};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};

/// A peer may take this many times as long as usual, and how long at least and at most. But it may
/// have to read the storage, which is slow for some reads if many wait for it. So it may take twice
/// the time of nine in ten reads of the storage.
const TIMES_USUAL: u32 = 4;
const LIMIT_MIN: Duration = Duration::from_millis(250);
const LIMIT_MAX: Duration = Duration::from_secs(1);

/// More time for each byte: 4 MB/s, because many nodes may ask one at the same time.
const BYTES_PER_SECOND: u64 = 4_000_000;

/// Time that a peer is expected to take before it has answered for the first time.
const UNKNOWN: Duration = Duration::from_millis(250);

/// Late answers in a row until a peer is not asked any more. Those that were waited for at the same
/// time count as one: it stood still once.
const LATE_MAX: u64 = 3;

/// A peer is not asked if its usual time is at least this, and this many times that of the storage,
/// for this long. When a job starts, all nodes are slow for a moment.
const SLOW_MIN: Duration = Duration::from_millis(50);
const SLOW_TIMES: u32 = 8;
const SLOW_LONG: Duration = Duration::from_secs(3);

/// A pause between reads after which that time begins again.
const SLOW_PAUSE: Duration = Duration::from_secs(1);

/// How long each address of a peer has when it is tried: the first time, and at most.
const TRY_FIRST: Duration = Duration::from_millis(500);
const TRY_MAX: Duration = Duration::from_secs(2);

/// Times until a peer is tried again: if it was not reached yet, if it did not answer later, and at
/// most.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LATER: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Answers in a row after which earlier failures do not count any more.
const GOOD: u64 = 100;

/// A daemon with a record.
#[derive(Debug)]
pub(super) struct Peer {
    /// The file of its record.
    pub(super) record_name: OsString,
    pub(super) id: u64,
    pub(super) certificate: Vec<u8>,
    record: Record,
    /// Held for a copy or a change.
    connection: Mutex<Connection>,
    times: Times,
    /// Late answers in a row, and good ones.
    late: AtomicU64,
    good: AtomicU64,
    /// Bytes that it has read from the storage, as its last answers report.
    storage_bytes: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Connection {
    state: State,
    server: Option<Arc<PeerServer>>,
    /// How often in a row it was tried without success, and when it is tried again.
    tries: u32,
    try_at: Instant,
    /// Since when it is much slower than the storage, and when that was seen last.
    slow: Option<(Instant, Instant)>,
    /// When a late answer was counted last.
    late_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is to be tried.
    Untried,
    /// It has sent what the storage has.
    Proven,
    /// It serves no longer, or has other bytes than the storage.
    Ended,
}

/// How the bytes of a peer compare with those of the storage.
pub(super) enum Comparison {
    Same,
    Other,
    /// The peer did not send them.
    Failed(PeerFailure),
    /// There is no archive to compare, or the storage cannot be read now.
    Impossible,
}

impl Peer {
    /// The daemon of `record`. `None` if the record is not valid.
    pub(super) fn new(record_name: OsString, record: Record) -> Option<Self> {
        let certificate = record.certificate()?;
        let now = Instant::now();
        Some(Self {
            record_name,
            id: xxh3_64(&certificate),
            certificate,
            record,
            connection: Mutex::new(Connection {
                state: State::Untried,
                server: None,
                tries: 0,
                try_at: now,
                slow: None,
                late_at: None,
            }),
            times: Times::default(),
            late: AtomicU64::new(0),
            good: AtomicU64::new(0),
            storage_bytes: Arc::default(),
        })
    }

    pub(super) fn node(&self) -> &str {
        &self.record.node
    }

    /// Bytes that it has read from the storage, as its last answers report.
    pub(super) fn storage_bytes(&self) -> u64 {
        self.storage_bytes.load(Ordering::Relaxed)
    }

    /// Notes that it has read at least so many.
    pub(super) fn note_storage_bytes(&self, bytes: u64) {
        self.storage_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    pub(super) fn state(&self) -> State {
        self.connection.lock().state
    }

    pub(super) fn has(&self, archive: &str) -> bool {
        self.record.archives.iter().any(|key| key == archive)
    }

    /// When it is tried, if it is.
    pub(super) fn next_try(&self) -> Option<Instant> {
        let connection = self.connection.lock();
        (connection.state == State::Untried).then_some(connection.try_at)
    }

    /// Tries all addresses: `compare` asks a server for bytes, which may take this long. Returns
    /// whether it is proven.
    pub(super) fn prove(
        &self,
        own: &PeerIdentity,
        compare: impl Fn(&PeerServer, Duration) -> Comparison,
    ) -> bool {
        let tries = self.connection.lock().tries;
        let limit = TRY_FIRST.saturating_mul(1 << tries.min(4)).min(TRY_MAX);
        let mut found = None;
        for &address in &self.record.addresses {
            let server = PeerServer::new(address, &self.certificate, own, &self.storage_bytes);
            match compare(&server, limit) {
                Comparison::Same => {
                    found = Some(server);
                    break;
                }
                Comparison::Other => {
                    log::warn!(
                        "--together: node {} has other bytes than the storage; archfs does not \
                         read from it",
                        self.record.node
                    );
                    self.connection.lock().state = State::Ended;
                    return false;
                }
                Comparison::Failed(PeerFailure::Gone) => {
                    self.connection.lock().state = State::Ended;
                    return false;
                }
                Comparison::Failed(failure) => {
                    log::debug!("--together: {} at {address}: {failure:?}", self.record.node);
                }
                Comparison::Impossible => break,
            }
        }
        let mut connection = self.connection.lock();
        match found {
            Some(server) => {
                connection.server = Some(Arc::new(server));
                connection.state = State::Proven;
                connection.slow = None;
                self.late.store(0, Ordering::Relaxed);
                self.good.store(0, Ordering::Relaxed);
                true
            }
            None => {
                connection.wait(RETRY_FIRST);
                false
            }
        }
    }

    /// How long it may take for an answer of `len` bytes to `requester`, if nine in ten reads of
    /// the storage take `storage` at most.
    pub(super) fn limit(
        &self,
        len: usize,
        requester: Requester,
        storage: Option<Duration>,
    ) -> Duration {
        let usual = self.times.median().unwrap_or(UNKNOWN);
        let limit = match requester {
            // Usually no program waits for it, and the storage is read once.
            Requester::Fill => LIMIT_MAX,
            _ => (usual * TIMES_USUAL).clamp(LIMIT_MIN, LIMIT_MAX),
        };
        let transfer = Duration::from_micros(len as u64 * 1_000_000 / BYTES_PER_SECOND);
        limit.max(storage.unwrap_or_default() * 2) + transfer
    }

    /// Fills `buffer` with the bytes at `offset`. Returns whether it did.
    pub(super) fn read(
        &self,
        archive: (&str, u64),
        buffer: &mut [u8],
        offset: u64,
        (wanted, limit): (PeerWanted, Duration),
    ) -> bool {
        let Some(server) = self.connection.lock().server.clone() else { return false };
        let start = Instant::now();
        let failure = match server.read_exact_at(archive, buffer, offset, (wanted, limit)) {
            Ok(()) => {
                self.times.note(buffer.len(), start.elapsed());
                self.late.store(0, Ordering::Relaxed);
                if self.good.fetch_add(1, Ordering::Relaxed) == GOOD {
                    self.connection.lock().tries = 0;
                }
                return true;
            }
            Err(failure) => failure,
        };
        let state = match failure {
            PeerFailure::Refused => return false,
            PeerFailure::Late => {
                let now = Instant::now();
                self.times.note(buffer.len(), now - start);
                if !self.is_often_late(start, now) {
                    return false;
                }
                log::info!("--together: {} answers late", self.record.node);
                State::Untried
            }
            PeerFailure::Gone => State::Ended,
            PeerFailure::Unreachable(why) => {
                log::info!("--together: {}: {why}", self.record.node);
                State::Untried
            }
        };
        self.suspend(state);
        false
    }

    /// Counts an answer that was waited for from `start` until `now`. Returns whether too many in a
    /// row were late.
    fn is_often_late(&self, start: Instant, now: Instant) -> bool {
        let mut connection = self.connection.lock();
        if connection.late_at.is_none_or(|counted| counted <= start) {
            connection.late_at = Some(now);
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        self.late.load(Ordering::Relaxed) >= LATE_MAX
    }

    /// Does not ask it for some time if it is much slower than the storage `now`, and was for long.
    pub(super) fn compare(&self, storage: &Times, now: Instant) {
        let (Some(own), Some(storage)) = (self.times.settled(), storage.settled()) else { return };
        let is_slow = own >= SLOW_MIN && own > storage * SLOW_TIMES;
        let since = {
            let mut connection = self.connection.lock();
            // What was seen before a pause says nothing.
            let before = connection
                .slow
                .filter(|(_, seen)| now.saturating_duration_since(*seen) <= SLOW_PAUSE);
            let since = is_slow.then(|| before.map_or(now, |(since, _)| since));
            connection.slow = since.map(|since| (since, now));
            since
        };
        if since.is_some_and(|since| now.duration_since(since) >= SLOW_LONG) {
            log::info!("--together: {} is slower than the storage", self.record.node);
            self.times.clear();
            self.suspend(State::Untried);
        }
    }

    fn suspend(&self, state: State) {
        let mut connection = self.connection.lock();
        if connection.state == State::Proven {
            connection.state = state;
            connection.wait(RETRY_LATER);
        }
    }
}

impl Connection {
    /// Has it tried again after `first`, and ever later if that fails again. Half of that time is
    /// random: nodes that tried each other at once and were too slow must not do so again.
    fn wait(&mut self, first: Duration) {
        let wait = first.saturating_mul(1 << self.tries.min(12)).min(RETRY_MAX);
        let random = (RandomState::new().hash_one(self.tries) % 1024) as f64 / 1024.0;
        self.tries += 1;
        self.try_at = Instant::now() + wait.mul_f64(0.5 + random / 2.0);
    }
}

/// The times of recent reads, of which the median counts. Reads of readers, not of the fill, which
/// are larger.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// The oldest first. Held for a change or a copy.
    recent: Mutex<VecDeque<Duration>>,
}

impl Times {
    /// How many count.
    const MOST: usize = 31;

    /// The largest read that counts, in bytes.
    const LEN_MAX: usize = 256 << 10;

    pub(super) fn note(&self, len: usize, time: Duration) {
        if len <= Self::LEN_MAX {
            self.note_any(time);
        }
    }

    /// Notes a read of any size.
    pub(super) fn note_any(&self, time: Duration) {
        let mut recent = self.recent.lock();
        if recent.len() == Self::MOST {
            recent.pop_front();
        }
        recent.push_back(time);
    }

    /// `None` if nothing was noted.
    fn median(&self) -> Option<Duration> {
        self.percentile(50)
    }

    /// The time that this part of all takes at most, in percent. `None` if nothing was noted.
    pub(super) fn percentile(&self, part: usize) -> Option<Duration> {
        let mut sorted: Vec<_> = self.recent.lock().iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() * part / 100).copied()
    }

    /// The median, if enough was noted.
    fn settled(&self) -> Option<Duration> {
        let is_settled = self.recent.lock().len() == Self::MOST;
        if is_settled { self.median() } else { None }
    }

    fn clear(&self) {
        self.recent.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer {
        let record = Record::new(Vec::new(), b"certificate", Vec::new());
        Peer::new("record".into(), record).unwrap()
    }

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn noted(times: &Times, milliseconds: u32) {
        (0..Times::MOST).for_each(|_| times.note(1000, milliseconds * MILLISECOND));
    }

    #[test]
    fn a_peer_may_take_a_multiple_of_its_usual_time() {
        let peer = peer();
        let limit = |storage: Option<u32>| {
            peer.limit(0, Requester::Reader, storage.map(|time| time * MILLISECOND))
        };
        assert_eq!(limit(None), LIMIT_MAX, "nothing is known");
        [1, 2, 90].into_iter().for_each(|time| peer.times.note(1000, time * MILLISECOND));
        assert_eq!(limit(None), LIMIT_MIN);
        noted(&peer.times, 100);
        assert_eq!(limit(None), 400 * MILLISECOND);
        assert_eq!(limit(Some(300)), 600 * MILLISECOND);
        assert_eq!(limit(Some(9000)), 18_000 * MILLISECOND);
        assert_eq!(peer.limit(2_000_000, Requester::Reader, None), 900 * MILLISECOND);
        noted(&peer.times, 7000);
        assert_eq!(limit(None), LIMIT_MAX);
        assert_eq!(peer.times.recent.lock().len(), Times::MOST);
        peer.times.note(Times::LEN_MAX + 1, MILLISECOND);
        assert_eq!(peer.times.median(), Some(7000 * MILLISECOND));
    }

    #[test]
    fn answers_that_are_late_at_the_same_time_count_once() {
        let (peer, now) = (peer(), Instant::now());
        let is_often_late = |start: u32, end: u32| {
            peer.is_often_late(now + start * MILLISECOND, now + end * MILLISECOND)
        };
        assert!(!(0..20).any(|start| is_often_late(start, 250 + start)), "it stood still once");
        assert!(!is_often_late(250, 500) && !is_often_late(499, 749));
        assert!(is_often_late(500, 750));
        assert!(is_often_late(600, 850));
        peer.late.store(0, Ordering::Relaxed);
        assert!(!is_often_late(800, 1050), "an answer came in time");
    }

    #[test]
    fn a_peer_that_is_much_slower_than_the_storage_is_not_asked() {
        let (peer, storage) = (peer(), Times::default());
        let is_asked = |own, of_storage| {
            peer.connection.lock().state = State::Proven;
            noted(&peer.times, own);
            noted(&storage, of_storage);
            let now = Instant::now();
            let compare = |from: u64, to: u64| {
                for half in from * 2..=to * 2 {
                    peer.compare(&storage, now + Duration::from_millis(half * 500));
                }
                peer.state() == State::Proven
            };
            assert!(compare(0, 2), "it is not slow for long");
            assert!(compare(4, 6), "it was not read from in between");
            compare(6, 8)
        };
        assert!(is_asked(80, 10) && is_asked(49, 0));
        assert!(!is_asked(81, 10));
        peer.connection.lock().state = State::Proven;
        for second in 0..10 {
            peer.compare(&storage, Instant::now() + Duration::from_secs(second));
        }
        assert_eq!(peer.state(), State::Proven, "it is measured again");
    }

    #[test]
    fn a_peer_that_fails_again_is_tried_ever_later() {
        let peer = peer();
        let waits = [(); 7].map(|()| {
            peer.connection.lock().state = State::Proven;
            peer.suspend(State::Untried);
            peer.next_try().unwrap().duration_since(Instant::now()).as_secs() + 1
        });
        for (wait, most) in waits.into_iter().zip([2, 4, 8, 16, 32, 60, 60]) {
            assert!((most / 2..=most).contains(&wait), "{waits:?}");
        }
        // Each at a time of its own: in half a minute there are a thousand steps.
        let later = |_| {
            let peer = self::peer();
            let mut connection = peer.connection.lock();
            connection.tries = 12;
            connection.wait(RETRY_LATER);
            connection.try_at.duration_since(Instant::now()).as_secs()
        };
        let times: Vec<_> = (0..20).map(later).collect();
        assert!(times.iter().max() > times.iter().min(), "{times:?}");
    }
}
