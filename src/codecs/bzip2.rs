//! bzip2 by libbz2-rs, a port of the reference library to Rust.

use ::bzip2::{Decompress, Status};

use super::{Step, Streaming, damaged};
use crate::error::{Error, Kind, Result};

/// A decoder of one bzip2 stream. Uses at most 4 MB of memory.
pub fn bzip2_stream() -> impl Streaming {
    Bzip2Stream(Decompress::new(false))
}

struct Bzip2Stream(Decompress);

impl Streaming for Bzip2Stream {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step> {
        let (before_in, before_out) = (self.0.total_in(), self.0.total_out());
        let status = self.0.decompress(input, output).map_err(|error| damaged("bzip2", error))?;
        if status == Status::MemNeeded {
            return Err(Error::new(Kind::Io, "no memory to decompress bzip2 data"));
        }
        Ok(Step {
            consumed: delta(before_in, self.0.total_in()),
            produced: delta(before_out, self.0.total_out()),
            ended: status == Status::StreamEnd,
        })
    }
}

/// How many bytes a counter grew in one step.
fn delta(before: u64, after: u64) -> usize {
    usize::try_from(after.saturating_sub(before)).unwrap_or(usize::MAX)
}
