//! A checked reader of little-endian numbers, and checked conversions between integer types.
//!
//! Invariant: a read past the end is an error that names the structure.

use crate::error::{Error, Result};

/// A cursor over the bytes of one structure.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    structure: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes`. `structure` is their name in errors.
    pub(crate) fn new(structure: &'static str, bytes: &'a [u8]) -> Self {
        Self { structure, rest: bytes }
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((array, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.short(N));
        };
        self.rest = rest;
        Ok(*array)
    }

    /// The next `len` bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let Some((bytes, rest)) = self.rest.split_at_checked(len) else {
            return Err(self.short(len));
        };
        self.rest = rest;
        Ok(bytes)
    }

    /// Number of bytes not read yet.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn i16(&mut self) -> Result<i16> {
        self.array().map(i16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn short(&self, wanted: usize) -> Error {
        let has = self.rest.len();
        Error::corrupt(format!("{} ends early: {wanted} bytes wanted, {has} left", self.structure))
    }
}

/// Converts `number` to an index. If it does not fit, the result is larger than any slice.
pub(crate) fn index(number: impl TryInto<usize>) -> usize {
    number.try_into().unwrap_or(usize::MAX)
}

/// Converts a length in memory to the 64 bits that the formats use.
pub(crate) fn length(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_little_endian_numbers_in_turn() {
        let bytes = [1, 2, 0xff, 0xff, 4, 3, 2, 1, 8, 7, 6, 5, 4, 3, 2, 1];
        let mut reader = Reader::new("thing", &bytes);
        assert_eq!(reader.u16().unwrap(), 0x0201);
        assert_eq!(reader.i16().unwrap(), -1);
        assert_eq!(reader.u32().unwrap(), 0x0102_0304);
        assert_eq!(reader.u64().unwrap(), 0x0102_0304_0506_0708);
        assert!(reader.u16().is_err());
    }

    #[test]
    fn names_the_structure_that_ends_early() {
        let error = Reader::new("superblock", &[0; 3]).u32().unwrap_err();
        assert_eq!(error.to_string(), "superblock ends early: 4 bytes wanted, 3 left");
        assert_eq!(index(u64::MAX), usize::MAX);
    }
}
