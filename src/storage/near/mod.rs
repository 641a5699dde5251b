//! A copy of archives on this node that is filled while it is read.
//!
//! It is a file, or the page cache of the archives. Without a file, readers read the archives, and
//! the copy only records what they and the fill have read.
//!
//! Reading through a file works at once. A reader that misses bytes fetches them from the source
//! itself, keeps them in the copy, and never fetches what another thread is fetching. The fill
//! (`fill`) fetches more with several threads, and takes the bandwidth that readers leave
//! (`schedule`): all of it in the order of the archives, or in proportion to what readers ask for
//! (`demand`). After the last byte the source is closed.
//!
//! Each byte of the source is fetched once, unless there is no room to keep it: then what is there
//! stays, and the rest is read from the source each time. A source that fails is tried again; only
//! readers of the bytes that it does not deliver get an error.
//!
//! Invariants: a granule is marked after its bytes were written, and stays marked. All bytes that
//! are read of an archive are of one version: after a change, all reads of it fail.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};

use crate::error::{Error, Kind, Result};
use crate::os::file_position::Filled;
use crate::os::unlinked;
use crate::remote::Requester;
use crate::stats::StageCounts;
use crate::sync::{Arc, AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering};
use crate::units::Size;

mod checksums;
mod demand;
mod fill;
mod granules;
#[cfg(all(test, feature = "model"))]
mod model;
mod part;
mod readahead;
mod room;
mod schedule;
mod streams;
#[cfg(all(test, not(feature = "model")))]
mod tests;

pub use fill::Fill;
pub(super) use part::{Original, Source, copied_len};
pub(super) use room::room_on_demand;
pub use room::{Room, room_in_memory, unused_in_page_cache};

use checksums::Checksums;
use demand::{Demand, FirstWaits};
use granules::{GRANULE, Granules};
use part::{Claim, CopiedArchive, Flight};
use room::RecentTables;
use schedule::{Schedule, Stage};

/// The copy of some archives.
pub struct NearCopy {
    /// `None` if the page cache of the archives is the copy.
    file: Option<Arc<File>>,
    /// Memory that a copy in the page cache leaves to the caches of the mount.
    cache_bytes: u64,
    /// If it outlives the mount.
    checksums: Option<Checksums>,
    /// What errors and the log call it, such as `--stage /dev/shm`.
    name: String,
    parts: Vec<CopiedArchive>,
    scope: FillScope,
    len: u64,
    room: Room,
    /// Those that were fetched, by readers or the fill.
    granules: Granules,
    /// Those that the fill has fetched ahead of readers; `None` if that is not of interest.
    unused: Option<Arc<Granules>>,
    recent_tables: RecentTables,
    /// Bytes that are there.
    copied: AtomicU64,
    /// Bytes that were fetched ahead of readers, and those of them that readers used then.
    ahead: AtomicU64,
    used: AtomicU64,
    /// Whether it has no room for what other nodes of the job own.
    keeps_own_only: AtomicBool,
    /// Whether the archives are open, and reads are those of programs.
    is_served: AtomicBool,
    /// Whether readers have waited for an archive since the start.
    has_waited: AtomicBool,
    first_waits: FirstWaits,
    /// Unused buffers of the fill. Held for a push or a pop.
    buffers: Mutex<Vec<Vec<u8>>>,
    /// Why it will not be complete, for threads that wait until it is.
    failure: Mutex<Option<Error>>,
    /// Why the fill fetches nothing, and since when.
    failing: Mutex<Option<(Error, Instant)>>,
    is_being_dropped: AtomicBool,
    has_warned_of_room: AtomicBool,
    /// Held to look up and note flights, never over I/O. While it is held, only the owners of
    /// `SharedArchive` are locked.
    schedule: Mutex<Schedule>,
    /// A flight has ended: for readers who wait for its bytes.
    landed: Condvar,
    /// The same for the threads of the fill.
    progressed: Condvar,
}

