//! xz by liblzma, linked statically. The filters, such as x86 and other BCJ, are named in its
//! header.

use liblzma::stream::{Action, Status, Stream};

use super::{Codec, Step, Streaming, damaged};
use crate::error::{Error, Kind, Result};

/// Memory limit of a decoder of SquashFS blocks, bytes. mksquashfs writes dictionaries of at most a
/// block (1 MiB), and the presets use at most 8 MiB. A header may claim 4 GiB.
pub(super) const MEMORY_LIMIT: u64 = 32 << 20;

/// Memory limit for an xz file, bytes. `xz -9` needs 64 MiB; the format allows 4 GiB.
pub const FILE_MEMORY_LIMIT: u64 = 1 << 30;

pub(super) fn decode(source: &[u8], target: &mut [u8]) -> Result<usize> {
    let stream = Stream::new_stream_decoder(MEMORY_LIMIT, 0);
    run(Codec::Xz.name(), stream, source, target)
}

/// Runs a fresh liblzma decoder over one whole block.
pub(super) fn run(
    name: &'static str,
    stream: std::result::Result<Stream, liblzma::stream::Error>,
    source: &[u8],
    target: &mut [u8],
) -> Result<usize> {
    let mut stream = stream.map_err(|error| damaged(name, error))?;
    match stream.process(source, target, Action::Finish) {
        Ok(Status::StreamEnd) => {
            usize::try_from(stream.total_out()).map_err(|error| damaged(name, error))
        }
        Ok(_) => Err(damaged(name, "the stream has no end within its block")),
        Err(error) => Err(damaged(name, error)),
    }
}

/// A decoder of one xz stream. Uses at most `memory` bytes, and at most `FILE_MEMORY_LIMIT`.
///
/// # Errors
/// `Corrupt` if liblzma has no memory.
pub fn xz_stream(memory: u64) -> Result<impl Streaming> {
    let memory = memory.min(FILE_MEMORY_LIMIT);
    let stream = Stream::new_stream_decoder(memory, 0);
    LiblzmaStream::new(Codec::Xz.name(), stream, memory)
}

/// A decoder of liblzma.
pub(super) struct LiblzmaStream {
    name: &'static str,
    stream: Stream,
    /// The limit, bytes.
    memory: u64,
}

impl LiblzmaStream {
    pub(super) fn new(
        name: &'static str,
        stream: std::result::Result<Stream, liblzma::stream::Error>,
        memory: u64,
    ) -> Result<Self> {
        let stream = stream.map_err(|error| damaged(name, error))?;
        Ok(Self { name, stream, memory })
    }
}

impl Streaming for LiblzmaStream {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step> {
        let (before_in, before_out) = (self.stream.total_in(), self.stream.total_out());
        let name = self.name;
        let status =
            self.stream.process(input, output, Action::Run).map_err(|error| match error {
                liblzma::stream::Error::MemLimit => Error::new(
                    Kind::Unsupported,
                    format!(
                        "{name} needs more than {} MiB of memory to decode it",
                        self.memory >> 20
                    ),
                ),
                liblzma::stream::Error::Options => Error::new(
                    Kind::Unsupported,
                    format!("{name} filters or options that archfs does not support"),
                ),
                error => damaged(name, error),
            })?;
        let delta = |before: u64, after: u64| {
            usize::try_from(after.saturating_sub(before)).unwrap_or(usize::MAX)
        };
        Ok(Step {
            consumed: delta(before_in, self.stream.total_in()),
            produced: delta(before_out, self.stream.total_out()),
            ended: status == Status::StreamEnd,
        })
    }
}
