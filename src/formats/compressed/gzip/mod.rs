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
//! The pass records a point at the first block that starts at least 3/4 MiB of decoded bytes after
//! the last point. A block usually decodes to 50 to 400 KiB. Most points are therefore less than 1
//! MiB apart. The bytes from one point to the next are a chunk, the unit that archfs decodes
//! (`decode`) and caches. A read finds the chunks that hold its bytes, and decodes each from its
//! point. If one huge block makes a chunk larger than 64 MiB, the pass returns
//! `Output::ChunkTooLarge`. archfs then decodes the file into a temporary file.
//!
//! A checksum covers a whole member. The pass checks all of them. A chunk that starts inside a
//! member is decoded without a check.
//!
//! Cost. Windows are compressed with zstd to 5 to 20 KiB each, 1 to 2 % of the decoded bytes. For a
//! large file, that is too much memory. If there are more than 8192 points (first at 6 GiB of
//! decoded bytes), the pass doubles their spacing and drops about half of them. In files above 96
//! GiB the spacing is 24 MiB, the maximum, and a random read decodes about 24 MiB. Compressing a
//! window takes about 0.1 ms, 1/40 of the time to decode 3/4 MiB. The pass uses one thread, because
//! a block boundary is known only when everything before it has been decoded.
//!
//! Invariant: a chunk depends only on its point and the compressed data from that bit on.

mod member;

use member::{Event, MemberDecoder, READ_SIZE};

use super::chunk_cache::Buffers;
use super::chunks::{Chunks, CompressedWindow, Point};
use super::format::{Output, PIECE_MAX, Pass, warn_of_trailing_garbage};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::Cursor;
use crate::formats::bytes::{index, length};
use crate::formats::limits::{
    CHUNK_MAX, GZIP_POINTS_MAX, GZIP_SPACING, GZIP_SPACING_MAX, GZIP_WINDOW,
};
use crate::storage::{FileRange, Storage};
use crate::sync::Arc;

pub(super) const NAME: &str = "gzip";

/// Compressed bytes past the end of a chunk that the decoder gets. It needs none of them, but its
/// fast loop runs only with at least 14 bytes of input.
const LOOKAHEAD: u64 = 64;

pub(super) fn recognizes(head: &[u8]) -> bool {
    // The method is always 8, DEFLATE.
    head.starts_with(&[0x1f, 0x8b, 8])
}

/// Starts a pass that finds no chunks, over blocks of any size.
pub(super) fn open(name: &str, storage: Arc<dyn Storage>) -> Result<Box<dyn Pass>> {
    Ok(Box::new(GzipPass::new(name, storage, None)))
}

/// Starts a pass that records seek points.
pub(super) fn first_pass(name: &str, storage: Arc<dyn Storage>) -> Box<dyn Pass> {
    first_pass_within(name, storage, GZIP_POINTS_MAX)
}

/// Starts a pass that thins its seek points if there are more than `points_max`.
pub(super) fn first_pass_within(
    name: &str,
    storage: Arc<dyn Storage>,
    points_max: usize,
) -> Box<dyn Pass> {
    Box::new(GzipPass::new(name, storage, Some(PointRecorder::new(points_max))))
}

/// A pass over a gzip file.
///
/// Invariant: everything decoded before damage is delivered before the error.
struct GzipPass {
    name: String,
    decoder: MemberDecoder,
    /// None if the file is decoded into a temporary file.
    recorder: Option<PointRecorder>,
    /// A decoding error, kept until the bytes decoded before it are delivered.
    damage: Option<Error>,
    ended: bool,
}

impl GzipPass {
    fn new(name: &str, storage: Arc<dyn Storage>, recorder: Option<PointRecorder>) -> Self {
        let buffer = vec![0; PIECE_MAX.saturating_add(GZIP_WINDOW)];
        let decoder = MemberDecoder::new(Cursor::new(storage, 0, READ_SIZE), buffer);
        Self { name: name.to_owned(), decoder, recorder, damage: None, ended: false }
    }

    /// Decodes up to the next event. None if a piece must be delivered first, or after the end.
    fn step(&mut self) -> Option<Event> {
        if self.damage.is_some() || self.ended || self.decoder.is_full() {
            return None;
        }
        match self.decoder.step() {
            Ok(event) => {
                if matches!(event, Event::End) {
                    self.ended = true;
                    if let Some(at) = self.decoder.trailing_garbage_at() {
                        warn_of_trailing_garbage(&self.name, NAME, at);
                    }
                }
                Some(event)
            }
            Err(error) => {
                self.damage = Some(error);
                None
            }
        }
    }

    /// The bytes decoded since the last call. After them the error, if there is one; then the end.
    fn deliver(&mut self) -> Result<Output> {
        let piece = self.decoder.take_output();
        if !piece.is_empty() {
            return Ok(Output::Piece(piece));
        }
        self.damage.take().map_or(Ok(Output::End), |error| {
            self.ended = true;
            Err(error)
        })
    }
}

impl Pass for GzipPass {
    fn next(&mut self) -> Result<Output> {
        loop {
            let event = self.step();
            let decoded = self.decoder.decoded_len();
            if let Some(recorder) = &mut self.recorder {
                if recorder.distance(decoded) > CHUNK_MAX {
                    return Ok(Output::ChunkTooLarge);
                }
                match event {
                    Some(Event::BlockStart(bit)) => {
                        recorder.on_block_start(decoded, bit, self.decoder.window())?;
                    }
                    Some(Event::MemberStart(bit)) => recorder.on_member_start(decoded, bit),
                    _ => {}
                }
            }
            if event.is_none() {
                return self.deliver();
            }
        }
    }

