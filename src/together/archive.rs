//! An archive that the nodes of a job share: which node owns which part, and reads of it.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::ops::Range;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::Group;
use super::peer::{Comparison, Peer, State};
use crate::error::Result;
use crate::remote::{PeerServer, PeerWanted, Requester};
use crate::sync::{Arc, Mutex, OnceLock, Ordering};

/// Bytes of a part, the unit of which one node reads all from the storage. A whole number of pieces
/// of the fill.
pub const PART: u64 = 4 << 20;

/// How long a new node asks others for its own parts: they may have read them before it appeared.
const INHERITING: Duration = Duration::from_secs(30);

/// Reads bytes of an archive at an offset from the storage.
pub type Read = Box<dyn Fn(&mut [u8], u64) -> Result<()> + Send + Sync>;

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
    fn peer(&self, offset: u64) -> Option<(&Arc<Peer>, PeerWanted)> {
        let part = usize::try_from(offset / PART).ok()?;
        let (index, wanted) = match self.parts.get(part)? {
            0 if self.inherits_until.is_some_and(|until| Instant::now() < until) => {
                (self.without_this.get(part)?, PeerWanted::IfThere)
            }
            owner => (owner, PeerWanted::Always),
        };
        Some((self.peers.get(usize::from(*index).checked_sub(1)?)?, wanted))
    }

    /// Where the parts from `offset` on end whose owners are all `alike`. It may be behind `end`.
    fn run_end(&self, offset: u64, end: u64, alike: impl Fn(u16) -> bool) -> u64 {
        let mut next = (offset / PART + 1) * PART;
        while next < end && alike(self.owner(next)) {
            next += PART;
        }
        next
    }

    fn owner(&self, offset: u64) -> u16 {
        let part = usize::try_from(offset / PART).unwrap_or(usize::MAX);
        self.parts.get(part).copied().unwrap_or(0)
    }
}

impl SharedArchive {
    /// An archive of `len` bytes of which this node owns all, until others are known.
    pub(super) fn new(group: Arc<Group>, key: String, len: u64, storage: Read) -> Self {
        let hash = xxh3_64(key.as_bytes());
        let (storage, sample) = (Mutex::new(Some(storage)), OnceLock::new());
        Self { group, key, hash, len, storage, sample, owners: Mutex::default() }
    }

