//! zstd by its reference library, with one decoder per thread.

use std::cell::RefCell;
use std::fmt::Display;

use ::zstd::bulk::Decompressor;
use ::zstd::stream::raw::{DParameter, Decoder, Operation};

use super::{Step, Streaming, damaged};
use crate::error::{Error, Kind, Result};
use crate::units::format_size;

/// The largest window of the format that the library reads, log2 of bytes: `zstd --long=31`.
const WINDOW_LOG_MAX: u32 = 31;

/// The window that every streaming decoder accepts, log2 of bytes: 8 MiB, recommended by RFC 8878.
const WINDOW_LOG_MIN: u32 = 23;

thread_local! {
    static DECODER: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

pub(super) fn decode(source: &[u8], target: &mut [u8]) -> Result<usize> {
    DECODER.with_borrow_mut(|slot| {
        let decoder = match slot {
            Some(decoder) => decoder,
            None => slot.insert(Decompressor::new().map_err(|error| failed("decompress", error))?),
        };
        decoder.decompress_to_buffer(source, target).map_err(|error| damaged("zstd", error))
    })
}

/// Compresses small data, such as the window of a seek point. Fast rather than small.
pub fn zstd_compress(source: &[u8]) -> Result<Vec<u8>> {
    ::zstd::bulk::compress(source, 1).map_err(|error| failed("compress", error))
}

/// A decoder of consecutive zstd frames, with windows of at most `memory` bytes, but at least 8
/// MiB.
pub fn zstd_stream(memory: u64) -> Result<impl Streaming> {
    let failed = |error| failed("decompress", error);
    let mut decoder = Decoder::new().map_err(failed)?;
    let window = memory.checked_ilog2().unwrap_or(0).clamp(WINDOW_LOG_MIN, WINDOW_LOG_MAX);
    decoder.set_parameter(DParameter::WindowLogMax(window)).map_err(failed)?;
    Ok(ZstdStream { decoder, window_max: 1_u64.checked_shl(window).unwrap_or(u64::MAX) })
}

/// The error for the library if it cannot `operate` although the data has no fault.
fn failed(operate: &str, why: impl Display) -> Error {
    Error::new(Kind::Io, format!("cannot {operate} zstd data")).with_detail(why)
}

struct ZstdStream {
    decoder: Decoder<'static>,
    /// The largest window that it accepts, bytes.
    window_max: u64,
}

impl Streaming for ZstdStream {
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
