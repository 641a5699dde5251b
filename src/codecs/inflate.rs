//! DEFLATE by miniz_oxide, which can stop and resume at block boundaries.
//!
//! It is slower than libdeflate, which cannot do that.
//!
//! Invariant: a decoder that resumes at a boundary with the same window gives the same bytes.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY,
    TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{BlockBoundaryState, DecompressorOxide, decompress};

use super::damaged;
use crate::error::Result;

/// A decoder of one DEFLATE stream (RFC 1951).
pub struct Inflate(Box<DecompressorOxide>);

/// Why a decoder paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// The input is used up.
    Input,
    /// The output is full.
    Output,
    /// Between two blocks. The last byte consumed has this many bits of the next block.
    Boundary(u8),
    /// The stream is complete.
    End,
}

impl Inflate {
    /// A decoder at the start of a stream.
    pub fn new() -> Self {
        Self(Box::default())
    }

    /// A decoder between two blocks. The highest `bits` bits (0 to 7) of `byte` are still to be
    /// read.
    pub fn resume(byte: u8, bits: u8) -> Self {
        let shift = 8_u32.saturating_sub(u32::from(bits));
        let bit_buf = byte.checked_shr(shift).unwrap_or(0);
        let state = BlockBoundaryState { num_bits: bits.min(7), bit_buf, ..Default::default() };
        Self(Box::new(DecompressorOxide::from_block_boundary_state(&state)))
    }

    /// Decodes into `buffer` from `position`; the bytes before it are the window. Returns the bytes
    /// consumed, the bytes produced and why the decoder paused.
    ///
    /// # Errors
    /// `Corrupt` if the input is damaged.
    pub fn step(
        &mut self,
        input: &[u8],
        buffer: &mut [u8],
        position: usize,
    ) -> (usize, usize, Result<Pause>) {
        let flags = TINFL_FLAG_HAS_MORE_INPUT
            | TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY
            | TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        let (status, consumed, produced) = decompress(&mut self.0, input, buffer, position, flags);
        let pause = match status {
            TINFLStatus::NeedsMoreInput => Ok(Pause::Input),
            TINFLStatus::HasMoreOutput => Ok(Pause::Output),
            TINFLStatus::Done => Ok(Pause::End),
            TINFLStatus::BlockBoundary => {
                Ok(Pause::Boundary(self.0.block_boundary_state().map_or(0, |state| state.num_bits)))
            }
            _ => Err(damaged("deflate", "invalid data")),
        };
        (consumed, produced, pause)
    }
}

impl Default for Inflate {
    fn default() -> Self {
        Self::new()
    }
}
