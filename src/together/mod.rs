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

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::ops::ControlFlow;
use std::ops::Range;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::ordered::ordered;
use crate::remote::{PEER_NAME, PeerIdentity};
use crate::stats::TogetherCounts;
use crate::sync::{Arc, AtomicBool, AtomicU64, Condvar, Mutex, OnceLock, Ordering, Weak, thread};
use crate::units::{counted, format_size};

mod addresses;
mod archive;
mod peer;
mod record;
mod server;

use peer::{Peer, State, Times};
use record::{JobDirectory, Record};
use server::Server;

pub use archive::{PART, Read, Run, SharedArchive};
pub use record::remove_old_records;

/// Times between looks for new records: the first, the longest, and the shortest if strangers ask.
const LOOK_FIRST: Duration = Duration::from_millis(100);
const LOOK_LAST: Duration = Duration::from_secs(60);
const LOOK_ASKED: Duration = Duration::from_millis(500);

/// The shortest time between two rounds of the thread that looks for peers.
const ROUND_MIN: Duration = Duration::from_millis(20);

/// Records that are read at once, and peers that are tried.
const AT_ONCE: usize = 32;

/// Peers that are named.
const NAMED: usize = 64;

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
    /// The most that a mount receives from peers in the background.
    pub bandwidth: Bandwidth,
    /// The batch system and the number of the job.
    pub job: String,
    /// Nodes of the job.
    pub nodes: u64,
}

/// A limit for bytes that no program waits for, of one mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bandwidth {
    /// Percent of the speed of the node's link, if the kernel knows it.
    Share(u8),
    /// Bytes per second.
    Rate(u64),
}

impl Default for Bandwidth {
    /// The job's own communication gets as much.
    fn default() -> Self {
        Self::Share(50)
    }
}

impl Bandwidth {
    /// The limit on a link of `speed` bytes per second, in bytes per second; `None` for no limit.
    fn on(self, speed: Option<u64>) -> Option<u64> {
        match self {
            Self::Share(percent) => Some((speed? / 100 * u64::from(percent)).max(1)),
            Self::Rate(rate) => Some(rate),
        }
    }
}

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
    /// The most bytes per second that are fetched from peers in the background; `None` for all.
    background_rate: Option<u64>,
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
    /// Bytes of all archives that were shared.
    archive_bytes: AtomicU64,
    from_storage: AtomicU64,
    from_peers: AtomicU64,
    to_peers: AtomicU64,
    /// How long the storage takes for a read.
    storage_times: Times,
}

