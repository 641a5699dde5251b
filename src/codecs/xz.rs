//! xz by liblzma, linked statically; its header names the filters (x86 and other BCJ among them).

use liblzma::stream::{Action, Status, Stream};

use super::{Codec, damaged};
use crate::error::Result;

/// The most memory one decoder may take, bytes. mksquashfs writes dictionaries of at most a block
/// (1 MiB) and its presets never more than 8 MiB; a header may claim 4 GiB.
pub(super) const MEMORY_LIMIT: u64 = 32 << 20;

pub(super) fn decode(source: &[u8], target: &mut [u8]) -> Result<usize> {
    let stream = Stream::new_stream_decoder(MEMORY_LIMIT, 0);
    run(Codec::Xz, stream, source, target)
}

/// Runs a fresh liblzma decoder over one whole block.
pub(super) fn run(
    codec: Codec,
    stream: std::result::Result<Stream, liblzma::stream::Error>,
    source: &[u8],
    target: &mut [u8],
) -> Result<usize> {
    let mut stream = stream.map_err(|error| damaged(codec, error))?;
    match stream.process(source, target, Action::Finish) {
        Ok(Status::StreamEnd) => {
            usize::try_from(stream.total_out()).map_err(|error| damaged(codec, error))
        }
        Ok(_) => Err(damaged(codec, "the stream has no end within its block")),
        Err(error) => Err(damaged(codec, error)),
    }
}
