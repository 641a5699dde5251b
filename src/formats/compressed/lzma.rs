//! .lzma files, the predecessor of .xz, and lzip files (lzip 1.24 manual, "File format").
//!
//! Both are streams without parts that can be decoded independently, so a file is spooled. A lzip
//! file may have several members, one after the other.
//!
//! .lzma has no magic bytes. As in `xz`, a file is one if its header has values that encoders
//! write.

use super::format::Pass;
use super::streams::{self, StreamFormat};
use crate::codecs::{lzip_stream, lzma_stream};
use crate::error::Result;
use crate::formats::bytes::Reader;
use crate::storage::Storage;
use crate::sync::Arc;

pub(super) const LZMA: &str = "lzma";
pub(super) const LZIP: &str = "lzip";

const LZIP_MAGIC: &[u8] = b"LZIP";

/// Length of the header, bytes: properties, size of the dictionary, decoded size.
const HEADER: usize = 13;

/// The properties are one of this many combinations.
const PROPERTIES: u8 = 225;

/// The smallest dictionary of an encoder, bytes.
const DICTIONARY_MIN: u32 = 4 << 10;

/// `xz` takes a file that claims more for another format, decoded bytes.
const SIZE_MAX: u64 = 256 << 30;

static LZMA_STREAM: StreamFormat = StreamFormat {
    name: LZMA,
    padding_max: None,
    decoder_per_stream: true,
    decoder: |memory| Ok(Box::new(lzma_stream(memory)?)),
    // A file has one stream.
    is_stream: |cursor| Ok(cursor.position() == 0 && recognizes_lzma(cursor.peek(HEADER)?)),
};

static LZIP_MEMBERS: StreamFormat = StreamFormat {
    name: LZIP,
    padding_max: None,
    decoder_per_stream: true,
    decoder: |memory| Ok(Box::new(lzip_stream(memory)?)),
    is_stream: |cursor| Ok(recognizes_lzip(cursor.peek(LZIP_MAGIC.len())?)),
};

pub(super) fn recognizes_lzma(head: &[u8]) -> bool {
    is_header(head).unwrap_or(false)
}

pub(super) fn recognizes_lzip(head: &[u8]) -> bool {
    head.starts_with(LZIP_MAGIC)
}

pub(super) fn open_lzma(name: &str, storage: Arc<dyn Storage>) -> Result<Box<dyn Pass>> {
    streams::open(&LZMA_STREAM, name, storage)
}

pub(super) fn open_lzip(name: &str, storage: Arc<dyn Storage>) -> Result<Box<dyn Pass>> {
    streams::open(&LZIP_MEMBERS, name, storage)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_headers_of_encoders_only() {
        let head = |properties: u8, dictionary: u32, size: u64| {
            let bytes = [&[properties][..], &dictionary.to_le_bytes(), &size.to_le_bytes()];
            recognizes_lzma(&bytes.concat())
        };
        assert!(head(0x5d, 8 << 20, u64::MAX));
        assert!(head(0, 4096, 0));
        assert!(head(224, 3 << 20, SIZE_MAX - 1));
        assert!(head(0x5d, u32::MAX, 5));
        assert!(!head(225, 4096, 0), "properties");
        assert!(!head(0x5d, 2048, 0), "too small a dictionary");
        assert!(!head(0x5d, 5 << 20, 0), "a size that no encoder writes");
        assert!(!head(0x5d, 8 << 20, SIZE_MAX), "too long");
        assert!(!recognizes_lzma(&[0x5d, 0, 0, 0x80]), "too short");
    }
}
