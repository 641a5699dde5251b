//! From the first header of an archive to a tree: the scan.
//!
//! Owns what happens where the chain of headers breaks (ends, zeros, damage), archives within the
//! archive, and the order of things; leaves a single step to `chain` and scanning one archive in
//! several places at once to `segments`.
//! Invariant: members reach the tree in the order of the archive, however many threads read it.

use std::ops::ControlFlow;

use super::chain::{Chain, Nesting, Step};
use super::header::{self, BLOCK, BLOCK_LEN, Block, Dialect, Header, Seen};
use super::index::{Builder, Folder, Index, Nested};
use super::members::{Inner, Kind, Members};
use super::notes::Notes;
use super::segments;
use super::source::{Source, Windowed};
use crate::error::Result;
use crate::formats::limits::{NESTING_MAX, TAR_SEARCH_MAX};
use crate::formats::ordered::ordered;
use crate::progress::Progress;
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
) -> Result<Index> {
    let mut scan = Scan::default();
    let whole = Nested { folder: Folder::ROOT, start: 0, end: storage.len() };
    let mut level = vec![whole];
    let mut depth = 0;
    while !level.is_empty() {
        let nesting = if depth < NESTING_MAX { nesting } else { Nesting::Ignore };
        let mut inner = Vec::new();
        if level.len() < THREADS {
            for archive in level {
                let found = &mut inner;
                segments::scan(storage, archive, nesting, &mut scan, found, progress)?;
            }
        } else {
            // Many archives, such as the 1000 of ImageNet: each is scanned by one thread.
            let work = |nth: usize| level.get(nth).map(|&archive| alone(storage, archive, nesting));
            let mut failed = Ok(());
            ordered(level.len(), THREADS, work, |nth, outcome| {
                let archive = level.get(nth).zip(outcome);
                let added = archive.map_or(Ok(()), |(archive, outcome)| {
                    let (members, notes) = outcome?;
                    progress.advance(archive.end.saturating_sub(archive.start));
                    scan.notes.append(notes);
                    scan.add(archive.folder, &members, &mut inner)
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
    Ok(scan.finish())
}

/// Scans an archive that is decoded from its start to its end; archives within are scanned as they
/// come by.
///
/// # Errors
/// As `stored`.
pub(super) fn forward(source: &mut dyn Source, nesting: Nesting) -> Result<Index> {
    let mut scan = Scan::default();
    let mut members = Members::default();
    let mut frames = vec![(Walk::new(0, u64::MAX, nesting), Folder::ROOT)];
    while let Some((walk, folder)) = frames.last_mut() {
        let folder = *folder;
        let goes_on = walk.step(source, &mut members, &mut scan.notes)?;
        let is_archive = matches!(members.list().last(), Some(last) if is_tar(last.kind));
        let mut inner = Vec::new();
        if !goes_on || is_archive || members.list().len() >= BATCH {
            // What goes into the tree must be there; an archive within is looked through anyway.
            let behind = members.list().last().map_or(0, |last| members.data_end(last));
            if goes_on && !is_archive && source.bytes(behind, 0)?.is_none() {
                continue;
            }
            scan.add(folder, &members, &mut inner)?;
            members.clear();
        }
        if !goes_on {
            frames.pop();
        }
        if let Some(archive) = inner.first() {
            let depth = u32::try_from(frames.len()).unwrap_or(u32::MAX);
            let nesting = if depth < NESTING_MAX { nesting } else { Nesting::Ignore };
            frames.push((Walk::new(archive.start, archive.end, nesting), archive.folder));
        }
    }
    Ok(scan.finish())
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
    pub(super) notes: Notes,
}

impl Default for Scan {
    fn default() -> Self {
        Self { builder: Builder::new(), notes: Notes::default() }
    }
}

impl Scan {
    /// Adds all of `members` below `folder`.
    pub(super) fn add(
        &mut self,
        folder: Folder,
        members: &Members,
        inner: &mut Vec<Nested>,
    ) -> Result<()> {
        self.builder.add(folder, members, members.list(), inner, &mut self.notes)
    }

    /// Adds those from the `nth` on.
    pub(super) fn add_from(
        &mut self,
        folder: Folder,
        members: &Members,
        nth: usize,
        inner: &mut Vec<Nested>,
    ) -> Result<()> {
        let list = members.list().get(nth..).unwrap_or_default();
        self.builder.add(folder, members, list, inner, &mut self.notes)
    }

    fn finish(mut self) -> Index {
        let mut index = self.builder.finish(&mut self.notes);
        index.notes = self.notes.lines();
        index
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
            Step::Skipped(Some(why)) => notes.skip(&why),
            Step::Damaged(what) => notes.damage(what),
            Step::Truncated(path) => {
                let what = match path.as_slice() {
                    [] => format!("a header at {:#x}", self.chain.at()),
                    path => format!("\"{}\"", path.escape_ascii()),
                };
                notes.damage(format!("cut off: {what} and what came behind it are missing"));
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

    /// The bytes end where a header could be; a source that did not know its end may have counted on
    /// data that is not there.
    fn ended(&self, source: &dyn Source, members: &mut Members, notes: &mut Notes) {
        let end = source.end().unwrap_or(self.end).min(self.end);
        let last = members.list().last().filter(|last| members.data_end(last) > end);
        if let Some(last) = last {
            let last = members.path(last).escape_ascii().to_string();
            members.pop();
            notes.damage(format!("cut off: \"{last}\" and what came behind it are missing"));
        } else if !self.marked && self.chain.at() > self.start {
            notes.damage("no mark of the end: perhaps cut off".to_owned());
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
