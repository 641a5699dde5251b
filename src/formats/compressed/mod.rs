//! Compressed files (data.tar.gz) made readable at any offset, with bounded memory.
//!
//! Owns the five containers: which one a file is, where in it decoding can start, and decoding a
//! chunk from there. A `FirstPass` reads the file once and finds the seek points; a `Compressed` is
//! storage of the decoded bytes. Leaves what those bytes are to the other formats, and the
//! libraries to `codecs`.
//! Invariant: no chunk of more than `GIANT_CHUNK_MAX` decoded bytes is ever held in memory; a file
//! that has one goes through a temporary file (`spool`).

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

/// The compressed containers, found by their first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Container {
    /// RFC 1952, any number of members.
    Gzip,
    Bzip2,
    /// The .xz format 1.0.4 and later.
    Xz,
    /// RFC 8878, with or without a seek table.
    Zstd,
    /// LZ4 frames, those of the legacy kind too.
    Lz4,
}

impl Container {
    /// The container whose file starts with `head`; eighteen bytes are enough to tell.
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
            // A skippable frame, which both zstd and lz4 may start with; pzstd writes them.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(skipped(head).unwrap_or(Self::Zstd)),
            _ => None,
        }
    }

    /// Its name, as users of archives know it.
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

/// The container of the frame after the skippable frame that `head` starts with, if `head` goes on
/// that far.
fn skipped(head: &[u8]) -> Option<Container> {
    let len = head.get(4..).and_then(|rest| rest.first_chunk().copied()).map(u32::from_le_bytes)?;
    let next = usize::try_from(len).ok()?.checked_add(8)?;
    Container::recognise(head.get(next..)?)
}
