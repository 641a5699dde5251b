//! One archive scanned in several places at once.
//!
//! Owns the guess where headers are, and the proof that a guess was right.
//! Invariant: what reaches the tree is what a scan from the first header to the last would find.
//!
//! Problem: each header says where the next one is, so a scan is a chain of small reads. From the
//! page cache that is fast, from a parallel file system each read is a round trip of up to a
//! millisecond, and 1.3 million of them take twenty minutes.
//!
//! Idea: headers stand at multiples of 512 bytes and can be told from data by their magic and
//! checksum. So the archive is cut into segments; in each, a thread looks for the first block that
//! seems to be a header and follows the chain from there. That block may be data that looks like a
//! header (an inner tar's, say). So nothing is believed until the true chain, which starts at the
//! first byte, arrives at a member that a segment found at the very same place: from there on both
//! chains are one, as a step depends on nothing but the place it starts from. Until then the true
//! chain goes on by itself. Only global pax headers carry over; with those nothing is guessed.
//!
//! Cost: up to `SEARCH_MAX` bytes of data read in each segment to find its first header, and
//! guesses thrown away where the data holds tars. Large members, among which hardly any chain would
//! be saved, are not guessed at all.

use std::ops::ControlFlow;

use super::chain::{Chain, Nesting, Step};
use super::header::{BLOCK, BLOCK_LEN, Dialect, Header};
use super::index::Nested;
use super::members::Members;
use super::scan::{Scan, THREADS, Walk};
use super::source::{Source, Windowed};
use crate::error::{Error, Result};
use crate::formats::bytes::length;
use crate::ordered::ordered;
use crate::progress::Progress;
use crate::storage::Storage;

/// How finely an archive is cut.
#[derive(Clone, Copy)]
pub(super) struct Grain {
    /// Members after which it is decided anew whether to guess.
    pub(super) sample: usize,
    /// Members that a segment should have, about: enough to be worth a search for the first.
    pub(super) per_segment: u64,
    /// A segment's size, bytes.
    pub(super) segment_min: u64,
    pub(super) segment_max: u64,
}

impl Grain {
    /// For archives of some size; tests cut small ones finer.
    pub(super) const USUAL: Self =
        Self { sample: 256, per_segment: 2048, segment_min: 1 << 20, segment_max: 256 << 20 };
}

/// Bytes from header to header above which the chain is followed as it is.
const STRIDE_MAX: u64 = 1 << 20;

/// How far a segment looks for its first header, in strides, and in bytes.
const SEARCH_STRIDES: u64 = 4;
const SEARCH_MAX: u64 = 4 << 20;

/// Scans `archive`, adding its members to `scan` and tars among them to `inner`.
///
/// # Errors
/// `Io` where it can not be read; `Unsupported` where it has too many names.
pub(super) fn scan(
    storage: &dyn Storage,
    archive: Nested,
    nesting: Nesting,
    grain: Grain,
    scan: &mut Scan,
    inner: &mut Vec<Nested>,
    progress: &Progress,
) -> Result<()> {
    let mut source = Windowed::new(storage, archive.end);
    let mut walk = Walk::new(archive.start, archive.end, nesting);
    let mut members = Members::default();
    loop {
        let start = walk.chain.at();
        let goes_on = steps(&mut walk, &mut source, &mut members, scan, archive.end, |_, list| {
            list.list().len() < grain.sample
        })?;
        let known = inner.len();
        scan.add(archive, &members, inner)?;
        let read = walk.chain.at().saturating_sub(start);
        progress.advance(read.saturating_sub(bytes_of(inner, known)));
        if !goes_on {
            return Ok(());
        }
        let stride = read.checked_div(length(members.list().len())).unwrap_or(u64::MAX);
        members.clear();
        let size =
            stride.saturating_mul(grain.per_segment).clamp(grain.segment_min, grain.segment_max);
        let left = archive.end.saturating_sub(walk.chain.at());
        if stride > STRIDE_MAX || left < size.saturating_mul(4) || walk.chain.has_globals() {
            continue;
        }
        let start = walk.chain.at();
        let cut = Cut { archive, start, size, stride, nesting, sample: grain.sample };
        if !guided(storage, &cut, &mut walk, scan, inner, progress)? {
            return Ok(());
        }
    }
}

/// Steps while `wanted` says so; `false` where the archive ends.
fn steps(
    walk: &mut Walk,
    source: &mut dyn Source,
    members: &mut Members,
    scan: &mut Scan,
    until: u64,
    wanted: impl Fn(u64, &Members) -> bool,
) -> Result<bool> {
    while walk.chain.at() < until && wanted(walk.chain.at(), members) {
        if !walk.step(source, members, &mut scan.notes)? {
            return Ok(false);
        }
    }
    // Where a header would begin at the very end, the walk still has to say so.
    if walk.chain.at() >= until && source.end() == Some(until) {
        return walk.step(source, members, &mut scan.notes);
    }
    Ok(true)
}

/// Bytes of the archives from the `nth` on: they count once they are scanned themselves.
fn bytes_of(archives: &[Nested], nth: usize) -> u64 {
    let archives = archives.get(nth..).unwrap_or_default();
    archives.iter().map(|archive| archive.end.saturating_sub(archive.start)).sum()
}

