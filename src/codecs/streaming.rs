//! Decoding piece by piece, for what is too large to be decoded in one call.
//!
//! Owns the shape of one step; the libraries that take it lie beside it.
//! Invariant: a step never reads or writes past the slices it is given, and one that neither
//! consumes nor produces asks for more of whichever slice was empty.

use crate::error::Result;

/// What one step did.
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
    /// `Corrupt` where the input is damaged; `Unsupported` where it needs more than is allowed.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step>;
}
