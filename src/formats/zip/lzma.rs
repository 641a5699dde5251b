//! LZMA data in an archive (APPNOTE 5.8.8), as the file format that liblzma calls LZMA alone.

use crate::error::{Error, Kind, Result};
use crate::formats::bytes::Reader;

/// Length of what comes before the data: the version of the writer, the length of the properties,
/// and the properties.
pub(super) const PREFIX: u64 = 9;

/// The smallest dictionary of LZMA, bytes.
const DICTIONARY_MIN: u32 = 4 << 10;

/// The header of an LZMA file for data that decodes to `size` bytes, from the first bytes of the
/// member, and the data after them.
///
/// Fails with `Corrupt` if there are fewer than `PREFIX` bytes; `Unsupported` for other properties.
pub(super) fn split(source: &[u8], size: u64) -> Result<([u8; 13], &[u8])> {
    let mut reader = Reader::new("LZMA header", source);
    let (_, len) = (reader.u16()?, reader.u16()?);
    if len != 5 {
        let context = format!("LZMA data with properties of {len} bytes");
        return Err(Error::new(Kind::Unsupported, context));
    }
    let ([a], dictionary) = (reader.array()?, reader.u32()?);
    // 7-Zip writes sizes that readers of LZMA files take for another format. No distance is longer
    // than the data.
    let data = u32::try_from(size).unwrap_or(u32::MAX);
    let dictionary = dictionary.min(data).max(DICTIONARY_MIN).checked_next_power_of_two();
    let [b, c, d, e] = dictionary.unwrap_or(u32::MAX).to_le_bytes();
    let [s, t, u, v, w, x, y, z] = size.to_le_bytes();
    let header = [a, b, c, d, e, s, t, u, v, w, x, y, z];
    Ok((header, reader.bytes(reader.remaining())?))
}
