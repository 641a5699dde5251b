//! Reads the bytes of many files on several threads and gives them to the writer in order.
//!
//! Files are cut into batches. `work` runs on the threads and compresses a batch; `take` runs on
//! the caller's thread and gets the results in order.
//!
//! Invariants: a batch holds about `BATCH` bytes at most, so the number of threads bounds the
//! memory. Parts come in the order of files and offsets, each byte and each hole once.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

use super::Job;
use super::catalog::{Catalog, ContentId, InodeId, InodeKind};
use crate::error::{Error, Kind, Result};
use crate::ordered::ordered;
use crate::sync::{Arc, Mutex};
use crate::vfs::{ContentCheck, Coverage};

/// Bytes of a batch: as many small files as fit, or a part of a large one. A multiple of every
/// SquashFS block size.
pub(crate) const BATCH: u64 = 1 << 20;

/// Maximum number of files in a batch. Empty files take time, although they hold no bytes.
const BATCH_FILES: usize = 256;

/// A file, or the part of a large one that is in a batch.
pub(crate) struct Part {
    pub(crate) file: InodeId,
    /// None if the file is empty. The error if a read failed, or if the checksum of the file is
    /// wrong. The file may have more parts; ignore them.
    pub(crate) pieces: Result<Vec<Piece>>,
}

pub(crate) struct Piece {
    /// Its offset in the file, bytes.
    pub(crate) offset: u64,
    pub(crate) data: Data,
}

pub(crate) enum Data {
    Bytes(Vec<u8>),
    /// Length of a hole: zeros that are not stored.
    Hole(u64),
}

impl Data {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Hole(len) => *len,
        }
    }
}

/// Where a batch starts: the index of a file, and the offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    nth: usize,
    offset: u64,
}

/// Reads `files` one after the other, in batches. Only whole units of `grain` bytes, counted from
/// the start of the file, are reported as holes: the block size of an image, or 1 for every hole.
///
/// # Errors
/// The errors of `take`, and `Interrupted`. A part that cannot be read has an error in place of its
/// pieces.
pub(crate) fn feed<R: Send>(
    job: &Job<'_>,
    catalog: &Catalog,
    files: &[InodeId],
    grain: u64,
    work: impl Fn(Vec<Part>) -> R + Sync,
    mut take: impl FnMut(R) -> Result<()>,
) -> Result<()> {
    let reader = Reader { job, catalog, files, grain, checks: Mutex::default() };
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
    /// Files with a checksum of which a part was read. Guards only the map; no other lock is held
    /// with it.
    checks: Mutex<HashMap<InodeId, Arc<ContentCheck>>>,
}

