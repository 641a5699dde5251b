//! Metadata blocks: everything but file contents is stored in chains of compressed blocks of 8 KiB.
//!
//! Invariant: a cursor returns only bytes that its block decompressed to.
//!
//! On disk (kernel: squashfs_read_data) a block is a 16-bit word and its data. Bit 15 of the word
//! is set if the data is uncompressed, the other bits are its length. The next block of the chain
//! follows directly. The position of a byte can therefore only be found by walking the chain.
//! References hold the offset of a block, and the offset in the decompressed block.
//!
//! Lookup tables (fragments, owners, inode numbers, extended attributes) are records of a fixed
//! size in such blocks, with a list of the positions of the blocks.

use crate::cache::{Cache, Cached};
use crate::codecs::Codec;
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::SQUASHFS_METADATA_MAX;
use crate::storage::Storage;
use crate::sync::Arc;

/// Size of the word before each block, bytes.
const HEADER: usize = 2;

/// Set in that word if the block is uncompressed.
const UNCOMPRESSED: u16 = 1 << 15;

/// Size of a position in the list of a table, bytes.
const POSITION: u64 = 8;

/// Loads metadata blocks and caches them.
pub(super) struct Metadata {
    storage: Arc<dyn Storage>,
    codec: Codec,
    pub(super) cache: Cache<u64, Block>,
}

/// A decompressed block.
#[derive(Clone, Debug)]
pub(super) struct Block {
    bytes: Arc<[u8]>,
    /// Offset of the next block in the image.
    next: u64,
}

impl Cached for Block {
    fn weight(&self) -> u64 {
        length(self.bytes.len())
    }
}

/// A position in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// Offset of the block in the image.
    pub(super) block: u64,
    /// Offset in the decompressed block.
    pub(super) offset: u16,
}

impl Metadata {
    /// The metadata of the image in `storage`, cached in at most `capacity` bytes.
    pub(super) fn new(storage: Arc<dyn Storage>, codec: Codec, capacity: u64) -> Self {
        let cache = Cache::new(capacity, length(SQUASHFS_METADATA_MAX));
        Self { storage, codec, cache }
    }

    /// A cursor at `position`.
    ///
    /// Fails with `Corrupt` if there is no such block or it is shorter than the offset; `Io`.
    pub(super) fn cursor(&self, position: Position) -> Result<Cursor<'_>> {
        let block = self.block(position.block)?;
        let at = usize::from(position.offset);
        // At the end of a block, the next byte is the first of the next block.
        if at > block.bytes.len() {
            return Err(Error::corrupt("damaged metadata block: shorter than a reference to it")
                .with_detail(format_args!(
                    "metadata block at {:#x} has {} bytes, byte {at} referenced",
                    position.block,
                    block.bytes.len()
                )));
        }
        Ok(Cursor { metadata: self, start: position.block, block, offset: at })
    }

    fn block(&self, start: u64) -> Result<Block> {
        self.cache.get_or_load(start, || self.load(start))
    }

    /// Loads the block at `start` with a single read of the largest size: most blocks are near that
    /// size.
    fn load(&self, start: u64) -> Result<Block> {
        const LONGEST: usize = HEADER + SQUASHFS_METADATA_MAX;
        let location = || format!("metadata block at {start:#x}");
        let corrupt = |what: String| {
            Error::corrupt(format!("damaged metadata block: {what}")).with_detail(location())
        };
        let left = index(self.storage.len().saturating_sub(start));
        if left < HEADER {
            return Err(corrupt("past the end of the image".into()));
        }
        let mut stored = [0; LONGEST];
        let stored = stored.get_mut(..left.min(LONGEST)).unwrap_or_default();
        self.storage.read_exact_at(stored, start)?;
        let (header, stored) = stored.split_first_chunk::<HEADER>().unwrap_or((&[0; HEADER], &[]));
        let word = u16::from_le_bytes(*header);
        let claimed = usize::from(word & !UNCOMPRESSED);
        if claimed == 0 || claimed > SQUASHFS_METADATA_MAX {
            return Err(corrupt(format!(
                "claims {claimed} bytes, valid are 1 to {SQUASHFS_METADATA_MAX}"
            )));
        }
        let stored = stored.get(..claimed).ok_or_else(|| {
            corrupt(format!("claims {claimed} bytes, the image ends before that"))
        })?;
        let next = start.saturating_add(length(HEADER)).saturating_add(length(claimed));
        if word & UNCOMPRESSED != 0 {
            return Ok(Block { bytes: stored.into(), next });
        }
        let mut decoded = [0; SQUASHFS_METADATA_MAX];
        let len = self.codec.decode(stored, &mut decoded).map_err(|error| {
            error
                .within("damaged metadata block")
                .with_detail(location())
                .with_brief(format!("damaged metadata ({})", self.codec.name()))
        })?;
        match decoded.get(..len) {
            Some(bytes) if !bytes.is_empty() => Ok(Block { bytes: bytes.into(), next }),
            _ => Err(corrupt("decodes to nothing".into())),
        }
    }
}

