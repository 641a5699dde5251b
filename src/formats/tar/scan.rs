//! From the first header of an archive to a tree: the scan.
//!
//! Owns what happens where the chain of headers breaks (ends, zeros, damage), archives within the
//! archive, and the order of things; leaves a single step to `chain` and scanning one archive in
//! several places at once to `segments`.
//! Invariant: members reach the tree in the order of the archive, however many threads read it.

use std::mem;
use std::ops::ControlFlow;

use super::chain::{Chain, Nesting, Skip, Step};
use super::header::{self, BLOCK, BLOCK_LEN, Block, Dialect, Header, Seen};
use super::index::{Builder, Draft, Folder, Nested};
use super::members::{Inner, Kind, Members};
use super::notes::{Notes, shown};
use super::segments::{self, Grain};
use super::source::{Source, Windowed};
use super::weight::Weight;
use crate::error::Result;
use crate::formats::limits::{NESTING_MAX, TAR_SEARCH_MAX};
use crate::ordered::ordered;
use crate::progress::Progress;
use crate::storage::Spill;
use crate::storage::Storage;

/// Threads that scan. Each waits for one small read most of the time, on a parallel file system a
/// round trip long, so there are more of them than processors.
pub(super) const THREADS: usize = 16;

/// What pixz writes behind a tar that it compresses: a list of the members, which starts like this
/// (pixz.h: PIXZ_INDEX_MAGIC, little-endian).
const PIXZ_LIST: [u8; 8] = 0xdbae_14d6_2e32_4ca6_u64.to_le_bytes();

/// Members that a list holds before they go into the tree.
const BATCH: usize = 4096;

/// Scans an archive that can be read anywhere.
///
/// # Errors
/// `Io` where it can not be read; `Unsupported` where it has too many names.
pub(super) fn stored(
    storage: &dyn Storage,
    nesting: Nesting,
    progress: &Progress,
) -> Result<Draft> {
    stored_cut(storage, nesting, Grain::USUAL, progress)
}

