//! The compressors: one library wrapped per file, all behind one bounded call.
//!
//! Owns the choice of library and the reuse of its working memory from call to call.
//! Invariant: a decoder writes into the caller's buffer only, and what does not fit is an error, so
//! no archive can make one allocate without bound. Decoders may not panic (the lints see to it).
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
pub use inflate::{Inflate, Pause};
pub use lz4::lz4_linked;
pub use streaming::{Step, Streaming};
pub use xz::{FILE_MEMORY_LIMIT as XZ_MEMORY_LIMIT, xz_stream};
pub use zstd::{zstd_pack, zstd_stream};

/// A compressor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// DEFLATE in a zlib wrapper (RFC 1950), which SquashFS calls gzip.
    Gzip,
    /// LZMA with the 13-byte header of LZMA Utils (.lzma, "LZMA alone").
    Lzma,
    /// LZO1X, bare.
    Lzo,
    /// An .xz stream.
    Xz,
    /// An LZ4 block, bare.
    Lz4,
    /// A Zstandard frame (RFC 8878).
    Zstd,
}

impl Codec {
    /// Decodes `source`, one whole compressed block, into `target`; tells the number of bytes
    /// written.
    ///
    /// # Errors
    /// `Corrupt` where `source` is damaged or decodes to more than `target` holds.
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

    /// Its name, as users of archives know it.
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

/// The error for a block that the `codec` of that name does not take.
fn damaged(codec: &str, why: impl Display) -> Error {
    Error::corrupt(format!("{codec} can not decode it: {why}"))
}
