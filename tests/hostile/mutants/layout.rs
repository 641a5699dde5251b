//! Offsets of the fields of inodes, listings and attributes in their decoded tables.
//!
//! Written from squashfs_fs.h, independently of src, so that a mistake in the reader is not
//! repeated here. The input is trusted, as in `image`.

use super::field::{Field, field};

/// Bytes of a decoded metadata block.
pub(crate) const BLOCK: usize = 8192;

/// A listing in the directory table.
pub(crate) struct Directory {
    block: usize,
    offset: usize,
    len: usize,
}

impl Directory {
    pub(crate) fn fields(&self, table: &[u8]) -> Vec<Field> {
        let mut fields = Vec::new();
        // There is either one block, or all are uncompressed and preceded by two bytes each.
        let mut at = self.block / (BLOCK + 2) * BLOCK + self.offset;
        let end = at + self.len;
        while at < end {
            let count = field(at, 4).read(table) + 1;
            fields.extend([field(at, 4), field(at + 4, 4), field(at + 8, 4)]);
            at += 12;
            for _ in 0..count {
                fields.extend([0, 2, 4, 6].map(|column| field(at + column, 2)));
                let name = field(at + 6, 2).read(table) as usize + 1;
                fields.extend([field(at + 8, 1), field(at + 8 + name - 1, 1)]);
                at += 8 + name;
            }
        }
        fields
    }
}

/// The fields of all inodes, and the directories among them.
pub(crate) fn inode_fields(table: &[u8], block_size: usize) -> (Vec<Field>, Vec<Directory>) {
    let (mut fields, mut directories) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < table.len() {
        let mut put = |columns: &[(usize, usize)]| {
            fields.extend(columns.iter().map(|(column, width)| field(at + column, *width)));
        };
        let number = |column: usize, width: usize| field(at + column, width).read(table) as usize;
        put(&[(0, 2), (2, 2), (4, 2), (6, 2), (8, 4), (12, 4)]);
        let blocks = |size: usize, fragment: usize| match fragment {
            0xffff_ffff => size.div_ceil(block_size),
            _ => size / block_size,
        };
        let len = match number(0, 2) {
            1 => {
                put(&[(16, 4), (20, 4), (24, 2), (26, 2), (28, 4)]);
                let len = number(24, 2) - 3;
                directories.push(Directory { block: number(16, 4), offset: number(26, 2), len });
                32
            }
            2 => {
                put(&[(16, 4), (20, 4), (24, 4), (28, 4)]);
                let count = blocks(number(28, 4), number(20, 4));
                (0..count).for_each(|nth| put(&[(32 + nth * 4, 4)]));
                32 + count * 4
            }
            3 => {
                put(&[(16, 4), (20, 4), (24, 1)]);
                24 + number(20, 4)
            }
            4 | 5 => {
                put(&[(16, 4), (20, 4)]);
                24
            }
            6 | 7 => {
                put(&[(16, 4)]);
                20
            }
            8 => {
                put(&[(16, 4), (20, 4), (24, 4), (28, 4), (32, 2), (34, 2), (36, 4)]);
                let len = number(20, 4) - 3;
                directories.push(Directory { block: number(24, 4), offset: number(34, 2), len });
                let mut end = 40;
                for _ in 0..number(32, 2) {
                    put(&[(end, 4), (end + 4, 4), (end + 8, 4), (end + 12, 1)]);
                    end += 12 + number(end + 8, 4) + 1;
                }
                end
            }
            9 => {
                put(&[(16, 8), (24, 8), (32, 8), (40, 4), (44, 4), (48, 4), (52, 4)]);
                let count = blocks(number(24, 8), number(44, 4));
                (0..count).for_each(|nth| put(&[(56 + nth * 4, 4)]));
                56 + count * 4
            }
            10 => {
                let len = 24 + number(20, 4);
                put(&[(16, 4), (20, 4), (24, 1), (len, 4)]);
                len + 4
            }
            11 | 12 => {
                put(&[(16, 4), (20, 4), (24, 4)]);
                28
            }
            13 | 14 => {
                put(&[(16, 4), (20, 4)]);
                24
            }
            other => panic!("inode of type {other} at {at}"),
        };
        at += len;
    }
    (fields, directories)
}

/// The fields of the names and values of extended attributes.
pub(crate) fn pair_fields(table: &[u8]) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut at = 0;
    while at < table.len() {
        let name = field(at + 2, 2).read(table) as usize;
        let value = at + 4 + name;
        fields.extend([field(at, 2), field(at + 2, 2), field(at + 4, 1), field(value, 4)]);
        let len = field(value, 4).read(table) as usize;
        if field(at, 2).read(table) & 0x100 != 0 {
            fields.push(field(value + 4, 8));
        }
        at = value + 4 + len;
    }
    fields
}
