//! Inode numbers: maps between the numbers that users see and inodes.
//!
//! Problem. A directory names an inode by its reference, the position of its record: 32 bits of
//! block and 16 bits of offset. References are too large for inode numbers. An image of 60,000
//! files has references above 2^34, and a program with a 32-bit st_ino gets EOVERFLOW.
//!
//! Idea. Each record also stores a number, from 1 to the number of inodes, and the export table
//! maps it to the reference. archfs shows the stored numbers, as the kernel's SquashFS does. It
//! keeps nothing in memory: it reads the table through the metadata cache.
//!
//! Stored numbers come from the archive and may be wrong. A stored number is shown only if the
//! export table maps it to that same inode. No two inodes can therefore share a number. FUSE
//! requires that the root has number 1. The root therefore swaps numbers with the inode whose
//! stored number is 1, if the export table confirms the stored number of the root.
//!
//! If there is no export table, or it disagrees, the number is derived from the reference: block
//! times 8 KiB (the size of a metadata block) plus offset. Without a table, these numbers fit in 32
//! bits up to 512 KiB of inode table, about 100,000 files. All hard links of a file have the same
//! reference, so they have the same number in both cases.

use super::inode::{Inode, InodeRef};
use super::metadata::Metadata;
use super::superblock::Superblock;
use super::table::Table;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::length;
use crate::formats::limits::SQUASHFS_METADATA_MAX;
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::Ino;

/// First number derived from references if there is an export table, above all stored numbers.
const ABOVE_STORED: u64 = 1 << 32;

/// First number derived from references if there is none: after 0, which is invalid, and the root.
const ABOVE_ROOT: u64 = 2;

/// The number of all references past the end of a metadata block, where no record can be. Reading
/// such an inode returns an error.
const NOWHERE: u64 = 1 << 46;

/// The inode numbers of one image.
pub(super) struct Numbers {
    root: InodeRef,
    /// The stored number of the root, if the export table maps it to the root.
    root_number: Option<u32>,
    /// The reference of each stored number.
    exports: Option<Table<8>>,
}

impl Numbers {
    /// The inode numbers of the image in `storage`, whose root is the inode at `root`.
    pub(super) fn read(
        metadata: &Arc<Metadata>,
        storage: &dyn Storage,
        superblock: &Superblock,
        root: InodeRef,
        inode: &Inode,
    ) -> Result<Self> {
        let (count, end) = (superblock.inode_count, superblock.bytes_used);
        let exports = superblock.export_table.map(|start| {
            let table = Table::read(metadata, storage, "export", start, count, end);
            table.map(Some).or_else(|error| if error.is_damage() { Ok(None) } else { Err(error) })
        });
        let exports = exports.transpose()?.flatten();
        Self { root, root_number: None, exports }.with_root_number(inode.number)
    }

    /// Sets `root_number`, if the root stores `stored`.
    fn with_root_number(self, stored: u32) -> Result<Self> {
        let root_number = match self.exported(stored) {
            Ok(Some(found)) if found == self.root => Some(stored),
            Err(error) if !error.is_damage() => return Err(error),
            _ => None,
        };
        Ok(Self { root_number, ..self })
    }

    /// The reference of the root.
    pub(super) fn root(&self) -> InodeRef {
        self.root
    }

    /// The number of the inode at `reference`. `stored` is its number in a record or entry.
    pub(super) fn ino(&self, reference: InodeRef, stored: u32) -> Result<Ino> {
        if reference == self.root {
            return Ok(Ino::ROOT);
        }
        match self.exported(stored) {
            Ok(Some(found)) if found == reference => {
                let shown = if stored == 1 { self.root_number } else { Some(stored) };
                let ino = shown.and_then(|shown| Ino::new(u64::from(shown)));
                Ok(ino.unwrap_or_else(|| self.derived_ino(reference)))
            }
            Err(error) if !error.is_damage() => Err(error),
            _ => Ok(self.derived_ino(reference)),
        }
    }

