//! .lzma (LZMA alone), the predecessor of xz, by liblzma.

use liblzma::stream::Stream;

use super::xz::{FILE_MEMORY_LIMIT, LiblzmaStream, MEMORY_LIMIT, run};
use super::{Codec, Streaming};
use crate::error::Result;

/// A decoder of one LZMA file. Uses at most `memory` bytes, and at most `FILE_MEMORY_LIMIT`.
///
/// # Errors
/// `Corrupt` if liblzma has no memory.
pub fn lzma_stream(memory: u64) -> Result<impl Streaming> {
    let memory = memory.min(FILE_MEMORY_LIMIT);
    LiblzmaStream::new(Codec::Lzma, Stream::new_lzma_decoder(memory), memory)
}

pub(super) fn decode(source: &[u8], target: &mut [u8]) -> Result<usize> {
    run(Codec::Lzma, Stream::new_lzma_decoder(MEMORY_LIMIT), source, target)
}
