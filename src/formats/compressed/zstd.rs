//! Frames of zstd files (RFC 8878), found by their headers or by the seek table at the end.
//!
//! Small frames that follow each other are joined into one extent.
//!
//! Invariant: a frame decodes to at most the size in its header, or what its blocks can hold. The
//! seek table and the headers are not trusted beyond that.

use super::chunks::{Extent, Size};
use super::format::{
    ExtentFormat, Next, Note, Pass, Start, Task, Unit, Walk, buffer_memory, decode_whole,
};
use super::skippable::{end_of_frames, is_skippable, skip_to_frame};
use super::streams::{self, StreamFormat};
use crate::codecs::{Codec, zstd_stream};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::Cursor;
use crate::formats::bytes::{Reader, index};
use crate::formats::limits::{CHUNK_MAX, CHUNK_TARGET, ZSTD_BLOCK_MAX, ZSTD_SEEK_TABLE_MAX};
use crate::storage::Storage;
use crate::sync::Arc;

pub(super) const NAME: &str = "zstd";

const MAGIC: u32 = 0xfd2f_b528;

/// Magic numbers of the frame of a seek table and of its footer
/// (zstd_seekable_compression_format.md).
const SEEK_TABLE: u32 = 0x184d_2a5e;
const SEEK_TABLE_END: u32 = 0x8f92_eab1;
const SEEK_TABLE_FOOTER: u64 = 9;

/// Bytes of the file that a `Cursor` reads at a time. Block headers are up to 128 KiB apart.
const READ_SIZE: usize = 64 << 10;

pub(super) const FRAMES: &ExtentFormat = &ExtentFormat {
    name: NAME,
    unit: Unit::Bytes,
    walk: |name, storage| Ok(Start::Walk(Box::new(Frames::new(name, Arc::clone(storage))?))),
    memory_needed: buffer_memory,
    decode_at_most: |storage, extent, max_len, buffers| {
        decode_whole(storage, extent, max_len, buffers, |frames, target| {
            Codec::Zstd.decode(frames, target)
        })
    },
};

static STREAMS: StreamFormat = StreamFormat {
    name: NAME,
    padding_max: None,
    decoder_per_stream: false,
    decoder: |memory| Ok(Box::new(zstd_stream(memory)?)),
    is_stream: |cursor| {
        Ok(cursor.magic()?.is_some_and(|magic| magic == MAGIC || is_skippable(magic)))
    },
};

pub(super) fn recognizes(head: &[u8]) -> bool {
    head.starts_with(&MAGIC.to_le_bytes())
}

pub(super) fn open(name: &str, storage: Arc<dyn Storage>) -> Result<Box<dyn Pass>> {
    streams::open(&STREAMS, name, storage)
}

/// Finds the frames of a zstd file.
struct Frames {
    name: String,
    cursor: Cursor,
    /// The sizes of the frames from the seek table, compressed and decoded.
    table: Option<std::vec::IntoIter<(u32, u32)>>,
    /// The result of `frame` that ended the last run: a frame that did not fit, the end, or an
    /// error.
    lookahead: Option<Result<Option<Task>>>,
    /// Offset of other data after the last frame.
    trailing_garbage_at: Option<u64>,
}

impl Frames {
    fn new(name: &str, storage: Arc<dyn Storage>) -> Result<Self> {
        let table = seek_table(&*storage)?.map(Vec::into_iter);
        let cursor = Cursor::new(storage, 0, READ_SIZE);
        Ok(Self {
            name: name.to_owned(),
            cursor,
            table,
            lookahead: None,
            trailing_garbage_at: None,
        })
    }

    /// The next frame.
    fn next_frame(&mut self) -> Result<Option<Task>> {
        let (start, size) = if let Some(table) = &mut self.table {
            let Some((encoded, decoded)) = table.next() else {
                return Ok(None);
            };
            let start = self.cursor.position();
            self.cursor.skip(encoded.into())?;
            (start, Size::Exactly(decoded.into()))
        } else {
            if skip_to_frame(&mut self.cursor, &[MAGIC])?.is_none() {
                self.trailing_garbage_at = end_of_frames(&mut self.cursor, &self.name, NAME)?;
                return Ok(None);
            }
            let start = self.cursor.position();
            let size = self.skip_frame().map_err(|error| {
                error.within("zstd frame").with_detail(format_args!("zstd frame at {start:#x}"))
            })?;
            (start, size)
        };
        let extent = Extent { decoded: 0, start, end: self.cursor.position(), detail: 0 };
        Ok(Some(Task { extent, size, note: Note::None }))
    }

