//! The codecs: one file per library, all behind one bounded call.
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

use crate::error::{Error, Result};

mod bzip2;
mod encode;
mod gzip;
mod inflate;
mod lz4;
mod lzma;
mod lzo;
mod streaming;
mod xz;
mod zstd;

pub use bzip2::bzip2_stream;
pub use encode::{Encoder, Method};
pub use gzip::decode_deflate;
pub use inflate::{Inflate, Pause};
pub use lz4::lz4_linked;
pub use lzma::{lzip_stream, lzma_stream};
pub use streaming::{Step, Streaming};
pub use xz::{FILE_MEMORY_LIMIT as XZ_MEMORY_LIMIT, xz_stream};
pub use zstd::{zstd_compress, zstd_stream};

/// A compression algorithm of SquashFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// DEFLATE in a zlib wrapper (RFC 1950), which SquashFS calls gzip.
    Gzip,
    /// LZMA with the 13-byte header of LZMA Utils (.lzma, "LZMA alone").
    Lzma,
    /// Bare LZO1X.
    Lzo,
    /// An .xz stream.
    Xz,
    /// A bare LZ4 block.
    Lz4,
    /// A Zstandard frame (RFC 8878).
    Zstd,
}

impl Codec {
    /// Decompresses `source`, one whole block, into `target`. Returns the number of bytes written.
    ///
    /// # Errors
    /// `Corrupt` if `source` is damaged or decodes to more than `target` holds.
    pub fn decode(self, source: &[u8], target: &mut [u8]) -> Result<usize> {
        match self {
            Self::Gzip => gzip::decode(source, target),
            Self::Lzma => lzma::decode(source, target),
            Self::Lzo => lzo::decode(source, target),
            Self::Xz => xz::decode(source, target),
            Self::Lz4 => lz4::decode(source, target),
            Self::Zstd => zstd::decode(source, target),
        }
    }

    /// The usual name of the algorithm.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Lzma => "lzma",
            Self::Lzo => "lzo",
            Self::Xz => "xz",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// The error for data that `codec` cannot decode. `why` is the text of the library, which only
/// experts understand.
fn damaged(codec: &str, why: impl Display) -> Error {
    Error::corrupt(format!("{codec} cannot decode it"))
        .with_detail(why)
        .with_brief(format!("damaged data ({codec})"))
}
