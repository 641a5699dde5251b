//! Takes a SquashFS image apart, so that fields in compressed tables can be edited.
//!
//! Edited tables are written back uncompressed. A reference contains the position of a block in the
//! file, so a table is taken apart only if it has one block, or if all its blocks are uncompressed
//! and keep their size. The input is trusted: a sound image from mksquashfs.

use archfs::codecs::Codec;

use super::damage;
use super::field::{self, Field, field};
use super::layout::{BLOCK, inode_fields, pair_fields};
use super::random::Random;

const NONE: u64 = u64::MAX;

/// The fields of the superblock.
const SUPERBLOCK: [Field; 19] = [
    field(0, 4),
    field(4, 4),
    field(8, 4),
    field(12, 4),
    field(16, 4),
    field(20, 2),
    field(22, 2),
    field(24, 2),
    field(26, 2),
    field(28, 2),
    field(30, 2),
    field(32, 8),
    field(40, 8),
    field(48, 8),
    field(56, 8),
    field(64, 8),
    field(72, 8),
    field(80, 8),
    field(88, 8),
];
const USED: Field = field(40, 8);
const IDS: Field = field(48, 8);
const XATTRS: Field = field(56, 8);
const INODES: Field = field(64, 8);
const DIRECTORIES: Field = field(72, 8);
const FRAGMENTS: Field = field(80, 8);
const EXPORTS: Field = field(88, 8);

/// A decoded table, and the fields in it.
#[derive(Clone, Debug, Default)]
struct Table {
    bytes: Vec<u8>,
    fields: Vec<Field>,
}

/// An image taken apart.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) bytes: Vec<u8>,
    /// Superblock and data.
    head: Vec<u8>,
    inodes: Table,
    directories: Table,
    fragments: Table,
    exports: Table,
    ids: Table,
    pairs: Table,
    xattr_ids: Table,
}

impl Image {
    /// Takes an image apart.
    pub(crate) fn parse(bytes: Vec<u8>) -> Self {
        let number = |field: Field| field.read(&bytes) as usize;
        let reader = Reader { codec: codec(number(field(20, 2))), bytes: &bytes };
        let listed = |list: Field, count: usize, record: usize| match list.read(&bytes) {
            NONE => (Vec::new(), usize::MAX),
            _ if count == 0 => (Vec::new(), usize::MAX),
            at => reader.listed(at as usize, count * record),
        };
        let (fragments, first_fragment) = listed(FRAGMENTS, number(field(16, 4)), 16);
        let (exports, first_export) = listed(EXPORTS, number(field(4, 4)), 8);
        let (ids, first_id) = listed(IDS, number(field(26, 2)), 4);
        let end = first_fragment.min(first_export).min(first_id);
        let inodes = reader.chain(number(INODES), number(DIRECTORIES));
        let directories = reader.chain(number(DIRECTORIES), end);
        let (mut pairs, mut xattr_ids) = (Vec::new(), Vec::new());
        if XATTRS.read(&bytes) != NONE {
            let at = number(XATTRS);
            let start = field(at, 8).read(&bytes) as usize;
            let count = field(at + 8, 4).read(&bytes) as usize;
            let (ids, first) = reader.listed(at + 16, count * 16);
            pairs = reader.chain(start, first);
            xattr_ids = ids;
        }
        let (inode_fields, directory_inodes) = inode_fields(&inodes, number(field(12, 4)));
        let directory_fields = directory_inodes.iter().flat_map(|inode| inode.fields(&directories));
        let directory_fields = directory_fields.collect();
        let every = |bytes: Vec<u8>, record: usize, columns: &[(usize, usize)]| {
            let rows = (0..bytes.len() / record).map(|row| row * record);
            let fields_of = |row| columns.iter().map(move |(at, width)| field(row + at, *width));
            let fields = rows.flat_map(fields_of).collect();
            Table { bytes, fields }
        };
        Self {
            head: bytes[..number(INODES)].to_vec(),
            inodes: Table { bytes: inodes, fields: inode_fields },
            directories: Table { bytes: directories, fields: directory_fields },
            fragments: every(fragments, 16, &[(0, 8), (8, 4), (12, 4)]),
            exports: every(exports, 8, &[(0, 8)]),
            ids: every(ids, 4, &[(0, 4)]),
            pairs: Table { fields: pair_fields(&pairs), bytes: pairs },
            xattr_ids: every(xattr_ids, 16, &[(0, 8), (8, 4), (12, 4)]),
            bytes,
        }
    }