/// How an archive is cut.
#[derive(Clone, Copy)]
struct Cut {
    archive: Nested,
    /// Where the first segment begins.
    start: u64,
    /// A segment's size.
    size: u64,
    /// From header to header, about.
    stride: u64,
    nesting: Nesting,
    sample: usize,
}

impl Cut {
    fn count(&self) -> usize {
        let bytes = self.archive.end.saturating_sub(self.start);
        usize::try_from(bytes.div_ceil(self.size.max(1))).unwrap_or(usize::MAX)
    }

    /// Where the `nth` segment begins and ends.
    fn segment(&self, nth: usize) -> (u64, u64) {
        let nth = length(nth);
        let start = self.start.saturating_add(self.size.saturating_mul(nth));
        (start, start.saturating_add(self.size).min(self.archive.end))
    }
}

/// What a thread found in a segment: a chain that may be the true one.
struct Guess {
    members: Members,
    /// Where the first step begins that was not made: behind the segment, or where something else
    /// than a member comes, which the true chain has to look at itself.
    next: u64,
}

/// Goes on with `walk` to the end, led by guesses; `false` where the archive ended.
fn guided(
    storage: &dyn Storage,
    cut: &Cut,
    walk: &mut Walk,
    scan: &mut Scan,
    inner: &mut Vec<Nested>,
    progress: &Progress,
) -> Result<bool> {
    let mut source = Windowed::new(storage, cut.archive.end);
    let mut members = Members::default();
    let mut outcome: Result<bool> = Ok(true);
    ordered(
        cut.count(),
        THREADS,
        |nth| guess(storage, cut, nth),
        |nth, guess| {
            let (_, end) = cut.segment(nth);
            let (before, known) = (walk.chain.at(), inner.len());
            let done = guess.and_then(|guess| {
                let goes_on =
                    follow(&guess, cut, end, walk, &mut source, &mut members, scan, inner)?;
                let read = walk.chain.at().saturating_sub(before);
                progress.advance(read.saturating_sub(bytes_of(inner, known)));
                Ok(goes_on)
            });
            match done {
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

/// Takes the true chain to the end of a segment, along the guess as soon as they meet.
#[expect(clippy::too_many_arguments, reason = "the parts of one scan, borrowed apart")]
fn follow(
    guess: &Guess,
    cut: &Cut,
    end: u64,
    walk: &mut Walk,
    source: &mut dyn Source,
    members: &mut Members,
    scan: &mut Scan,
    inner: &mut Vec<Nested>,
) -> Result<bool> {
    let guessed = guess.members.list();
    let archive = cut.archive;
    loop {
        if walk.chain.at() >= end && end < archive.end {
            return Ok(true);
        }
        // A guess ends before the first global header, so it has seen none.
        let known = !walk.chain.has_globals();
        let meeting = guessed.binary_search_by_key(&walk.chain.at(), |member| member.start);
        if let (true, Ok(nth)) = (known, meeting) {
            scan.add_from(archive, &guess.members, nth, inner)?;
            walk.pass_members(guess.next);
            if walk.chain.at() >= end && end < archive.end {
                return Ok(true);
            }
        }
        members.clear();
        let before = walk.chain.at();
        let goes_on = steps(walk, source, members, scan, end, |at, list| {
            at == before
                || list.list().len() < cut.sample
                    && (!known || guessed.binary_search_by_key(&at, |member| member.start).is_err())
        })?;
        scan.add(archive, members, inner)?;
        if !goes_on {
            return Ok(false);
        }
    }
}

/// Follows the chain from the first block in a segment that looks like a header.
fn guess(storage: &dyn Storage, cut: &Cut, nth: usize) -> Result<Guess> {
    let (start, end) = cut.segment(nth);
    let mut members = Members::default();
    let mut source = Windowed::new(storage, cut.archive.end);
    let first = match nth {
        // The true chain begins here.
        0 => Some(start),
        _ => first_header(&mut source, cut, start, end)?,
    };
    let mut chain = Chain::new(first.unwrap_or(end), cut.archive.end, cut.nesting);
    let mut next = chain.at();
    while next < end && matches!(chain.step(&mut source, &mut members)?, Step::Member) {
        next = chain.at();
    }
    Ok(Guess { members, next })
}

fn first_header(source: &mut Windowed<'_>, cut: &Cut, start: u64, end: u64) -> Result<Option<u64>> {
    let span = cut.stride.saturating_mul(SEARCH_STRIDES).clamp(BLOCK_LEN, SEARCH_MAX);
    let end = end.min(start.saturating_add(span));
    let mut at = start;
    // Headers stand whole blocks behind the first one.
    while at.saturating_add(BLOCK_LEN) <= end {
        let block = source.bytes(at, BLOCK)?.and_then(<[u8]>::first_chunk);
        let block = block.ok_or_else(|| Error::corrupt("the archive became shorter"))?;
        if Header::parse(block).is_some_and(|header| header.dialect() != Dialect::V7) {
            return Ok(Some(at));
        }
        at = at.saturating_add(BLOCK_LEN);
    }
    Ok(None)
}
