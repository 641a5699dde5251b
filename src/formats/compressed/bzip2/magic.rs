//! The magic numbers of bzip2 files, which start at any bit.

use crate::formats::bytes::{index, length};

/// Magic number of a block: pi.
pub(in super::super) const BLOCK: [u8; 6] = [0x31, 0x41, 0x59, 0x26, 0x53, 0x59];

/// Magic number of the end of a stream: the square root of pi.
pub(super) const END: [u8; 6] = [0x17, 0x72, 0x45, 0x38, 0x50, 0x90];

/// Length of a magic number.
pub(super) const MAGIC_BITS: u64 = 48;

/// Length of the end of a stream, bits: magic number and checksum.
pub(super) const END_BITS: u64 = 80;

/// What starts at a magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Boundary {
    Block,
    End,
}

/// The boundary that starts at `bit` of `data`, if there is one.
pub(super) fn boundary(data: &[u8], bit: u64) -> Option<Boundary> {
    let rest = data.get(index(bit >> 3)..)?;
    let mut bytes = [0; 8];
    for (byte, source) in bytes.iter_mut().zip(rest) {
        *byte = *source;
    }
    let found =
        u64::from_be_bytes(bytes).wrapping_shl(u32::try_from(bit & 7).ok()?).wrapping_shr(16);
    let is_whole = length(rest.len()).saturating_mul(8) >= (bit & 7).saturating_add(MAGIC_BITS);
    match found {
        _ if !is_whole => None,
        found if found == number(BLOCK) => Some(Boundary::Block),
        found if found == number(END) => Some(Boundary::End),
        _ => None,
    }
}

/// A magic number as a number.
pub(super) fn number(magic: [u8; 6]) -> u64 {
    magic.iter().fold(0, |number, byte| number.wrapping_shl(8) | u64::from(*byte))
}
