//! Scans an archive and the archives in it, and builds the tree.
//!
//! A `Walk` goes from header to header. `segments` does so for several segments of one archive
//! concurrently. `NewTree` takes the members.
//!
//! Invariant: members reach the tree in the order of the archive, however many threads read it.

use std::mem;
use std::ops::ControlFlow;

use super::chain::Walk;
use super::member::Nesting;
use super::segments::{self, Grain, THREADS};
use super::source::{Source, Windowed};
use crate::error::Result;
use crate::formats::index::NewTree;
use crate::formats::index::members::{Inner, Kind, Members};
use crate::formats::index::notes::Notes;
use crate::formats::index::{ArchiveRange, DirectoryId, FinishedTree};
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
                segments::scan(storage, archive, nesting, grain, &mut tree, found, progress)?;
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
