//! One archive of a near copy: where it is in the copy, where its bytes come from, and which thread
//! fetches a range of them.

use std::ops::Range;
use std::time::Instant;

use super::granules::GRANULE;
use super::schedule::ArchiveFill;
use super::{FillScope, NearCopy};
use crate::error::{Error, Kind, Result};
use crate::remote::Requester;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, OnceLock, Ordering};
use crate::together::{Run, SharedArchive};

/// Bytes that are far away. Reads may run from any number of threads at once.
pub(in crate::storage) trait Source: Send + Sync {
    /// Fills `buffer` with the bytes at `offset`, all of the version that was opened. If an error
    /// may pass, a reader waits longer for that than the fill, which tries again later.
    ///
    /// Fails with `Changed` if there is another version; `Corrupt` if the source ends before the
    /// buffer is full; `Io` if it cannot be read.
    fn fetch(&self, buffer: &mut [u8], offset: u64, requester: Requester) -> Result<()>;

    /// Reads `range` into the page cache, for a copy there.
    ///
    /// Fails as `fetch`.
    fn load(&self, range: &Range<u64>) -> Result<()> {
        let mut buffer = vec![0; usize::try_from(range.end - range.start).unwrap_or(usize::MAX)];
        self.fetch(&mut buffer, range.start, Requester::Fill)
    }

    /// Fails if some of what was fetched may be of another version than the one that was opened.
    fn check_version(&self) -> Result<()>;

    /// Notes that the archive was opened, or that all of it is being read for that. Reads then wait
    /// longer for errors to pass, but only once if it `is_read_once`.
    fn note_opened(&self, _is_read_once: bool) {}

    /// The archive that the nodes of a job share, if its bytes come from them as well.
    fn shared(&self) -> Option<&Arc<SharedArchive>> {
        None
    }

    /// Bytes of tables that are fetched with one read, because those after the wanted ones will be
    /// read soon. 0 if a read costs little.
    fn tables_at_once(&self) -> u64 {
        0
    }
}

/// An archive to copy: its name for messages, its size in bytes, its bytes.
pub(in crate::storage) type Original = (String, u64, Arc<dyn Source>);

/// One archive.
pub(super) struct CopiedArchive {
    pub(super) name: String,
    /// Where it begins in the copy.
    pub(super) start: u64,
    len: u64,
    /// `None` once all of it is there. Held for a copy of the reference.
    pub(super) source: Mutex<Option<Arc<dyn Source>>>,
    /// `Source::tables_at_once`.
    pub(super) tables_at_once: u64,
    /// `Source::shared`.
    pub(super) shared: Option<Arc<SharedArchive>>,
    /// How many want the fill to fetch all of it.
    fills: AtomicU64,
    /// Whether it was rewritten before all of it was there. What is there may be of several
    /// versions then, because some network file systems learn of a change late.
    has_changed: AtomicBool,
    /// The text and the hint of the error then.
    change: OnceLock<Error>,
}

/// The archives of a copy, and its size in bytes.
pub(super) fn laid_out(originals: Vec<Original>, scope: FillScope) -> (Vec<CopiedArchive>, u64) {
    let lens: Vec<u64> = originals.iter().map(|(_, len, _)| *len).collect();
    let (starts, end) = layout(&lens);
    let part = |((name, len, source), start): (Original, u64)| CopiedArchive {
        name,
        start,
        len,
        tables_at_once: source.tables_at_once(),
        shared: source.shared().cloned(),
        fills: AtomicU64::new((scope == FillScope::Everything).into()),
        source: Mutex::new(Some(source)),
        has_changed: AtomicBool::new(false),
        change: OnceLock::new(),
    };
    (originals.into_iter().zip(starts).map(part).collect(), end)
}

impl CopiedArchive {
    /// Where it ends in the copy.
    pub(super) fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// The bytes from `offset` on that belong all to this node, or all to others. Both offsets are
    /// in the copy.
    pub(super) fn run(&self, offset: u64) -> Run {
        let Some(shared) = &self.shared else {
            return Run { end: self.end(), is_own: true };
        };
        let run = shared.run(offset.saturating_sub(self.start));
        Run { end: self.start.saturating_add(run.end), ..run }
    }

