//! Scans an archive from its first header and builds the tree.
//!
//! It handles the breaks in a chain of headers (ends, zeros, damage) and nested archives. `chain`
//! does a single step. `segments` scans one archive in several places at once.
//!
//! Invariant: members reach the tree in the order of the archive, however many threads read it.

use std::mem;
use std::ops::ControlFlow;

use super::chain::{Chain, Nesting, Skip, Step};
use super::header::{self, BLOCK, BLOCK_LEN, Block, BlockKind, Dialect, Header};
use super::index::{Builder, DirectoryId, Draft, Nested};
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

/// Threads that scan. On a parallel file system each mostly waits for one small read, so there are
/// more threads than CPU cores.
pub(super) const THREADS: usize = 16;

/// What pixz appends to a tar that it compresses: a list of the members, which starts with this
/// magic (pixz.h: PIXZ_INDEX_MAGIC, little-endian).
const PIXZ_LIST: [u8; 8] = 0xdbae_14d6_2e32_4ca6_u64.to_le_bytes();

/// Members to collect before they go into the tree.
const BATCH: usize = 4096;

/// Scans an archive that can be read at any offset.
///
/// # Errors
/// `Io` if it cannot be read. `Unsupported` if it has too many names.
pub(super) fn stored(
    storage: &dyn Storage,
    nesting: Nesting,
    progress: &Progress,
) -> Result<Draft> {
    stored_with_grain(storage, nesting, Grain::USUAL, progress)
}