/// Where a copy is.
pub(super) enum Target {
    File {
        file: Arc<File>,
        /// If it outlives the mount: the file of its checksums, and what identifies the archives.
        kept: Option<(File, [u8; 32])>,
    },
    /// The page cache of the archives, next to a cache of `cache_bytes`.
    PageCache { cache_bytes: u64 },
}

impl From<File> for Target {
    fn from(file: File) -> Self {
        Self::File { file: Arc::new(file), kept: None }
    }
}

/// What the fill fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillScope {
    /// All bytes.
    Everything,
    /// What readers announce, and an archive while it is scanned.
    Announced,
    /// The same, and more in proportion to what readers ask for, in a job with this many nodes.
    Demanded {
        /// Nodes of the job.
        nodes: u64,
    },
}

/// What a reader wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The contents of a file. The bytes around them belong to others.
    Contents,
    /// Anything else in an archive.
    Tables,
}

impl NearCopy {
    /// A copy of `originals` in `target`. A file is empty or has a part of them.
    pub(super) fn new(
        target: Target,
        name: String,
        originals: Vec<Original>,
        room: Room,
        scope: FillScope,
    ) -> Result<Arc<Self>> {
        let len = originals.iter().map(|(_, len, _)| *len).fold(0, u64::saturating_add);
        let (parts, end) = part::laid_out(originals, scope);
        let (file, kept, cache_bytes) = match target {
            Target::File { file, kept } => (Some(file), kept, 0),
            Target::PageCache { cache_bytes } => (None, None, cache_bytes),
        };
        if let Some(file) = &file {
            // Other processes recognize the file by its size.
            file.set_len(end).map_err(|error| Error::io("cannot make room for the copy", error))?;
        }
        let is_counted = file.is_none() || matches!(scope, FillScope::Demanded { .. });
        let unused = is_counted.then(|| Granules::new(end).map(Arc::new)).transpose()?;
        let demand = match (scope, &unused) {
            (FillScope::Demanded { nodes }, Some(unused)) => {
                Some(Demand::new(Arc::clone(unused), nodes))
            }
            _ => None,
        };
        let mut schedule = Schedule::new();
        schedule.demand = demand;
        schedule.reads_on = file.is_none();
        let background_rate = parts.iter().find_map(CopiedArchive::background_rate);
        schedule.pace = background_rate.map(streams::Pace::new);
        let checksums = kept
            .map(|(file, identity)| Checksums::of(file, &identity, end))
            .transpose()
            .map_err(|error| Error::io("cannot write checksums", error))?;
        Ok(Arc::new(Self {
            file,
            cache_bytes,
            checksums,
            name,
            parts,
            scope,
            len,
            room,
            granules: Granules::new(end)?,
            unused,
            recent_tables: RecentTables::default(),
            copied: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            used: AtomicU64::new(0),
            keeps_own_only: AtomicBool::new(false),
            is_served: AtomicBool::new(false),
            has_waited: AtomicBool::new(false),
            first_waits: FirstWaits::default(),
            buffers: Mutex::default(),
            failure: Mutex::new(None),
            failing: Mutex::new(None),
            is_being_dropped: AtomicBool::new(false),
            has_warned_of_room: AtomicBool::new(false),
            schedule: Mutex::new(schedule),
            landed: Condvar::new(),
            progressed: Condvar::new(),
        }))
    }

    /// Keeps what other nodes own only if all fits: the copy has room for about `most` bytes.
    pub(super) fn limit_to(&self, most: u64) {
        self.keeps_own_only.store(self.len > most, Ordering::Relaxed);
    }

    fn keeps_own_only(&self) -> bool {
        self.keeps_own_only.load(Ordering::Relaxed)
    }

    /// The offset of the archive with this number in the file.
    pub(super) fn start(&self, number: usize) -> u64 {
        self.parts.get(number).map_or(u64::MAX, |part| part.start)
    }

    /// How much of it is there.
    pub fn counts(&self) -> StageCounts {
        StageCounts { copied: self.copied.load(Ordering::Relaxed), total: self.len }
    }

