//! SquashFS images, taken apart so that fields behind compression can be edited.
//!
//! Owns the layout of an image's tables, its own reading of it, and the way back: tables that were
//! edited are stored plain. References name the place of a block among the stored ones, so a table
//! is taken apart only if it is one block, or if all its blocks are plain and stay what they were.
//! Trusts its input, which is a sound image that mksquashfs made.

use archfs::codecs::Codec;

use crate::damage;
use crate::field::{self, Field};
use crate::random::Random;

/// Bytes of a decoded metadata block.
const BLOCK: usize = 8192;

const NONE: u64 = u64::MAX;

const fn field(at: usize, width: usize) -> Field {
    Field { at, width }
}

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

/// A table with all its bytes decoded, and the fields in them.
#[derive(Clone, Debug, Default)]
struct Table {
    bytes: Vec<u8>,
    fields: Vec<Field>,
}

/// An image and its parts.
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
        let (inode_fields, folders) = inode_fields(&inodes, number(field(12, 4)));
        let directory_fields = folders.iter().flat_map(|folder| folder.fields(&directories));
        let directory_fields = directory_fields.collect();
        let every = |bytes: Vec<u8>, record: usize, columns: &[(usize, usize)]| {
            let rows = (0..bytes.len() / record).map(|row| row * record);
            let place = |row| columns.iter().map(move |(at, width)| field(row + at, *width));
            let fields = rows.flat_map(place).collect();
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

    /// The image with its tables plain.
    pub(crate) fn assemble(&self) -> Vec<u8> {
        let mut bytes = self.head.clone();
        INODES.write(&mut bytes, self.head.len() as u64);
        append_chain(&mut bytes, &self.inodes.bytes);
        let at = bytes.len() as u64;
        DIRECTORIES.write(&mut bytes, at);
        append_chain(&mut bytes, &self.directories.bytes);
        for (place, table) in
            [(FRAGMENTS, &self.fragments), (EXPORTS, &self.exports), (IDS, &self.ids)]
        {
            if place.read(&bytes) != NONE {
                let list = append_listed(&mut bytes, &table.bytes);
                place.write(&mut bytes, list);
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

    /// A mutant of it; `other` is another image.
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

    /// Edits one table: a field, or its bytes without regard to fields.
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
                // Blocks stay where they are.
                bytes.resize(table.bytes.len(), 0);
                table.bytes = bytes;
            }
            1 if !table.bytes.is_empty() => damage::flip(&mut table.bytes, random),
            _ => field::edit(&mut table.bytes, &table.fields, random),
        }
    }
}

/// Reads tables of an image.
struct Reader<'b> {
    codec: Codec,
    bytes: &'b [u8],
}

impl Reader<'_> {
    /// The bytes of the metadata blocks from `start` to `end`.
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

    /// The bytes of a table with a list of blocks at `list`, and where its first block is.
    fn listed(&self, list: usize, len: usize) -> (Vec<u8>, usize) {
        let first = field(list, 8).read(self.bytes) as usize;
        let last = field(list + (len.div_ceil(BLOCK) - 1) * 8, 8).read(self.bytes) as usize;
        let word = field(last, 2).read(self.bytes) as usize;
        (self.chain(first, last + 2 + (word & 0x7fff)), first)
    }
}

/// Appends blocks that hold `bytes`; tells where each starts.
fn append_chain(image: &mut Vec<u8>, bytes: &[u8]) -> Vec<u64> {
    let mut starts = Vec::new();
    for block in bytes.chunks(BLOCK) {
        starts.push(image.len() as u64);
        image.extend((block.len() as u16 | 0x8000).to_le_bytes());
        image.extend(block);
    }
    starts
}

/// Appends blocks and a list of them; tells where the list is.
fn append_listed(image: &mut Vec<u8>, bytes: &[u8]) -> u64 {
    let starts = append_chain(image, bytes);
    let list = image.len() as u64;
    image.extend(starts.iter().flat_map(|start| start.to_le_bytes()));
    list
}

/// A listing in the table of directories.
struct Folder {
    block: usize,
    offset: usize,
    len: usize,
}

impl Folder {
    fn fields(&self, table: &[u8]) -> Vec<Field> {
        let mut fields = Vec::new();
        // Blocks are one, or plain with two bytes in front of each.
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

/// The fields of all inodes, and the folders among them.
fn inode_fields(table: &[u8], block_size: usize) -> (Vec<Field>, Vec<Folder>) {
    let (mut fields, mut folders) = (Vec::new(), Vec::new());
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
                folders.push(Folder { block: number(16, 4), offset: number(26, 2), len });
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
                folders.push(Folder { block: number(24, 4), offset: number(34, 2), len });
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
    (fields, folders)
}

/// The fields of the names and values of extended attributes.
fn pair_fields(table: &[u8]) -> Vec<Field> {
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

fn codec(number: usize) -> Codec {
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
