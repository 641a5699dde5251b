//! The nodes of a job read an archive once between them, and send it to each other.
//!
//! Sixteen nodes that train on one archive would read it sixteen times from the file system that
//! all users share. So each daemon fetches its own parts of the archive from there, and asks the
//! others for theirs. Which node owns a part is computed, by rendezvous hashing of the archive, the
//! part and the node, so no daemon has to say who has what. If a node goes, only its parts move.
//!
//! Daemons find each other by records in a directory of the job (`record`), and speak HTTP over TLS
//! (`server`, `remote::PeerServer`). A thread looks for new records, and tries each new peer before
//! any reader depends on it: its bytes must equal those of the storage.
//!
//! A peer is a hint. If it does not answer in a multiple of its usual time, the reader reads the
//! storage. A read never fails because of a peer.

use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::ops::ControlFlow;
use std::ops::Range;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::error::{Error, Result};
pub use crate::remote::PeerWanted as Wanted;
use crate::remote::{PEER_NAME, PeerIdentity};
use crate::stats::TogetherCounts;
use crate::sync::{Arc, AtomicBool, AtomicU64, Condvar, Mutex, Ordering, Weak, thread};

mod addresses;
mod peer;
mod record;
mod server;

use peer::{Peer, State};
use record::{JobDirectory, Record};
use server::Server;

pub use record::remove_old_records;

/// Bytes of a part, the unit of which one node reads all from the storage. A whole number of pieces
/// of the fill.
pub const PART: u64 = 4 << 20;

/// Times between looks for new records: the first, and the longest while nodes are missing and
/// afterward.
const LOOK_FIRST: Duration = Duration::from_millis(100);
const LOOK_MISSING: Duration = Duration::from_secs(10);
const LOOK_LATER: Duration = Duration::from_secs(60);

/// How long a node asks others for its own parts after a change: they may have read them before it
/// appeared.
const INHERITING: Duration = Duration::from_secs(30);

/// How long the fill of a copy waits for other nodes, so that not each node begins to fetch all.
const GATHERING: Duration = Duration::from_secs(5);

/// The shortest time between looks that strangers cause.
const LOOK_ASKED: Duration = Duration::from_millis(50);

/// How daemons find each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Whether it is an error if they cannot, and archives are shared that only this node may see.
    pub is_required: bool,
    /// The directory of all jobs, which the nodes share; `None` for the user's cache directory.
    pub directory: Option<OsString>,
    /// The network interface that peers reach this node by; `None` for all.
    pub interface: Option<String>,
    /// The batch system and the number of the job.
    pub job: String,
    /// Nodes of the job.
    pub nodes: u64,
}

/// Reads bytes of an archive at an offset from the storage.
pub type Read = Box<dyn Fn(&mut [u8], u64) -> Result<()> + Send + Sync>;

/// Reads bytes of an archive at an offset for a peer.
pub type Serve = Box<dyn Fn(&mut [u8], u64, Wanted) -> Result<()> + Send + Sync>;

/// The daemons of a job that this one knows.
pub struct Group {
    settings: Settings,
    created: Instant,
    identity: PeerIdentity,
    /// A hash of the certificate.
    id: u64,
    archives: Mutex<Vec<Weak<SharedArchive>>>,
    /// Held for a look or a change, not while a peer is asked.
    peers: Mutex<Known>,
    /// There is something to do for the thread.
    changed: Condvar,
    is_leaving: AtomicBool,
    from_storage: AtomicU64,
    from_peers: AtomicU64,
    to_peers: AtomicU64,
    /// How long the storage takes for a read.
    storage_times: peer::Times,
}

#[derive(Default)]
struct Known {
    peers: Vec<Arc<Peer>>,
    /// A stranger has asked, so there may be a new record.
    is_look_asked: bool,
    /// The owners of parts are to be computed again.
    is_changed: bool,
}

/// An archive that the nodes of a job share.
pub struct SharedArchive {
    group: Arc<Group>,
    /// Identifies this version of it on all nodes.
    key: String,
    hash: u64,
    len: u64,
    storage: Read,
    /// Held for a copy or an exchange.
    owners: Mutex<Arc<Owners>>,
}

/// Which node owns each part of an archive.
#[derive(Default)]
struct Owners {
    /// For each part: 0 for this node, else one more than the index of the peer. Empty without
    /// peers.
    parts: Vec<u16>,
    /// The same without this node. If it appeared after others, they may have its parts.
    without_this: Vec<u16>,
    peers: Vec<Arc<Peer>>,
    /// When they were computed.
    since: Option<Instant>,
}