    /// The most bytes per second to fetch from other nodes while no program waits for them.
    pub(super) fn background_rate(&self) -> Option<u64> {
        self.shared.as_ref()?.background_rate()
    }

    /// Whether it is soon known which nodes of the job own it.
    pub(super) fn is_gathering(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.is_gathering())
    }

    /// What the fill needs to know of it at `offset`.
    pub(super) fn extent(&self, offset: u64) -> ArchiveFill {
        ArchiveFill {
            start: self.start,
            end: self.end(),
            run: self.run(offset),
            nodes: self.shared.as_ref().map_or(1, |shared| shared.nodes()),
            is_wanted: !self.has_changed.load(Ordering::SeqCst),
            is_filled: self.is_filled(),
        }
    }

    /// Whether the fill fetches all of it.
    pub(super) fn is_filled(&self) -> bool {
        self.fills.load(Ordering::SeqCst) > 0
    }

    /// Makes the fill fetch all of it.
    pub(super) fn begin_fill(&self) {
        self.fills.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends what `begin_fill` began.
    pub(super) fn end_fill(&self) {
        self.fills.fetch_sub(1, Ordering::SeqCst);
    }

    /// `range`, extended to whole granules of this archive.
    pub(super) fn whole_granules(&self, range: &Range<u64>) -> Range<u64> {
        let start = range.start - range.start % GRANULE;
        start..range.end.next_multiple_of(GRANULE).min(self.end())
    }

    /// Those of `range` that are whole granules of this archive.
    pub(super) fn complete_granules(&self, range: &Range<u64>) -> Range<u64> {
        let end = if range.end >= self.end() { range.end } else { range.end - range.end % GRANULE };
        let start = range.start.next_multiple_of(GRANULE);
        start..end.max(start)
    }

    /// Where its bytes come from; `None` once all of it is there.
    pub(super) fn source(&self) -> Result<Option<Arc<dyn Source>>> {
        self.check()?;
        Ok(self.source.lock().clone())
    }

    /// Fails if it was rewritten before all of it was there.
    pub(super) fn check(&self) -> Result<()> {
        match self.has_changed.load(Ordering::SeqCst) {
            true => Err(self.changed()),
            false => Ok(()),
        }
    }

    /// Notes that it was rewritten. Returns whether that is news.
    pub(super) fn note_change(&self, error: &Error) -> bool {
        // First, because a reader that sees the flag returns this error.
        let _ = self.change.set(error.copy());
        !self.has_changed.swap(true, Ordering::SeqCst)
    }

    /// Whether its source is far away.
    pub(super) fn is_remote(&self) -> bool {
        self.tables_at_once > 0
    }

    /// The error of reads after a change.
    pub(super) fn changed(&self) -> Error {
        let error = self.change.get().map(Error::copy);
        let error = error.unwrap_or_else(|| Error::new(Kind::Changed, "changed"));
        error.with_kind(Kind::Changed).within(&self.name)
    }
}

/// The size of a copy of files with these sizes, in bytes. The sum saturates; a copy of that size
/// fits nowhere.
pub(in crate::storage) fn copied_len(lens: &[u64]) -> u64 {
    layout(lens).1
}

/// The offset of each file in a copy of files with these sizes, and the size of the copy. Each
/// starts at a granule, so that no granule has bytes of two.
fn layout(lens: &[u64]) -> (Vec<u64>, u64) {
    let mut end = 0_u64;
    let starts = lens.iter().map(|&len| {
        let start = match len {
            0 => end,
            _ => end.checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX),
        };
        end = start.saturating_add(len);
        start
    });
    (starts.collect(), end)
}

/// What a reader does about the first bytes that it wants.
pub(super) enum Claim<'c> {
    /// They are there.
    Read(Range<u64>),
    /// It fetches them. The flight may begin before them.
    Fetch(Flight<'c>),
    /// It reads them from the source, and they are not kept.
    ReadThrough(Range<u64>),
}

/// The right to fetch a range. Ends when dropped; then waiting readers look again.
pub(super) struct Flight<'c> {
    pub(super) copy: &'c NearCopy,
    pub(super) range: Range<u64>,
    pub(super) requester: Requester,
}

impl Flight<'_> {
    pub(super) fn len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.copy.schedule.lock().end(&self.range, Instant::now());
        self.copy.landed.notify_all();
        self.copy.progressed.notify_one();
    }
}