    /// The number of the inode whose record stores `stored`, if the export table has it.
    pub(super) fn stored(&self, stored: u32) -> Result<Option<Ino>> {
        match self.exported(stored)? {
            Some(reference) => self.ino(reference, stored).map(Some),
            None => Ok(None),
        }
    }

    /// The reference of the inode with number `ino`.
    ///
    /// Fails with `NotFound` if no inode has this number; `Corrupt` or `Io` if the table cannot be
    /// read.
    pub(super) fn reference(&self, ino: Ino) -> Result<InodeRef> {
        if ino == Ino::ROOT {
            return Ok(self.root);
        }
        let number = ino.number();
        let none = || Error::new(Kind::NotFound, format!("{number} is not an inode of this image"));
        match number.checked_sub(self.derived_start()) {
            Some(derived) => unpack(derived).ok_or_else(none),
            None => {
                let shown = u32::try_from(number).map_err(|_| none())?;
                let stored = if Some(shown) == self.root_number { 1 } else { shown };
                self.exported(stored)?.ok_or_else(none)
            }
        }
    }

    /// One more than the largest inode number, unless the archive contradicts itself.
    pub(super) fn end(&self, inode_table_len: u64) -> u64 {
        match &self.exports {
            Some(exports) => u64::from(exports.count()).saturating_add(1),
            None => inode_table_len.saturating_mul(block_len()).saturating_add(ABOVE_ROOT),
        }
    }

    /// The reference of inode `stored` in the export table; `None` if it is not in the table.
    fn exported(&self, stored: u32) -> Result<Option<InodeRef>> {
        let Some(exports) = &self.exports else {
            return Ok(None);
        };
        match stored.checked_sub(1).filter(|&record_index| record_index < exports.count()) {
            Some(record_index) => {
                let bytes = exports.record(record_index)?;
                Ok(InodeRef::parse(u64::from_le_bytes(bytes)))
            }
            None => Ok(None),
        }
    }

    /// The number derived from a reference.
    fn derived_ino(&self, reference: InodeRef) -> Ino {
        let number = self.derived_start().saturating_add(pack(reference));
        Ino::new(number).unwrap_or(Ino::ROOT)
    }

    fn derived_start(&self) -> u64 {
        if self.exports.is_some() { ABOVE_STORED } else { ABOVE_ROOT }
    }
}

fn block_len() -> u64 {
    length(SQUASHFS_METADATA_MAX)
}

fn pack(reference: InodeRef) -> u64 {
    let offset = u64::from(reference.offset());
    match offset < block_len() {
        true => u64::from(reference.block()).saturating_mul(block_len()).saturating_add(offset),
        false => NOWHERE,
    }
}

