//! Skippable frames, which zstd and lz4 files may contain (RFC 8878, 3.1.2).

/// The first of sixteen magic numbers of skippable frames.
const MAGIC: u32 = 0x184d_2a50;

/// Whether a frame with this magic number is skippable.
pub(super) fn is_skippable(magic: u32) -> bool {
    magic & 0xffff_fff0 == MAGIC
}

/// Whether `head` starts with a skippable frame.
pub(super) fn is_at_start(head: &[u8]) -> bool {
    head.first_chunk().is_some_and(|magic| is_skippable(u32::from_le_bytes(*magic)))
}

/// What follows the skippable frame at the start of `head`. None if `head` is too short.
pub(super) fn after(head: &[u8]) -> Option<&[u8]> {
    let len = head.get(4..).and_then(|rest| rest.first_chunk().copied()).map(u32::from_le_bytes)?;
    head.get(usize::try_from(len).ok()?.checked_add(8)?..)
}
