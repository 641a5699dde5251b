//! Decoders that keep their state between steps, for data that is too large for one call.
//!
//! Invariant: a step stays within the slices it is given. If it neither consumes nor produces
//! anything, it needs more of the slice that was empty.

use ::bzip2::{Decompress, Status as Bzip2Status};
use ::zstd::stream::raw::{DParameter, Decoder, Operation};
use liblzma::stream::{Action, Error as LzmaError, Status, Stream};

use super::damaged;
use crate::error::{Error, Kind, Result};
use crate::units::format_size;

/// Memory limit for an xz file, bytes. `xz -9` needs 64 MiB; the format allows 4 GiB.
const XZ_MEMORY_LIMIT: u64 = 1 << 30;

/// The largest window of the format that the library reads, log2 of bytes: `zstd --long=31`.
const WINDOW_LOG_MAX: u32 = 31;

/// The window that every streaming decoder accepts, log2 of bytes: 8 MiB, recommended by RFC 8878.
const WINDOW_LOG_MIN: u32 = 23;

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// Bytes written to the start of the output.
    pub produced: usize,
    /// Whether the stream (xz, bzip2) or frame (zstd) is complete.
    pub ended: bool,
}

/// A decoder that keeps its state between steps.
pub trait Streaming: Send {
    /// Decodes from `input` into `output` until one of them is used up or the stream ends.
    ///
    /// # Errors
    /// `Corrupt` if the input is damaged; `Unsupported` if it needs more memory than is allowed.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step>;
}

/// A decoder of one bzip2 stream. Uses at most 4 MB of memory.
pub fn bzip2_stream() -> impl Streaming {
    Decompress::new(false)
}

/// A decoder of one xz stream. Uses at most `memory` bytes, and at most 1 GiB.
///
/// # Errors
/// `Corrupt` if liblzma has no memory.
pub fn xz_stream(memory: u64) -> Result<impl Streaming> {
    Liblzma::new("xz", memory, |memory| Stream::new_stream_decoder(memory, 0))
}

/// A decoder of one LZMA file. Uses at most `memory` bytes, and at most 1 GiB.
///
/// # Errors
/// `Corrupt` if liblzma has no memory.
pub fn lzma_stream(memory: u64) -> Result<impl Streaming> {
    Liblzma::new("lzma", memory, Stream::new_lzma_decoder)
}

/// A decoder of one member of a lzip file. Uses at most `memory` bytes, and at most 1 GiB.
///
/// # Errors
/// `Corrupt` if liblzma has no memory.
pub fn lzip_stream(memory: u64) -> Result<impl Streaming> {
    Liblzma::new("lzip", memory, |memory| Stream::new_lzip_decoder(memory, 0))
}

/// A decoder of consecutive zstd frames, with windows of at most `memory` bytes, but at least 8
/// MiB.
pub fn zstd_stream(memory: u64) -> Result<impl Streaming> {
    let failed = |error: std::io::Error| {
        Error::new(Kind::Io, "cannot decompress zstd data").with_detail(error)
    };
    let mut decoder = Decoder::new().map_err(failed)?;
    let window = memory.checked_ilog2().unwrap_or(0).clamp(WINDOW_LOG_MIN, WINDOW_LOG_MAX);
    decoder.set_parameter(DParameter::WindowLogMax(window)).map_err(failed)?;
    Ok(Zstd { decoder, window_max: 1_u64.checked_shl(window).unwrap_or(u64::MAX) })
}

impl Streaming for Decompress {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step> {
        let (before_in, before_out) = (self.total_in(), self.total_out());
        let status = self.decompress(input, output).map_err(|error| damaged("bzip2", error))?;
        if status == Bzip2Status::MemNeeded {
            return Err(Error::new(Kind::Io, "no memory to decompress bzip2 data"));
        }
        Ok(Step {
            consumed: growth(before_in, self.total_in()),
            produced: growth(before_out, self.total_out()),
            ended: status == Bzip2Status::StreamEnd,
        })
    }
}

/// A decoder of liblzma: xz, lzma or lzip.
struct Liblzma {
    name: &'static str,
    stream: Stream,
    /// The limit, bytes.
    memory: u64,
}

impl Liblzma {
    fn new(
        name: &'static str,
        memory: u64,
        stream: impl FnOnce(u64) -> std::result::Result<Stream, LzmaError>,
    ) -> Result<Self> {
        let memory = memory.min(XZ_MEMORY_LIMIT);
        let stream = stream(memory).map_err(|error| damaged(name, error))?;
        Ok(Self { name, stream, memory })
    }
}

impl Streaming for Liblzma {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step> {
        let (before_in, before_out) = (self.stream.total_in(), self.stream.total_out());
        let name = self.name;
        let unsupported = |context: String| Error::new(Kind::Unsupported, context);
        let status =
            self.stream.process(input, output, Action::Run).map_err(|error| match error {
                LzmaError::MemLimit => unsupported(format!(
                    "{name} needs more than {} MiB of memory to decode it",
                    self.memory >> 20
                )),
                LzmaError::Options => {
                    unsupported(format!("{name} filters or options that archfs does not support"))
                }
                error => damaged(name, error),
            })?;
        Ok(Step {
            consumed: growth(before_in, self.stream.total_in()),
            produced: growth(before_out, self.stream.total_out()),
            ended: status == Status::StreamEnd,
        })
    }
}

/// How many bytes a counter grew in one step.
fn growth(before: u64, after: u64) -> usize {
    usize::try_from(after.saturating_sub(before)).unwrap_or(usize::MAX)
}

struct Zstd {
    decoder: Decoder<'static>,
    /// The largest window that it accepts, bytes.
    window_max: u64,
}

impl Streaming for Zstd {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step> {
        let status = self.decoder.run_on_buffers(input, output).map_err(|error| {
            let text = error.to_string();
            let unsupported = |context: String| Error::new(Kind::Unsupported, context);
            if text.contains("too much memory") {
                let most = format_size(self.window_max);
                let context = format!("a zstd frame with a window of more than {most}");
                return unsupported(context).with_detail(text).with_hint(
                    "free memory of this job, or re-pack it: zstd -dc --long=31 FILE | pzstd > NEW",
                );
            }
            match text.contains("ictionary") {
                true => unsupported("zstd data that needs a dictionary".into()).with_detail(text),
                false => damaged("zstd", text),
            }
        })?;
        Ok(Step {
            consumed: status.bytes_read,
            produced: status.bytes_written,
            ended: status.remaining == 0,
        })
    }
}
