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
//! `Output::ChunkTooLarge`. archfs then decodes the file into a temporary file (`GzipForward`).
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
mod pieces;
mod point_recorder;

use member::{Event, MemberDecoder, READ_SIZE};
use pieces::Pieces;
use point_recorder::PointRecorder;

use super::buffers::Buffers;
use super::chunk_cache::ChunkCache;
use super::format::{ChunkDecoder, ContainerFormat};
use super::forward::Forward;
use super::pass::{Output, Pass, Start};
use super::point::{CompressedWindow, Point, PointDecoder};
use super::seek_index::Chunks;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::formats::cursor::Cursor;
use crate::formats::limits::{CHUNK_MAX, GZIP_POINTS_MAX, GZIP_WINDOW};
use crate::storage::{FileRange, Storage};
use crate::sync::Arc;
use crate::vfs::SharedBytes;

/// Compressed bytes past the end of a chunk that the decoder gets. It needs none of them, but its
/// fast loop runs only with at least 14 bytes of input.
const LOOKAHEAD: u64 = 64;

/// The gzip container format.
pub(super) struct Gzip;

impl ContainerFormat for Gzip {
    fn recognizes(&self, head: &[u8]) -> bool {
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
        Ok(Box::new(GzipForward(Pieces::new(name, storage))))
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
    pieces: Pieces,
    recorder: PointRecorder,
}

/// Decodes a gzip file from start to end, with blocks of any size.
struct GzipForward(Pieces);

impl GzipPass {
    fn new(name: &str, storage: Arc<dyn Storage>) -> Self {
        Self::with_points_max(name, storage, GZIP_POINTS_MAX)
    }

    /// A pass that thins its points if there are more than `points_max`.
    pub(super) fn with_points_max(
        name: &str,
        storage: Arc<dyn Storage>,
        points_max: usize,
    ) -> Self {
        Self { pieces: Pieces::new(name, storage), recorder: PointRecorder::new(points_max) }
    }

    /// Decodes until a piece is complete, and records points on the way.
    fn fill(&mut self) -> Result<ChunkSize> {
        loop {
            let event = self.pieces.step();
            let decoded = self.pieces.decoder().decoded_len();
            if self.recorder.distance(decoded) > CHUNK_MAX {
                return Ok(ChunkSize::TooLarge);
            }
            match event {
                Some(Event::BlockStart(bit)) => {
                    let window = self.pieces.decoder().window();
                    self.recorder.on_block_start(decoded, bit, window)?;
                }
                Some(Event::MemberStart(bit)) => self.recorder.on_member_start(decoded, bit),
                Some(Event::BufferFull | Event::MemberEnd | Event::End) => {}
                None => return Ok(ChunkSize::Fits),
            }
        }
    }
}

/// Whether the chunk that is being decoded can be decoded at once.
enum ChunkSize {
    Fits,
    TooLarge,
}

impl Pass for GzipPass {
    fn next(&mut self) -> Result<Output> {
        match self.fill()? {
            ChunkSize::TooLarge => Ok(Output::ChunkTooLarge),
            ChunkSize::Fits => Ok(self.pieces.deliver()?.map_or(Output::End, Output::Piece)),
        }
    }

    fn position(&self) -> u64 {
        self.pieces.decoder().position()
    }

    fn trailing_garbage_at(&self) -> Option<u64> {
        self.pieces.decoder().trailing_garbage_at()
    }

    fn usable_len(&self, damage: Kind) -> u64 {
        self.pieces.decoder().usable_len(damage)
    }

    fn into_chunks(self: Box<Self>, len: u64) -> Chunks {
        Chunks::Points(self.recorder.into_points(len))
    }
}

impl Forward for GzipForward {
    fn next(&mut self) -> Result<Option<SharedBytes>> {
        while self.0.step().is_some() {}
        self.0.deliver()
    }

    fn position(&self) -> u64 {
        self.0.decoder().position()
    }

    fn trailing_garbage_at(&self) -> Option<u64> {
        self.0.decoder().trailing_garbage_at()
    }

    fn usable_len(&self, damage: Kind) -> u64 {
        self.0.decoder().usable_len(damage)
    }
}

impl PointDecoder for Gzip {
    /// The chunk, the read buffer, and four times the size of a window: the window as saved,
    /// decompressed, and before the chunk in its buffer, and less than that for the decoder.
    fn memory_needed(&self, len: u64) -> u64 {
        len.saturating_add(length(READ_SIZE)).saturating_add(length(GZIP_WINDOW).saturating_mul(4))
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
}