    fn position(&self) -> u64 {
        self.decoder.position()
    }

    fn trailing_garbage_at(&self) -> Option<u64> {
        self.decoder.trailing_garbage_at()
    }

    fn usable_len(&self, damage: Kind) -> u64 {
        self.decoder.usable_len(damage)
    }

    fn into_chunks(self: Box<Self>, len: u64) -> Chunks {
        let recorder = self.recorder;
        recorder.map_or(Chunks::Spooled, |recorder| Chunks::Points(recorder.into_points(len)))
    }
}

/// The most memory that decoding a chunk of `len` bytes takes, bytes.
///
/// These are the chunk, the read buffer, and four times the size of a window: the window as saved,
/// decompressed, and before the chunk in its buffer, and less than that for the decoder.
pub(super) fn memory_needed(len: u64) -> u64 {
    len.saturating_add(length(READ_SIZE)).saturating_add(length(GZIP_WINDOW).saturating_mul(4))
}

/// Decodes the `len` bytes from `point` on. `end` is the bit of the next point, if there is one.
pub(super) fn decode(
    storage: &Arc<dyn Storage>,
    point: &Point,
    end: Option<u64>,
    len: u64,
    buffers: &Buffers,
) -> Result<Vec<u8>> {
    let window = point.window.as_ref().map_or(Ok(Vec::new()), CompressedWindow::decompress)?;
    let size = window.len().saturating_add(index(len));
    // Do not read far past the next point: if the data compresses well, READ_SIZE bytes hold
    // many chunks.
    let end = end.map_or(u64::MAX, |bit| bit.div_ceil(8).saturating_add(LOOKAHEAD));
    let file_range = FileRange::new(Arc::clone(storage), 0)?.cut(end.min(storage.len()))?;
    let cursor = Cursor::new(Arc::new(file_range), point.bit >> 3, READ_SIZE);
    let mut decoder = match &point.window {
        None => MemberDecoder::new(cursor, buffers.take(size)),
        Some(_) => MemberDecoder::resume(cursor, point.bit, &window, buffers.take(size))?,
    };
    while !decoder.is_full() {
        match decoder.step() {
            Ok(Event::End) => break,
            Ok(_) => {}
            // If the chunk is complete, bytes missing after it do not matter.
            Err(error) if error.kind() == Kind::Truncated && decoder.is_full() => break,
            Err(error) => return Err(error),
        }
    }
    let bytes = decoder.into_untaken();
    match length(bytes.len()) == len {
        true => Ok(bytes),
        false => Err(Error::corrupt(format!("{len} bytes needed, {} found", bytes.len()))
            .with_detail(format_args!("decompressed from bit {:#x}", point.bit))),
    }
}

/// Records the seek points of a pass.
///
/// Invariant: thinning makes no chunk of more than `CHUNK_MAX`.
struct PointRecorder {
    points: Vec<Point>,
    /// Least distance of two points, decoded bytes.
    spacing: u64,
    /// Number of points above which they are thinned.
    points_max: usize,
}

impl PointRecorder {
    fn new(points_max: usize) -> Self {
        Self { points: Vec::new(), spacing: GZIP_SPACING, points_max }
    }

    /// Decoded bytes from the last point to `decoded`.
    fn distance(&self, decoded: u64) -> u64 {
        decoded.saturating_sub(self.points.last().map_or(0, |point| point.decoded))
    }

    /// Records the header of a member at `bit`, if it is far enough from the last point.
    fn on_member_start(&mut self, decoded: u64, bit: u64) {
        if self.is_due(decoded) {
            self.record(Point { decoded, bit, window: None });
        }
    }

    /// Records a block at `bit`, if it is far enough from the last point.
    ///
    /// A point without a window means a member header. A block before the first byte of its member
    /// is not recorded, because its window would be empty too.
    fn on_block_start(&mut self, decoded: u64, bit: u64, window: &[u8]) -> Result<()> {
        if self.is_due(decoded) && !window.is_empty() {
            let window = CompressedWindow::compress(window)?;
            self.record(Point { decoded, bit, window });
        }
        Ok(())
    }

    /// The points before `len`, the decoded bytes that can be read. A point at `len` has no chunk.
    fn into_points(mut self, len: u64) -> Vec<Point> {
        self.points.retain(|point| point.decoded < len);
        self.points
    }

    fn is_due(&self, decoded: u64) -> bool {
        self.points.is_empty() || self.distance(decoded) >= self.spacing
    }

    fn record(&mut self, point: Point) {
        self.points.push(point);
        if self.points.len() > self.points_max && self.spacing < GZIP_SPACING_MAX {
            self.spacing = self.spacing.saturating_mul(2);
            self.points = thin(std::mem::take(&mut self.points), self.spacing);
        }
    }
}

/// The points that are at least `spacing` after the last one kept. The first and the last stay.
fn thin(points: Vec<Point>, spacing: u64) -> Vec<Point> {
    let gap = |from: &Point, to: &Point| to.decoded.saturating_sub(from.decoded);
    let mut kept: Vec<Point> = Vec::new();
    let mut points = points.into_iter().peekable();
    while let Some(point) = points.next() {
        let stays = match (kept.last(), points.peek()) {
            // Without the point, the chunk from `last` would reach to `next`.
            (Some(last), Some(next)) => gap(last, &point) >= spacing || gap(last, next) > CHUNK_MAX,
            _ => true,
        };
        if stays {
            kept.push(point);
        }
    }
    kept.shrink_to_fit();
    kept
}
