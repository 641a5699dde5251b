//! Decoding in steps, for data that is too large to be decoded in one call.
//!
//! Invariant: a step stays within the slices it is given. If it neither consumes nor produces
//! anything, it needs more of the slice that was empty.

use crate::error::Result;

/// Bytes of the input that were consumed.
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
    /// Fails with `Corrupt` if the input is damaged; `Unsupported` if it needs more memory than is
    /// allowed.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step>;
}