/// Reads along a chain of metadata blocks.
#[derive(Clone)]
pub(super) struct Cursor<'m> {
    metadata: &'m Metadata,
    start: u64,
    block: Block,
    offset: usize,
}

impl Cursor<'_> {
    /// The position of the cursor.
    pub(super) fn position(&self) -> Position {
        Position { block: self.start, offset: u16::try_from(self.offset).unwrap_or(u16::MAX) }
    }

    /// The position of the next byte, or `None` if it is in a block that starts at `end` or after
    /// it.
    pub(super) fn position_before(&mut self, end: u64) -> Result<Option<Position>> {
        if self.offset >= self.block.bytes.len() && self.block.next >= end {
            return Ok(None);
        }
        self.rest()?;
        Ok(Some(self.position()))
    }

    /// The bytes from here to the end of the block, at least one.
    pub(super) fn rest(&mut self) -> Result<&[u8]> {
        if self.offset >= self.block.bytes.len() {
            self.start = self.block.next;
            self.block = self.metadata.block(self.start)?;
            self.offset = 0;
        }
        Ok(self.block.bytes.get(self.offset..).unwrap_or_default())
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        self.fill(&mut array)?;
        Ok(array)
    }

    /// Fills `buffer` with the next bytes.
    pub(super) fn fill(&mut self, mut buffer: &mut [u8]) -> Result<()> {
        while !buffer.is_empty() {
            let rest = self.rest()?;
            let count = rest.len().min(buffer.len());
            let (target, left) = buffer.split_at_mut(count);
            target.copy_from_slice(rest.get(..count).unwrap_or_default());
            self.offset = self.offset.saturating_add(count);
            buffer = left;
        }
        Ok(())
    }

    /// Skips the next `count` bytes.
    pub(super) fn skip(&mut self, mut count: u64) -> Result<()> {
        while count > 0 {
            let rest = length(self.rest()?.len());
            let step = rest.min(count);
            self.offset = self.offset.saturating_add(index(step));
            count = count.saturating_sub(step);
        }
        Ok(())
    }
}

