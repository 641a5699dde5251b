//! The nodes of a job read an archive once between them, and send it to each other.
//!
//! Sixteen nodes that train on one archive would read it sixteen times from the file system that
//! all users share. So each daemon fetches its own parts of the archive from there, and asks the
//! others for theirs. Which node owns a part is computed, by rendezvous hashing of the archive, the
//! part and the node, so daemons need not tell each other. If a node ends, only its parts move.
//!
//! Daemons find each other by records in a directory of the job (`record`), and speak HTTP over TLS
//! (`server`, `remote::PeerServer`). A thread looks for new records, and tries each new peer before
//! any reader depends on it: its bytes must equal those of the storage.
//!
//! If a peer does not answer in a multiple of its usual time, the reader reads the storage. A read
//! never fails because of a peer.

use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::fmt;
use std::hash::BuildHasher;
use std::io;
use std::ops::ControlFlow;
use std::ops::Range;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::error::{Error, Result};
use crate::ordered::ordered;
pub use crate::remote::PeerWanted as Wanted;
use crate::remote::{PEER_NAME, PeerIdentity};
use crate::stats::TogetherCounts;
use crate::sync::{Arc, AtomicBool, AtomicU64, Condvar, Mutex, OnceLock, Ordering, Weak, thread};
use crate::units::counted;

mod addresses;
mod peer;
mod record;
mod server;

use peer::{Peer, State, Times};
use record::{JobDirectory, Record};
use server::Server;

pub use record::remove_old_records;

/// Bytes of a part, the unit of which one node reads all from the storage. A whole number of pieces
/// of the fill.
pub const PART: u64 = 4 << 20;

/// Times between looks for new records: the first, the longest, and the shortest if strangers ask.
const LOOK_FIRST: Duration = Duration::from_millis(100);
const LOOK_LAST: Duration = Duration::from_secs(60);
const LOOK_ASKED: Duration = Duration::from_millis(500);

/// The shortest time between two rounds of the thread that looks for peers.
const ROUND_MIN: Duration = Duration::from_millis(20);

/// How long a new node asks others for its own parts: they may have read them before it appeared.
const INHERITING: Duration = Duration::from_secs(30);

/// How long the fill of a copy waits for other nodes, so that not each node begins to fetch all.
const GATHERING: Duration = Duration::from_secs(5);

/// How daemons find each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Whether it is an error if they cannot, and archives are shared that only this node may see.
    pub is_required: bool,
    /// A directory that the nodes share; `None` for the user's cache directory.
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

/// An archive for peers.
pub trait Served: Send + Sync {
    /// What identifies this version of it on all nodes.
    fn key(&self) -> &str;

    /// Size in bytes.
    fn size(&self) -> u64;

    /// Whether these bytes can be read without the storage.
    fn has(&self, range: &Range<u64>) -> bool;

    /// Fills `buffer` with the bytes at `offset`, from the storage if need be.
    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<()>;
}

/// The daemons of a job that this one knows.
pub struct Group {
    settings: Settings,
    identity: PeerIdentity,
    /// A hash of the certificate.
    id: u64,
    archives: Mutex<Vec<Weak<SharedArchive>>>,
    /// Held for a look or a change, not while a peer is asked.
    known: Mutex<Known>,
    /// There is something to do for the thread that looks for peers.
    changed: Condvar,
    joined: OnceLock<Instant>,
    /// When the first peer was found.
    found: OnceLock<Instant>,
    has_gathered: AtomicBool,
    is_leaving: AtomicBool,
    from_storage: AtomicU64,
    from_peers: AtomicU64,
    to_peers: AtomicU64,
    /// How long the storage takes for a read.
    storage_times: Times,
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
    /// Until a sample was read. Held for that.
    storage: Mutex<Option<Read>>,
    /// A few bytes of the storage, to compare them with those of peers.
    sample: OnceLock<(u64, Vec<u8>)>,
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
    /// Until when others are asked for what this node owns.
    inherits_until: Option<Instant>,
}

/// Bytes of an archive that belong all to this node, or all to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where they end in the archive.
    pub end: u64,
    /// Whether this node owns them.
    pub is_own: bool,
}

/// The part that a daemon takes in a group. When this is dropped, other nodes do not find it any
/// more.
pub struct Membership {
    group: Arc<Group>,
    record: Option<record::Published>,
    server: Option<Server>,
}

