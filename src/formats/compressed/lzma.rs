//! .lzma files, the predecessor of .xz.
//!
//! The format has no magic bytes. As in `xz`, a file is one if its header has values that encoders
//! write.

use super::container::Container;
use super::streams::StreamFormat;
use super::undivided::UndividedFormat;
use crate::codecs::{Streaming, lzma_stream};
use crate::error::Result;
use crate::formats::bytes::Reader;
use crate::formats::cursor::Cursor;

/// Length of the header, bytes: properties, size of the dictionary, decoded size.
const HEADER: usize = 13;

/// The properties are one of this many combinations.
const PROPERTIES: u8 = 225;

/// The smallest dictionary of an encoder, bytes.
const DICTIONARY_MIN: u32 = 4 << 10;

/// `xz` takes a file that claims more for another format, decoded bytes.
const SIZE_MAX: u64 = 256 << 30;

pub(super) struct Lzma;

fn is_header(head: &[u8]) -> Result<bool> {
    let mut reader = Reader::new("lzma header", head);
    let ([properties], dictionary, size) = (reader.array()?, reader.u32()?, reader.u64()?);
    // A power of two, or one and a half of it.
    let is_usual = dictionary.is_power_of_two()
        || (dictionary.is_multiple_of(3) && (dictionary / 3).is_power_of_two())
        || dictionary == u32::MAX;
    Ok(properties < PROPERTIES
        && is_usual
        && dictionary >= DICTIONARY_MIN
        && (size < SIZE_MAX || size == u64::MAX))
}

impl UndividedFormat for Lzma {
    const ADVICE: &'static str =
        "re-pack it for random access: xz -dc --format=lzma FILE | xz -T0 > NEW";

    fn recognizes(head: &[u8]) -> bool {
        is_header(head).unwrap_or(false)
    }
}

impl StreamFormat for Lzma {
    const CONTAINER: Container = Container::Lzma;
    const PADDING_MAX: Option<u64> = None;
    const DECODER_PER_STREAM: bool = true;

    fn decoder(memory: u64) -> Result<Box<dyn Streaming>> {
        Ok(Box::new(lzma_stream(memory)?))
    }

    /// A file has one stream.
    fn is_stream(cursor: &mut Cursor) -> Result<bool> {
        Ok(cursor.position() == 0 && is_header(cursor.peek(HEADER)?).unwrap_or(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_headers_of_encoders_only() {
        let head = |properties: u8, dictionary: u32, size: u64| {
            let bytes = [&[properties][..], &dictionary.to_le_bytes(), &size.to_le_bytes()];
            Lzma::recognizes(&bytes.concat())
        };
        assert!(head(0x5d, 8 << 20, u64::MAX));
        assert!(head(0, 4096, 0));
        assert!(head(224, 3 << 20, SIZE_MAX - 1));
        assert!(head(0x5d, u32::MAX, 5));
        assert!(!head(225, 4096, 0), "properties");
        assert!(!head(0x5d, 2048, 0), "too small a dictionary");
        assert!(!head(0x5d, 5 << 20, 0), "a size that no encoder writes");
        assert!(!head(0x5d, 8 << 20, SIZE_MAX), "too long");
        assert!(!Lzma::recognizes(&[0x5d, 0, 0, 0x80]), "too short");
    }
}
