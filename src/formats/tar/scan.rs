//! Scans an archive and the archives in it, and builds the tree.
//!
//! A `Walk` goes from header to header, in several segments of one archive concurrently. `NewTree`
//! takes the members, in the order of the archive, however many threads read it.
//!
//! Invariant: the tree gets exactly what a scan from the first header to the last would find.
//!
//! Problem: each header says where the next one is, so a scan is a chain of small reads. From the
//! page cache that is fast. On a parallel file system each read is a round trip of up to a
//! millisecond, and 1.3 million of them take twenty minutes.
//!
//! Idea: headers are at multiples of 512 bytes, and their magic and checksum distinguish them from
//! data. So the archive is divided into segments. In each, a thread searches for the first block
//! that looks like a header and follows the chain from there. That block may be data that looks
//! like a header, for example in an inner tar. So the result is only a guess until the true chain,
//! which starts at the first byte, reaches a member that the guess also contains. From there on the
//! two chains are the same, because a step depends only on the offset where it starts. Until then
//! the true chain continues alone. Only global pax headers affect later steps. After one, nothing
//! is guessed.
//!
//! Cost: each segment reads up to `SEARCH_MAX` bytes of data to find its first header, and guesses
//! in data that contains tars are discarded. If members are large,
//! guesses save little, so the chain is followed without them.

use std::mem;
use std::ops::ControlFlow;

use super::chain::{Chain, Walk};
use super::header::{BLOCK, BLOCK_LEN, Dialect, Header};
use super::member::{Nesting, Step};
use super::source::{Source, Windowed};
use crate::error::{Error, Result};
use crate::formats::bytes::length;
use crate::formats::index::members::{Inner, Kind, Members};
use crate::formats::index::notes::Notes;
use crate::formats::index::{ArchiveRange, DirectoryId, FinishedTree, NewTree};
use crate::formats::limits::NESTING_MAX;
use crate::ordered::ordered;
use crate::progress::Progress;
use crate::storage::{Scanning, Storage};

/// Members to collect before they go into the tree.
const BATCH: usize = 4096;

/// Scans an archive that can be read at any offset.
///
/// Fails with `Io` if it cannot be read. `Unsupported` if it has too many names.
pub(super) fn uncompressed(
    storage: &dyn Storage,
    nesting: Nesting,
    progress: &Progress,
) -> Result<FinishedTree> {
    uncompressed_with_grain(storage, nesting, Grain::DEFAULT, progress)
}

/// Like `uncompressed`, but divides the archive as `grain` says.
pub(super) fn uncompressed_with_grain(
    storage: &dyn Storage,
    nesting: Nesting,
    grain: Grain,
    progress: &Progress,
) -> Result<FinishedTree> {
    let _scanning = Scanning::of(storage);
    let mut tree = NewTree::default();
    let whole = ArchiveRange { base: DirectoryId::ROOT, depth: 0, start: 0, end: storage.len() };
    let mut level = vec![whole];
    let mut depth = 0;
    while !level.is_empty() {
        let nesting = if depth < NESTING_MAX { nesting } else { Nesting::Ignore };
        let mut inner = Vec::new();
        if level.len() < THREADS {
            for archive in level {
                let found = &mut inner;
                let outer_notes = mem::take(&mut tree.notes);
                scan_segments(storage, archive, nesting, grain, &mut tree, found, progress)?;
                let inner_notes = mem::replace(&mut tree.notes, outer_notes);
                tree.note(archive.base, inner_notes);
            }
        } else {
            // Many archives, for example the 1000 of ImageNet: one thread scans each.
            let work =
                |nth: usize| level.get(nth).map(|&archive| scan_one(storage, archive, nesting));
            let mut failed = Ok(());
            ordered(level.len(), THREADS, work, |nth, outcome| {
                let archive = level.get(nth).copied().zip(outcome);
                let added = archive.map_or(Ok(()), |(archive, outcome)| {
                    let (members, notes) = outcome?;
                    progress.advance(archive.end.saturating_sub(archive.start));
                    tree.note(archive.base, notes);
                    tree.add(archive, &members, &mut inner)
                });
                match added {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => {
                        failed = Err(error);
                        ControlFlow::Break(())
                    }
                }
            });
            failed?;
        }
        level = inner;
        depth = depth.saturating_add(1);
    }
    tree.finish()
}

