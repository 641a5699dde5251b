//! Parts that the index and the blocks of an xz stream share.

use crate::error::{Error, Result};
use crate::formats::bytes::Reader;

/// Magic numbers of a stream header and of a footer.
pub(super) const HEADER_MAGIC: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];
pub(super) const FOOTER_MAGIC: [u8; 2] = *b"YZ";

/// The header of a stream with these flags.
pub(super) fn stream_header(flags: [u8; 2]) -> [u8; 12] {
    let [m0, m1, m2, m3, m4, m5] = HEADER_MAGIC;
    let ([f0, f1], [c0, c1, c2, c3]) = (flags, crc32fast::hash(&flags).to_le_bytes());
    [m0, m1, m2, m3, m4, m5, f0, f1, c0, c1, c2, c3]
}

/// A number of up to 63 bits, seven bits per byte, the lowest first (.xz format, 1.2).
pub(super) fn varint(reader: &mut Reader<'_>) -> Result<u64> {
    let mut number = 0_u64;
    for position in 0..9_u32 {
        let [byte] = reader.array()?;
        number |= u64::from(byte & 0x7f).wrapping_shl(position.saturating_mul(7));
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Error::corrupt("a number in an xz index has more than nine bytes"))
}