    /// Divides it among this node, which is `own`, and those of `peers` that have it. The first
    /// peer was `found` at this time.
    pub(super) fn divide(&self, own: u64, peers: &[Arc<Peer>], found: Option<Instant>) {
        let having = peers.iter().filter(|peer| peer.has(&self.key));
        let having = having.take(usize::from(u16::MAX)).cloned().collect();
        let mut owners = Owners::of(self, own, having);
        owners.inherits_until = found.map(|found| found + INHERITING);
        *self.owners.lock() = Arc::new(owners);
    }

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
        let end = owners.run_end(offset, self.len, |owner| (owner == 0) == is_own);
        Run { end: end.min(self.len), is_own }
    }

    /// The most bytes per second to fetch from other nodes while no program waits for them.
    pub fn background_rate(&self) -> Option<u64> {
        self.group.background_rate
    }

    /// How many nodes own it, as far as they are known.
    pub fn nodes(&self) -> u64 {
        self.owners().peers.len() as u64 + 1
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
        requester: Requester,
        storage: impl Fn(&mut [u8], u64) -> Result<()>,
    ) -> Result<()> {
        let owners = self.owners();
        let mut next = 0;
        while next < buffer.len() {
            let at = offset + next as u64;
            let owner = owners.owner(at);
            let end = owners.run_end(at, offset + buffer.len() as u64, |other| other == owner);
            let until = usize::try_from(end - offset).unwrap_or(usize::MAX).min(buffer.len());
            let piece = &mut buffer[next..until];
            let peer = owners.peer(at);
            let is_read = peer
                .is_some_and(|(peer, wanted)| self.read_from(peer, piece, at, (wanted, requester)));
            if !is_read {
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

    /// Reads from `peer`, if it can be asked. Returns whether it sent the bytes.
    fn read_from(
        &self,
        peer: &Peer,
        buffer: &mut [u8],
        offset: u64,
        (wanted, requester): (PeerWanted, Requester),
    ) -> bool {
        if peer.state() != State::Proven {
            return false;
        }
        let group = &self.group;
        let limit = peer.limit(buffer.len(), requester, group.storage_times.percentile(90));
        let is_read = peer.read((&self.key, self.len), buffer, offset, (wanted, limit));
        if is_read {
            group.from_peers.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        }
        peer.compare(&group.storage_times, Instant::now());
        if peer.state() != State::Proven {
            group.note_change();
        }
        is_read
    }

    /// Whether `read`, of a peer, gets what the storage has, in a few bytes that were chosen at
    /// random. `None` if one of them cannot be read.
    fn agrees_with(&self, read: impl FnOnce(&mut [u8], u64) -> bool) -> Option<bool> {
        self.take_sample();
        let (offset, expected) = self.sample.get()?;
        let mut found = vec![0; expected.len()];
        read(&mut found, *offset).then(|| found == *expected)
    }

    /// Reads a sample of the storage, unless there is one, and closes the storage then.
    fn take_sample(&self) {
        /// Bytes of a sample. A copy is read in larger units, which shows a sample.
        const SAMPLE: u64 = 4096;
        if self.sample.get().is_some() {
            return;
        }
        let mut storage = self.storage.lock();
        let Some(read) = storage.as_ref() else { return };
        let range = sample(self.len, SAMPLE);
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
        if read(&mut bytes, range.start).is_ok() {
            let _ = self.sample.set((range.start, bytes));
            *storage = None;
        }
    }

    /// Closes the storage. Peers that appear later are compared with a sample of it.
    pub fn close_storage(&self) {
        self.take_sample();
        *self.storage.lock() = None;
    }

    fn owners(&self) -> Arc<Owners> {
        Arc::clone(&self.owners.lock())
    }
}

/// Compares a sample of some of `archives` with what `server` sends within `limit` each.
pub(super) fn compare(
    archives: &[&Arc<SharedArchive>],
    server: &PeerServer,
    limit: Duration,
) -> Comparison {
    /// Archives that are compared.
    const MOST: usize = 4;
    let mut outcome = Comparison::Impossible;
    for archive in archives.iter().take(MOST) {
        let mut failure = None;
        let agrees = archive.agrees_with(|buffer, offset| {
            let asked = (PeerWanted::Always, limit);
            let read = server.read_exact_at((&archive.key, archive.len), buffer, offset, asked);
            failure = read.err();
            failure.is_none()
        });
        outcome = match (agrees, failure) {
            (Some(true), _) => Comparison::Same,
            (Some(false), _) => return Comparison::Other,
            (None, Some(failure)) => return Comparison::Failed(failure),
            (None, None) => return Comparison::Impossible,
        };
    }
    outcome
}

/// `len` bytes somewhere in a file of `of` bytes, or all of it.
fn sample(of: u64, len: u64) -> Range<u64> {
    let random = RandomState::new().hash_one(of);
    let start = random % of.div_ceil(len).max(1) * len;
    let start = start.min(of.saturating_sub(len));
    start..start.saturating_add(len).min(of)
}

impl fmt::Debug for SharedArchive {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("SharedArchive").field(&self.key).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Record;
    use super::super::{Bandwidth, Settings};
    use super::*;
    use crate::error::Error;
    use crate::sync::AtomicBool;

    const PARTS: u64 = 2000;

    fn group() -> Arc<Group> {
        let settings = Settings {
            is_required: true,
            directory: None,
            interface: None,
            bandwidth: Bandwidth::default(),
            job: "test-1".into(),
            nodes: 4,
        };
        Group::alone(settings, None).unwrap()
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
            .read(&mut buffer, PART - 9, Requester::Reader, |buffer, _| {
                buffer.fill(7);
                Ok(())
            })
            .unwrap();
        assert!(buffer.iter().all(|byte| *byte == 7));
        let counts = group.counts();
        assert_eq!((counts.peers, counts.storage, counts.from_peers), (0, 3 * PART, 0));
        let failed =
            archive.read(&mut buffer, 0, Requester::Reader, |_, _| Err(Error::corrupt("damaged")));
        assert!(failed.is_err(), "an error of the storage is one of the read");
    }

    /// No peer sends an empty range, so a node with such a sample would have no peers.
    #[test]
    fn a_sample_has_bytes_of_the_archive() {
        for of in [0, 1, 4095, 4096, 4097, 8192, 1 << 40] {
            for _ in 0..1000 {
                let Range { start, end } = sample(of, 4096);
                assert!(end <= of && end - start == of.min(4096), "{start}..{end} of {of}");
            }
        }
    }

    /// A copy may be complete before the first peer is found.
    #[test]
    fn peers_are_compared_after_the_storage_was_closed() {
        let group = group();
        let archive = archive(&group);
        archive.close_storage();
        let sends = |byte: u8| {
            move |buffer: &mut [u8], _: u64| {
                buffer.fill(byte);
                true
            }
        };
        assert_eq!(archive.agrees_with(sends(7)), Some(true));
        assert_eq!(archive.agrees_with(sends(8)), Some(false));
        assert!(archive.storage.lock().is_none());
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
}