/// Scans an archive that is decompressed from start to end. Nested archives are scanned in passing.
pub(super) fn forward(source: &mut dyn Source, nesting: Nesting) -> Result<FinishedTree> {
    let mut tree = NewTree::default();
    let mut members = Members::default();
    let whole = ArchiveRange { base: DirectoryId::ROOT, depth: 0, start: 0, end: u64::MAX };
    let mut frames = vec![(Walk::new(whole.start, whole.end, nesting), whole, Notes::default())];
    while let Some((walk, archive, notes)) = frames.last_mut() {
        let archive = *archive;
        let has_more = walk.step(source, &mut members, notes)?;
        let is_archive = matches!(members.list().last(), Some(last) if is_tar(last.kind));
        let mut inner = Vec::new();
        let is_full = members.list().len() >= BATCH || members.is_heavy();
        if !has_more || is_archive || is_full {
            // A member goes into the tree only if all its data is there. A nested tar is scanned in
            // any case.
            let data_end = members.list().last().map(|last| members.data_end(last));
            let data_end = data_end.filter(|&end| end > 0 && has_more && !is_archive);
            if let Some(data_end) = data_end
                && source.bytes(data_end, 0)?.is_none()
            {
                continue;
            }
            tree.add(archive, &members, &mut inner)?;
            members.clear();
        }
        if !has_more && let Some((_, _, notes)) = frames.pop() {
            tree.note(archive.base, notes);
        }
        if let Some(&archive) = inner.first() {
            let nesting = if archive.depth < NESTING_MAX { nesting } else { Nesting::Ignore };
            let walk = Walk::new(archive.start, archive.end, nesting);
            frames.push((walk, archive, Notes::default()));
        }
    }
    tree.finish()
}

fn is_tar(kind: Kind) -> bool {
    matches!(kind, Kind::Archive(Inner::Tar))
}

/// Scans one archive from start to end in this thread.
fn scan_one(
    storage: &dyn Storage,
    archive: ArchiveRange,
    nesting: Nesting,
) -> Result<(Members, Notes)> {
    let mut source = Windowed::new(storage, archive.end);
    let (mut members, mut notes) = (Members::default(), Notes::default());
    let mut walk = Walk::new(archive.start, archive.end, nesting);
    while walk.step(&mut source, &mut members, &mut notes)? {}
    Ok((members, notes))
}

/// Threads that scan. On a parallel file system each mostly waits for one small read, so there are
/// more threads than CPU cores.
const THREADS: usize = 16;

/// How finely to divide an archive.
#[derive(Clone, Copy)]
pub(super) struct Grain {
    /// Members between two decisions whether to guess.
    pub(super) sample: usize,
    /// Expected members per segment: enough to make the search for the first one worthwhile.
    pub(super) per_segment: u64,
    /// Limits for the size of a segment, bytes.
    pub(super) segment_min: u64,
    pub(super) segment_max: u64,
}

impl Grain {
    /// For real archives. Tests divide small ones more finely.
    pub(super) const DEFAULT: Self =
        Self { sample: 256, per_segment: 2048, segment_min: 1 << 20, segment_max: 256 << 20 };
}

/// If headers are further apart than this, the chain is followed without guesses, bytes.
const STRIDE_MAX: u64 = 1 << 20;

/// How far to search for the first header of a segment, in strides and in bytes.
const SEARCH_STRIDES: u64 = 4;
const SEARCH_MAX: u64 = 4 << 20;

