//! LZ4 blocks by lz4_flex, in its checked, safe form.

use super::{Codec, damaged};
use crate::error::Result;

pub(super) fn decode(source: &[u8], target: &mut [u8]) -> Result<usize> {
    lz4_flex::block::decompress_into(source, target).map_err(|error| damaged(Codec::Lz4, error))
}
