//! Lookup tables: fixed-size records in metadata blocks, found through a list of block positions.
//!
//! Used for fragments, owners, inode numbers and extended attributes. Invariant: the list of
//! positions is read at mount; a lookup then reads one metadata block.

use super::metadata::{Metadata, Position};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::SQUASHFS_METADATA_MAX;
use crate::storage::Storage;
use crate::sync::Arc;

/// Size of a position in the list, bytes.
const POSITION: u64 = 8;

/// A table of records of `RECORD` bytes each.
pub(super) struct Table<const RECORD: usize> {
    metadata: Arc<Metadata>,
    name: &'static str,
    count: u32,
    /// Offset in the image of each metadata block of the table.
    blocks: Box<[u64]>,
}

impl<const RECORD: usize> Table<RECORD> {
    /// Reads the list at `start`, of a table of `count` records. The list must end at or before
    /// `end`.
    pub(super) fn read(
        metadata: &Arc<Metadata>,
        storage: &dyn Storage,
        name: &'static str,
        start: u64,
        count: u32,
        end: u64,
    ) -> Result<Self> {
        let per_block = length(Self::records_per_block());
        let blocks = u64::from(count).div_ceil(per_block.max(1));
        let size = blocks.saturating_mul(POSITION);
        // Check before allocating, because the archive controls the count.
        if start.checked_add(size).is_none_or(|list_end| list_end > end) {
            return Err(Error::corrupt(format!("{name} table: past the end of the image"))
                .with_detail(format_args!(
                    "table at {start:#x}, {count} records with {size} bytes of positions, image \
                     ends at {end:#x}"
                )));
        }
        let mut bytes = vec![0; index(size)];
        storage.read_exact_at(&mut bytes, start)?;
        let mut reader = Reader::new("table", &bytes);
        let blocks = (0..blocks).map(|_| reader.u64()).collect::<Result<_>>()?;
        Ok(Self { metadata: Arc::clone(metadata), name, count, blocks })
    }

    /// Number of records.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// The record `number`.
    ///
    /// Fails with `Corrupt` if there are fewer records; the errors of reading its metadata block.
    pub(super) fn record(&self, number: u32) -> Result<[u8; RECORD]> {
        let per_block = Self::records_per_block();
        let within = index(number).checked_rem(per_block).unwrap_or(0).saturating_mul(RECORD);
        let block = index(number).checked_div(per_block).and_then(|nth| self.blocks.get(nth));
        match (block, u16::try_from(within)) {
            (Some(&block), Ok(offset)) if number < self.count => {
                self.metadata.cursor(Position { block, offset })?.array()
            }
            _ => Err(Error::corrupt(format!(
                "{} {number} referenced, but there are {}",
                self.name, self.count
            ))),
        }
    }

    fn records_per_block() -> usize {
        SQUASHFS_METADATA_MAX.checked_div(RECORD).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codecs::Codec;
    use crate::storage::MemStorage;

    /// 2049 records of 4 bytes, each its own number: one full block, one block with a single
    /// record, the list.
    fn image() -> (Arc<MemStorage>, u64) {
        let records: Vec<u8> = (0_u32..2049).flat_map(u32::to_le_bytes).collect();
        let mut bytes = Vec::new();
        for block in records.chunks(SQUASHFS_METADATA_MAX) {
            let word = u16::try_from(block.len()).unwrap() | 0x8000;
            bytes.extend(word.to_le_bytes());
            bytes.extend(block);
        }
        let list = length(bytes.len());
        bytes.extend(0_u64.to_le_bytes());
        bytes.extend(length(2 + SQUASHFS_METADATA_MAX).to_le_bytes());
        (Arc::new(MemStorage::new(bytes)), list)
    }

    fn metadata(storage: &Arc<MemStorage>) -> Arc<Metadata> {
        Arc::new(Metadata::new(storage.clone(), Codec::Gzip, 1 << 20))
    }

    #[test]
    fn finds_records_in_each_block_and_none_past_the_last() {
        let (storage, list) = image();
        let metadata = metadata(&storage);
        let table =
            Table::<4>::read(&metadata, &*storage, "id", list, 2049, storage.len()).unwrap();
        for number in [0, 1, 2047, 2048] {
            assert_eq!(table.record(number).unwrap(), number.to_le_bytes());
        }
        let error = table.record(2049).unwrap_err();
        assert_eq!(error.to_string(), "id 2049 referenced, but there are 2049");
        assert!(table.record(u32::MAX).is_err());
    }

    #[test]
    fn rejects_a_list_past_the_end_before_allocating() {
        let (storage, list) = image();
        let (metadata, end) = (metadata(&storage), storage.len());
        assert!(Table::<4>::read(&metadata, &*storage, "id", list, 4096, end).is_ok());
        assert!(Table::<4>::read(&metadata, &*storage, "id", list, 4097, end).is_err());
        assert!(Table::<16>::read(&metadata, &*storage, "id", list, u32::MAX, end).is_err());
        assert!(Table::<4>::read(&metadata, &*storage, "id", u64::MAX, 1, end).is_err());
    }
}
