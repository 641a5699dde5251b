//! Random access to compressed files (data.tar.gz) with bounded memory.
//!
//! A `FirstPass` decodes the file once and finds seek points, where decoding can start. A
//! `Compressed` is storage of the decoded bytes: to read at an offset, it decodes from the seek
//! point before it. The bytes between two seek points are a chunk.
//!
//! Invariant: no chunk of more than `GIANT_CHUNK_MAX` decoded bytes is ever held in memory. A file
//! that has one is decoded into a temporary file (`spool`).

mod buffers;
mod bzip2;
mod chunks;
mod cursor;
mod extent;
mod first_pass;
mod forward;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod gzip;
mod lz4;
mod pipeline;
mod seek_index;
mod seek_storage;
mod spool;
mod spool_limit;
#[cfg(test)]
mod tests;
mod xz;
mod zstd;

pub(crate) use chunks::ChunkCache;
pub(crate) use first_pass::FirstPass;
pub(crate) use seek_index::SeekIndex;
pub(crate) use seek_storage::Compressed;

/// The compressed file formats, recognised by their first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Container {
    /// RFC 1952, with any number of members.
    Gzip,
    Bzip2,
    /// The .xz format 1.0.4 and later.
    Xz,
    /// RFC 8878, with or without a seek table.
    Zstd,
    /// LZ4 frames, also those of the legacy format.
    Lz4,
}

impl Container {
    /// The container of a file that starts with `head`. Eighteen bytes are enough.
    pub(crate) fn recognise(head: &[u8]) -> Option<Self> {
        match head {
            // The method is always 8, DEFLATE.
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            [b'B', b'Z', b'h', b'1'..=b'9', rest @ ..]
                if rest.starts_with(&bzip2::BLOCK_MAGIC) || rest.starts_with(&bzip2::END_MAGIC) =>
            {
                Some(Self::Bzip2)
            }
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            [0x04, 0x22, 0x4d, 0x18, ..] | [0x02, 0x21, 0x4c, 0x18, ..] => Some(Self::Lz4),
            // A skippable frame, which can come first in zstd and lz4 files. pzstd writes them.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(skipped(head).unwrap_or(Self::Zstd)),
            _ => None,
        }
    }

    /// The usual name of the format.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Bzip2 => "bzip2",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
        }
    }
}

/// The container of the frame that follows the skippable frame at the start of `head`. None if
/// `head` is too short.
fn skipped(head: &[u8]) -> Option<Container> {
    let len = head.get(4..).and_then(|rest| rest.first_chunk().copied()).map(u32::from_le_bytes)?;
    let next = usize::try_from(len).ok()?.checked_add(8)?;
    Container::recognise(head.get(next..)?)
}
