//! Random access to gzip files: seek points, recorded in one pass over the file.
//!
//! Problem. A gzip file is a sequence of members: a header, DEFLATE data, and a trailer with a
//! checksum. DEFLATE data is a sequence of blocks. A block can start at any bit, and nothing in the
//! file lists where. It may also copy from the 32 KiB decoded before it. To read the last byte of a
//! gzip file, a decoder must therefore decode the whole file.
//!
//! Idea (from zran.c, an example that comes with zlib). Between two blocks, the only state of a
//! decoder is its bit position and the last 32 KiB of its output, the window. A decoder that gets
//! both can resume there. archfs must decode each new file once anyway, to index the archive in it.
//! During this pass (`GzipPass`) it records seek points. A point consists of an offset in the
//! decoded bytes, the bit where the next block starts, and the window. A point at the header of a
//! member has no window, because members do not copy from each other.
//!
//! A point is recorded at the first block boundary that is at least 3/4 MiB of decoded bytes after
//! the last point. A block usually decodes to 50 to 400 KiB; most points are therefore less than 1
//! MiB apart. The bytes from one point to the next are a chunk, the unit that archfs decodes
//! (`decode`) and caches. A read finds the chunks that hold its bytes, and decodes each from its
//! point. If one huge block makes a chunk larger than 64 MiB, the pass returns `Output::ChunkTooLarge`.
//! archfs then decodes the file into a temporary file instead.
//!
//! A checksum covers a whole member. The pass checks all of them. A chunk that starts inside a
//! member is decoded without a check.
//!
//! Cost. Windows are compressed with zstd to 5 to 20 KiB each, 1 to 2 % of the decoded bytes. For a
//! large file, that is too much memory. Whenever there are more than 8192 points (first at 6 GiB of
//! decoded bytes), the pass doubles their spacing and drops about half of them. The spacing stops
//! at 24 MiB, which files of more than 96 GiB reach. A random read in such a file decodes about 24
//! MiB. Compressing a window takes about 0.1 ms, 1/40 of the time to decode 3/4 MiB. The pass uses
//! one thread, because a block boundary is known only when everything before it has been decoded.
//!
//! Invariant: a chunk depends only on its point and the compressed data from that bit on.

mod member;

use member::{Event, MemberDecoder};

use super::buffers::Buffers;
use super::chunk_cache::ChunkCache;
use super::cursor::Cursor;
use super::format::{ChunkDecoder, ContainerFormat};
use super::forward::Forward;
use super::pass::{Output, Pass, Start};
use super::point::{CompressedWindow, Point, PointDecoder};
use super::seek_index::Chunks;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::formats::limits::{
    GIANT_CHUNK_MAX, GZIP_POINTS_MAX, GZIP_SPACING, GZIP_SPACING_MAX, GZIP_WINDOW,
};
use crate::storage::{FileRange, Storage};
use crate::sync::Arc;
use crate::vfs::SharedBytes;

/// Bytes read from the file at a time.
const STRIDE: usize = 256 << 10;

/// Compressed bytes past the end of a chunk that the decoder may look at.
const AHEAD: u64 = 64;

/// Decoded bytes delivered at a time.
const PIECE: usize = 256 << 10;

pub(super) struct Gzip;

impl ContainerFormat for Gzip {
    fn recognises(&self, head: &[u8]) -> bool {
        // The method is always 8, DEFLATE.
        head.starts_with(&[0x1f, 0x8b, 8])
    }

    fn first_pass(
        &self,
        name: &str,
        storage: &Arc<dyn Storage>,
        _cache: &Arc<ChunkCache>,
    ) -> Result<Start> {
        Ok(Start::Pass(Box::new(GzipPass::new(name, Arc::clone(storage)))))
    }

    fn open_forward(&self, name: &str, storage: Arc<dyn Storage>) -> Result<Box<dyn Forward>> {
        Ok(Box::new(GzipPass::open_forward(name, storage)))
    }

