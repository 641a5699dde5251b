//! Reads of an archive in the background, into its page cache, and the reads of programs that are
//! the reason for them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::FileStorage;
use crate::error::{Error, Result};
use crate::os::{memory_file, page_cache};
use crate::remote::Requester;
use crate::storage::identity::open_random;
use crate::storage::near::{Fill, NearCopy, Source};
use crate::sync::{Arc, Weak};

/// Reads of the archive in the background, into the page cache.
#[derive(Debug)]
pub(in crate::storage) struct BackgroundReads {
    pub(in crate::storage) copy: Arc<NearCopy>,
    pub(in crate::storage) number: usize,
    /// What a cached read takes.
    pub(in crate::storage) cached: CachedReads,
    /// Goes on as long as one of the archives is open.
    pub(in crate::storage) _fill: Arc<Fill>,
}

impl BackgroundReads {
    /// Begins to watch a read.
    pub(super) fn watch(&self) -> ReadWatch<'_> {
        let sleeps = self.copy.is_sampling().then(page_cache::sleeps_of_thread);
        ReadWatch { reads: self, start: Instant::now(), sleeps }
    }
}

/// A read of the archive.
pub(super) struct ReadWatch<'r> {
    reads: &'r BackgroundReads,
    start: Instant,
    /// How often the thread has slept before, if the read is one of a sample.
    sleeps: Option<i64>,
}

impl ReadWatch<'_> {
    /// Notes that it has read `range`.
    pub(super) fn note(self, range: &Range<u64>) {
        let BackgroundReads { copy, number, cached, .. } = self.reads;
        let waited = match self.sleeps {
            Some(before) => page_cache::sleeps_of_thread() > before,
            None => cached.is_slower(range.end - range.start, self.start.elapsed()),
        };
        copy.note_read_of(*number, range, waited, self.sleeps.is_some());
    }
}

/// How long reads of the page cache take on this node, which tells them from those that wait for
/// storage.
#[derive(Clone, Copy, Debug)]
pub(in crate::storage) struct CachedReads {
    /// The time of `SAMPLE` bytes.
    sample: Duration,
}

impl CachedReads {
    /// Bytes of a sample.
    const SAMPLE: u64 = 64 << 10;

    /// Bounds of the time of a sample: a fast node, and a busy one.
    const FASTEST: Duration = Duration::from_micros(8);
    const SLOWEST: Duration = Duration::from_micros(250);

    /// How many times as long a read takes that waits for storage, at least. Reads of the page
    /// cache differ by the CPU's caches and other processes; a local disk takes ten times as long.
    const FACTOR: u32 = 4;

    /// Measured with a file in memory. A part of the archive that is cached would do as well, but
    /// to read it again makes the kernel read on behind it.
    pub(in crate::storage) fn measured() -> Self {
        let mut buffer = vec![0; Self::SAMPLE as usize];
        let file = memory_file::create().ok().filter(|file| file.write_all_at(&buffer, 0).is_ok());
        let times = [(); 3].map(|()| {
            let start = Instant::now();
            let read = file.as_ref()?.read_exact_at(&mut buffer, 0);
            read.is_ok().then(|| start.elapsed())
        });
        let fastest = times.into_iter().flatten().min().unwrap_or(Self::SLOWEST);
        Self { sample: fastest.clamp(Self::FASTEST, Self::SLOWEST) }
    }

    /// Whether a read of `len` bytes that took `time` has waited for storage.
    fn is_slower(self, len: u64, time: Duration) -> bool {
        let samples = u32::try_from(len / Self::SAMPLE).unwrap_or(u32::MAX).saturating_add(1);
        time > self.sample.saturating_mul(samples.saturating_mul(Self::FACTOR))
    }
}

/// An archive whose bytes the fill brings into the page cache. It has a file of its own, because
/// some file systems keep a lock and the state of their readahead for each open file.
pub(in crate::storage) struct CachedSource {
    archive: Weak<FileStorage>,
    own: Option<File>,
}

impl CachedSource {
    /// The source of `archive`. `has_own` says whether the process may have one more file for it.
    pub(in crate::storage) fn new(archive: &Arc<FileStorage>, has_own: bool) -> Self {
        // With its own readahead, the kernel loads large folios, which it drops only as a whole.
        // Then most pages would stay when the files in them were served.
        let opened = archive.opened().ok().filter(|_| has_own);
        let own = opened.and_then(|(file, _)| open_random(&file));
        Self { archive: Arc::downgrade(archive), own }
    }

    /// Calls `read` with the open archive, unless the mount has ended.
    fn with_file(&self, read: impl FnOnce(&File) -> io::Result<()>) -> Result<()> {
        let Some(archive) = self.archive.upgrade() else { return Ok(()) };
        let (file, _) = archive.opened()?;
        let outcome = read(self.own.as_ref().unwrap_or(&file));
        outcome.map_err(|error| Error::io(archive.path.display().to_string(), error))
    }
}

impl Source for CachedSource {
    fn fetch(&self, buffer: &mut [u8], offset: u64, _: Requester) -> Result<()> {
        self.with_file(|file| file.read_exact_at(buffer, offset))
    }

    fn load(&self, range: &Range<u64>) -> Result<()> {
        self.with_file(|file| page_cache::load(file, range))
    }

    fn check_version(&self) -> Result<()> {
        // Readers get no byte of the copy without a check of their own.
        Ok(())
    }
}