fn unpack(number: u64) -> Option<InodeRef> {
    if number == NOWHERE {
        return Some(InodeRef::new(0, u16::MAX));
    }
    let block = u32::try_from(number.checked_div(block_len())?).ok()?;
    let offset = u16::try_from(number.checked_rem(block_len())?).ok()?;
    Some(InodeRef::new(block, offset))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codecs::Codec;
    use crate::storage::MemStorage;

    /// An export table of `references` in uncompressed blocks, and the numbers that it gives.
    fn numbers(references: &[u64], root: u64, root_number: u32) -> Numbers {
        let records: Vec<u8> = references.iter().flat_map(|it| it.to_le_bytes()).collect();
        let mut bytes = Vec::new();
        let mut starts = Vec::new();
        for block in records.chunks(SQUASHFS_METADATA_MAX) {
            starts.push(length(bytes.len()));
            bytes.extend((u16::try_from(block.len()).unwrap() | 0x8000).to_le_bytes());
            bytes.extend(block);
        }
        let list = length(bytes.len());
        bytes.extend(starts.iter().flat_map(|start| start.to_le_bytes()));
        let storage = Arc::new(MemStorage::new(bytes));
        let count = u32::try_from(references.len()).unwrap();
        let end = storage.len();
        let metadata = Arc::new(Metadata::new(storage.clone(), Codec::Gzip, 1 << 20));
        let exports = Table::read(&metadata, &*storage, "export", list, count, end).unwrap();
        let root = InodeRef::parse(root).unwrap();
        let numbers = Numbers { root, root_number: None, exports: Some(exports) };
        numbers.with_root_number(root_number).unwrap()
    }

    #[test]
    fn stored_numbers_are_shown_and_the_root_is_one() {
        let references: Vec<u64> = (0..3000).map(|nth| (nth * 1000 % 8192) | (nth << 20)).collect();
        let numbers = numbers(&references, references[2999], 3000);
        assert_eq!(numbers.end(1 << 30), 3001);
        for (&reference, stored) in references.iter().zip(1_u32..) {
            let reference = InodeRef::parse(reference).unwrap();
            let ino = numbers.ino(reference, stored).unwrap();
            let shown = match stored {
                1 => 3000,
                3000 => 1,
                other => other,
            };
            assert_eq!(ino.number(), u64::from(shown));
            assert_eq!(numbers.reference(ino).unwrap(), reference);
        }
        let unknown = numbers.reference(Ino::new(3001).unwrap()).unwrap_err();
        assert_eq!(unknown.kind(), Kind::NotFound);
    }

    #[test]
    fn inodes_with_wrong_stored_numbers_get_unique_numbers() {
        let numbers = numbers(&[100, 200, 300, u64::MAX], 300, 3);
        let ino = |reference: u64, stored| {
            numbers.ino(InodeRef::parse(reference).unwrap(), stored).unwrap()
        };
        let shown = [
            ino(100, 1),
            ino(200, 2),
            ino(300, 3),
            // Inodes that store the number of another, 0, one past the table, and one without a
            // reference.
            ino(150, 2),
            ino(160, 0),
            ino(170, 5),
            ino(180, 4),
        ];
        assert_eq!(shown.iter().collect::<std::collections::BTreeSet<_>>().len(), shown.len());
        for (ino, reference) in shown.into_iter().zip([100, 200, 300, 150, 160, 170, 180]) {
            assert_eq!(numbers.reference(ino).unwrap().bits(), reference);
        }
        // Past the end of a block. There is no inode, and none shares its number.
        let no_inode = ino(200 + 8192, 0);
        assert!(!shown.contains(&no_inode));
        assert!(numbers.reference(no_inode).unwrap().offset() >= 8192);
    }

    #[test]
    fn a_root_with_the_stored_number_of_another_inode_is_unique() {
        let numbers = numbers(&[100, 200, 300], 300, 2);
        let shown = [(100, 1), (200, 2), (300, 2)].map(|(reference, stored)| {
            let reference = InodeRef::parse(reference).unwrap();
            let ino = numbers.ino(reference, stored).unwrap();
            assert_eq!(numbers.reference(ino).unwrap(), reference);
            ino
        });
        assert_eq!(shown.iter().collect::<std::collections::BTreeSet<_>>().len(), shown.len());
    }

    /// > An image without an export table (`mksquashfs -no-exports`) has larger numbers if its
    /// > inode table takes more than 512 KiB.
    #[test]
    fn without_an_export_table_numbers_fit_32_bits_up_to_512_kib() {
        let root = InodeRef::new(0, 7);
        let numbers = Numbers { root, root_number: None, exports: None };
        for (block, offset) in [(0, 0), (0, 8191), (512 << 10, 0), (u32::MAX, 8191), (u32::MAX, 0)]
        {
            let reference = InodeRef::new(block, offset);
            let ino = numbers.ino(reference, 1).unwrap();
            assert_eq!(numbers.reference(ino).unwrap(), reference);
            assert_eq!(ino.number() < 1 << 32, block < 512 << 10);
            assert!(ino.number() > 1);
        }
        assert_eq!(numbers.end(512 << 10), (1 << 32) + 2);
        assert_eq!(numbers.ino(root, 9).unwrap(), Ino::ROOT);
        assert!(numbers.reference(Ino::new(u64::MAX).unwrap()).is_err());
    }
}