/// Bytes of an archive that belong all to this node, or all to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where they end in the archive.
    pub end: u64,
    /// Whether this node owns them.
    pub is_own: bool,
}

/// The part that a daemon takes in a group. It says goodbye when this is dropped.
pub struct Membership {
    group: Arc<Group>,
    record: Option<record::Published>,
    server: Option<Server>,
}

impl Group {
    /// A group with this daemon alone, which has a new key.
    ///
    /// # Errors
    /// `Io` if no key can be made.
    pub fn new(settings: Settings) -> Result<Arc<Self>> {
        let made = rcgen::generate_simple_self_signed([PEER_NAME.to_owned()]);
        let made = made.map_err(|error| Error::io("cannot make a key", io::Error::other(error)))?;
        let certificate = made.cert.der().to_vec();
        let id = xxh3_64(&certificate);
        Ok(Arc::new(Self {
            settings,
            created: Instant::now(),
            identity: PeerIdentity {
                certificate,
                key: made.signing_key.serialize_der(),
                key_text: made.signing_key.serialize_pem(),
            },
            id,
            archives: Mutex::default(),
            peers: Mutex::default(),
            changed: Condvar::new(),
            is_leaving: AtomicBool::new(false),
            from_storage: AtomicU64::new(0),
            from_peers: AtomicU64::new(0),
            to_peers: AtomicU64::new(0),
            storage_times: peer::Times::default(),
        }))
    }

    /// Adds an archive of `len` bytes. `key` identifies its version on all nodes; `storage` reads
    /// it without peers.
    pub fn share(self: &Arc<Self>, key: String, len: u64, storage: Read) -> Arc<SharedArchive> {
        let hash = xxh3_64(key.as_bytes());
        let group = Arc::clone(self);
        let owners = Mutex::default();
        let archive = Arc::new(SharedArchive { group, key, hash, len, storage, owners });
        self.archives.lock().push(Arc::downgrade(&archive));
        archive
    }

    /// Lets peers read the archives by `served`, their keys, sizes and readers, and looks for peers
    /// from now on.
    ///
    /// # Errors
    /// `Io` if there is no directory for records, no port, or no thread.
    pub fn join(self: &Arc<Self>, served: Vec<(String, u64, Serve)>) -> Result<Membership> {
        let directory = JobDirectory::open(&self.settings)?;
        let archives = served.iter().map(|(key, ..)| key.clone()).collect();
        let server = Server::start(self, served)?;
        let addresses = addresses::of_node(self.settings.interface.as_deref(), server.port)?;
        let record = Record::new(addresses, &self.identity.certificate, archives);
        let published = directory.publish(&record)?;
        let failed = |error| Error::io("cannot start a thread", error);
        let group = Arc::clone(self);
        let looking = thread::Builder::new().name("peers".into());
        looking.spawn(move || group.look_for_peers(&directory)).map_err(failed)?;
        Ok(Membership { group: Arc::clone(self), record: Some(published), server: Some(server) })
    }

