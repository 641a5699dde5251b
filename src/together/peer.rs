//! Another daemon of the job: its state, and how long it may take to answer.

use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use super::SharedArchive;
use super::record::Record;
use crate::remote::{PeerFailure, PeerIdentity, PeerServer, PeerWanted};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};

/// A peer may take this many times as long as usual, and how long at least and at most. If the
/// storage itself is slower, it may take twice as long as that.
const TIMES_USUAL: u32 = 4;
const LIMIT_MIN: Duration = Duration::from_millis(250);
const LIMIT_MAX: Duration = Duration::from_secs(1);

/// What a peer is expected to take that has not answered yet.
const UNKNOWN: Duration = Duration::from_millis(250);

/// Late answers in a row until a peer is not asked any more.
const LATE_MAX: u64 = 3;

/// What is asked of each address of a peer when it is tried, and how long it has.
const TRY: (PeerWanted, Duration) = (PeerWanted::Always, Duration::from_secs(1));

/// Times until a peer that does not answer is tried again.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Archives that are compared when a peer is tried.
const COMPARED: usize = 4;

/// A daemon with a record.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: u64,
    pub(super) certificate: Vec<u8>,
    record: Record,
    /// Held for a copy or a change.
    connection: Mutex<Connection>,
    times: Times,
    /// Late answers in a row.
    late: AtomicU64,
}

#[derive(Debug)]
struct Connection {
    state: State,
    server: Option<Arc<PeerServer>>,
    /// How often in a row it was tried without success, and when it is tried again.
    tries: u32,
    try_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is to be tried.
    Untried,
    /// It has sent what the storage has.
    Proven,
    /// It has said goodbye, or sends other bytes than the storage.
    Ended,
}

impl Peer {
    /// The daemon of `record`. `None` if the record is not valid.
    pub(super) fn new(record: Record) -> Option<Self> {
        let certificate = record.certificate()?;
        let now = Instant::now();
        Some(Self {
            id: xxh3_64(&certificate),
            certificate,
            record,
            connection: Mutex::new(Connection {
                state: State::Untried,
                server: None,
                tries: 0,
                try_at: now,
            }),
            times: Times::default(),
            late: AtomicU64::new(0),
        })
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

    /// Tries all addresses. Returns whether it is proven.
    pub(super) fn prove(&self, own: &PeerIdentity, archives: &[Arc<SharedArchive>]) -> bool {
        let common: Vec<_> =
            archives.iter().filter(|archive| self.has(&archive.key)).take(COMPARED).collect();
        let mut found = None;
        for &address in self.record.addresses.iter().filter(|_| !common.is_empty()) {
            let server = PeerServer::new(address, &self.certificate, own);
            let mut failure = None;
            let agrees = common.iter().try_fold(true, |agrees, archive| {
                let found = archive.agrees_with(|buffer, offset| {
                    let archive = (archive.key(), archive.len);
                    failure = server.read_exact_at(archive, buffer, offset, TRY).err();
                    failure.is_none()
                })?;
                Some(agrees && found)
            });
            match (agrees, failure) {
                (Some(true), _) => {
                    found = Some(server);
                    break;
                }
                (Some(false), _) => {
                    let node = &self.record.node;
                    log::warn!("--together: {node} sends other bytes than the storage has");
                    self.connection.lock().state = State::Ended;
                    return false;
                }
                (None, Some(PeerFailure::Gone)) => {
                    self.connection.lock().state = State::Ended;
                    return false;
                }
                (None, Some(failure)) => {
                    log::debug!("--together: {} at {address}: {failure:?}", self.record.node);
                }
                // The storage cannot be read now.
                (None, None) => break,
            }
        }
        let mut connection = self.connection.lock();
        match found {
            Some(server) => {
                connection.server = Some(Arc::new(server));
                (connection.state, connection.tries) = (State::Proven, 0);
                self.late.store(0, Ordering::Relaxed);
                true
            }
            None => {
                let wait = RETRY_FIRST.saturating_mul(1 << connection.tries.min(12));
                connection.tries += 1;
                connection.try_at = Instant::now() + wait.min(RETRY_MAX);
                false
            }
        }
    }

    /// How long it may take for an answer, if the storage takes `storage`.
    pub(super) fn limit(&self, storage: Option<Duration>) -> Duration {
        let usual = self.times.median().unwrap_or(UNKNOWN);
        let limit = (usual * TIMES_USUAL).clamp(LIMIT_MIN, LIMIT_MAX);
        limit.max(storage.unwrap_or_default() * 2)
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
                self.times.note(start.elapsed());
                self.late.store(0, Ordering::Relaxed);
                return true;
            }
            Err(failure) => failure,
        };
        let state = match failure {
            PeerFailure::Refused => return false,
            PeerFailure::Late => {
                self.times.note(start.elapsed());
                if self.late.fetch_add(1, Ordering::Relaxed) + 1 < LATE_MAX {
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
        let mut connection = self.connection.lock();
        if connection.state == State::Proven {
            connection.state = state;
            connection.try_at = Instant::now() + RETRY_MAX.min(RETRY_FIRST * 10);
        }
        false
    }
}

/// The times that reads took, of which the median counts.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// The most recent ones, the oldest first. Held for a change or a copy.
    recent: Mutex<std::collections::VecDeque<Duration>>,
}

impl Times {
    /// How many count.
    const MOST: usize = 31;

    pub(super) fn note(&self, time: Duration) {
        let mut recent = self.recent.lock();
        if recent.len() == Self::MOST {
            recent.pop_front();
        }
        recent.push_back(time);
    }

    /// `None` if nothing was noted.
    pub(super) fn median(&self) -> Option<Duration> {
        let mut sorted: Vec<_> = self.recent.lock().iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_may_take_a_multiple_of_its_usual_time() {
        let record = Record::new(Vec::new(), b"certificate", Vec::new());
        let peer = Peer::new(record).unwrap();
        assert_eq!(peer.limit(None), LIMIT_MAX, "nothing is known");
        let milliseconds = Duration::from_millis;
        [1, 2, 90].into_iter().for_each(|time| peer.times.note(milliseconds(time)));
        assert_eq!(peer.limit(None), LIMIT_MIN);
        (0..Times::MOST).for_each(|_| peer.times.note(milliseconds(100)));
        assert_eq!(peer.limit(None), milliseconds(400));
        assert_eq!(peer.limit(Some(milliseconds(300))), milliseconds(600));
        assert_eq!(peer.limit(Some(Duration::from_secs(9))), Duration::from_secs(18));
        (0..Times::MOST).for_each(|_| peer.times.note(Duration::from_secs(7)));
        assert_eq!(peer.limit(None), LIMIT_MAX);
        assert_eq!(peer.times.recent.lock().len(), Times::MOST);
    }
}
