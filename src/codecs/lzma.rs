//! .lzma (LZMA alone), the predecessor of xz, and lzip, by liblzma.

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
    LiblzmaStream::new(Codec::Lzma.name(), Stream::new_lzma_decoder(memory), memory)
}

/// A decoder of one member of a lzip file. Uses at most `memory` bytes, and at most
/// `FILE_MEMORY_LIMIT`.
///
/// # Errors
/// `Corrupt` if liblzma has no memory.
pub fn lzip_stream(memory: u64) -> Result<impl Streaming> {
    let memory = memory.min(FILE_MEMORY_LIMIT);
    LiblzmaStream::new("lzip", Stream::new_lzip_decoder(memory, 0), memory)
}

pub(super) fn decode(source: &[u8], target: &mut [u8]) -> Result<usize> {
    run(Codec::Lzma.name(), Stream::new_lzma_decoder(MEMORY_LIMIT), source, target)
}
