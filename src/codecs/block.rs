//! Decoders of a whole block in one call, with one decoder of zstd and of DEFLATE per thread.
//!
//! libdeflate decodes whole buffers two to three times as fast as zlib. lz4_flex and lzokay are
//! safe Rust; the reference library of LZO is GPL. liblzma is linked statically.

use std::cell::RefCell;

use ::zstd::bulk::Decompressor as Zstd;
use libdeflater::Decompressor as Deflate;
use liblzma::stream::{Action, Status, Stream};

use super::damaged;
use crate::error::{Error, Kind, Result};

/// Memory limit of liblzma for a SquashFS block, bytes. mksquashfs writes dictionaries of at most a
/// block (1 MiB), and the presets use at most 8 MiB. A header may claim 4 GiB.
const MEMORY_LIMIT: u64 = 32 << 20;

thread_local! {
    static DEFLATE: RefCell<Deflate> = RefCell::new(Deflate::new());
    static ZSTD: RefCell<Option<Zstd<'static>>> = const { RefCell::new(None) };
}

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
            Self::Gzip => DEFLATE
                .with_borrow_mut(|decoder| decoder.zlib_decompress(source, target))
                .map_err(|error| damaged("gzip", error)),
            Self::Lzma => self.liblzma(Stream::new_lzma_decoder(MEMORY_LIMIT), source, target),
            Self::Lzo => lzokay::decompress::decompress(source, target)
                .map_err(|error| damaged("lzo", format_args!("{error:?}"))),
            Self::Xz => self.liblzma(Stream::new_stream_decoder(MEMORY_LIMIT, 0), source, target),
            Self::Lz4 => lz4_flex::block::decompress_into(source, target)
                .map_err(|error| damaged("lz4", error)),
            Self::Zstd => zstd(source, target),
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

    /// Runs a new liblzma decoder over one whole block.
    fn liblzma(
        self,
        stream: std::result::Result<Stream, liblzma::stream::Error>,
        source: &[u8],
        target: &mut [u8],
    ) -> Result<usize> {
        let name = self.name();
        let mut stream = stream.map_err(|error| damaged(name, error))?;
        match stream.process(source, target, Action::Finish) {
            Ok(Status::StreamEnd) => {
                usize::try_from(stream.total_out()).map_err(|error| damaged(name, error))
            }
            Ok(_) => Err(damaged(name, "the stream has no end within its block")),
            Err(error) => Err(damaged(name, error)),
        }
    }
}

fn zstd(source: &[u8], target: &mut [u8]) -> Result<usize> {
    ZSTD.with_borrow_mut(|slot| {
        let decoder = match slot {
            Some(decoder) => decoder,
            None => slot.insert(Zstd::new().map_err(|error| {
                Error::new(Kind::Io, "cannot decompress zstd data").with_detail(error)
            })?),
        };
        decoder.decompress_to_buffer(source, target).map_err(|error| damaged("zstd", error))
    })
}

/// Decompresses `source`, one whole DEFLATE stream (RFC 1951), into `target`. Returns the number of
/// bytes written.
///
/// # Errors
/// `Corrupt` if `source` is damaged or decodes to more than `target` holds.
pub fn decode_deflate(source: &[u8], target: &mut [u8]) -> Result<usize> {
    DEFLATE
        .with_borrow_mut(|decoder| decoder.deflate_decompress(source, target))
        .map_err(|error| damaged("deflate", error))
}

/// Decodes an LZ4 block that may copy from `before`, up to 64 KiB decoded before it.
///
/// # Errors
/// `Corrupt` if `source` is damaged or decodes to more than `target` holds.
pub fn lz4_linked(source: &[u8], target: &mut [u8], before: &[u8]) -> Result<usize> {
    lz4_flex::block::decompress_into_with_dict(source, target, before)
        .map_err(|error| damaged("lz4", error))
}
