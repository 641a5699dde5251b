//! Local headers, which stand before the data of each member (APPNOTE 4.3.7).
//!
//! The central directory does not say how long they are. archfs reads one together with the data
//! behind it, when a member is first read.

use std::ops::Range;
// Not the model checker's atomics: nothing is decided by their order.
use std::sync::atomic::{AtomicU16, Ordering};

use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::storage::{FilePart, Storage};
use crate::sync::Arc;

/// Length of the fixed part of a local header, bytes.
pub(super) const FIXED: usize = 30;

const SIGNATURE: [u8; 4] = *b"PK\x03\x04";

/// Bytes that a header may be longer than the one before, without a second read.
const SLACK: usize = 64;

/// A local header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LocalHeader {
    method: u16,
    pub(super) crc32: u32,
    /// Lengths of the data and of the decoded data; 0xffffffff if they are in a ZIP64 field.
    pub(super) compressed: u32,
    pub(super) size: u32,
    name_len: u16,
    extra_len: u16,
}

impl LocalHeader {
    /// Reads the header at `at` in `storage`.
    pub(super) fn read(storage: &dyn Storage, at: u64) -> Result<Self> {
        let mut fixed = [0; FIXED];
        storage.read_exact_at(&mut fixed, at)?;
        Self::parse(&fixed)
    }

    /// Parses the header at the start of `bytes`.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("local header", bytes);
        if reader.array()? != SIGNATURE {
            return Err(Error::corrupt("there is no local header where its entry says"));
        }
        let (_, _, method, _) = (reader.u16()?, reader.u16()?, reader.u16()?, reader.u32()?);
        let (crc32, compressed, size) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (name_len, extra_len) = (reader.u16()?, reader.u16()?);
        Ok(Self { method, crc32, compressed, size, name_len, extra_len })
    }

    /// Whether `name` is the name in this header, which is at `at` in `storage`.
    pub(super) fn has_name(&self, storage: &dyn Storage, at: u64, name: &[u8]) -> Result<bool> {
        if usize::from(self.name_len) != name.len() {
            return Ok(false);
        }
        let mut found = vec![0; name.len()];
        storage.read_exact_at(&mut found, at.saturating_add(length(FIXED)))?;
        Ok(found == name)
    }

    /// The offset at which the data of `packed` ends, which this header stands before.
    ///
    /// Fails with `Corrupt` if the header contradicts the entry, or the data runs past `data_end`,
    /// where the central directory starts.
    pub(super) fn data_end(&self, packed: Packed, data_end: u64) -> Result<u64> {
        if self.method != packed.method {
            return Err(Error::corrupt("its local header has another compression method"));
        }
        let end = packed.header.saturating_add(length(self.len())).saturating_add(packed.len);
        match end <= data_end {
            true => Ok(end),
            false => Err(Error::corrupt("its data runs into the central directory")),
        }
    }

    /// Length of the header, bytes.
    fn len(&self) -> usize {
        FIXED.saturating_add(usize::from(self.name_len)).saturating_add(usize::from(self.extra_len))
    }
}

/// The data of a member, as its entry describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed {
    /// Offset of the local header.
    pub(super) header: u64,
    pub(super) method: u16,
    /// Length of the data, bytes.
    pub(super) len: u64,
}

/// Reads local headers and data.
pub(super) struct LocalHeaders {
    storage: Arc<dyn Storage>,
    /// Start of the central directory, before which all data ends.
    data_end: u64,
    /// Length of the last header that was read, bytes.
    last_len: AtomicU16,
}

impl LocalHeaders {
    pub(super) fn new(storage: Arc<dyn Storage>, data_end: u64) -> Self {
        Self { storage, data_end, last_len: AtomicU16::new(0) }
    }

    /// The length of the local header of `packed`, bytes.
    pub(super) fn len_of(&self, packed: Packed) -> Result<usize> {
        self.checked_len(LocalHeader::read(self.storage.as_ref(), packed.header)?, packed)
    }

    /// The number of bytes to add to a buffer for the local header of `packed`, so that one read
    /// gets the header and the data.
    pub(super) fn allowance(&self, packed: Packed) -> usize {
        let last_len = usize::from(self.last_len.load(Ordering::Relaxed));
        let guess = last_len.max(FIXED).saturating_add(SLACK);
        let room = self.data_end.saturating_sub(packed.header).saturating_sub(packed.len);
        guess.min(index(room))
    }

    /// Reads the local header of `packed` and the first `len` bytes of its data into `buffer`,
    /// which is longer than `len` by the allowance. Returns the length of the header, and where in
    /// the buffer the data is.
    pub(super) fn read_with_data(
        &self,
        packed: Packed,
        buffer: &mut [u8],
        len: usize,
    ) -> Result<(usize, Range<usize>)> {
        self.storage.read_contents_at(buffer, packed.header, FilePart::First)?;
        let header_len = self.checked_len(LocalHeader::parse(buffer)?, packed)?;
        let data = header_len..header_len.saturating_add(len);
        if data.end <= buffer.len() {
            return Ok((header_len, data));
        }
        let start = packed.header.saturating_add(length(header_len));
        let data = buffer.get_mut(..len).unwrap_or_default();
        self.storage.read_contents_at(data, start, FilePart::First)?;
        Ok((header_len, 0..len))
    }

    fn checked_len(&self, local: LocalHeader, packed: Packed) -> Result<usize> {
        local.data_end(packed, self.data_end)?;
        if let Ok(len) = u16::try_from(local.len()) {
            self.last_len.store(len, Ordering::Relaxed);
        }
        Ok(local.len())
    }
}

/// The lengths of the local headers that were read, by node.
pub(super) struct HeaderLens(Vec<AtomicU16>);

impl HeaderLens {
    /// For `count` nodes.
    pub(super) fn new(count: u32) -> Self {
        Self((0..count).map(|_| AtomicU16::new(0)).collect())
    }

    pub(super) fn get(&self, node: u32) -> Option<u64> {
        let len = self.0.get(index(node))?.load(Ordering::Relaxed);
        (len > 0).then_some(len.into())
    }

    /// Keeps the length of a header. One that is too long for the table is read every time.
    pub(super) fn set(&self, node: u32, len: usize) {
        if let (Some(slot), Ok(len)) = (self.0.get(index(node)), u16::try_from(len)) {
            slot.store(len, Ordering::Relaxed);
        }
    }
}
