//! zlib streams (SquashFS's gzip) by libdeflate, which decodes whole buffers two to three times as
//! fast as zlib.

use std::cell::RefCell;

use libdeflater::Decompressor;

use super::damaged;
use crate::error::Result;

thread_local! {
    static DECODER: RefCell<Decompressor> = RefCell::new(Decompressor::new());
}

pub(super) fn decode(source: &[u8], target: &mut [u8]) -> Result<usize> {
    DECODER
        .with_borrow_mut(|decoder| decoder.zlib_decompress(source, target))
        .map_err(|error| damaged("gzip", error))
}