impl Reader<'_> {
    /// Cuts at the start of a file, or at a multiple of `BATCH` stored bytes of a large one.
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
            // If the extents are unknown, the read reports the error.
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

    /// Data and holes in `range` of a file, holes in whole grains. Stops after an error.
    fn extents(&self, file: InodeId, range: Range<u64>) -> impl Iterator<Item = Result<Span>> {
        let InodeKind::File { size, content, sparse } = self.catalog.inode(file).kind else {
            unreachable!("only regular files are read");
        };
        let source = self.catalog.content(content);
        let mut position = range.start;
        let mut next = None;
        std::iter::from_fn(move || {
            if position >= range.end {
                return None;
            }
            if let Some(data) = next.take() {
                position = Range::<u64>::clone(&data).end;
                return Some(Ok(Span::Data(data)));
            }
            if !sparse {
                let whole = position..range.end;
                position = range.end;
                return Some(Ok(Span::Data(whole)));
            }
            let found = match source.next_data(content.key, position) {
                Ok(found) => found.unwrap_or(size..size),
                Err(error) => {
                    position = range.end;
                    return Some(Err(error));
                }
            };
            // Grow data to whole grains. The last grain ends with the file.
            let down = |offset: u64| offset / self.grain * self.grain;
            let start = if found.start >= size { size } else { down(found.start) };
            let start = start.clamp(position, range.end);
            let end = down(found.end.saturating_add(self.grain - 1)).clamp(start, range.end);
            if start > position {
                let hole = position..start;
                position = start;
                next = (end > start).then_some(start..end);
                return Some(Ok(Span::Hole(hole)));
            }
            position = end;
            Some(Ok(Span::Data(start..end)))
        })
    }

    fn batch(&self, from: Cut, to: Cut) -> Vec<Part> {
        let last = if to.offset > 0 { to.nth } else { to.nth.saturating_sub(1) };
        let part = |nth: usize| {
            let file = *self.files.get(nth)?;
            let start = if nth == from.nth { from.offset } else { 0 };
            let end = match nth == to.nth && to.offset > 0 {
                true => to.offset,
                false => self.catalog.inode(file).size(),
            };
            let spans = self.extents(file, start..end);
            Some(Part { file, pieces: spans.map(|span| self.piece(file, span?)).collect() })
        };
        (from.nth..=last).map_while(part).collect()
    }

    fn piece(&self, file: InodeId, span: Span) -> Result<Piece> {
        self.job.check()?;
        let InodeKind::File { size, content, .. } = self.catalog.inode(file).kind else {
            unreachable!("only regular files are read");
        };
        let (offset, data) = match span {
            Span::Hole(range) => (range.start, Data::Hole(range.end - range.start)),
            // The extents are read twice. If they changed, a span could exceed the batch.
            Span::Data(range) if range.end - range.start > BATCH => {
                let context = format!("{}: changed while it was read", self.catalog.origin(file));
                return Err(Error::new(Kind::Changed, context));
            }
            Span::Data(range) => {
                // A batch, rounded up to whole grains, fits into memory.
                let mut bytes = vec![0; (range.end - range.start) as usize];
                self.catalog.content(content).read(content.key, range.start, &mut bytes)?;
                self.check((file, size, content), range.start, &bytes)?;
                (range.start, Data::Bytes(bytes))
            }
        };
        self.job.progress.advance(data.len());
        Ok(Piece { offset, data })
    }

    /// Adds bytes that were read of a file to its checksum.
    fn check(
        &self,
        (file, size, content): (InodeId, u64, ContentId),
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let expected = self.catalog.content(content).stored_crc32(content.key)?;
        if expected.is_none() {
            return Ok(());
        }
        let new = || Arc::new(ContentCheck::new(expected, size));
        let is_whole = bytes.len() as u64 == size;
        let check = match is_whole {
            true => new(),
            false => Arc::clone(self.checks.lock().entry(file).or_insert_with(new)),
        };
        let mut part = check.part(offset);
        part.update(bytes);
        let added = check.add(part);
        if !is_whole && !matches!(added, Ok(Coverage::Partial)) {
            self.checks.lock().remove(&file);
        }
        let named = |error: Error| error.within(self.catalog.origin(file));
        added.map(drop).map_err(named)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Span {
    Data(Range<u64>),
    Hole(Range<u64>),
}

#[cfg_attr(test, expect(clippy::single_range_in_vec_init, reason = "a list of one range is meant"))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::catalog::{Builder, Inode, Meta, Owner};
    use crate::pack::catalog::{Content, ContentId};
    use crate::progress::Progress;
    use crate::sync::{AtomicBool, AtomicU64, Ordering};
    use crate::vfs::{Name, Timestamp};

    /// A file of the fake source.
    #[derive(Clone, Default)]
    struct Fake {
        size: u64,
        data: Option<Vec<Range<u64>>>,
        broken: bool,
    }

    /// Files whose bytes are computed from their key and offset.
    struct Fakes {
        files: Vec<Fake>,
        /// Number of calls of `next_data`; the first one fails if `first_fails`.
        queries: AtomicU64,
        first_fails: bool,
    }

    fn byte(key: u64, offset: u64) -> u8 {
        (key.wrapping_mul(37) ^ offset ^ (offset >> 9)) as u8 | 1
    }

    fn broken() -> Error {
        Error::new(Kind::Changed, "changed while it was read")
    }

    impl Content for Fakes {
        fn read(&self, key: u64, offset: u64, buffer: &mut [u8]) -> Result<()> {
            let file = &self.files[key as usize];
            if file.broken {
                return Err(broken());
            }
            assert!(offset + buffer.len() as u64 <= file.size, "past the end of {key}");
            for (target, offset) in buffer.iter_mut().zip(offset..) {
                let stored =
                    file.data.as_ref().is_none_or(|d| d.iter().any(|r| r.contains(&offset)));
                *target = if stored { byte(key, offset) } else { 0 };
            }
            Ok(())
        }

        fn next_data(&self, key: u64, offset: u64) -> Result<Option<Range<u64>>> {
            let queries = self.queries.fetch_add(1, Ordering::Relaxed);
            if self.files[key as usize].broken || (self.first_fails && queries == 0) {
                return Err(broken());
            }
            let data = self.files[key as usize].data.iter().flatten();
            let mut behind = data.filter(|range| range.end > offset);
            Ok(behind.next().map(|range| range.start.max(offset)..range.end))
        }

        fn origin(&self, key: u64) -> String {
            key.to_string()
        }
    }

    fn dense(size: u64) -> Fake {
        Fake { size, ..Fake::default() }
    }

    fn sparse(size: u64, data: &[Range<u64>]) -> Fake {
        Fake { size, data: Some(data.to_vec()), broken: false }
    }

    fn catalog(fakes: Vec<Fake>, first_fails: bool) -> Catalog {
        let modified = Timestamp { seconds: 0, nanoseconds: 0 };
        let meta = Meta { permissions: 0o644, uid: 0, gid: 0, modified, xattrs: None };
        let mut builder = Builder::new(meta);
        for (key, fake) in fakes.iter().enumerate() {
            let content = ContentId { source: 0, key: key as u64 };
            let sparse = fake.data.is_some();
            let inode = Inode { meta, kind: InodeKind::File { size: fake.size, content, sparse } };
            let name = format!("{key:06}");
            builder.add(InodeId::ROOT, Name::parse(name.as_bytes()).unwrap(), inode);
        }
        builder.source(Box::new(Fakes { files: fakes, queries: AtomicU64::new(0), first_fails }));
        builder.finish(Owner::default()).unwrap()
    }

    /// A piece without its bytes, which are checked already.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Seen {
        key: u64,
        offset: u64,
        data: SeenData,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum SeenData {
        Bytes(u64),
        Hole(u64),
        Failed,
    }

    fn see_piece(fake: &Fake, key: u64, Piece { offset, data }: Piece) -> Seen {
        let data = match data {
            Data::Bytes(bytes) => {
                for (&found, offset) in bytes.iter().zip(offset..) {
                    let data = fake.data.as_ref();
                    let stored = data.is_none_or(|d| d.iter().any(|r| r.contains(&offset)));
                    let expected = if stored { byte(key, offset) } else { 0 };
                    assert_eq!(found, expected, "file {key} at {offset}");
                }
                SeenData::Bytes(bytes.len() as u64)
            }
            Data::Hole(len) => SeenData::Hole(len),
        };
        Seen { key, offset, data }
    }

    /// The batches of all files. Checks the bytes, and that each intact file is complete.
    fn batches(fakes: &[Fake], grain: u64, threads: usize) -> Vec<Vec<Seen>> {
        let catalog = catalog(fakes.to_vec(), false);
        let (progress, stop) = (Progress::default(), AtomicBool::new(false));
        let job = Job::new(threads, &progress, &stop);
        let files = catalog.files();
        let see = |Part { file, pieces }: Part| {
            let key = u64::from(file.0) - 1;
            match pieces {
                Ok(pieces) if pieces.is_empty() => vec![bytes(key, 0, 0)],
                Ok(pieces) => {
                    let see = |piece| see_piece(&fakes[key as usize], key, piece);
                    pieces.into_iter().map(see).collect()
                }
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Changed);
                    vec![Seen { key, offset: 0, data: SeenData::Failed }]
                }
            }
        };
        let work = |parts: Vec<Part>| parts.into_iter().flat_map(see).collect::<Vec<_>>();
        let mut taken = Vec::new();
        let take = |batch| {
            taken.push(batch);
            Ok(())
        };
        feed(&job, &catalog, &files, grain, work, take).unwrap();
        let mut all = taken.iter().flatten().peekable();
        for (key, fake) in (0..).zip(fakes) {
            let mut position = 0;
            let mut pieces = 0;
            while let Some(seen) = all.next_if(|seen| seen.key == key) {
                pieces += 1;
                match seen.data {
                    SeenData::Failed => position = fake.size,
                    SeenData::Bytes(len) | SeenData::Hole(len) => {
                        assert_eq!(seen.offset, position, "of file {key}");
                        position += len;
                    }
                }
            }
            assert_eq!(position, fake.size, "of file {key}");
            assert!(pieces > 0, "no pieces of file {key}");
        }
        assert_eq!(all.next(), None);
        let held = taken.iter().map(|batch| {
            let bytes = batch.iter().map(|seen| match seen.data {
                SeenData::Bytes(len) => len,
                _ => 0,
            });
            bytes.sum::<u64>()
        });
        assert!(held.max().unwrap_or(0) <= BATCH);
        let sound: u64 = fakes.iter().filter(|fake| !fake.broken).map(|fake| fake.size).sum();
        assert_eq!(progress.now().0, sound);
        taken
    }

    fn bytes(key: u64, offset: u64, len: u64) -> Seen {
        Seen { key, offset, data: SeenData::Bytes(len) }
    }

    fn hole(key: u64, offset: u64, len: u64) -> Seen {
        Seen { key, offset, data: SeenData::Hole(len) }
    }

    #[test]
    fn small_files_share_a_batch_and_empty_ones_have_a_part() {
        let found = batches(&[dense(10), dense(0), dense(BATCH - 10), dense(0), dense(1)], 4096, 2);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], [bytes(0, 0, 10), bytes(1, 0, 0), bytes(2, 0, BATCH - 10)]);
        assert_eq!(found[1], [bytes(3, 0, 0), bytes(4, 0, 1)]);
        let empty = batches(&vec![dense(0); BATCH_FILES * 2 + 1], 1, 4);
        assert_eq!(empty.iter().map(Vec::len).collect::<Vec<_>>(), [BATCH_FILES, BATCH_FILES, 1]);
        assert_eq!(batches(&[], 1, 4), Vec::<Vec<Seen>>::new());
    }

    #[test]
    fn large_files_are_cut_at_batch_multiples_and_share_their_last_batch() {
        let found = batches(&[dense(5), dense(2 * BATCH + 7), dense(8), dense(BATCH)], 4096, 3);
        let expected = [
            vec![bytes(0, 0, 5)],
            vec![bytes(1, 0, BATCH)],
            vec![bytes(1, BATCH, BATCH)],
            vec![bytes(1, 2 * BATCH, 7), bytes(2, 0, 8)],
            vec![bytes(3, 0, BATCH)],
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn holes_cover_whole_grains_from_the_start_of_the_file() {
        let data = [5000..6000, 20_000..20_001, 24_000..24_001];
        let file = [sparse(40_000, &data)];
        let found = batches(&file, 4096, 1).concat();
        let expected = [
            hole(0, 0, 4096),
            bytes(0, 4096, 4096),
            hole(0, 8192, 8192),
            bytes(0, 16_384, 4096),
            bytes(0, 20_480, 4096),
            hole(0, 24_576, 40_000 - 24_576),
        ];
        assert_eq!(found, expected);
        let exact = batches(&file, 1, 1).concat();
        assert_eq!(exact[..2], [hole(0, 0, 5000), bytes(0, 5000, 1000)]);
        let coarse = batches(&file, 1 << 20, 1).concat();
        assert_eq!(coarse, [bytes(0, 0, 40_000)]);
        assert_eq!(batches(&[sparse(9, &[])], 4, 1).concat(), [hole(0, 0, 9)]);
    }

    #[test]
    fn batches_of_sparse_files_hold_stored_bytes_only() {
        let gib = 1 << 30;
        let data = [0..4096, gib..gib + 3 * BATCH / 2, 8 * gib - 100..8 * gib];
        let found = batches(&[dense(100), sparse(8 * gib, &data), dense(100)], 131_072, 2);
        let lens = found.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(found.len(), 3, "{lens:?}");
        let mut count = 0;
        for seed in 0_u64..60 {
            // Extents of all lengths, on both sides of grain and batch boundaries.
            let mut position = 0;
            let mut data = Vec::new();
            let mut next = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            for _ in 0..seed % 9 {
                next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let gap = (next >> 33) % (1 << (4 + seed % 18));
                let len = 1 + (next >> 43) % (1 << (2 + seed % 19));
                data.push(position + gap..position + gap + len);
                position += gap + len;
            }
            let size = position + seed % 3 * 5000;
            let grain = [1, 4096, 131_072, 1 << 20][seed as usize % 4];
            let files = [dense(seed), sparse(size, &data), dense(BATCH / 2), sparse(size, &data)];
            count += batches(&files, grain, 3).len();
        }
        assert!(count > 100);
    }

    #[test]
    fn read_errors_become_parts_and_the_rest_is_read() {
        let bad = |file: Fake| Fake { broken: true, ..file };
        let files = [dense(10), bad(dense(3 * BATCH)), bad(sparse(1 << 40, &[0..9])), dense(10)];
        let found = batches(&files, 4096, 2).concat();
        assert_eq!(found.first(), Some(&bytes(0, 0, 10)));
        assert_eq!(found.last(), Some(&bytes(3, 0, 10)));
        assert!(found.iter().filter(|seen| seen.data == SeenData::Failed).count() >= 4);
    }

    #[test]
    fn a_failed_extent_query_does_not_read_a_sparse_file_in_one_piece() {
        let len = 64 * BATCH;
        let catalog = catalog(vec![sparse(len, &[Range { start: 0, end: len }])], true);
        let (progress, stop) = (Progress::default(), AtomicBool::new(false));
        let job = Job::new(2, &progress, &stop);
        let largest = AtomicU64::new(0);
        let work = |parts: Vec<Part>| {
            for piece in parts.into_iter().filter_map(|part| part.pieces.ok()).flatten() {
                if let Data::Bytes(bytes) = piece.data {
                    largest.fetch_max(bytes.len() as u64, Ordering::Relaxed);
                }
            }
        };
        feed(&job, &catalog, &catalog.files(), 4096, work, |()| Ok(())).unwrap();
        assert!(largest.into_inner() <= BATCH);
    }

    #[test]
    fn stops_on_interrupt_and_at_the_first_writer_error() {
        let catalog = catalog(vec![dense(BATCH); 100], false);
        let (progress, stop) = (Progress::default(), AtomicBool::new(false));
        let job = Job::new(2, &progress, &stop);
        let files = catalog.files();
        let mut taken = 0;
        let outcome = feed(
            &job,
            &catalog,
            &files,
            1,
            |_| (),
            |()| {
                taken += 1;
                if taken == 3 { Err(Error::new(Kind::Io, "full")) } else { Ok(()) }
            },
        );
        assert_eq!((outcome.unwrap_err().kind(), taken), (Kind::Io, 3));
        let mut taken = 0;
        let outcome = feed(
            &job,
            &catalog,
            &files,
            1,
            |_| (),
            |()| {
                taken += 1;
                stop.store(taken == 5, Ordering::Relaxed);
                Ok(())
            },
        );
        assert_eq!((outcome.unwrap_err().kind(), taken), (Kind::Interrupted, 5));
        assert!(progress.now().0 < 100 * BATCH);
    }
}