    fn chunk_decoder(&self) -> ChunkDecoder {
        ChunkDecoder::Points(&Self)
    }

    fn too_large_reason(&self) -> &'static str {
        "a deflate block of more than 64 MiB"
    }

    fn advice(&self) -> &'static str {
        "re-pack it: gzip -dc FILE | gzip > NEW"
    }
}

/// The first pass over a gzip file: delivers the decoded bytes and records seek points.
pub(super) struct GzipPass {
    members: MemberDecoder,
    points: Vec<Point>,
    /// Least distance of two points, decoded bytes.
    spacing: u64,
    /// Number of points above which they are thinned. If it is zero, no points are recorded.
    points_max: usize,
    /// A decoding error, kept until the bytes decoded before it are delivered.
    damage: Option<Error>,
    ended: bool,
}

impl GzipPass {
    fn new(name: &str, storage: Arc<dyn Storage>) -> Self {
        Self::with_points_max(name, storage, GZIP_POINTS_MAX)
    }

    /// A pass that records no points, and therefore accepts blocks of any size.
    fn open_forward(name: &str, storage: Arc<dyn Storage>) -> Self {
        Self::with_points_max(name, storage, 0)
    }

    /// A pass that thins its points whenever there are more than `points_max`.
    pub(super) fn with_points_max(
        name: &str,
        storage: Arc<dyn Storage>,
        points_max: usize,
    ) -> Self {
        let buffer = PIECE.saturating_add(GZIP_WINDOW);
        Self {
            members: MemberDecoder::new(Cursor::new(storage, 0, STRIDE), vec![0; buffer])
                .with_warning(name),
            points: Vec::new(),
            spacing: GZIP_SPACING,
            points_max,
            damage: None,
            ended: false,
        }
    }

    /// Records a point here if the last one is at least `spacing` away.
    fn record_point_if_due(&mut self, bit: u64, at_header: bool) -> Result<()> {
        let decoded = self.members.decoded();
        let due = match self.points.last() {
            None => true,
            Some(last) => decoded.saturating_sub(last.decoded) >= self.spacing,
        };
        let window_bytes = self.members.window();
        // A saved point without a window means the header of a member. The window is also empty
        // after blocks without data at the start of a member; these boundaries are not recorded.
        if self.points_max == 0 || !due || (!at_header && window_bytes.is_empty()) {
            return Ok(());
        }
        let window = match at_header {
            true => None,
            false => CompressedWindow::compress(window_bytes)?,
        };
        self.points.push(Point { decoded, bit, window });
        if self.points.len() > self.points_max && self.spacing < GZIP_SPACING_MAX {
            self.spacing = self.spacing.saturating_mul(2);
            thin(&mut self.points, self.spacing);
        }
        Ok(())
    }
}

impl Pass for GzipPass {
    /// Decodes until the buffer is full and returns its bytes. Records a point at each boundary on
    /// the way that is far enough from the last one.
    fn next(&mut self) -> Result<Output> {
        while self.damage.is_none() && !self.ended && !self.members.is_full() {
            match self.members.step() {
                Ok(Event::Full) => {}
                Ok(Event::Boundary { bit, at_header }) => {
                    self.record_point_if_due(bit, at_header)?;
                }
                Ok(Event::End) => self.ended = true,
                Err(error) => self.damage = Some(error),
            }
            let last = self.points.last().map_or(0, |point| point.decoded);
            if self.points_max > 0 && self.members.decoded().saturating_sub(last) > GIANT_CHUNK_MAX
            {
                return Ok(Output::ChunkTooLarge);
            }
        }
        let piece = self.members.take();
        if !piece.is_empty() {
            return Ok(Output::Piece(piece));
        }
        self.damage.take().map_or(Ok(Output::End), |error| {
            self.ended = true;
            Err(error)
        })
    }

    fn position(&self) -> u64 {
        self.members.position()
    }