    /// Drops it from the page cache, if it is on a disk. Writing left it there in large folios,
    /// which the kernel drops only as a whole. Waits until the disk has it.
    pub fn drop_pages(&self) -> io::Result<()> {
        // One thread is enough, even if the disk is so slow that another is to do the same.
        let Some(file) = self.file.as_ref().filter(|file| !unlinked::is_in_memory(file)) else {
            return Ok(());
        };
        if self.is_being_dropped.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let synced = file.sync_data();
        self.is_being_dropped.store(false, Ordering::Relaxed);
        synced?;
        Ok(fadvise(&**file, 0, None, Advice::DontNeed)?)
    }

    /// Whether it is only in memory.
    pub fn is_in_memory(&self) -> bool {
        self.file.as_ref().is_none_or(|file| unlinked::is_in_memory(file))
    }

    /// Whether all bytes are there.
    pub fn is_complete(&self) -> bool {
        self.granules.is_full()
    }

    /// Which parts of the file are there.
    pub(super) fn filled(&self) -> Filled {
        Filled { bits: Arc::clone(self.granules.bits()), granule: GRANULE }
    }

    /// Fills `buffer` with the bytes at `offset` of the archive with this number, which has them.
    /// What is there is read from `file`, which is the file of the copy, perhaps opened again.
    /// Around `Tables`, more is fetched.
    pub(super) fn read_exact_at(
        self: &Arc<Self>,
        number: usize,
        buffer: &mut [u8],
        offset: u64,
        file: &File,
        what: Wanted,
    ) -> Result<()> {
        let part = self.parts.get(number).ok_or_else(|| closed(&self.name))?;
        let start = part.start + offset;
        let range = start..start + buffer.len() as u64;
        let is_there = self.granules.has(&range);
        if is_there {
            self.read_present(file, buffer, start)?;
        } else {
            self.read_missing(part, file, buffer, start, (what, Requester::Reader))?;
        }
        if what == Wanted::Contents {
            self.note_read(range, Requester::Reader, !is_there, !is_there);
        }
        part.check()
    }

    /// Like `read_exact_at`, for another node of the job. What this node does not have is fetched
    /// from the storage, and kept if this node owns it.
    pub(super) fn read_for_peer(
        self: &Arc<Self>,
        number: usize,
        buffer: &mut [u8],
        offset: u64,
        file: &File,
    ) -> Result<()> {
        let part = self.parts.get(number).ok_or_else(|| closed(&self.name))?;
        let start = part.start + offset;
        let range = start..start + buffer.len() as u64;
        let is_there = self.granules.has(&range);
        // A flight of other bytes may wait for the node that asks.
        let run = part.run(start);
        if is_there {
            self.read_present(file, buffer, start)?;
        } else if run.is_own && run.end >= range.end {
            let what = (Wanted::Contents, Requester::Peer);
            self.read_missing(part, file, buffer, start, what)?;
        } else if let Some(source) = part.source()? {
            self.fetch_from(part, &*source, buffer, start, Requester::Peer)?;
        } else {
            self.read_present(file, buffer, start)?;
        }
        // A smaller read is a sample.
        if buffer.len() as u64 >= GRANULE {
            self.note_read(range, Requester::Peer, !is_there, !is_there);
        }
        part.check()
    }

    /// Whether `range` of the archive with this number is there.
    pub(super) fn has(&self, number: usize, range: &Range<u64>) -> bool {
        let start = self.start(number);
        self.granules.has(&(start.saturating_add(range.start)..start.saturating_add(range.end)))
    }

    /// Makes a thread of the fill look for what to fetch, and starts one if none waits.
    fn wake(self: &Arc<Self>, mut schedule: MutexGuard<'_, Schedule>) {
        if schedule.stage != Stage::Filling {
            return;
        }
        let threads = &mut schedule.threads;
        let starts = threads.idle == 0 && threads.running < threads.most;
        threads.running += usize::from(starts);
        drop(schedule);
        if starts {
            // If it cannot be started, readers fetch what they need.
            let _ = fill::spawn(self);
        } else {
            self.progressed.notify_one();
        }
    }

    fn read_present(&self, file: &File, buffer: &mut [u8], start: u64) -> Result<()> {
        let read = file.read_exact_at(buffer, start);
        read.map_err(|error| Error::io(format!("{}: cannot read the copy", self.name), error))
    }