/// The same, cut by `grain` into what is scanned at once.
///
/// # Errors
/// As `stored`.
pub(super) fn stored_cut(
    storage: &dyn Storage,
    nesting: Nesting,
    grain: Grain,
    progress: &Progress,
) -> Result<Draft> {
    let mut scan = Scan::default();
    let whole = Nested { folder: Folder::ROOT, depth: 0, start: 0, end: storage.len() };
    let mut level = vec![whole];
    let mut depth = 0;
    while !level.is_empty() {
        let nesting = if depth < NESTING_MAX { nesting } else { Nesting::Ignore };
        let mut inner = Vec::new();
        if level.len() < THREADS {
            for archive in level {
                let found = &mut inner;
                let outer = mem::take(&mut scan.notes);
                segments::scan(storage, archive, nesting, grain, &mut scan, found, progress)?;
                let own = mem::replace(&mut scan.notes, outer);
                scan.note(archive.folder, own);
            }
        } else {
            // Many archives, such as the 1000 of ImageNet: each is scanned by one thread.
            let work = |nth: usize| level.get(nth).map(|&archive| alone(storage, archive, nesting));
            let mut failed = Ok(());
            ordered(level.len(), THREADS, work, |nth, outcome| {
                let archive = level.get(nth).copied().zip(outcome);
                let added = archive.map_or(Ok(()), |(archive, outcome)| {
                    let (members, notes) = outcome?;
                    progress.advance(archive.end.saturating_sub(archive.start));
                    scan.note(archive.folder, notes);
                    scan.add(archive, &members, &mut inner)
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
    scan.finish()
}

/// Scans an archive that is decoded from its start to its end; archives within are scanned as they
/// come by.
///
/// # Errors
/// As `stored`.
pub(super) fn forward(source: &mut dyn Source, nesting: Nesting) -> Result<Draft> {
    let mut scan = Scan::default();
    let mut members = Members::default();
    let whole = Nested { folder: Folder::ROOT, depth: 0, start: 0, end: u64::MAX };
    let mut frames = vec![(Walk::new(whole.start, whole.end, nesting), whole, Notes::default())];
    while let Some((walk, archive, notes)) = frames.last_mut() {
        let archive = *archive;
        let goes_on = walk.step(source, &mut members, notes)?;
        let is_archive = matches!(members.list().last(), Some(last) if is_tar(last.kind));
        let mut inner = Vec::new();
        let is_full = members.list().len() >= BATCH || members.is_heavy();
        if !goes_on || is_archive || is_full {
            // What goes into the tree must be there; an archive within is looked through anyway.
            let behind = members.list().last().map(|last| members.data_end(last));
            let behind = behind.filter(|&behind| behind > 0 && goes_on && !is_archive);
            if let Some(behind) = behind
                && source.bytes(behind, 0)?.is_none()
            {
                continue;
            }
            scan.add(archive, &members, &mut inner)?;
            members.clear();
        }
        if !goes_on && let Some((_, _, notes)) = frames.pop() {
            scan.note(archive.folder, notes);
        }
        if let Some(&archive) = inner.first() {
            let nesting = if archive.depth < NESTING_MAX { nesting } else { Nesting::Ignore };
            let walk = Walk::new(archive.start, archive.end, nesting);
            frames.push((walk, archive, Notes::default()));
        }
    }
    scan.finish()
}

fn is_tar(kind: Kind) -> bool {
    matches!(kind, Kind::Archive(Inner::Tar))
}

/// Scans one archive from its start to its end, in this thread.
fn alone(storage: &dyn Storage, archive: Nested, nesting: Nesting) -> Result<(Members, Notes)> {
    let mut source = Windowed::new(storage, archive.end);
    let (mut members, mut notes) = (Members::default(), Notes::default());
    let mut walk = Walk::new(archive.start, archive.end, nesting);
    while walk.step(&mut source, &mut members, &mut notes)? {}
    Ok((members, notes))
}

/// The tree so far, and what there is to tell.
pub(super) struct Scan {
    builder: Builder,
    weight: Weight,
    pub(super) notes: Notes,
}

impl Default for Scan {
    fn default() -> Self {
        Self {
            builder: Builder::new(Spill::default()),
            weight: Weight::new(),
            notes: Notes::default(),
        }
    }
}

impl Scan {
    /// Adds all of `members`, which are those of `archive`.
    pub(super) fn add(
        &mut self,
        archive: Nested,
        members: &Members,
        inner: &mut Vec<Nested>,
    ) -> Result<()> {
        self.add_from(archive, members, 0, inner)
    }

    /// Adds those from the `nth` on.
    pub(super) fn add_from(
        &mut self,
        archive: Nested,
        members: &Members,
        nth: usize,
        inner: &mut Vec<Nested>,
    ) -> Result<()> {
        let list = members.list().get(nth..).unwrap_or_default();
        self.builder.add(archive, members, list, inner, &mut self.notes)?;
        self.weight.add(list.len())
    }

    /// Adds what was noted of the archive that is shown as `folder`.
    pub(super) fn note(&mut self, folder: Folder, notes: Notes) {
        self.notes.append(notes.within(&self.builder.path(folder)));
    }

    /// The tree of all that was added.
    ///
    /// # Errors
    /// `Io` where there is no room for it.
    pub(super) fn finish(mut self) -> Result<Draft> {
        let mut draft = self.builder.finish(&mut self.notes)?;
        (draft.notes, draft.findings) = self.notes.told();
        Ok(draft)
    }
}

/// A chain, and what to do where it breaks.
pub(super) struct Walk {
    pub(super) chain: Chain,
    start: u64,
    end: u64,
    /// Whether the last step left the mark of an end behind.
    marked: bool,
}

impl Walk {
    pub(super) fn new(start: u64, end: u64, nesting: Nesting) -> Self {
        Self { chain: Chain::new(start, end, nesting), start, end, marked: false }
    }

    /// Goes on from `at`, which lies behind members that were found by another chain.
    pub(super) fn pass_members(&mut self, at: u64) {
        self.chain.skip_to(at);
        self.marked = false;
    }

    /// Goes to the next member; `false` where there is none.
    ///
    /// # Errors
    /// `Io` where the archive can not be read.
    pub(super) fn step(
        &mut self,
        source: &mut dyn Source,
        members: &mut Members,
        notes: &mut Notes,
    ) -> Result<bool> {
        match self.chain.step(source, members)? {
            Step::Member | Step::Skipped(None) => {}
            Step::Skipped(Some(Skip { what, path })) => notes.skip(&what, path.as_deref()),
            Step::Damaged { path, what } => notes.damage_of(&path, what),
            Step::Truncated(path) => {
                let what = match path.as_slice() {
                    [] => format!("a header at {:#x}", self.chain.at()),
                    path => format!("\"{}\"", shown(path)),
                };
                let what = format!("cut off: {what} and what came behind it are missing");
                notes.damage_of(&path, what);
                return Ok(false);
            }
            Step::End => {
                self.ended(source, members, notes);
                return Ok(false);
            }
            Step::Zeros => return self.behind_zeros(source, notes),
            Step::Garbage => return self.behind_garbage(source, notes),
        }
        self.marked = false;
        Ok(true)
    }

    /// The bytes end where a header could be; a source that did not know its end may have counted
    /// on data that is not there.
    fn ended(&self, source: &dyn Source, members: &mut Members, notes: &mut Notes) {
        let end = source.end().unwrap_or(self.end).min(self.end);
        let last = members.list().last().filter(|last| members.data_end(last) > end);
        if let Some(last) = last {
            let path = members.path(last);
            let what = format!("cut off: \"{}\" and what came behind it are missing", shown(path));
            notes.damage_of(path, what);
            members.pop();
        } else if !self.marked && self.chain.at() > self.start {
            notes.damage(format!("no mark of the end at {end:#x}: perhaps cut off"));
        }
    }

    /// Behind the mark of an end another archive may follow, as `cat a.tar b.tar` makes it.
    fn behind_zeros(&mut self, source: &mut dyn Source, notes: &mut Notes) -> Result<bool> {
        self.marked = true;
        let start = self.chain.at();
        let mut at = start;
        while at.saturating_sub(start) < TAR_SEARCH_MAX {
            let Some(block) = self.block(source, at)? else {
                return Ok(false);
            };
            match header::look(&block) {
                Seen::Zeros => at = at.saturating_add(BLOCK_LEN),
                Seen::Header => {
                    self.chain.skip_to(at);
                    return Ok(true);
                }
                Seen::Garbage if block.starts_with(&PIXZ_LIST) => return Ok(false),
                Seen::Garbage => {
                    notes.damage(format!("what is behind the end at {at:#x} is no tar: ignored"));
                    return Ok(false);
                }
            }
        }
        Ok(false)
    }

    /// Looks for the next header; only one that names its format is believed here.
    fn behind_garbage(&mut self, source: &mut dyn Source, notes: &mut Notes) -> Result<bool> {
        let start = self.chain.at();
        let mut at = start;
        while at.saturating_sub(start) < TAR_SEARCH_MAX {
            let Some(block) = self.block(source, at)? else { break };
            let named = Header::parse(&block).is_some_and(|found| found.dialect() != Dialect::V7);
            if named {
                notes.damage(format!("damaged: from {start:#x} to {at:#x} there is no header"));
                self.chain.skip_to(at);
                return Ok(true);
            }
            at = at.saturating_add(BLOCK_LEN);
        }
        notes
            .damage(format!("damaged: no header at {start:#x} nor behind it; the rest is missing"));
        Ok(false)
    }

    fn block(&self, source: &mut dyn Source, at: u64) -> Result<Option<Block>> {
        if at.saturating_add(BLOCK_LEN) > self.end {
            return Ok(None);
        }
        Ok(source.bytes(at, BLOCK)?.and_then(|bytes| bytes.first_chunk().copied()))
    }
}