    fn trailing_garbage_at(&self) -> Option<u64> {
        self.members.trailing_garbage_at()
    }

    fn usable_len(&self, damage: Kind) -> u64 {
        self.members.usable_len(damage)
    }

    /// The points before `len`, the decoded bytes that can be read. A point at `len` has no chunk.
    fn into_chunks(mut self: Box<Self>, len: u64) -> Chunks {
        self.points.retain(|point| point.decoded < len);
        Chunks::Points(self.points)
    }
}

impl Forward for GzipPass {
    fn next(&mut self) -> Result<Option<SharedBytes>> {
        match Pass::next(self)? {
            Output::Piece(piece) => Ok(Some(piece)),
            Output::ChunkTooLarge | Output::End => Ok(None),
        }
    }

    fn position(&self) -> u64 {
        Pass::position(self)
    }

    fn trailing_garbage_at(&self) -> Option<u64> {
        Pass::trailing_garbage_at(self)
    }

    fn usable_len(&self, damage: Kind) -> u64 {
        Pass::usable_len(self, damage)
    }
}

/// Thins `points`: drops those that are less than `spacing` after the last one kept, unless that
/// would make a giant chunk. The first and the last point stay.
fn thin(points: &mut Vec<Point>, spacing: u64) {
    let starts: Vec<u64> = points.iter().map(|point| point.decoded).collect();
    let mut nexts = starts.into_iter().skip(1);
    let mut kept: Option<u64> = None;
    points.retain(|point| {
        let next = nexts.next();
        let keep = match (kept, next) {
            (Some(kept), Some(next)) => {
                point.decoded.saturating_sub(kept) >= spacing
                    || next.saturating_sub(kept) > GIANT_CHUNK_MAX
            }
            _ => true,
        };
        if keep {
            kept = Some(point.decoded);
        }
        keep
    });
    points.shrink_to_fit();
}

impl PointDecoder for Gzip {
    /// The window and the chunk in one buffer, the compressed and the decompressed window, the read
    /// buffer, and the decoder.
    fn memory_needed(&self, len: u64) -> u64 {
        len.saturating_add(length(STRIDE)).saturating_add(length(GZIP_WINDOW).saturating_mul(4))
    }

    fn decode(
        &self,
        storage: &Arc<dyn Storage>,
        point: &Point,
        end: Option<u64>,
        len: u64,
        buffers: &Buffers,
    ) -> Result<Vec<u8>> {
        let window = point.window.as_ref().map_or(Ok(Vec::new()), CompressedWindow::decompress)?;
        let size = window.len().saturating_add(index(len));
        // Do not read past the next point: if the data compresses well, a stride holds many chunks.
        let end = end.map_or(u64::MAX, |bit| bit.div_ceil(8).saturating_add(AHEAD));
        let file_range = FileRange::new(Arc::clone(storage), 0)?.cut(end.min(storage.len()))?;
        let cursor = Cursor::new(Arc::new(file_range), point.bit >> 3, STRIDE);
        let mut members = match &point.window {
            None => MemberDecoder::new(cursor, buffers.take(size)),
            Some(_) => MemberDecoder::resume(cursor, point.bit, &window, buffers.take(size))?,
        };
        while !members.is_full() {
            match members.step() {
                Ok(Event::End) => break,
                // Boundaries inside the chunk do not matter.
                Ok(_) => {}
                // The chunk is complete, and the error is after it: the file ends in the trailer,
                // or the header of the next member is damaged.
                Err(error) if error.kind() == Kind::Truncated && members.is_full() => break,
                Err(_) if members.is_full_before_header() => break,
                Err(error) => return Err(error),
            }
        }
        let bytes = members.into_rest();
        match length(bytes.len()) == len {
            true => Ok(bytes),
            false => Err(Error::corrupt(format!(
                "{len} bytes needed from bit {:#x}, {} found",
                point.bit,
                bytes.len()
            ))),
        }
    }
}
