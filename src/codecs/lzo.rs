//! LZO1X by lzokay, a decoder in safe Rust (the reference library is GPL).

use super::damaged;
use crate::error::Result;

pub(super) fn decode(source: &[u8], target: &mut [u8]) -> Result<usize> {
    lzokay::decompress::decompress(source, target)
        .map_err(|error| damaged("lzo", format_args!("{error:?}")))
}
