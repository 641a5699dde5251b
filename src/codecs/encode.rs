//! Compresses blocks with each of the libraries, and reuses their memory between calls.
//!
//! Invariants: a result is at most as long as the caller allows. The same input gives the same
//! result, whatever was compressed before.

use ::zstd::bulk::Compressor as Zstd;
use libdeflater::{CompressionLvl, Compressor as Deflate};
use liblzma::stream::{Action, Check, Filters, LzmaOptions, Status, Stream};

use crate::error::{Error, Kind, Result};

/// The default preset of xz and of mksquashfs.
const XZ_PRESET: u32 = 6;

/// How to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// A Zstandard frame of this level, 1 to 22.
    Zstd(i32),
    /// DEFLATE in a zlib wrapper, level 1 to 9.
    Gzip(u32),
    /// An .xz stream with a CRC32 (Linux supports no other check) and a dictionary of `dictionary`
    /// bytes.
    Xz {
        /// Bytes; the block size of the image, because Linux allocates no more.
        dictionary: u32,
    },
    /// A bare LZ4 block.
    Lz4,
    /// Compresses nothing.
    None,
}

/// A compressor with its memory, for one thread.
pub struct Encoder {
    library: Library,
    /// The result of the last call; grows to the longest block.
    target: Vec<u8>,
}

enum Library {
    Zstd(Zstd<'static>),
    Deflate(Deflate),
    /// The dictionary size, bytes. liblzma has no memory that could be reused.
    Xz(u32),
    Lz4,
    None,
}

impl Encoder {
    /// An encoder for `method`.
    ///
    /// # Errors
    /// `InvalidInput` if the level does not exist; `Io` if there is no memory.
    pub fn new(method: Method) -> Result<Self> {
        let library = match method {
            Method::Zstd(level) => {
                let compressor = Zstd::new(level);
                Library::Zstd(compressor.map_err(|error| failed("zstd", error))?)
            }
            Method::Gzip(level) => {
                let level = i32::try_from(level).ok().and_then(|n| CompressionLvl::new(n).ok());
                let no_level = || Error::new(Kind::InvalidInput, "no such gzip level");
                Library::Deflate(Deflate::new(level.ok_or_else(no_level)?))
            }
            Method::Xz { dictionary } => Library::Xz(dictionary),
            Method::Lz4 => Library::Lz4,
            Method::None => Library::None,
        };
        Ok(Self { library, target: Vec::new() })
    }

    /// Compresses `source`; `None` if the result takes more than `limit` bytes.
    ///
    /// # Errors
    /// `Io` if the library fails, for example if there is no memory.
    pub fn encode(&mut self, source: &[u8], limit: usize) -> Result<Option<&[u8]>> {
        let capacity = match self.library {
            // lz4_flex returns an error if the target is smaller than its worst case.
            Library::Lz4 => lz4_flex::block::get_maximum_output_size(source.len()).max(limit),
            _ => limit,
        };
        if self.target.len() < capacity {
            self.target.resize(capacity, 0);
        }
        let target = self.target.get_mut(..capacity).unwrap_or_default();
        let len = match &mut self.library {
            Library::Zstd(zstd) => match zstd.compress_to_buffer(source, target) {
                Ok(len) => Some(len),
                Err(error) if error.to_string().contains("too small") => None,
                Err(error) => return Err(failed("zstd", error)),
            },
            // The only possible error: the target is too small.
            Library::Deflate(deflate) => deflate.zlib_compress(source, target).ok(),
            Library::Xz(dictionary) => xz(*dictionary, source, target)?,
            Library::Lz4 => Some(
                lz4_flex::block::compress_into(source, target)
                    .map_err(|error| failed("lz4", error))?,
            ),
            Library::None => None,
        };
        let len = len.filter(|&len| len <= limit);
        Ok(len.and_then(|len| self.target.get(..len)))
    }
}

fn xz(dictionary: u32, source: &[u8], target: &mut [u8]) -> Result<Option<usize>> {
    let options = LzmaOptions::new_preset(XZ_PRESET);
    let mut options = options.map_err(|error| failed("xz", error))?;
    options.dict_size(dictionary);
    let mut filters = Filters::new();
    filters.lzma2(&options);
    let stream = Stream::new_stream_encoder(&filters, Check::Crc32);
    let mut stream = stream.map_err(|error| failed("xz", error))?;
    match stream.process(source, target, Action::Finish) {
        Ok(Status::StreamEnd) => Ok(usize::try_from(stream.total_out()).ok()),
        // The target is full, but the stream has not ended.
        Ok(_) => Ok(None),
        Err(error) => Err(failed("xz", error)),
    }
}

/// Compresses small data, such as the window of a seek point. Fast rather than small.
pub fn zstd_compress(source: &[u8]) -> Result<Vec<u8>> {
    ::zstd::bulk::compress(source, 1)
        .map_err(|error| Error::new(Kind::Io, "cannot compress zstd data").with_detail(error))
}

fn failed(library: &str, why: impl std::fmt::Display) -> Error {
    Error::new(Kind::Io, format!("{library} cannot compress: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codecs::Codec;

    const METHODS: [(Method, Codec); 6] = [
        (Method::Zstd(1), Codec::Zstd),
        (Method::Zstd(19), Codec::Zstd),
        (Method::Gzip(1), Codec::Gzip),
        (Method::Gzip(9), Codec::Gzip),
        (Method::Xz { dictionary: 1 << 17 }, Codec::Xz),
        (Method::Lz4, Codec::Lz4),
    ];

    fn text() -> Vec<u8> {
        (0..20_000_u32).flat_map(|n| format!("{} ", n * n % 977).into_bytes()).collect()
    }

    #[test]
    fn round_trips_and_gives_the_same_result_again() {
        let text = text();
        for (method, codec) in METHODS {
            let mut encoder = Encoder::new(method).unwrap();
            let first = encoder.encode(&text, text.len()).unwrap().unwrap().to_vec();
            let mut back = vec![0; text.len()];
            assert_eq!(codec.decode(&first, &mut back).unwrap(), text.len(), "{method:?}");
            assert_eq!(back, text, "{method:?}");
            encoder.encode(&text[7..9000], 8000).unwrap();
            let again = encoder.encode(&text, text.len()).unwrap().unwrap();
            assert_eq!(again, first, "{method:?}");
        }
    }

    #[test]
    fn returns_none_above_the_limit() {
        let text = text();
        for (method, _) in METHODS {
            let mut encoder = Encoder::new(method).unwrap();
            let len = encoder.encode(&text, text.len()).unwrap().unwrap().len();
            assert_eq!(encoder.encode(&text, len - 1).unwrap(), None, "{method:?}");
            assert!(encoder.encode(&text, 0).unwrap().is_none(), "{method:?}");
        }
        let mut none = Encoder::new(Method::None).unwrap();
        assert_eq!(none.encode(&text, text.len()).unwrap(), None);
    }

    #[test]
    fn rejects_unknown_levels() {
        assert!(Encoder::new(Method::Gzip(13)).is_err());
    }
}