    /// Looks for no other nodes any more, and refuses to serve them.
    pub fn leave(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Whether other nodes are still expected to appear.
    fn is_gathering(&self) -> bool {
        if self.created.elapsed() >= GATHERING || self.is_leaving.load(Ordering::Relaxed) {
            return false;
        }
        self.counts().peers + 1 < self.settings.nodes
    }

    /// What was read from where.
    pub fn counts(&self) -> TogetherCounts {
        let known = self.peers.lock();
        let peers = known.peers.iter().filter(|peer| peer.state() == State::Proven).count() as u64;
        let [storage, from_peers, to_peers] =
            [&self.from_storage, &self.from_peers, &self.to_peers]
                .map(|count| count.load(Ordering::Relaxed));
        TogetherCounts { peers, storage, from_peers, to_peers }
    }

    /// Whether a daemon of the job has this certificate. If not, a new record may say so soon.
    fn knows(&self, certificate: &[u8]) -> bool {
        let mut known = self.peers.lock();
        let is_known = known.peers.iter().any(|peer| peer.certificate == certificate);
        if !is_known {
            known.is_look_asked = true;
            self.changed.notify_one();
        }
        is_known
    }

    /// Has the owners computed again, because a peer is not what it was.
    fn note_change(&self) {
        self.peers.lock().is_changed = true;
        self.changed.notify_one();
    }

    fn look_for_peers(&self, directory: &JobDirectory) {
        let mut interval = LOOK_FIRST;
        let mut looked = None;
        while !self.is_leaving.load(Ordering::Relaxed) {
            let now = Instant::now();
            let (is_asked, is_changed) = {
                let mut known = self.peers.lock();
                let asked = std::mem::take(&mut known.is_look_asked);
                (asked, std::mem::take(&mut known.is_changed))
            };
            let is_due = looked.is_none_or(|last| now >= last + interval);
            if is_due || is_asked {
                self.read_records(directory);
                looked = Some(now);
                let is_complete = self.peers.lock().peers.len() as u64 + 1 >= self.settings.nodes;
                let most = if is_complete { LOOK_LATER } else { LOOK_MISSING };
                interval = if is_due { (interval * 2).min(most) } else { interval };
            }
            if self.try_peers() || is_changed {
                self.compute_owners();
            }
            let mut known = self.peers.lock();
            if known.is_changed {
                continue;
            }
            let next_try = known.peers.iter().filter_map(|peer| peer.next_try()).min();
            let until = looked.map(|last| last + interval).into_iter().chain(next_try).min();
            let until = until.unwrap_or(now + interval).max(now + LOOK_ASKED);
            let wait = until.saturating_duration_since(Instant::now());
            self.changed.wait_for(&mut known, wait);
            drop(known);
            // A stranger must not keep this thread busy.
            let earliest = now + LOOK_ASKED;
            thread::sleep(earliest.saturating_duration_since(Instant::now()));
        }
    }

    /// Adds the peers with a new record, and removes those without one.
    fn read_records(&self, directory: &JobDirectory) {
        let found = match directory.records(&self.identity.certificate) {
            Ok(found) => found,
            Err(error) => {
                log::info!("--together: cannot look for other nodes: {error}");
                return;
            }
        };
        let mut known = self.peers.lock();
        let before = known.peers.len();
        known.peers.retain(|peer| found.iter().any(|record| record.is_of(&peer.certificate)));
        let is_removed = known.peers.len() < before;
        known.is_changed |= is_removed;
        for record in found {
            if !known.peers.iter().any(|peer| record.is_of(&peer.certificate))
                && let Some(peer) = Peer::new(record)
            {
                known.peers.push(Arc::new(peer));
            }
        }
    }

    /// Tries all peers that are due. Returns whether one is proven now.
    fn try_peers(&self) -> bool {
        /// Peers that are tried at once.
        const AT_ONCE: usize = 8;
        let now = Instant::now();
        let due = |peer: &&Arc<Peer>| peer.next_try().is_some_and(|at| at <= now);
        let due: Vec<_> = self.peers.lock().peers.iter().filter(due).cloned().collect();
        let archives: Vec<_> = self.archives.lock().iter().filter_map(Weak::upgrade).collect();
        let mut is_changed = false;
        crate::ordered::ordered(
            due.len(),
            AT_ONCE,
            |nth| due[nth].prove(&self.identity, &archives),
            |_, is_proven| {
                is_changed |= is_proven;
                ControlFlow::Continue(())
            },
        );
        is_changed
    }

    fn compute_owners(&self) {
        let proven = |peer: &&Arc<Peer>| peer.state() == State::Proven;
        let peers: Vec<_> = self.peers.lock().peers.iter().filter(proven).cloned().collect();
        for archive in self.archives.lock().iter().filter_map(Weak::upgrade) {
            let having = peers.iter().filter(|peer| peer.has(&archive.key));
            let having = having.take(usize::from(u16::MAX)).cloned().collect();
            let owners = Owners::of(&archive, self.id, having);
            *archive.owners.lock() = Arc::new(owners);
        }
        log::info!("--together: {} other nodes", peers.len());
    }
}

impl Owners {
    fn of(archive: &SharedArchive, own: u64, peers: Vec<Arc<Peer>>) -> Self {
        if peers.is_empty() {
            return Self::default();
        }
        let weight = |part: u64, node: u64| {
            let mut hash = Xxh3::with_seed(archive.hash);
            hash.write_u64(part);
            hash.write_u64(node);
            (hash.finish(), node)
        };
        let best_other = |part: u64| {
            let others = (1_u16..).zip(peers.iter().map(|peer| peer.id));
            others.max_by_key(|&(_, node)| weight(part, node)).map_or(0, |(index, _)| index)
        };
        let parts = 0..archive.len.div_ceil(PART);
        let without_this: Vec<u16> = parts.clone().map(best_other).collect();
        let owner = |(part, &other): (u64, &u16)| {
            let node = usize::from(other).checked_sub(1).map(|nth| peers[nth].id);
            let is_own = node.is_none_or(|node| weight(part, own) > weight(part, node));
            if is_own { 0 } else { other }
        };
        let parts = parts.zip(&without_this).map(owner).collect();
        Self { parts, without_this, peers, since: Some(Instant::now()) }
    }

