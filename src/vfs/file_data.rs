//! Reads the data of a file piece by piece, as programs do that read whole files.

use super::{Ino, ReadBytes, Scratch, SeekTarget, Tree};
use crate::error::{Error, Kind, Result};

/// Bytes of a file that one of several threads reads before another one may take the rest.
pub const PART: u64 = 16 << 20;

/// The most bytes to read at once.
const PIECE: u32 = 1 << 20;

/// The number of bytes to read at once if `left` bytes are left.
pub fn piece_of(left: u64) -> u32 {
    u32::try_from(left).unwrap_or(PIECE).min(PIECE)
}

/// The first offset from `offset` on at which a file of `size` bytes has data, or `size`.
///
/// # Errors
/// As `Tree::seek`, but not at the end of the file.
pub fn next_data(tree: &dyn Tree, ino: Ino, offset: u64, size: u64) -> Result<u64> {
    match tree.seek(ino, offset, SeekTarget::Data) {
        Err(error) if error.kind() == Kind::PastEnd => Ok(size),
        found => found,
    }
}

/// At least one and at most `size` bytes of a file, from an `offset` before its recorded end.
///
/// # Errors
/// As `Tree::read`; `Corrupt` if the file ends there.
pub fn read_some<'s>(
    tree: &dyn Tree,
    ino: Ino,
    offset: u64,
    size: u32,
    scratch: &'s mut Scratch,
) -> Result<ReadBytes<'s>> {
    let bytes = tree.read(ino, offset, size, scratch)?;
    match bytes.as_slice().is_empty() {
        true => Err(Error::corrupt("the file ends before its recorded size")),
        false => Ok(bytes),
    }
}