/// Like `stored`, but divides the archive as `grain` says.
///
/// # Errors
/// As `stored`.
pub(super) fn stored_with_grain(
    storage: &dyn Storage,
    nesting: Nesting,
    grain: Grain,
    progress: &Progress,
) -> Result<Draft> {
    let mut scan = Scan::default();
    let whole = Nested { directory: DirectoryId::ROOT, depth: 0, start: 0, end: storage.len() };
    let mut level = vec![whole];
    let mut depth = 0;
    while !level.is_empty() {
        let nesting = if depth < NESTING_MAX { nesting } else { Nesting::Ignore };
        let mut inner = Vec::new();
        if level.len() < THREADS {
            for archive in level {
                let found = &mut inner;
                let outer_notes = mem::take(&mut scan.notes);
                segments::scan(storage, archive, nesting, grain, &mut scan, found, progress)?;
                let inner_notes = mem::replace(&mut scan.notes, outer_notes);
                scan.note(archive.directory, inner_notes);
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
                    scan.note(archive.directory, notes);
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

/// Scans an archive that is decompressed from start to end. Nested archives are scanned in passing.
///
/// # Errors
/// As `stored`.
pub(super) fn forward(source: &mut dyn Source, nesting: Nesting) -> Result<Draft> {
    let mut scan = Scan::default();
    let mut members = Members::default();
    let whole = Nested { directory: DirectoryId::ROOT, depth: 0, start: 0, end: u64::MAX };
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
            scan.add(archive, &members, &mut inner)?;
            members.clear();
        }
        if !has_more && let Some((_, _, notes)) = frames.pop() {
            scan.note(archive.directory, notes);
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

/// Scans one archive from start to end in this thread.
fn scan_one(storage: &dyn Storage, archive: Nested, nesting: Nesting) -> Result<(Members, Notes)> {
    let mut source = Windowed::new(storage, archive.end);
    let (mut members, mut notes) = (Members::default(), Notes::default());
    let mut walk = Walk::new(archive.start, archive.end, nesting);
    while walk.step(&mut source, &mut members, &mut notes)? {}
    Ok((members, notes))
}

/// The tree so far, and its notes.
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
    /// Adds all of `members`, which belong to `archive`.
    pub(super) fn add(
        &mut self,
        archive: Nested,
        members: &Members,
        inner: &mut Vec<Nested>,
    ) -> Result<()> {
        self.add_from(archive, members, 0, inner)
    }

    /// Adds the members from the `nth` on.
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

    /// Adds the notes of the archive that `directory` shows.
    pub(super) fn note(&mut self, directory: DirectoryId, notes: Notes) {
        self.notes.append(notes.within(&self.builder.path(directory)));
    }

    /// Finishes the tree.
    ///
    /// # Errors
    /// `Io` if there is no room for it.
    pub(super) fn finish(mut self) -> Result<Draft> {
        let mut draft = self.builder.finish(&mut self.notes)?;
        (draft.notes, draft.findings) = self.notes.finish();
        Ok(draft)
    }
}

/// A chain of headers, and what to do where it breaks.
pub(super) struct Walk {
    pub(super) chain: Chain,
    start: u64,
    end: u64,
    /// Whether the last step found an end mark.
    after_end_mark: bool,
}

impl Walk {
    pub(super) fn new(start: u64, end: u64, nesting: Nesting) -> Self {
        Self { chain: Chain::new(start, end, nesting), start, end, after_end_mark: false }
    }

    /// Continues at `offset`, after members that another chain found.
    pub(super) fn pass_members(&mut self, offset: u64) {
        self.chain.skip_to(offset);
        self.after_end_mark = false;
    }

    /// Steps to the next member. Returns `false` if there is none.
    ///
    /// # Errors
    /// `Io` if the archive cannot be read.
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
                    [] => format!("a header at {:#x}", self.chain.offset()),
                    path => format!("\"{}\"", shown(path)),
                };
                let what = format!("cut off: {what} and what came behind it are missing");
                notes.damage_of(&path, what);
                return Ok(false);
            }
            Step::End => {
                self.handle_end(source, members, notes);
                return Ok(false);
            }
            Step::Zeros => return self.handle_zeros(source, notes),
            Step::Garbage => return self.handle_garbage(source, notes),
        }
        self.after_end_mark = false;
        Ok(true)
    }

    /// Handles the end of the bytes where a header could start. A source that did not know its end
    /// may have added a member whose data is missing.
    fn handle_end(&self, source: &dyn Source, members: &mut Members, notes: &mut Notes) {
        let end = source.end().unwrap_or(self.end).min(self.end);
        let last = members.list().last().filter(|last| members.data_end(last) > end);
        if let Some(last) = last {
            let path = members.path(last);
            let what = format!("cut off: \"{}\" and what came behind it are missing", shown(path));
            notes.damage_of(path, what);
            members.pop();
        } else if !self.after_end_mark && self.chain.offset() > self.start {
            notes.damage(format!("no mark of the end at {end:#x}: perhaps cut off"));
        }
    }

    /// Handles zeros. Another archive may follow the end mark, as after `cat a.tar b.tar`.
    fn handle_zeros(&mut self, source: &mut dyn Source, notes: &mut Notes) -> Result<bool> {
        self.after_end_mark = true;
        let start = self.chain.offset();
        let mut at = start;
        while at.saturating_sub(start) < TAR_SEARCH_MAX {
            let Some(block) = self.block(source, at)? else {
                return Ok(false);
            };
            match header::classify(&block) {
                BlockKind::Zeros => at = at.saturating_add(BLOCK_LEN),
                BlockKind::Header => {
                    self.chain.skip_to(at);
                    return Ok(true);
                }
                BlockKind::Garbage if block.starts_with(&PIXZ_LIST) => return Ok(false),
                BlockKind::Garbage => {
                    notes.damage(format!("what is behind the end at {at:#x} is no tar: ignored"));
                    return Ok(false);
                }
            }
        }
        Ok(false)
    }

    /// Searches for the next header. Here only a header that names its format counts.
    fn handle_garbage(&mut self, source: &mut dyn Source, notes: &mut Notes) -> Result<bool> {
        let start = self.chain.offset();
        let mut at = start;
        while at.saturating_sub(start) < TAR_SEARCH_MAX {
            let Some(block) = self.block(source, at)? else { break };
            let names_format =
                Header::parse(&block).is_some_and(|found| found.dialect() != Dialect::V7);
            if names_format {
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

    fn block(&self, source: &mut dyn Source, offset: u64) -> Result<Option<Block>> {
        if offset.saturating_add(BLOCK_LEN) > self.end {
            return Ok(None);
        }
        Ok(source.bytes(offset, BLOCK)?.and_then(|bytes| bytes.first_chunk().copied()))
    }
}