/// Scans `archive`, in several segments if that is worthwhile. Adds its members to `tree`, and tars
/// among them to `inner`.
///
/// Fails with `Io` if it cannot be read. `Unsupported` if it has too many names.
fn scan_segments(
    storage: &dyn Storage,
    archive: ArchiveRange,
    nesting: Nesting,
    grain: Grain,
    tree: &mut NewTree,
    inner: &mut Vec<ArchiveRange>,
    progress: &Progress,
) -> Result<()> {
    let mut source = Windowed::new(storage, archive.end);
    let mut walk = Walk::new(archive.start, archive.end, nesting);
    let mut members = Members::default();
    loop {
        let start = walk.chain.offset();
        let has_more =
            steps(&mut walk, &mut source, &mut members, tree, archive.end, |_, list| {
                list.list().len() < grain.sample
            })?;
        let inner_count = inner.len();
        tree.add(archive, &members, inner)?;
        let read = walk.chain.offset().saturating_sub(start);
        progress.advance(read.saturating_sub(bytes_of(inner, inner_count)));
        if !has_more {
            return Ok(());
        }
        let stride = read.checked_div(length(members.list().len())).unwrap_or(u64::MAX);
        members.clear();
        let size =
            stride.saturating_mul(grain.per_segment).clamp(grain.segment_min, grain.segment_max);
        let left = archive.end.saturating_sub(walk.chain.offset());
        if stride > STRIDE_MAX || left < size.saturating_mul(4) || walk.chain.has_globals() {
            continue;
        }
        let start = walk.chain.offset();
        let division = Division { archive, start, size, stride, nesting, sample: grain.sample };
        if !scan_guided(storage, &division, &mut walk, tree, inner, progress)? {
            return Ok(());
        }
    }
}

/// Steps while `wanted` returns true. Returns `false` if the archive ends.
fn steps(
    walk: &mut Walk,
    source: &mut dyn Source,
    members: &mut Members,
    tree: &mut NewTree,
    until: u64,
    wanted: impl Fn(u64, &Members) -> bool,
) -> Result<bool> {
    while walk.chain.offset() < until && wanted(walk.chain.offset(), members) {
        if !walk.step(source, members, &mut tree.notes)? {
            return Ok(false);
        }
    }
    // If a header could start right at the end, the walk must still report that end.
    if walk.chain.offset() >= until && source.end() == Some(until) {
        return walk.step(source, members, &mut tree.notes);
    }
    Ok(true)
}

/// Length of the archives from the `nth` on. Their progress counts when they are scanned
/// themselves.
fn bytes_of(archives: &[ArchiveRange], nth: usize) -> u64 {
    let archives = archives.get(nth..).unwrap_or_default();
    archives.iter().map(|archive| archive.end.saturating_sub(archive.start)).sum()
}

/// How an archive is divided.
#[derive(Clone, Copy)]
struct Division {
    archive: ArchiveRange,
    /// Start of the first segment.
    start: u64,
    /// Size of a segment, bytes.
    size: u64,
    /// Average distance between headers, bytes.
    stride: u64,
    nesting: Nesting,
    sample: usize,
}

impl Division {
    fn count(&self) -> usize {
        let bytes = self.archive.end.saturating_sub(self.start);
        usize::try_from(bytes.div_ceil(self.size.max(1))).unwrap_or(usize::MAX)
    }

    /// Start and end of the `nth` segment.
    fn segment(&self, nth: usize) -> (u64, u64) {
        let nth = length(nth);
        let start = self.start.saturating_add(self.size.saturating_mul(nth));
        (start, start.saturating_add(self.size).min(self.archive.end))
    }
}

/// The chain that a thread found in a segment. It may be the true one.
struct Guess {
    members: Members,
    /// Where the chain stopped: past the end of the segment, or at something other than a member,
    /// which only the true chain handles.
    next: u64,
}