/// A lookup table of records of `RECORD` bytes each. The list of positions is read at mount; a
/// lookup then reads one metadata block.
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
    use crate::storage::MemStorage;

    fn uncompressed(bytes: &[u8]) -> Vec<u8> {
        let word = u16::try_from(bytes.len()).unwrap() | UNCOMPRESSED;
        [&word.to_le_bytes()[..], bytes].concat()
    }

    fn metadata(image: Vec<u8>) -> Metadata {
        Metadata::new(Arc::new(MemStorage::new(image)), Codec::Zstd, 1 << 20)
    }

    const START: Position = Position { block: 0, offset: 0 };

    #[test]
    fn reads_across_blocks() {
        let metadata =
            metadata([uncompressed(b"abc"), uncompressed(b"d"), uncompressed(b"efgh")].concat());
        let mut cursor = metadata.cursor(START).unwrap();
        assert_eq!(&cursor.array::<2>().unwrap(), b"ab");
        assert_eq!(&cursor.array::<3>().unwrap(), b"cde");
        cursor.skip(1).unwrap();
        assert_eq!(cursor.rest().unwrap(), b"gh");
        let mut again = metadata.cursor(cursor.position()).unwrap();
        assert_eq!(&again.array::<2>().unwrap(), b"gh");
        assert!(again.array::<1>().is_err(), "nothing follows");
    }

    #[test]
    fn rejects_a_reference_past_its_block_but_not_to_its_end() {
        let metadata = metadata([uncompressed(b"abc"), uncompressed(b"d")].concat());
        let mut cursor = metadata.cursor(Position { block: 0, offset: 3 }).unwrap();
        assert_eq!(&cursor.array::<1>().unwrap(), b"d");
        let error = metadata.cursor(Position { block: 0, offset: 4 }).err().unwrap();
        let text = format!("{error:#}");
        assert!(
            text.contains("shorter than a reference to it") && text.contains("byte 4"),
            "{text}"
        );
    }

    #[test]
    fn accepts_lengths_up_to_the_limit() {
        let largest = SQUASHFS_METADATA_MAX;
        assert!(metadata(uncompressed(&vec![7; largest])).cursor(START).is_ok());
        let error = metadata(uncompressed(&vec![7; largest + 1])).cursor(START).err().unwrap();
        assert!(error.to_string().contains("claims 8193 bytes"), "{error}");
        assert!(metadata(uncompressed(&[])).cursor(START).is_err());
    }

    #[test]
    fn rejects_blocks_past_the_end_of_the_image() {
        let mut image = uncompressed(b"abc");
        image.pop();
        let error = metadata(image).cursor(START).err().unwrap();
        assert!(error.to_string().contains("ends before that"), "{error}");
        assert!(metadata(vec![0]).cursor(START).is_err());
        assert!(metadata(vec![]).cursor(Position { block: u64::MAX, offset: 0 }).is_err());
    }

    #[test]
    fn rejects_a_decompression_bomb() {
        let bomb = zstd::bulk::compress(&vec![0; 1 << 20], 3).unwrap();
        let word = u16::try_from(bomb.len()).unwrap();
        let image = [&word.to_le_bytes()[..], &bomb].concat();
        let error = metadata(image).cursor(START).err().unwrap();
        assert!(error.to_string().contains("metadata block: zstd"), "{error}");
        assert!(format!("{error:#}").contains("metadata block at 0x0"), "{error:#}");
    }

    #[test]
    fn does_not_cache_a_storage_error() {
        let storage = Arc::new(MemStorage::new(uncompressed(b"abc")));
        let metadata = Metadata::new(storage.clone(), Codec::Gzip, 1 << 20);
        storage.fail_next(1);
        assert!(metadata.cursor(START).is_err());
        assert!(metadata.cursor(START).is_ok());
    }

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

    fn of_storage(storage: &Arc<MemStorage>) -> Arc<Metadata> {
        Arc::new(Metadata::new(storage.clone(), Codec::Gzip, 1 << 20))
    }

    #[test]
    fn finds_records_in_each_block_and_none_past_the_last() {
        let (storage, list) = image();
        let metadata = of_storage(&storage);
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
        let (metadata, end) = (of_storage(&storage), storage.len());
        assert!(Table::<4>::read(&metadata, &*storage, "id", list, 4096, end).is_ok());
        assert!(Table::<4>::read(&metadata, &*storage, "id", list, 4097, end).is_err());
        assert!(Table::<16>::read(&metadata, &*storage, "id", list, u32::MAX, end).is_err());
        assert!(Table::<4>::read(&metadata, &*storage, "id", u64::MAX, 1, end).is_err());
    }
}