impl Group {
    /// A group with this daemon alone, which has a new key, and can be found after `join`.
    ///
    /// # Errors
    /// `Io` if there is no directory for records, or no port; `Usage` if there is no such network
    /// interface.
    pub fn new(settings: Settings) -> Result<(Arc<Self>, Entrance)> {
        let entrance = Entrance {
            directory: JobDirectory::open(&settings)?,
            port: addresses::listen(settings.interface.as_deref())?,
        };
        Ok((Self::alone(settings)?, entrance))
    }

    fn alone(settings: Settings) -> Result<Arc<Self>> {
        let has_gathered = AtomicBool::new(settings.nodes <= 1);
        let made = rcgen::generate_simple_self_signed([PEER_NAME.to_owned()]);
        let made = made.map_err(|error| Error::io("cannot make a key", io::Error::other(error)))?;
        let certificate = made.cert.der().to_vec();
        let id = xxh3_64(&certificate);
        Ok(Arc::new(Self {
            settings,
            identity: PeerIdentity {
                certificate,
                key: made.signing_key.serialize_der(),
                key_text: made.signing_key.serialize_pem(),
            },
            id,
            archives: Mutex::default(),
            known: Mutex::default(),
            changed: Condvar::new(),
            joined: OnceLock::new(),
            found: OnceLock::new(),
            has_gathered,
            is_leaving: AtomicBool::new(false),
            from_storage: AtomicU64::new(0),
            from_peers: AtomicU64::new(0),
            to_peers: AtomicU64::new(0),
            storage_times: Times::default(),
        }))
    }

    /// Nodes of the job.
    pub fn nodes(&self) -> u64 {
        self.settings.nodes
    }

    /// Adds an archive of `len` bytes. `key` identifies its version on all nodes; `storage` reads
    /// it without peers.
    pub fn share(self: &Arc<Self>, key: String, len: u64, storage: Read) -> Arc<SharedArchive> {
        let hash = xxh3_64(key.as_bytes());
        let archive = Arc::new(SharedArchive {
            group: Arc::clone(self),
            key,
            hash,
            len,
            storage: Mutex::new(Some(storage)),
            sample: OnceLock::new(),
            owners: Mutex::default(),
        });
        self.archives.lock().push(Arc::downgrade(&archive));
        archive
    }

    /// Lets peers read `served`, and looks for peers from now on.
    ///
    /// # Errors
    /// `Io` if no record can be written, or no thread started.
    pub fn join(
        self: &Arc<Self>,
        Entrance { mut directory, port }: Entrance,
        served: Vec<Box<dyn Served>>,
    ) -> Result<Membership> {
        let archives = served.iter().map(|archive| archive.key().to_owned()).collect();
        let record = Record::new(port.addresses, &self.identity.certificate, archives);
        let server = Server::start(self, port.listener, served)?;
        let published = directory.publish(&record, &self.settings)?;
        let failed = |error| Error::io("cannot start a thread", error);
        let group = Arc::clone(self);
        let looking = thread::Builder::new().name("peers".into());
        looking.spawn(move || group.look_for_peers(&directory)).map_err(failed)?;
        let _ = self.joined.set(Instant::now());
        Ok(Membership { group: Arc::clone(self), record: Some(published), server: Some(server) })
    }