    /// The peer that owns the byte at `offset`, or may have it if this node owns it.
    fn peer(&self, offset: u64) -> Option<(&Arc<Peer>, Wanted)> {
        let part = usize::try_from(offset / PART).ok()?;
        let (index, wanted) = match self.parts.get(part)? {
            0 if self.since.is_some_and(|since| since.elapsed() < INHERITING) => {
                (self.without_this.get(part)?, Wanted::IfThere)
            }
            owner => (owner, Wanted::Always),
        };
        Some((self.peers.get(usize::from(*index).checked_sub(1)?)?, wanted))
    }

    fn owner(&self, offset: u64) -> u16 {
        let part = usize::try_from(offset / PART).unwrap_or(usize::MAX);
        self.parts.get(part).copied().unwrap_or(0)
    }
}

impl SharedArchive {
    /// What identifies this version of it on all nodes.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The longest run of bytes from `offset` on of which this node owns all, or none.
    pub fn run(&self, offset: u64) -> Run {
        let owners = self.owners();
        if owners.parts.is_empty() {
            return Run { end: self.len, is_own: true };
        }
        let is_own = owners.owner(offset) == 0;
        let mut end = (offset / PART + 1) * PART;
        while end < self.len && (owners.owner(end) == 0) == is_own {
            end += PART;
        }
        Run { end: end.min(self.len), is_own }
    }

    /// Whether it is soon known which nodes own it.
    pub fn is_gathering(&self) -> bool {
        self.group.is_gathering()
    }

    /// Fills `buffer` with the bytes at `offset`: from the peers that own them, else by `storage`,
    /// which gets parts of the buffer.
    pub fn read(
        &self,
        buffer: &mut [u8],
        offset: u64,
        storage: impl Fn(&mut [u8], u64) -> Result<()>,
    ) -> Result<()> {
        let owners = self.owners();
        let mut next = 0;
        while next < buffer.len() {
            let at = offset + next as u64;
            let owner = owners.owner(at);
            let mut end = (at / PART + 1) * PART;
            while end < offset + buffer.len() as u64 && owners.owner(end) == owner {
                end += PART;
            }
            let until = usize::try_from(end - offset).unwrap_or(usize::MAX).min(buffer.len());
            let piece = &mut buffer[next..until];
            let peer = owners.peer(at);
            if !peer.is_some_and(|(peer, wanted)| self.read_from(peer, piece, at, wanted)) {
                self.read_storage(piece, at, &storage)?;
            }
            next = until;
        }
        Ok(())
    }

    /// Fills `buffer` by `storage`, and counts that.
    pub fn read_storage(
        &self,
        buffer: &mut [u8],
        offset: u64,
        storage: impl Fn(&mut [u8], u64) -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        storage(buffer, offset)?;
        self.group.storage_times.note(start.elapsed());
        self.group.from_storage.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn read_from(&self, peer: &Peer, buffer: &mut [u8], offset: u64, wanted: Wanted) -> bool {
        let limit = peer.limit(self.group.storage_times.median());
        let was_proven = peer.state() == State::Proven;
        let archive = (self.key.as_str(), self.len);
        let is_read = was_proven && peer.read(archive, buffer, offset, (wanted, limit));
        if is_read {
            self.group.from_peers.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        } else if was_proven && peer.state() != State::Proven {
            self.group.note_change();
        }
        is_read
    }

    /// Whether `read`, of a peer, gets what the storage has, in a few bytes that the peer cannot
    /// know before. `None` if one of them cannot be read.
    fn agrees_with(&self, read: impl FnOnce(&mut [u8], u64) -> bool) -> Option<bool> {
        /// Bytes of a sample.
        const SAMPLE: u64 = 4096;
        let range = sample(self.len, SAMPLE);
        let len = usize::try_from(range.end - range.start).unwrap_or(0);
        let (mut expected, mut found) = (vec![0; len], vec![0; len]);
        (self.storage)(&mut expected, range.start).ok()?;
        read(&mut found, range.start).then(|| found == expected)
    }

    fn owners(&self) -> Arc<Owners> {
        Arc::clone(&self.owners.lock())
    }
}

/// `len` bytes somewhere in a file of `of` bytes.
fn sample(of: u64, len: u64) -> Range<u64> {
    let random = RandomState::new().hash_one(of);
    let start = random % (of / len + 1) * len;
    start.min(of)..start.saturating_add(len).min(of)
}

impl fmt::Debug for SharedArchive {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("SharedArchive").field(&self.key).finish()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // First, so that no node finds this one any more.
        self.record = None;
        self.group.leave();
        self.server = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: u64 = 2000;