    /// Reads what is there, fetches what is missing, and waits for what others fetch.
    fn read_missing(
        &self,
        part: &CopiedArchive,
        file: &File,
        buffer: &mut [u8],
        start: u64,
        (what, requester): (Wanted, Requester),
    ) -> Result<()> {
        let end = start + buffer.len() as u64;
        let mut next = start;
        let mut fetched = Vec::new();
        while next < end {
            let claim = self.claim(part, &(next..end), (what, requester));
            let until = match &claim {
                Claim::Read(range) | Claim::ReadThrough(range) => range.end,
                Claim::Fetch(flight) => flight.range.end.min(end),
            };
            let wanted = (next - start) as usize..(until - start) as usize;
            let wanted = &mut buffer[wanted];
            match claim {
                Claim::Read(_) => self.read_present(file, wanted, next)?,
                Claim::ReadThrough(_) => match part.source()? {
                    Some(source) => {
                        let what = (what, requester);
                        self.read_through(part, &source, wanted, next, what)?;
                    }
                    // It was closed in the meantime, so the bytes are there.
                    None => continue,
                },
                Claim::Fetch(flight) => {
                    let before = (next - flight.range.start) as usize;
                    fetched.resize(flight.len(), 0);
                    match self.fetch(part, flight, &mut fetched) {
                        Ok(()) => {
                            wanted.copy_from_slice(&fetched[before..before + wanted.len()]);
                        }
                        // An earlier mount has kept them, but not those around them.
                        Err(_) if self.granules.has(&(next..until)) => {
                            self.read_present(file, wanted, next)?;
                        }
                        // Perhaps only bytes around the wanted ones cannot be read.
                        Err(error) if wanted.len() < fetched.len() && !part.is_remote() => {
                            let source = part.source()?.ok_or(error)?;
                            self.fetch_from(part, &*source, wanted, next, requester)?;
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
            next = until;
        }
        Ok(())
    }

    fn claim(
        &self,
        part: &CopiedArchive,
        wanted: &Range<u64>,
        (what, requester): (Wanted, Requester),
    ) -> Claim<'_> {
        let mut schedule = self.schedule.lock();
        loop {
            let (run, is_there) = self.granules.first_run(wanted);
            if is_there {
                return Claim::Read(run);
            }
            let now = Instant::now();
            if schedule.is_look_due(now) {
                schedule = self.look_for_room(schedule);
                continue;
            }
            let owned = part.run(run.start);
            // Before the owners are known, all would be kept that is read.
            let is_own = owned.is_own && !part.is_gathering();
            let leaves_room = !is_own && self.keeps_own_only();
            if !schedule.keeps(now) || leaves_room {
                let end = if leaves_room { run.end.min(owned.end) } else { run.end };
                return Claim::ReadThrough(run.start..end);
            }
            let run = match what {
                Wanted::Tables => {
                    let end = run.start.saturating_add(part.tables_at_once);
                    let end = run.end.max(end - end % GRANULE);
                    self.granules.first_run(&(run.start..end.min(part.end()))).0
                }
                Wanted::Contents => run,
            };
            match schedule.free(&part.whole_granules(&run)) {
                Some(range) => {
                    // Bytes of two owners could make two nodes wait for each other.
                    let end = range.end.min(range.start + streams::PIECE).min(owned.end);
                    let range = range.start..end;
                    schedule.begin(range.clone(), requester, now);
                    return Claim::Fetch(Flight { copy: self, range, requester });
                }
                None if requester == Requester::Reader => {
                    // The fill may be waiting for its pace.
                    schedule.note_wait(now);
                    self.progressed.notify_one();
                    self.landed.wait(&mut schedule);
                    schedule.note_wait(Instant::now());
                }
                None => self.landed.wait(&mut schedule),
            }
        }
    }

    /// Reads all of `flight` into the page cache.
    fn load(&self, part: &CopiedArchive, flight: Flight<'_>) -> Result<()> {
        let range = &flight.range;
        let source = part.source()?.ok_or_else(|| closed(&part.name))?;
        source.load(&(range.start - part.start..range.end - part.start))?;
        self.add(part, range, flight.requester);
        Ok(())
    }

    /// Fetches all of `flight` into `buffer`, which is as long, and keeps it if there is room. What
    /// an earlier mount has kept is not fetched.
    fn fetch(&self, part: &CopiedArchive, flight: Flight<'_>, buffer: &mut [u8]) -> Result<()> {
        let range = &flight.range;
        let missing = match (&self.checksums, &self.file) {
            (Some(checksums), Some(file)) => checksums.recover(file, range, buffer),
            _ => vec![range.clone()],
        };
        let fetched: u64 = missing.iter().map(|run| run.end - run.start).sum();
        let recovered = (range.end - range.start).saturating_sub(fetched);
        if recovered > 0 && flight.requester == Requester::Fill {
            self.schedule.lock().note_recovered(recovered, Instant::now());
        }
        // First what is there, because the rest may not be to be had.
        let mut next = range.start;
        for run in missing.iter().chain([&(range.end..range.end)]) {
            self.add(part, &(next..run.start), flight.requester);
            next = run.end;
        }
        for run in missing {
            let inside = (run.start - range.start) as usize..(run.end - range.start) as usize;
            let buffer = &mut buffer[inside];
            let source = part.source()?.ok_or_else(|| closed(&part.name))?;
            self.fetch_from(part, &*source, buffer, run.start, flight.requester)?;
            let Some(file) = &self.file else { continue };
            match file.write_all_at(buffer, run.start) {
                Ok(()) => {
                    if let Some(checksums) = &self.checksums {
                        checksums.note(&run, buffer);
                    }
                    self.add(part, &run, flight.requester);
                }
                Err(error) => {
                    self.wait_for_room(&Error::io("cannot write the copy", error).to_string());
                }
            }
        }
        Ok(())
    }

    /// Notes that `range` of `part` is there now: its whole granules.
    fn add(&self, part: &CopiedArchive, range: &Range<u64>, requester: Requester) {
        let range = &part.complete_granules(range);
        let len = range.end - range.start;
        if len == 0 {
            return;
        }
        let Some(unused) = self.unused.as_ref().filter(|_| requester == Requester::Fill) else {
            self.log_progress(self.copied.fetch_add(len, Ordering::Relaxed), len);
            self.granules.add(range);
            return;
        };
        let mut next = range.start;
        while next < range.end {
            let (run, is_there) = self.granules.first_run(&(next..range.end));
            if !is_there {
                self.ahead.fetch_add(run.end - run.start, Ordering::Relaxed);
                // First, so that a reader who finds a granule finds it unused.
                unused.add(&run);
            }
            next = run.end;
        }
        self.log_progress(self.copied.fetch_add(len, Ordering::Relaxed), len);
        self.granules.add(range);
    }

    /// Reads `wanted` of `part`, which begins at `offset` of the file, and keeps nothing in the
    /// file. Of tables, a few blocks stay in memory.
    fn read_through(
        &self,
        part: &CopiedArchive,
        source: &Arc<dyn Source>,
        wanted: &mut [u8],
        offset: u64,
        (what, requester): (Wanted, Requester),
    ) -> Result<()> {
        let end = part.end().min(offset.saturating_add(part.tables_at_once));
        let len = (end - offset.min(end)) as usize;
        if what == Wanted::Contents || len <= wanted.len() {
            return self.fetch_from(part, &**source, wanted, offset, requester);
        }
        if self.recent_tables.copy_to(wanted, offset) {
            return Ok(());
        }
        let mut block = vec![0; len];
        self.fetch_from(part, &**source, &mut block, offset, requester)?;
        wanted.copy_from_slice(&block[..wanted.len()]);
        self.recent_tables.add(offset, block);
        Ok(())
    }

    /// Reads from the source of `part`. `offset` is one of the file.
    fn fetch_from(
        &self,
        part: &CopiedArchive,
        source: &dyn Source,
        buffer: &mut [u8],
        offset: u64,
        requester: Requester,
    ) -> Result<()> {
        source.fetch(buffer, offset - part.start, requester).inspect_err(|error| {
            if error.kind() == Kind::Changed {
                self.give_up(part, error);
            }
        })
    }

    /// Makes all reads of `part` fail: it was rewritten.
    fn give_up(&self, part: &CopiedArchive, error: &Error) {
        if part.note_change(error) {
            self.granules.make_void();
            log::error!("{}: {error}; reads of it now fail with EIO", self.name);
            self.failure.lock().get_or_insert_with(|| part.changed());
            self.progressed.notify_all();
        }
    }

    /// Logs each step of the way, when `len` bytes are added to `copied`.
    fn log_progress(&self, copied: u64, len: u64) {
        /// Parts of the copy that are logged.
        const STEPS: u64 = 4;
        let step = |copied: u64| copied.saturating_mul(STEPS) / self.len.max(1);
        let now = step(copied.saturating_add(len));
        if now > step(copied) && now < STEPS {
            log::info!("{}: {}% of {} copied", self.name, 100 * now / STEPS, Size(self.len));
        }
    }

    /// Announces that `range` of the archive with this number will be read soon. Returns whether
    /// some of it is to be fetched.
    pub(super) fn will_need(self: &Arc<Self>, number: usize, range: &Range<u64>) -> bool {
        let Some(part) = self.parts.get(number) else { return false };
        let start = part.start.saturating_add(range.start);
        let range = start..part.end().min(part.start.saturating_add(range.end));
        let is_missing = range.start < range.end && !self.granules.has(&range);
        if is_missing {
            let mut schedule = self.schedule.lock();
            schedule.announce(part.whole_granules(&range));
            self.wake(schedule);
        }
        is_missing
    }

    /// As `Source::note_opened`, for the archive with this number.
    pub(super) fn note_opened(&self, number: usize, is_read_once: bool) {
        if let Some(Ok(Some(source))) = self.parts.get(number).map(CopiedArchive::source) {
            source.note_opened(is_read_once);
        }
    }

    /// Fetches all of the archive with this number, until the same number of calls of `end_scan`.
    pub(super) fn begin_scan(self: &Arc<Self>, number: usize) {
        if let Some(part) = self.parts.get(number) {
            // With the lock, so that no thread is between its look and what it does then.
            let schedule = self.schedule.lock();
            part.begin_fill();
            self.wake(schedule);
        }
    }

    /// Ends what `begin_scan` began.
    pub(super) fn end_scan(&self, number: usize) {
        if let Some(part) = self.parts.get(number) {
            part.end_fill();
        }
    }

    /// Waits until all bytes are there; `show` gets their number. An error of the source may
    /// pass for `patience`.
    pub fn wait(&self, patience: Duration, show: impl Fn(u64)) -> Result<()> {
        /// Between two calls of `show`.
        const STEP: Duration = Duration::from_millis(50);
        self.schedule.lock().is_awaited = true;
        self.progressed.notify_all();
        loop {
            show(self.counts().copied);
            // First, because a failure is noted before the sources are closed.
            let is_closed = self.schedule.lock().stage == Stage::Closed;
            if let Some(error) = self.failure.lock().take() {
                return Err(error);
            }
            if is_closed {
                return Ok(());
            }
            let is_over = |&mut (_, since): &mut (_, Instant)| since.elapsed() >= patience;
            if let Some((error, _)) = self.failing.lock().take_if(is_over) {
                return Err(error);
            }
            self.landed.wait_for(&mut self.schedule.lock(), STEP);
        }
    }

    /// The archive that has this byte of the file.
    fn part(&self, offset: u64) -> Option<&CopiedArchive> {
        // The last one, because empty archives before it start at the same offset.
        let index = self.parts.partition_point(|part| part.start <= offset);
        self.parts.get(index.checked_sub(1)?)
    }
}

impl fmt::Debug for NearCopy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("NearCopy").field(&self.name).field(&self.counts()).finish()
    }
}

fn closed(name: &str) -> Error {
    Error::io(format!("{name}: cannot read"), io::Error::other("the source is closed"))
}
