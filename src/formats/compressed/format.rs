//! What archfs needs to know of a container: how to find its chunks, and how to decode it.
//!
//! A container is recognized by its first bytes. Its chunks start at points (gzip), or are extents
//! that a `Walk` finds and that several threads decode. A `Pass` decodes a file from start to end.

use super::chunk_cache::Buffers;
use super::chunks::{Chunks, Extent, Size};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{Cursor, index, length};
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::SharedBytes;

/// A container: the row of one in `container`.
pub(super) struct Format {
    pub(super) name: &'static str,
    /// The usual suffix of a file name, such as `.gz`.
    pub(super) suffix: &'static str,
    /// Its number in saved indexes.
    pub(super) number: u8,
    /// Whether a file can start with these bytes. A skippable frame does not count.
    pub(super) recognizes: fn(&[u8]) -> bool,
    pub(super) chunks: ChunkFormat,
    /// `None` if no chunk can be too large to be decoded at once.
    pub(super) spooled: Option<SpoolFormat>,
}

/// What the chunks of a container start with.
pub(super) enum ChunkFormat {
    /// Positions inside a stream of gzip.
    Points,
    Extents(&'static ExtentFormat),
    /// Nothing: a file has one part and is spooled.
    None,
}

/// Starts a pass over a file. The name is for messages.
pub(super) type OpenPass = fn(&str, Arc<dyn Storage>) -> Result<Box<dyn Pass>>;

/// How a file is decoded into a temporary file.
pub(super) struct SpoolFormat {
    /// Why a chunk is too large to be decoded at once; completes "it has ...".
    pub(super) reason: &'static str,
    /// What the owner of the file can do to avoid that.
    pub(super) advice: &'static str,
    /// Starts to decode a file, whatever the size of its chunks. The name is for messages.
    pub(super) open: OpenPass,
}

/// A pass over a file from start to end, which may also find its chunks.
///
/// Invariant: `next` returns each decoded byte once and in order, and those before an error first.
pub(super) trait Pass: Send {
    fn next(&mut self) -> Result<Output>;

    /// Compressed bytes consumed so far.
    fn position(&self) -> u64;

    /// Offset in the file of other data after the end of the container.
    fn trailing_garbage_at(&self) -> Option<u64>;

    /// Decoded bytes that readers may get after damage of the kind `damage`.
    fn usable_len(&self, damage: Kind) -> u64;

    /// The chunks of the first `len` decoded bytes.
    fn into_chunks(self: Box<Self>, _len: u64) -> Chunks {
        Chunks::Spooled
    }
}

/// Most bytes in one piece of decompressed data. Small enough that the allocator reuses its memory
/// for the next one.
pub(super) const PIECE_MAX: usize = 256 << 10;

/// One step of a pass.
pub(super) enum Output {
    /// The next decoded bytes, which may be empty.
    Piece(SharedBytes),
    /// A chunk is too large to be decoded at once. Only a pass that finds chunks returns this.
    ChunkTooLarge,
    End,
}

/// The offset of `cursor` if data that does not belong to the container follows. Warns that archfs
/// ignores it.
pub(super) fn trailing_garbage(
    cursor: &mut Cursor,
    file: &str,
    container: &str,
) -> Result<Option<u64>> {
    let at = cursor.position();
    let found = cursor.has_garbage()?.then_some(at);
    if found.is_some() {
        warn_of_trailing_garbage(file, container, at);
    }
    Ok(found)
}

/// Warns that the bytes of `file` from offset `at` on are ignored.
pub(super) fn warn_of_trailing_garbage(file: &str, container: &str, at: u64) {
    let at = crate::log::detail(format_args!(" at {at:#x}"));
    log::warn!("{file}: bytes after the {container} data{at} are ignored");
}

/// How the extents of a container are found and decoded.
pub(super) struct ExtentFormat {
    /// The name of the container.
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    /// Starts to find the extents of a file. The name is for messages.
    pub(super) walk: fn(&str, &Arc<dyn Storage>) -> Result<Start>,
    /// The most memory that decoding an extent takes, bytes: input, output, and decoder. With the
    /// storage, it may read the header of the extent; otherwise the result is for any header.
    pub(super) memory_needed: fn(Option<&dyn Storage>, &Extent, Size) -> u64,
    /// Decodes an extent to at most this many bytes, at least one.
    pub(super) decode_at_most: fn(&dyn Storage, &Extent, usize, &Buffers) -> Result<Vec<u8>>,
}

/// The unit of offsets of extents in a compressed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Bits,
    Bytes,
}