/// Takes `walk` to the end with the help of guesses. Returns `false` if the archive ended.
fn scan_guided(
    storage: &dyn Storage,
    division: &Division,
    walk: &mut Walk,
    tree: &mut NewTree,
    inner: &mut Vec<ArchiveRange>,
    progress: &Progress,
) -> Result<bool> {
    let mut source = Windowed::new(storage, division.archive.end);
    let mut members = Members::default();
    let mut outcome: Result<bool> = Ok(true);
    ordered(
        division.count(),
        THREADS,
        |nth| guess(storage, division, nth),
        |nth, guess| {
            let (_, end) = division.segment(nth);
            let (start, inner_count) = (walk.chain.offset(), inner.len());
            let has_more = guess.and_then(|guess| {
                let has_more =
                    follow(&guess, division, end, walk, &mut source, &mut members, tree, inner)?;
                let read = walk.chain.offset().saturating_sub(start);
                progress.advance(read.saturating_sub(bytes_of(inner, inner_count)));
                Ok(has_more)
            });
            match has_more {
                Ok(true) => ControlFlow::Continue(()),
                ended => {
                    outcome = ended;
                    ControlFlow::Break(())
                }
            }
        },
    );
    outcome
}

/// Takes the true chain to the end of a segment. As soon as it meets the guess, the guess replaces
/// it.
#[expect(clippy::too_many_arguments, reason = "the parts of one scan, borrowed apart")]
fn follow(
    guess: &Guess,
    division: &Division,
    end: u64,
    walk: &mut Walk,
    source: &mut dyn Source,
    members: &mut Members,
    tree: &mut NewTree,
    inner: &mut Vec<ArchiveRange>,
) -> Result<bool> {
    let guessed = guess.members.list();
    let archive = division.archive;
    loop {
        if walk.chain.offset() >= end && end < archive.end {
            return Ok(true);
        }
        // A guess ends before the first global header, so it knows of none.
        let is_comparable = !walk.chain.has_globals();
        let common = guessed.binary_search_by_key(&walk.chain.offset(), |member| member.start);
        if let (true, Ok(nth)) = (is_comparable, common) {
            tree.add_from(archive, &guess.members, nth, inner)?;
            walk.pass_members(guess.next);
            if walk.chain.offset() >= end && end < archive.end {
                return Ok(true);
            }
        }
        members.clear();
        let start = walk.chain.offset();
        let has_more = steps(walk, source, members, tree, end, |offset, list| {
            offset == start
                || list.list().len() < division.sample
                    && (!is_comparable
                        || guessed.binary_search_by_key(&offset, |member| member.start).is_err())
        })?;
        tree.add(archive, members, inner)?;
        if !has_more {
            return Ok(false);
        }
    }
}

/// Follows the chain from the first block in a segment that looks like a header.
fn guess(storage: &dyn Storage, division: &Division, nth: usize) -> Result<Guess> {
    let (start, end) = division.segment(nth);
    let mut members = Members::default();
    let mut source = Windowed::new(storage, division.archive.end);
    let first = match nth {
        // The true chain continues here.
        0 => Some(start),
        _ => first_header(&mut source, division, start, end)?,
    };
    let mut chain = Chain::new(first.unwrap_or(end), division.archive.end, division.nesting);
    let mut next = chain.offset();
    while next < end && matches!(chain.step(&mut source, &mut members)?, Step::Member) {
        next = chain.offset();
    }
    Ok(Guess { members, next })
}

fn first_header(
    source: &mut Windowed<'_>,
    division: &Division,
    start: u64,
    end: u64,
) -> Result<Option<u64>> {
    let span = division.stride.saturating_mul(SEARCH_STRIDES).clamp(BLOCK_LEN, SEARCH_MAX);
    let end = end.min(start.saturating_add(span));
    let mut offset = start;
    // Headers are a multiple of the block size apart.
    while offset.saturating_add(BLOCK_LEN) <= end {
        let block = source.bytes(offset, BLOCK)?.and_then(<[u8]>::first_chunk);
        let block = block.ok_or_else(|| Error::corrupt("the archive became shorter"))?;
        if Header::parse(block).is_some_and(|header| header.dialect() != Dialect::V7) {
            return Ok(Some(offset));
        }
        offset = offset.saturating_add(BLOCK_LEN);
    }
    Ok(None)
}