    /// Walks over the headers of one frame and returns its decoded size. Stops early if the frame
    /// is a giant.
    fn skip_frame(&mut self) -> Result<Size> {
        self.cursor.skip(4)?;
        let (declared, has_checksum) = self.read_header()?;
        if declared.is_some_and(|size| size > CHUNK_MAX) {
            return Ok(Size::AtMost(u64::MAX));
        }
        let mut bound = 0_u64;
        loop {
            let [low, middle, high] = self.cursor.array()?;
            let header = u32::from_le_bytes([low, middle, high, 0]);
            let size = u64::from(header >> 3);
            let (encoded, decoded) = match (header >> 1) & 3 {
                0 => (size, size),
                1 => (1, size),
                2 => (size, ZSTD_BLOCK_MAX),
                _ => return Err(Error::corrupt("a block of the reserved type")),
            };
            bound = bound.saturating_add(decoded);
            self.cursor.skip(encoded)?;
            if declared.is_none() && bound > CHUNK_MAX {
                return Ok(Size::AtMost(u64::MAX));
            }
            if header & 1 != 0 {
                break;
            }
        }
        if has_checksum {
            self.cursor.skip(4)?;
        }
        Ok(declared.map_or(Size::AtMost(bound), Size::Exactly))
    }

    /// Parses a frame header. Returns the decoded size, if it is declared, and whether a checksum
    /// follows the frame.
    fn read_header(&mut self) -> Result<(Option<u64>, bool)> {
        let [descriptor] = self.cursor.array()?;
        let single_segment = descriptor & 0x20 != 0;
        if descriptor & 8 != 0 {
            return Err(Error::corrupt("a reserved bit is set"));
        }
        if !single_segment {
            self.cursor.skip(1)?;
        }
        let dictionary = match descriptor & 3 {
            0 => 0,
            1 => self.cursor.array::<1>().map(|[byte]| u32::from(byte))?,
            2 => self.cursor.array().map(u16::from_le_bytes)?.into(),
            _ => self.cursor.u32()?,
        };
        if dictionary != 0 {
            let error = format!("it needs the dictionary {dictionary}, which archfs does not have");
            return Err(Error::new(Kind::Unsupported, error));
        }
        let size = match (descriptor >> 6, single_segment) {
            (0, false) => None,
            (0, true) => Some(self.cursor.array::<1>().map(|[byte]| u64::from(byte))?),
            (1, _) => {
                let size: u64 = self.cursor.array().map(u16::from_le_bytes)?.into();
                Some(size.saturating_add(256))
            }
            (2, _) => Some(self.cursor.u32()?.into()),
            _ => Some(self.cursor.array().map(u64::from_le_bytes)?),
        };
        Ok((size, descriptor & 4 != 0))
    }
}

impl Walk for Frames {
    fn trailing_garbage_at(&self) -> Option<u64> {
        self.trailing_garbage_at
    }

    fn next(&mut self) -> Result<Next> {
        let first = self.lookahead.take().unwrap_or_else(|| self.next_frame())?;
        let Some(mut run) = first else {
            return Ok(Next::End);
        };
        while !run.extent.is_giant(run.size) {
            match self.next_frame() {
                Ok(Some(next))
                    if next.extent.start == run.extent.end
                        && run.size.and(next.size).max() <= CHUNK_TARGET
                        && next.extent.end.saturating_sub(run.extent.start) <= CHUNK_TARGET =>
                {
                    run.extent.end = next.extent.end;
                    run.size = run.size.and(next.size);
                }
                found => {
                    self.lookahead = Some(found);
                    return Ok(Next::Task(run));
                }
            }
        }
        Ok(Next::ChunkTooLarge)
    }

    fn merge(&self, _before: u32, _after: u32) -> Option<u32> {
        Some(0)
    }
}

/// The entries of the seek table at the end of a file: compressed and decoded sizes. None if there
/// is no table, or if it does not match the file.
fn seek_table(storage: &dyn Storage) -> Result<Option<Vec<(u32, u32)>>> {
    let Some(footer_start) = storage.len().checked_sub(SEEK_TABLE_FOOTER) else {
        return Ok(None);
    };
    let mut footer = [0; 9];
    storage.read_exact_at(&mut footer, footer_start)?;
    let [n0, n1, n2, n3, descriptor, magic @ ..] = footer;
    if u32::from_le_bytes(magic) != SEEK_TABLE_END || descriptor & 0x7c != 0 {
        return Ok(None);
    }
    let count = u64::from(u32::from_le_bytes([n0, n1, n2, n3]));
    let has_checksums = descriptor & 0x80 != 0;
    let size = count.saturating_mul(if has_checksums { 12 } else { 8 });
    let start = footer_start.checked_sub(size).and_then(|start| start.checked_sub(8));
    let Some(start) = start.filter(|_| size <= ZSTD_SEEK_TABLE_MAX) else {
        return Ok(None);
    };
    let mut bytes = vec![0; index(size.saturating_add(8))];
    storage.read_exact_at(&mut bytes, start)?;
    let mut reader = Reader::new("zstd seek table", &bytes);
    let frame = (reader.u32()?, u64::from(reader.u32()?));
    if frame != (SEEK_TABLE, size.saturating_add(SEEK_TABLE_FOOTER)) {
        return Ok(None);
    }
    let mut entries = Vec::with_capacity(index(count));
    let mut end = 0_u64;
    for _ in 0..count {
        let entry = (reader.u32()?, reader.u32()?);
        if has_checksums {
            reader.u32()?;
        }
        end = end.saturating_add(entry.0.into());
        entries.push(entry);
    }
    Ok((end == start).then_some(entries))
}