/// How a first pass over extents starts.
pub(super) enum Start {
    Walk(Box<dyn Walk>),
    /// A chunk is too large to be decoded at once.
    ChunkTooLarge,
    /// The index that lists the extents is damaged.
    NoIndex(Error),
}

/// Finds the extents of a file, and checks what spans several of them.
pub(super) trait Walk: Send {
    fn next(&mut self) -> Result<Next>;

    /// Checks the decoded bytes of `task`. Called in order.
    fn on_decoded(&mut self, _task: &Task, _bytes: &[u8]) -> Result<Verdict> {
        Ok(Verdict::Checked)
    }

    /// Offset in the file of other data after the end of the container.
    fn trailing_garbage_at(&self) -> Option<u64> {
        None
    }

    /// Joins `failed` and the task after it, if the boundary between them may be a false match.
    fn join(&self, _failed: &Task, _next: &Task) -> Option<Task> {
        None
    }

    /// The detail of two adjacent extents merged into one. None if they cannot be merged.
    fn merge(&self, _before: u32, _after: u32) -> Option<u32> {
        None
    }
}

/// One step of a walk.
pub(super) enum Next {
    Task(Task),
    /// An extent too large to be decoded at once.
    ChunkTooLarge,
    End,
}

/// An extent that was found, and what is known of its size before decoding.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) extent: Extent,
    pub(super) size: Size,
    pub(super) note: Note,
}

/// What a walk needs to remember about an extent until it is decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Note {
    None,
    /// bzip2: the end of a stream, without data.
    StreamEnd,
    /// lz4: a part of a frame.
    Frame {
        starts: bool,
        ends: Option<FrameEnd>,
    },
}

/// What the end of an lz4 frame declares about its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FrameEnd {
    pub(super) checksum: Option<u32>,
    pub(super) size: Option<u64>,
}

/// What is known about the bytes up to the end of a decoded extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// They are correct, as far as the file has checksums.
    Checked,
    /// A later checksum covers them.
    Unchecked,
    /// They are correct, and the file ends here.
    End,
}

impl ExtentFormat {
    /// Decodes `extent` and checks its size.
    pub(super) fn decode(
        &self,
        storage: &dyn Storage,
        extent: &Extent,
        size: Size,
        buffers: &Buffers,
    ) -> Result<Vec<u8>> {
        let max_len = index(size.max());
        if max_len == 0 {
            return Ok(Vec::new());
        }
        let decoded = (self.decode_at_most)(storage, extent, max_len, buffers);
        decoded.and_then(|decoded| check_size(decoded, size)).map_err(|error| {
            let (name, unit) = (self.name, self.unit.name());
            let (start, end) = (extent.start, extent.end);
            error
                .within(format_args!("{name} data"))
                .with_detail(format_args!("{name} data in {unit} {start:#x} to {end:#x}"))
        })
    }
}

fn check_size(decoded: Vec<u8>, size: Size) -> Result<Vec<u8>> {
    match size {
        Size::Exactly(size) if size != length(decoded.len()) => {
            Err(Error::corrupt(format!("{size} bytes announced, {} found", decoded.len())))
        }
        _ => Ok(decoded),
    }
}

/// The memory for input and output, bytes: all that most decoders need.
pub(super) fn buffer_memory(_storage: Option<&dyn Storage>, extent: &Extent, size: Size) -> u64 {
    size.max().saturating_add(extent.encoded_len())
}

/// Reads the bytes of `extent` and has `decode` fill a buffer of `max_len` bytes from them;
/// `decode` returns the decoded length.
pub(super) fn decode_whole(
    storage: &dyn Storage,
    extent: &Extent,
    max_len: usize,
    buffers: &Buffers,
    decode: impl FnOnce(&[u8], &mut [u8]) -> Result<usize>,
) -> Result<Vec<u8>> {
    let mut source = buffers.take(index(extent.encoded_len()));
    storage.read_exact_at(&mut source, extent.start)?;
    let mut target = buffers.take(max_len);
    let len = decode(&source, &mut target)?;
    buffers.recycle(source);
    target.truncate(len);
    Ok(target)
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Bits => "bits",
            Self::Bytes => "bytes",
        }
    }

    /// The offset of byte `byte`.
    pub(super) fn of_byte(self, byte: u64) -> u64 {
        match self {
            Self::Bits => byte.saturating_mul(8),
            Self::Bytes => byte,
        }
    }

    /// The byte that holds `offset`.
    pub(super) fn byte(self, offset: u64) -> u64 {
        match self {
            Self::Bits => offset >> 3,
            Self::Bytes => offset,
        }
    }
}