    fn group() -> Arc<Group> {
        let settings = Settings {
            is_required: true,
            directory: None,
            interface: None,
            job: "test-1".into(),
            nodes: 4,
        };
        Group::new(settings).unwrap()
    }

    fn archive(group: &Arc<Group>) -> Arc<SharedArchive> {
        let len = PARTS * PART - 5;
        group.share(
            "key".into(),
            len,
            Box::new(|buffer, _| {
                buffer.fill(7);
                Ok(())
            }),
        )
    }

    fn peer(number: u64) -> Arc<Peer> {
        let record = Record::new(Vec::new(), &number.to_le_bytes(), vec!["key".into()]);
        Arc::new(Peer::new(record).unwrap())
    }

    /// The owner of each part among `nodes`, the first of which has the number 0.
    fn owners(archive: &SharedArchive, own: u64, peers: &[Arc<Peer>]) -> Vec<u64> {
        let owners = Owners::of(archive, own, peers.to_vec());
        let node = |index: &u16| match index.checked_sub(1) {
            None => own,
            Some(nth) => peers[usize::from(nth)].id,
        };
        owners.parts.iter().map(node).collect()
    }

    #[test]
    fn all_nodes_agree_on_the_owners_and_each_owns_its_share() {
        let group = group();
        let archive = archive(&group);
        let peers: Vec<_> = (0..15).map(peer).collect();
        let own = owners(&archive, 99, &peers);
        // As the first of the peers sees it.
        let others: Vec<_> = (1..15).map(peer).collect();
        let mut seen = Owners::of(&archive, peers[0].id, others.clone()).parts.len();
        assert_eq!(seen as u64, PARTS);
        let among_peers = owners(&archive, peers[0].id, &others);
        for (one, other) in own.iter().zip(&among_peers) {
            assert!(one == other || *one == 99, "a part moves only from the node that is gone");
        }
        seen = own.iter().filter(|node| **node == 99).count();
        assert!((80..170).contains(&seen), "{seen} of {PARTS} for one of 16 nodes");
    }

    #[test]
    fn runs_cover_an_archive_and_end_where_the_owner_changes() {
        let group = group();
        let archive = archive(&group);
        assert_eq!(archive.run(5), Run { end: archive.len, is_own: true });
        *archive.owners.lock() = Arc::new(Owners::of(&archive, 99, (0..3).map(peer).collect()));
        let (mut next, mut own) = (0, 0);
        let mut before = None;
        while next < archive.len {
            let run = archive.run(next);
            assert!(run.end > next && before != Some(run.is_own));
            assert_eq!(archive.run(run.end - 1), run, "its last byte");
            own += if run.is_own { run.end - next } else { 0 };
            (next, before) = (run.end, Some(run.is_own));
        }
        assert_eq!(next, archive.len);
        assert!((0.2..0.3).contains(&(own as f64 / archive.len as f64)), "{own}");
    }

    #[test]
    fn what_no_peer_sends_is_read_from_the_storage() {
        let group = group();
        let archive = archive(&group);
        // Peers that were never tried, and so are not asked.
        *archive.owners.lock() = Arc::new(Owners::of(&archive, 99, (0..3).map(peer).collect()));
        let mut buffer = vec![0; 3 * PART as usize];
        archive
            .read(&mut buffer, PART - 9, |buffer, _| {
                buffer.fill(7);
                Ok(())
            })
            .unwrap();
        assert!(buffer.iter().all(|byte| *byte == 7));
        let counts = group.counts();
        assert_eq!((counts.peers, counts.storage, counts.from_peers), (0, 3 * PART, 0));
        let failed = archive.read(&mut buffer, 0, |_, _| Err(Error::corrupt("damaged")));
        assert!(failed.is_err(), "an error of the storage is one of the read");
    }

    #[test]
    fn samples_lie_within_the_archive() {
        for of in [1, 4095, 4096, 4097, 1 << 40] {
            for _ in 0..20 {
                let range = sample(of, 4096);
                assert!(range.start <= range.end && range.end <= of, "{of}: {range:?}");
            }
        }
        assert_eq!(sample(0, 4096), 0..0);
    }
}
