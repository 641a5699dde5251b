//! LZ4 blocks by lz4_flex, in its checked, safe form.

use super::damaged;
use crate::error::Result;

pub(super) fn decode(source: &[u8], target: &mut [u8]) -> Result<usize> {
    lz4_flex::block::decompress_into(source, target).map_err(|error| damaged("lz4", error))
}

/// Decodes a block that may copy from `before`, up to 64 KiB decoded before it.
///
/// # Errors
/// `Corrupt` if `source` is damaged or decodes to more than `target` holds.
pub fn lz4_linked(source: &[u8], target: &mut [u8], before: &[u8]) -> Result<usize> {
    lz4_flex::block::decompress_into_with_dict(source, target, before)
        .map_err(|error| damaged("lz4", error))
}
