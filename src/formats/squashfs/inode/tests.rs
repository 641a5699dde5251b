//! Inode numbers lead to their inodes, however wrong the stored numbers are.

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
    let ino =
        |reference: u64, stored| numbers.ino(InodeRef::parse(reference).unwrap(), stored).unwrap();
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
    for (block, offset) in [(0, 0), (0, 8191), (512 << 10, 0), (u32::MAX, 8191), (u32::MAX, 0)] {
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
