//! The data of a file: where an archive stores it as it is, and reads piece by piece with a check,
//! as programs do that read whole files.

use crc32fast::Hasher;

use super::{Ino, ReadBytes, Scratch, SeekTarget, Tree};
use crate::error::{Error, Kind, Result};
use crate::os::file_position::FilePosition;
use crate::sync::Mutex;

/// Bytes of a file that one of several threads reads before another one may take the rest.
pub const PART: u64 = 16 << 20;

/// The most bytes to read at once.
const PIECE: u32 = 1 << 20;

/// Where the bytes of a regular file are stored, in one or two parts. Files with holes and
/// compressed bytes have no such description.
#[derive(Clone, Debug)]
pub struct StoredFile {
    /// Size of the file in bytes; not 0.
    pub size: u64,
    /// Where the first part begins.
    pub head: FilePosition,
    /// Length of the first part in bytes, and where the rest is. `None` if there is one part.
    pub tail: Option<(u64, FilePosition)>,
}

/// The number of bytes to read at once if `left` bytes are left.
pub fn piece_of(left: u64) -> u32 {
    u32::try_from(left).unwrap_or(PIECE).min(PIECE)
}

/// The first offset from `offset` on at which a file of `size` bytes has data, or `size`.
pub fn next_data(tree: &dyn Tree, ino: Ino, offset: u64, size: u64) -> Result<u64> {
    match tree.seek(ino, offset, SeekTarget::Data) {
        Err(error) if error.kind() == Kind::PastEnd => Ok(size),
        found => found,
    }
}

/// At least one and at most `size` bytes of a file, from an `offset` before its recorded end.
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

/// Checks a file that is read as a whole against its checksum in the archive, if `Tree::read` does
/// not check it. Several threads may read the parts of the file, in any order.
#[derive(Debug)]
pub struct ContentCheck {
    expected: Option<u32>,
    size: u64,
    /// Guards only the sums; no other lock is held with it.
    parts: Mutex<Parts>,
}

/// The sums of the parts that were read.
#[derive(Debug, Default)]
struct Parts {
    sums: Vec<PartSum>,
    read: u64,
}

/// The checksum of a part of a file, if one is needed.
#[derive(Clone, Debug)]
pub struct PartSum {
    offset: u64,
    len: u64,
    hasher: Option<Hasher>,
}

/// Whether all parts of a file were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Some were not, so nothing was checked.
    Partial,
    /// They were, and their checksum is right.
    Whole,
}

impl ContentCheck {
    /// For a file of `size` bytes with the checksum `expected` (`Tree::stored_crc32`). A file with
    /// a checksum has no holes.
    pub fn new(expected: Option<u32>, size: u64) -> Self {
        Self { expected, size, parts: Mutex::default() }
    }

    /// The sum of a part that starts at `offset`, before its first byte.
    pub fn part(&self, offset: u64) -> PartSum {
        PartSum { offset, len: 0, hasher: self.expected.map(|_| Hasher::new()) }
    }

    /// Adds a part that was read. Each byte must be in one part.
    ///
    /// # Errors
    /// `Corrupt` if this is the last part and the checksum of the file is wrong.
    pub fn add(&self, part: PartSum) -> Result<Coverage> {
        let Some(expected) = self.expected else { return Ok(Coverage::Partial) };
        let mut parts = self.parts.lock();
        parts.read = parts.read.saturating_add(part.len);
        parts.sums.push(part);
        if parts.read < self.size {
            return Ok(Coverage::Partial);
        }
        parts.sums.sort_by_key(|part| part.offset);
        let mut whole = Hasher::new();
        parts
            .sums
            .iter()
            .filter_map(|part| part.hasher.as_ref())
            .for_each(|sum| whole.combine(sum));
        match whole.finalize() == expected {
            true => Ok(Coverage::Whole),
            false => Err(wrong_checksum()),
        }
    }
}

impl PartSum {
    /// Adds the next bytes of the part.
    pub fn update(&mut self, bytes: &[u8]) {
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
            self.len = self.len.saturating_add(bytes.len() as u64);
        }
    }
}

fn wrong_checksum() -> Error {
    Error::corrupt("its checksum (CRC-32) is wrong: its bytes are not those that were archived")
        .with_brief("wrong checksum (CRC-32)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_in_any_order_have_the_checksum_of_the_file() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
        let add = |check: &ContentCheck, range: std::ops::Range<usize>| {
            let mut part = check.part(range.start as u64);
            bytes[range].chunks(777).for_each(|piece| part.update(piece));
            check.add(part)
        };
        let sum = crc32fast::hash(&bytes);
        for (expected, is_right) in [(sum, true), (sum ^ 1, false)] {
            let check = ContentCheck::new(Some(expected), bytes.len() as u64);
            assert_eq!(add(&check, 60_000..100_000).unwrap(), Coverage::Partial);
            assert_eq!(add(&check, 0..1).unwrap(), Coverage::Partial);
            let last = add(&check, 1..60_000);
            assert_eq!(last.as_ref().ok(), is_right.then_some(&Coverage::Whole), "{last:?}");
            assert!(last.is_ok() || last.unwrap_err().is_damage());
        }
        let unknown = ContentCheck::new(None, bytes.len() as u64);
        assert_eq!(add(&unknown, 0..100_000).unwrap(), Coverage::Partial);
    }
}
