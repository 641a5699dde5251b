//! The bytes of many files, read by several threads and given to the writer in order.
//!
//! Owns how files are cut into batches, and who reads what; leaves what becomes of a batch to the
//! writer: `work` runs on the threads (compress there), `take` in order in the caller's.
//! Invariants: a batch holds about `BATCH` bytes at most, so memory is bounded by the number of
//! threads; pieces come in the order of files and offsets, each byte and each hole once.

use std::ops::{ControlFlow, Range};

use super::Job;
use super::catalog::{Catalog, InodeId, What};
use crate::error::{Error, Result};
use crate::ordered::ordered;

/// Bytes of a batch: as many small files as fit, or a part of a large one. A multiple of every
/// block size of SquashFS.
pub(crate) const BATCH: u64 = 1 << 20;

/// Files of a batch at most: empty ones take time, too.
const BATCH_FILES: usize = 256;

/// A part of a file.
pub(crate) struct Piece {
    pub(crate) file: InodeId,
    /// Where in the file it starts, bytes.
    pub(crate) offset: u64,
    pub(crate) data: Data,
}

/// What a part of a file holds.
pub(crate) enum Data {
    Bytes(Vec<u8>),
    /// So many zeros that are not stored.
    Hole(u64),
    /// It could not be read; there may be more pieces of the same file, which say nothing.
    Failed(Error),
}

/// Where a batch starts: in the file of that number in the order, at that offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    nth: usize,
    offset: u64,
}

/// Reads `files` one after the other, in batches. A hole is told of as such where it covers whole
/// units of `grain` bytes, counted from the start of its file (a block of an image; 1 for all).
///
/// # Errors
/// Those of `take`, and `Interrupted` where the job is to stop. What can not be read is a piece.
pub(crate) fn feed<R: Send>(
    job: &Job<'_>,
    catalog: &Catalog,
    files: &[InodeId],
    grain: u64,
    work: impl Fn(Vec<Piece>) -> R + Sync,
    mut take: impl FnMut(R) -> Result<()>,
) -> Result<()> {
    let reader = Reader { job, catalog, files, grain };
    let cuts = reader.cuts();
    let mut outcome = Ok(());
    let batch = |nth: usize| {
        let from = cuts[nth];
        let to = cuts.get(nth + 1).copied().unwrap_or(Cut { nth: files.len(), offset: 0 });
        work(reader.batch(from, to))
    };
    ordered(cuts.len(), job.threads, batch, |_, result| {
        outcome = job.check().and_then(|()| take(result));
        if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    outcome
}

struct Reader<'r> {
    job: &'r Job<'r>,
    catalog: &'r Catalog,
    files: &'r [InodeId],
    grain: u64,
}

impl Reader<'_> {
    /// Where the batches start: at a file, or at a multiple of `BATCH` stored bytes of a large one.
    fn cuts(&self) -> Vec<Cut> {
        let mut cuts = Vec::new();
        let (mut filled, mut count) = (BATCH, 0);
        for (nth, &file) in self.files.iter().enumerate() {
            let size = self.catalog.inode(file).size();
            if count >= BATCH_FILES || filled + size.min(BATCH) > BATCH || filled == BATCH {
                cuts.push(Cut { nth, offset: 0 });
                (filled, count) = (0, 0);
            }
            count += 1;
            // Where the extents can not be told, reading says why.
            for span in self.extents(file, 0..size) {
                let Ok(Span::Data(mut rest)) = span else { continue };
                while rest.start < rest.end {
                    if filled == BATCH {
                        cuts.push(Cut { nth, offset: rest.start });
                        filled = 0;
                    }
                    let step = (rest.end - rest.start).min(BATCH - filled);
                    rest.start += step;
                    filled += step;
                }
            }
        }
        cuts
    }

    /// Data and holes of `range` of a file, holes in whole grains; an error ends them.
    fn extents(&self, file: InodeId, range: Range<u64>) -> impl Iterator<Item = Result<Span>> {
        let What::File { size, content, sparse } = self.catalog.inode(file).what else {
            unreachable!("only regular files are read");
        };
        let source = self.catalog.content(content);
        let mut at = range.start;
        let mut next = None;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            if let Some(data) = next.take() {
                at = Range::<u64>::clone(&data).end;
                return Some(Ok(Span::Data(data)));
            }
            if !sparse {
                let whole = at..range.end;
                at = range.end;
                return Some(Ok(Span::Data(whole)));
            }
            let found = match source.next_data(content.key, at) {
                Ok(found) => found.unwrap_or(size..size),
                Err(error) => {
                    at = range.end;
                    return Some(Err(error));
                }
            };
            // Outwards to whole grains; the end of the file ends a grain, too.
            let down = |offset: u64| offset / self.grain * self.grain;
            let start = if found.start >= size { size } else { down(found.start) };
            let start = start.clamp(at, range.end);
            let end = down(found.end.saturating_add(self.grain - 1)).clamp(start, range.end);
            if start > at {
                let hole = at..start;
                at = start;
                next = (end > start).then_some(start..end);
                return Some(Ok(Span::Hole(hole)));
            }
            at = end;
            Some(Ok(Span::Data(start..end)))
        })
    }

    fn batch(&self, from: Cut, to: Cut) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let last = if to.offset > 0 { to.nth } else { to.nth.saturating_sub(1) };
        for nth in from.nth..=last {
            let Some(&file) = self.files.get(nth) else { break };
            let size = self.catalog.inode(file).size();
            let start = if nth == from.nth { from.offset } else { 0 };
            let end = if nth == to.nth && to.offset > 0 { to.offset } else { size };
            if start == end {
                // Empty files have a piece, too: the writer may make its inode when it sees it.
                pieces.push(Piece { file, offset: start, data: Data::Bytes(Vec::new()) });
            }
            for span in self.extents(file, start..end) {
                if self.job.check().is_err() {
                    return pieces;
                }
                pieces.push(self.piece(file, span));
            }
        }
        pieces
    }

    fn piece(&self, file: InodeId, span: Result<Span>) -> Piece {
        let What::File { content, .. } = self.catalog.inode(file).what else {
            unreachable!("only regular files are read");
        };
        let (offset, data) = match span {
            Err(error) => (0, Data::Failed(error)),
            Ok(Span::Hole(range)) => (range.start, Data::Hole(range.end - range.start)),
            Ok(Span::Data(range)) => {
                // A batch and what it is rounded up to fit into memory.
                let mut bytes = vec![0; (range.end - range.start) as usize];
                match self.catalog.content(content).read(content.key, range.start, &mut bytes) {
                    Ok(()) => (range.start, Data::Bytes(bytes)),
                    Err(error) => (range.start, Data::Failed(error)),
                }
            }
        };
        let done = match &data {
            Data::Bytes(bytes) => bytes.len() as u64,
            Data::Hole(len) => *len,
            Data::Failed(_) => 0,
        };
        self.job.progress.advance(done);
        Piece { file, offset, data }
    }
}

/// A part of a file that is stored or not.
#[derive(Debug, PartialEq, Eq)]
enum Span {
    Data(Range<u64>),
    Hole(Range<u64>),
}
