//! Skippable frames, which zstd and lz4 files may contain (RFC 8878, 3.1.2).

use super::format::trailing_garbage;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::Cursor;
use crate::formats::bytes::{index, length};
use crate::formats::limits::SKIPPABLE_FIRST_MAX;
use crate::storage::Storage;

/// The first of sixteen magic numbers of skippable frames.
const MAGIC: u32 = 0x184d_2a50;

/// Bytes of a frame before its contents: the magic number and the length of the contents.
const HEADER: u64 = 8;

/// Bytes that show what a frame is.
const HEAD: usize = 18;

/// Whether a frame with this magic number is skippable.
pub(super) fn is_skippable(magic: u32) -> bool {
    magic & 0xffff_fff0 == MAGIC
}

/// Whether `head` starts with a skippable frame.
pub(super) fn is_at_start(head: &[u8]) -> bool {
    head.first_chunk().is_some_and(|magic| is_skippable(u32::from_le_bytes(*magic)))
}

/// The first bytes after the skippable frames at the start of `storage`. Reads only the headers of
/// the frames, which may have any length.
///
/// Fails with `Truncated` if the file ends in one; `UnknownFormat` if it ends after one;
/// `Unsupported` if there are too many; `Io`.
pub(super) fn head_after(storage: &dyn Storage) -> Result<Vec<u8>> {
    let mut start = 0_u64;
    for _ in 0..=SKIPPABLE_FIRST_MAX {
        let left = storage.len().checked_sub(start);
        let left = left.ok_or_else(|| Error::truncated("cut off in a skippable frame"))?;
        let mut head = vec![0; HEAD.min(index(left))];
        storage.read_exact_at(&mut head, start)?;
        if !is_at_start(&head) {
            let nothing = "skippable frames of zstd or lz4, and no data after them";
            return match head.is_empty() {
                true => Err(Error::new(Kind::UnknownFormat, nothing)),
                false => Ok(head),
            };
        }
        let len = head.get(4..).and_then(|rest| rest.first_chunk().copied());
        // Without a length, the next frame starts past the end.
        let len = len.map_or(length(HEAD), |len| u64::from(u32::from_le_bytes(len)));
        start = start.saturating_add(HEADER).saturating_add(len);
    }
    let context = format!("more than {SKIPPABLE_FIRST_MAX} skippable frames before the data");
    Err(Error::new(Kind::Unsupported, context))
}

/// Moves `cursor` past skippable frames to a frame with one of these magic numbers, and returns
/// that number; `None` at other data and at the end of the file.
pub(super) fn skip_to_frame(cursor: &mut Cursor, magics: &[u32]) -> Result<Option<u32>> {
    loop {
        match cursor.magic()? {
            Some(magic) if magics.contains(&magic) => return Ok(Some(magic)),
            Some(magic) if is_skippable(magic) => {
                cursor.skip(4)?;
                let len = cursor.u32()?;
                cursor.skip(len.into())?;
            }
            _ => return Ok(None),
        }
    }
}

/// Checks what `cursor` is at if `skip_to_frame` found no frame. Returns the offset of other data
/// after the last frame, if there is some.
pub(super) fn end_of_frames(
    cursor: &mut Cursor,
    file: &str,
    container: &str,
) -> Result<Option<u64>> {
    if cursor.position() == 0 && cursor.remaining() > 0 {
        let article = if container == "lz4" { "an" } else { "a" };
        return Err(Error::corrupt(format!("not {article} {container} frame")));
    }
    trailing_garbage(cursor, file, container)
}
