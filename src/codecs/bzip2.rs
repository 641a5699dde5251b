//! bzip2 by libbz2-rs, a port of the reference library to Rust.

use ::bzip2::{Decompress, Status};

use super::{Step, Streaming, damaged};
use crate::error::Result;

/// A decoder of one bzip2 stream, with 4 MB of working memory at most.
pub fn bzip2_stream() -> impl Streaming {
    Bzip2Stream(Decompress::new(false))
}

struct Bzip2Stream(Decompress);

impl Streaming for Bzip2Stream {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step> {
        let (before_in, before_out) = (self.0.total_in(), self.0.total_out());
        let status = self.0.decompress(input, output).map_err(|error| damaged("bzip2", error))?;
        if status == Status::MemNeeded {
            return Err(damaged("bzip2", "no memory"));
        }
        Ok(Step {
            consumed: grown(before_in, self.0.total_in()),
            produced: grown(before_out, self.0.total_out()),
            ended: status == Status::StreamEnd,
        })
    }
}

/// How far a counter of bytes got in one step.
fn grown(before: u64, after: u64) -> usize {
    usize::try_from(after.saturating_sub(before)).unwrap_or(usize::MAX)
}