    /// Looks for no other nodes any more, and refuses to serve them.
    pub fn leave(&self) {
        let _known = self.known.lock();
        self.is_leaving.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Whether other nodes are still expected to appear.
    fn is_gathering(&self) -> bool {
        if self.has_gathered.load(Ordering::Relaxed) || self.is_leaving.load(Ordering::Relaxed) {
            return false;
        }
        let is_over = self.joined.get().is_some_and(|joined| joined.elapsed() >= GATHERING);
        if is_over {
            self.has_gathered.store(true, Ordering::Relaxed);
        }
        !is_over
    }

    /// How many bytes came from where.
    pub fn counts(&self) -> TogetherCounts {
        let known = self.known.lock();
        let peers = known.peers.iter().filter(|peer| peer.state() == State::Proven).count() as u64;
        let [storage, from_peers, to_peers] =
            [&self.from_storage, &self.from_peers, &self.to_peers]
                .map(|count| count.load(Ordering::Relaxed));
        TogetherCounts { peers, storage, from_peers, to_peers }
    }

    /// Whether a daemon of the job has this certificate. If not, a new record may say so soon.
    fn knows(&self, certificate: &[u8]) -> bool {
        let mut known = self.known.lock();
        let is_known = known.peers.iter().any(|peer| peer.certificate == certificate);
        if !is_known {
            known.is_look_asked = true;
            self.changed.notify_one();
        }
        is_known
    }

    /// Has the owners computed again, because a peer is not what it was.
    fn note_change(&self) {
        self.known.lock().is_changed = true;
        self.changed.notify_one();
    }

    fn look_for_peers(&self, directory: &JobDirectory) {
        let mut interval = LOOK_FIRST;
        let mut looked: Option<Instant> = None;
        let mut has_cleared = false;
        while !self.is_leaving.load(Ordering::Relaxed) {
            let now = Instant::now();
            let is_asked = self.known.lock().is_look_asked;
            let is_due = looked.is_none_or(|last| now >= last + interval);
            let may_look = looked.is_none_or(|last| now >= last + LOOK_ASKED.min(interval));
            if is_due || (is_asked && may_look) {
                self.known.lock().is_look_asked = false;
                self.read_records(directory);
                looked = Some(now);
                interval = if is_due { (interval * 2).min(LOOK_LAST) } else { interval };
            }
            self.try_peers();
            if std::mem::take(&mut self.known.lock().is_changed) {
                self.compute_owners();
            }
            if !has_cleared && interval > LOOK_ASKED {
                has_cleared = true;
                remove_old_records(self.settings.directory.as_deref());
            }
            let earliest = now + ROUND_MIN;
            thread::sleep(earliest.saturating_duration_since(Instant::now()));
            let mut known = self.known.lock();
            let asked = known.is_look_asked.then_some(LOOK_ASKED.min(interval));
            let next_look = looked.map(|last| last + asked.unwrap_or(interval));
            let next_try = known.peers.iter().filter_map(|peer| peer.next_try()).min();
            let until = next_look.into_iter().chain(next_try).min().unwrap_or(now + interval);
            let wait = until.saturating_duration_since(Instant::now());
            // All of them are set with the lock.
            if !known.is_changed && !self.is_leaving.load(Ordering::Relaxed) && !wait.is_zero() {
                self.changed.wait_for(&mut known, wait);
            }
        }
    }

    /// Adds the peers with a new record, and removes those without one.
    fn read_records(&self, directory: &JobDirectory) {
        let names = match directory.names() {
            Ok(names) => names,
            Err(error) => {
                log::info!("--together: cannot look for other nodes: {error}");
                return;
            }
        };
        let is_known = |name: &OsString, known: &Known| {
            known.peers.iter().any(|peer| peer.record_name == *name)
        };
        let new: Vec<_> = {
            let mut known = self.known.lock();
            let before = known.peers.len();
            known.peers.retain(|peer| names.contains(&peer.record_name));
            known.is_changed |= known.peers.len() < before;
            names.into_iter().filter(|name| !is_known(name, &known)).collect()
        };
        for name in new {
            // A record that cannot be read now is read at the next look.
            if let Ok(record) = directory.read(&name)
                && let Some(peer) = Peer::new(name, record)
                && peer.certificate != self.identity.certificate
            {
                self.known.lock().peers.push(Arc::new(peer));
            }
        }
    }

    /// Tries all peers that are due.
    fn try_peers(&self) {
        /// Peers that are tried at once.
        const AT_ONCE: usize = 32;
        /// Time between two computations of owners while peers are tried.
        const STEP: Duration = Duration::from_millis(100);
        let now = Instant::now();
        let due = |peer: &&Arc<Peer>| peer.next_try().is_some_and(|at| at <= now);
        let due: Vec<_> = self.known.lock().peers.iter().filter(due).cloned().collect();
        let archives = self.shared_archives();
        let mut computed = now;
        ordered(
            due.len(),
            AT_ONCE,
            |nth| due[nth].prove(&self.identity, &archives),
            |_, is_proven| {
                if is_proven {
                    self.known.lock().is_changed = true;
                }
                if is_proven && computed.elapsed() >= STEP {
                    self.known.lock().is_changed = false;
                    self.compute_owners();
                    computed = Instant::now();
                }
                ControlFlow::Continue(())
            },
        );
    }

    fn compute_owners(&self) {
        let proven = |peer: &&Arc<Peer>| peer.state() == State::Proven;
        let peers: Vec<_> = self.known.lock().peers.iter().filter(proven).cloned().collect();
        let found = (!peers.is_empty()).then(|| *self.found.get_or_init(Instant::now));
        for archive in self.shared_archives() {
            let having = peers.iter().filter(|peer| peer.has(&archive.key));
            let having = having.take(usize::from(u16::MAX)).cloned().collect();
            let mut owners = Owners::of(&archive, self.id, having);
            owners.inherits_until = found.map(|found| found + INHERITING);
            *archive.owners.lock() = Arc::new(owners);
        }
        if peers.len() as u64 + 1 >= self.settings.nodes {
            self.has_gathered.store(true, Ordering::Relaxed);
        }
        log::info!("--together: reading with {}", counted(peers.len() as u64, "other node"));
    }

    fn shared_archives(&self) -> Vec<Arc<SharedArchive>> {
        self.archives.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// What a group needs before it can be found.
pub struct Entrance {
    directory: JobDirectory,
    port: addresses::Port,
}

impl Owners {
    fn of(archive: &SharedArchive, own: u64, peers: Vec<Arc<Peer>>) -> Self {
        if peers.is_empty() {
            return Self::default();
        }
        let weight = |part: u64, node: u64| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&part.to_le_bytes());
            bytes[8..].copy_from_slice(&node.to_le_bytes());
            (xxh3_64_with_seed(&bytes, archive.hash), node)
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
        Self { parts, without_this, peers, inherits_until: None }
    }

    /// The peer that owns the byte at `offset`, or may have it if this node owns it.
    fn peer(&self, offset: u64) -> Option<(&Arc<Peer>, Wanted)> {
        let part = usize::try_from(offset / PART).ok()?;
        let (index, wanted) = match self.parts.get(part)? {
            0 if self.inherits_until.is_some_and(|until| Instant::now() < until) => {
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
        self.group.storage_times.note_any(start.elapsed());
        self.group.from_storage.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn read_from(&self, peer: &Peer, buffer: &mut [u8], offset: u64, wanted: Wanted) -> bool {
        let limit = peer.limit(buffer.len(), self.group.storage_times.percentile(90));
        let was_proven = peer.state() == State::Proven;
        let archive = (self.key.as_str(), self.len);
        let is_read = was_proven && peer.read(archive, buffer, offset, (wanted, limit));
        if is_read {
            self.group.from_peers.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        }
        if was_proven {
            peer.compare(&self.group.storage_times);
        }
        if was_proven && peer.state() != State::Proven {
            self.group.note_change();
        }
        is_read
    }

    /// Whether `read`, of a peer, gets what the storage has, in a few bytes that were chosen at
    /// random. `None` if one of them cannot be read.
    fn agrees_with(&self, read: impl FnOnce(&mut [u8], u64) -> bool) -> Option<bool> {
        /// Bytes of a sample. A copy is read in larger units, which shows a sample.
        const SAMPLE: u64 = 4096;
        if self.sample.get().is_none() {
            let mut storage = self.storage.lock();
            if let Some(read) = storage.as_ref() {
                let range = sample(self.len, SAMPLE);
                let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
                if read(&mut bytes, range.start).is_ok() {
                    let _ = self.sample.set((range.start, bytes));
                    *storage = None;
                }
            }
        }
        let (offset, expected) = self.sample.get()?;
        let mut found = vec![0; expected.len()];
        read(&mut found, *offset).then(|| found == *expected)
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
        Group::alone(settings).unwrap()
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
        Arc::new(Peer::new(number.to_string().into(), record).unwrap())
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
    fn bytes_that_peers_do_not_send_are_read_from_the_storage() {
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
    fn a_sample_that_cannot_be_read_is_read_again() {
        let group = group();
        let fails = AtomicBool::new(true);
        let storage = move |buffer: &mut [u8], _: u64| {
            buffer.fill(7);
            match fails.swap(false, Ordering::Relaxed) {
                true => Err(Error::corrupt("damaged")),
                false => Ok(()),
            }
        };
        let archive = group.share("key".into(), 100, Box::new(storage));
        let sevens = |buffer: &mut [u8], _| {
            buffer.fill(7);
            true
        };
        assert_eq!(archive.agrees_with(sevens), None);
        assert_eq!(archive.agrees_with(sevens), Some(true));
        assert_eq!(archive.agrees_with(|_, _| true), Some(false));
        assert_eq!(archive.agrees_with(|_, _| false), None);
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
