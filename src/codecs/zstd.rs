//! zstd by its reference library, with one context a thread.

use std::cell::RefCell;

use ::zstd::bulk::Decompressor;

use super::{Codec, damaged};
use crate::error::Result;

thread_local! {
    static DECODER: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

pub(super) fn decode(source: &[u8], target: &mut [u8]) -> Result<usize> {
    DECODER.with_borrow_mut(|slot| {
        let decoder = match slot {
            Some(decoder) => decoder,
            None => slot.insert(Decompressor::new().map_err(|e| damaged(Codec::Zstd, e))?),
        };
        decoder.decompress_to_buffer(source, target).map_err(|error| damaged(Codec::Zstd, error))
    })
}