    /// The image with uncompressed tables.
    pub(crate) fn assemble(&self) -> Vec<u8> {
        let mut bytes = self.head.clone();
        INODES.write(&mut bytes, self.head.len() as u64);
        append_chain(&mut bytes, &self.inodes.bytes);
        let at = bytes.len() as u64;
        DIRECTORIES.write(&mut bytes, at);
        append_chain(&mut bytes, &self.directories.bytes);
        for (root_field, table) in
            [(FRAGMENTS, &self.fragments), (EXPORTS, &self.exports), (IDS, &self.ids)]
        {
            if root_field.read(&bytes) != NONE {
                let list = append_listed(&mut bytes, &table.bytes);
                root_field.write(&mut bytes, list);
            }
        }
        if XATTRS.read(&bytes) != NONE {
            let start = bytes.len() as u64;
            append_chain(&mut bytes, &self.pairs.bytes);
            let starts = append_chain(&mut bytes, &self.xattr_ids.bytes);
            let at = bytes.len() as u64;
            XATTRS.write(&mut bytes, at);
            bytes.extend(start.to_le_bytes());
            bytes.extend((self.xattr_ids.bytes.len() as u32 / 16).to_le_bytes());
            bytes.extend([0; 4]);
            bytes.extend(starts.iter().flat_map(|start| start.to_le_bytes()));
        }
        let used = bytes.len() as u64;
        USED.write(&mut bytes, used);
        bytes
    }

    /// A mutant of the image; `other` is another image.
    pub(crate) fn mutant(&self, other: &Self, random: &mut Random) -> Vec<u8> {
        let mut bytes = match random.below(10) {
            0..3 => {
                let mut bytes = self.bytes.clone();
                damage::damage(&mut bytes, &other.bytes, random);
                return bytes;
            }
            3 => self.bytes.clone(),
            _ => {
                let mut edited = self.clone();
                for _ in 0..=random.below(3) {
                    edited.edit_table(other, random);
                }
                return edited.assemble();
            }
        };
        for _ in 0..=random.below(2) {
            field::edit(&mut bytes, &SUPERBLOCK, random);
        }
        bytes
    }

    /// Edits one table: a field, or any bytes.
    fn edit_table(&mut self, other: &Self, random: &mut Random) {
        let (table, theirs) = match random.below(16) {
            0..6 => (&mut self.inodes, &other.inodes),
            6..10 => (&mut self.directories, &other.directories),
            10..12 => (&mut self.fragments, &other.fragments),
            12 => (&mut self.ids, &other.ids),
            13 => (&mut self.pairs, &other.pairs),
            14 => (&mut self.xattr_ids, &other.xattr_ids),
            _ => (&mut self.exports, &other.exports),
        };
        match random.below(8) {
            0 if !table.bytes.is_empty() && !theirs.bytes.is_empty() => {
                let mut bytes = table.bytes.clone();
                damage::damage(&mut bytes, &theirs.bytes, random);
                // Blocks keep their positions.
                bytes.resize(table.bytes.len(), 0);
                table.bytes = bytes;
            }
            1 if !table.bytes.is_empty() => damage::flip(&mut table.bytes, random),
            _ => field::edit(&mut table.bytes, &table.fields, random),
        }
    }
}

/// Reads the tables of an image.
struct Reader<'b> {
    codec: Codec,
    bytes: &'b [u8],
}

impl Reader<'_> {
    /// The decoded metadata blocks from `start` to `end`.
    fn chain(&self, start: usize, end: usize) -> Vec<u8> {
        let mut decoded = Vec::new();
        let (mut at, mut blocks, mut packed) = (start, 0, 0);
        while at < end {
            let word = field(at, 2).read(self.bytes) as usize;
            let len = word & 0x7fff;
            let stored = &self.bytes[at + 2..at + 2 + len];
            if word & 0x8000 != 0 {
                decoded.extend(stored);
            } else {
                let mut block = [0; BLOCK];
                let len = self.codec.decode(stored, &mut block).expect("a sound block");
                decoded.extend(&block[..len]);
                packed += 1;
            }
            blocks += 1;
            at += 2 + len;
        }
        assert!(blocks <= 1 || packed == 0, "blocks would move: {blocks} of which {packed} packed");
        decoded
    }

    /// The decoded table whose block list is at `list`, and the position of its first block.
    fn listed(&self, list: usize, len: usize) -> (Vec<u8>, usize) {
        let first = field(list, 8).read(self.bytes) as usize;
        let last = field(list + (len.div_ceil(BLOCK) - 1) * 8, 8).read(self.bytes) as usize;
        let word = field(last, 2).read(self.bytes) as usize;
        (self.chain(first, last + 2 + (word & 0x7fff)), first)
    }
}

/// Appends blocks that hold `bytes` and returns their positions.
fn append_chain(image: &mut Vec<u8>, bytes: &[u8]) -> Vec<u64> {
    let mut starts = Vec::new();
    for block in bytes.chunks(BLOCK) {
        starts.push(image.len() as u64);
        image.extend((block.len() as u16 | 0x8000).to_le_bytes());
        image.extend(block);
    }
    starts
}

/// Appends blocks and a list of them, and returns the position of the list.
fn append_listed(image: &mut Vec<u8>, bytes: &[u8]) -> u64 {
    let starts = append_chain(image, bytes);
    let list = image.len() as u64;
    image.extend(starts.iter().flat_map(|start| start.to_le_bytes()));
    list
}

/// The compressor with that number in the superblock.
pub(crate) fn codec(number: usize) -> Codec {
    match number {
        1 => Codec::Gzip,
        2 => Codec::Lzma,
        3 => Codec::Lzo,
        4 => Codec::Xz,
        5 => Codec::Lz4,
        6 => Codec::Zstd,
        other => panic!("compressor {other}"),
    }
}