#[derive(Default)]
struct Known {
    peers: Vec<Arc<Peer>>,
    /// Bytes that daemons without a record have read from the storage, by the names of records.
    by_ended: HashMap<OsString, u64>,
    /// A stranger has asked, so there may be a new record.
    is_look_asked: bool,
    /// The owners of parts are to be computed again.
    is_changed: bool,
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
        let background_rate = settings.bandwidth.on(entrance.port.speed);
        match background_rate.map(format_size) {
            Some(rate) => {
                log::info!("--together: at most {rate}/s from other nodes while no program waits");
            }
            None => {
                log::info!(
                    "--together: no limit for other nodes: the speed of the link is unknown"
                );
            }
        }
        Ok((Self::alone(settings, background_rate)?, entrance))
    }

    fn alone(settings: Settings, background_rate: Option<u64>) -> Result<Arc<Self>> {
        let has_gathered = AtomicBool::new(settings.nodes <= 1);
        let made = rcgen::generate_simple_self_signed([PEER_NAME.to_owned()]);
        let made = made.map_err(|error| Error::io("cannot make a key", io::Error::other(error)))?;
        let certificate = made.cert.der().to_vec();
        let id = xxh3_64(&certificate);
        Ok(Arc::new(Self {
            settings,
            identity: PeerIdentity { certificate, key: made.signing_key.serialize_pem() },
            id,
            background_rate,
            archives: Mutex::default(),
            known: Mutex::default(),
            changed: Condvar::new(),
            joined: OnceLock::new(),
            found: OnceLock::new(),
            has_gathered,
            is_leaving: AtomicBool::new(false),
            archive_bytes: AtomicU64::new(0),
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
        let archive = Arc::new(SharedArchive::new(Arc::clone(self), key, len, storage));
        self.archives.lock().push(Arc::downgrade(&archive));
        self.archive_bytes.fetch_add(len, Ordering::Relaxed);
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
        let proven = known.peers.iter().filter(|peer| peer.state() == State::Proven);
        let mut names: Vec<_> = proven.map(|peer| peer.node().to_owned()).collect();
        let peers = names.len() as u64;
        names.truncate(NAMED);
        let [archives, storage, from_peers, to_peers] =
            [&self.archive_bytes, &self.from_storage, &self.from_peers, &self.to_peers]
                .map(|count| count.load(Ordering::Relaxed));
        let by_peers: u64 = known.peers.iter().map(|peer| peer.storage_bytes()).sum();
        let by_ended: u64 = known.by_ended.values().sum();
        let all_storage = storage.saturating_add(by_peers).saturating_add(by_ended);
        TogetherCounts { peers, names, storage, from_peers, to_peers, all_storage, archives }
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
            let Known { peers, by_ended, .. } = &mut *known;
            peers.retain(|peer| {
                let is_there = names.contains(&peer.record_name);
                if !is_there {
                    by_ended.insert(peer.record_name.clone(), peer.storage_bytes());
                }
                is_there
            });
            known.is_changed |= known.peers.len() < before;
            names.into_iter().filter(|name| !is_known(name, &known)).collect()
        };
        // On a slow file system, hundreds of records take seconds one after the other.
        ordered(
            new.len(),
            AT_ONCE,
            |nth| directory.read(&new[nth]),
            |nth, record| {
                // A record that cannot be read now is read at the next look.
                if let Ok(record) = record
                    && let Some(peer) = Peer::new(new[nth].clone(), record)
                {
                    let mut known = self.known.lock();
                    // A directory of a network file system may lack a name for a moment.
                    peer.note_storage_bytes(known.by_ended.remove(&new[nth]).unwrap_or(0));
                    known.peers.push(Arc::new(peer));
                }
                ControlFlow::Continue(())
            },
        );
    }

    /// Tries all peers that are due.
    fn try_peers(&self) {
        /// Time between two computations of owners while peers are tried.
        const STEP: Duration = Duration::from_millis(100);
        let now = Instant::now();
        let due = |peer: &&Arc<Peer>| peer.next_try().is_some_and(|at| at <= now);
        let mut due: Vec<_> = self.known.lock().peers.iter().filter(due).cloned().collect();
        // In another order on each node: else all of a large job would try the same one first.
        due.sort_unstable_by_key(|peer| peer.id ^ self.id);
        let archives = self.shared_archives();
        let mut computed = now;
        ordered(
            due.len(),
            AT_ONCE,
            |nth| {
                let peer = &due[nth];
                let common = archives.iter().filter(|archive| peer.has(archive.key()));
                let common: Vec<_> = common.collect();
                peer.prove(&self.identity, |server, limit| archive::compare(&common, server, limit))
            },
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
        self.shared_archives().iter().for_each(|archive| archive.divide(self.id, &peers, found));
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
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::os::process;

    const LEN: u64 = 1 << 20;

    /// An archive of one byte, again and again.
    struct Sevens;

    impl Served for Sevens {
        fn key(&self) -> &str {
            "sevens"
        }

        fn size(&self) -> u64 {
            LEN
        }

        fn has(&self, _: &Range<u64>) -> bool {
            true
        }

        fn read(&self, buffer: &mut [u8], _: u64) -> Result<()> {
            buffer.fill(7);
            Ok(())
        }
    }

    #[test]
    fn a_share_of_a_link_needs_its_speed() {
        assert_eq!(Bandwidth::Share(50).on(Some(1_250_000_000)), Some(625_000_000));
        assert_eq!(Bandwidth::Share(100).on(Some(99)), Some(1), "a limit of 0 would be none");
        assert_eq!(Bandwidth::Share(50).on(None), None);
        assert_eq!(Bandwidth::Rate(7).on(None), Some(7));
    }

    /// How many daemons a test starts, all in this process: ARCHFS_TOGETHER_DAEMONS, or so many.
    fn daemons(default: u64) -> u64 {
        process::enlarge_open_files_max();
        std::env::var("ARCHFS_TOGETHER_DAEMONS").map_or(default, |it| it.parse().unwrap())
    }

    fn settings(directory: &Path, nodes: u64) -> Settings {
        Settings {
            is_required: true,
            directory: Some(directory.into()),
            interface: Some("lo".into()),
            bandwidth: Bandwidth::default(),
            job: "test-1".into(),
            nodes,
        }
    }

    type Member = (Arc<Group>, Arc<SharedArchive>, Membership);

    fn join((group, entrance): (Arc<Group>, Entrance)) -> Member {
        let read: Read = Box::new(|buffer, offset| Sevens.read(buffer, offset));
        let archive = group.share(Sevens.key().into(), LEN, read);
        let membership = group.join(entrance, vec![Box::new(Sevens)]).unwrap();
        (group, archive, membership)
    }

    #[test]
    fn all_daemons_of_a_job_find_each_other() {
        let count = daemons(12);
        let work = tempfile::tempdir().unwrap();
        let settings = settings(work.path(), count);
        let start = Instant::now();
        let members =
            Vec::from_iter((0..count).map(|_| join(Group::new(settings.clone()).unwrap())));
        // Handshakes grow with the square of the number of daemons, and all share the CPU cores.
        let deadline = start + Duration::from_secs(120 + count * count / 50);
        for (group, ..) in &members {
            while group.counts().peers < count - 1 || !group.has_gathered.load(Ordering::Relaxed) {
                assert!(Instant::now() < deadline, "{:?} of {count}", group.counts());
                thread::sleep(Duration::from_millis(10));
            }
        }
        let found = start.elapsed();
        let ending = Instant::now();
        drop(members);
        println!("{count} daemons: found in {found:.1?}, ended in {:.1?}", ending.elapsed());
        let jobs = work.path().read_dir().unwrap().next().unwrap().unwrap().path();
        assert_eq!(jobs.read_dir().unwrap().count(), 0, "no record is left");
    }

    /// It tries all others, and all try it, as when a job starts. The others do not know each
    /// other: they have cores of their own in a job, but share them here.
    #[test]
    fn one_daemon_of_a_large_job_finds_the_others() {
        let count = daemons(40);
        let work = tempfile::tempdir().unwrap();
        let directories = Vec::from_iter((0..count).map(|nth| work.path().join(nth.to_string())));
        let new = |directory: &PathBuf| {
            std::fs::create_dir(directory).unwrap();
            Group::new(settings(directory, count)).unwrap()
        };
        let files = |directory: &Path| {
            Vec::from_iter(directory.read_dir().unwrap().map(|entry| entry.unwrap().path()))
        };
        let records = |directory: &PathBuf| files(&files(directory)[0])[0].clone();
        let copy = |record: &PathBuf, to: &PathBuf| {
            std::fs::copy(record, records(to).join(record.file_name().unwrap())).unwrap();
        };
        let others = Vec::from_iter(directories[1..].iter().map(|directory| join(new(directory))));
        let one = new(&directories[0]);
        for record in directories[1..].iter().flat_map(|directory| files(&records(directory))) {
            copy(&record, &directories[0]);
        }
        let given = files(&records(&directories[0]));
        let start = Instant::now();
        let one = join(one);
        let is_own = |record: &PathBuf| !given.contains(record);
        let own = files(&records(&directories[0])).into_iter().find(is_own).unwrap();
        directories[1..].iter().for_each(|directory| copy(&own, directory));
        let deadline = start + Duration::from_secs(120);
        let has_found = |(group, ..): &Member, peers| group.counts().peers == peers;
        while !has_found(&one, count - 1) || !others.iter().all(|other| has_found(other, 1)) {
            assert!(Instant::now() < deadline, "{:?} of {count}", one.0.counts());
            thread::sleep(Duration::from_millis(10));
        }
        println!("one of {count} daemons: found the others in {:.1?}", start.elapsed());
    }
}
