//! .lzma (LZMA alone), the predecessor of xz, by liblzma.

use liblzma::stream::Stream;

use super::Codec;
use super::xz::{MEMORY_LIMIT, run};
use crate::error::Result;

pub(super) fn decode(source: &[u8], target: &mut [u8]) -> Result<usize> {
    run(Codec::Lzma, Stream::new_lzma_decoder(MEMORY_LIMIT), source, target)
}
