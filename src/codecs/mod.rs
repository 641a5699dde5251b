//! The compressors, behind one bounded call (`Codec`) or step by step (`Streaming`, `Inflate`).
//!
//! Invariant: a decoder writes only into the caller's buffer, and returns an error if the result
//! does not fit. No archive can make a decoder allocate without bound. Decoders cannot panic (the
//! lints below check that).
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing,
        clippy::string_slice,
        clippy::arithmetic_side_effects,
        clippy::as_conversions
    )
)]

use std::fmt::Display;

use crate::error::Error;

mod block;
mod encode;
mod inflate;
mod streaming;

pub use block::{Codec, decode_deflate, lz4_linked};
pub use encode::{Encoder, Method, zstd_compress};
pub use inflate::{Inflate, Pause};
pub use streaming::{
    Step, Streaming, bzip2_stream, lzip_stream, lzma_stream, xz_stream, zstd_stream,
};

/// The error for data that `codec` cannot decode. `why` is the text of the library, which only
/// experts understand.
fn damaged(codec: &str, why: impl Display) -> Error {
    Error::corrupt(format!("{codec} cannot decode it"))
        .with_detail(why)
        .with_brief(format!("damaged data ({codec})"))
}
