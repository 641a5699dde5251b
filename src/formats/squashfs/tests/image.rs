//! Builds small images for tests, in which every field can be wrong.
//!
//! All metadata is uncompressed, one block per table. Tests in `tests/` use images of mksquashfs.

use crate::formats::bytes::length;

pub(super) const BLOCK: u32 = 4096;

/// The parts of an image, which tests change before calling `bytes`.
#[derive(Clone)]
pub(super) struct Image {
    pub(super) data: Vec<u8>,
    pub(super) inodes: Vec<u8>,
    pub(super) directories: Vec<u8>,
    pub(super) fragments: Vec<u8>,
    pub(super) xattr_pairs: Vec<u8>,
    pub(super) xattr_ids: Vec<u8>,
    pub(super) root: u64,
    pub(super) fragment_count: u32,
    pub(super) id_count: u16,
}

/// Offsets of the inodes in the inode table of `Image::sound`.
pub(super) const FILE: u16 = 0;
pub(super) const LINK: u16 = 100;
pub(super) const PIPE: u16 = 200;
pub(super) const ROOT: u16 = 300;

/// Offset of the data: right after the superblock.
pub(super) const DATA: u64 = 96;

impl Image {
    /// A valid image. Its root has `f`, a file of an uncompressed block, a hole, a compressed block
    /// and a tail of 10 bytes in a fragment, with two attributes; `l`, a link to "target"; `p`, a
    /// fifo.
    pub(super) fn valid() -> Self {
        let uncompressed = [b'1'; BLOCK as usize];
        let compressed = zstd::bulk::compress(&[b'3'; BLOCK as usize], 1).unwrap();
        let fragment = zstd::bulk::compress(b"somebodyelse0123456789strangers", 1).unwrap();
        let data = [&uncompressed[..], &compressed, &fragment].concat();
        let fragment_start = DATA + length(uncompressed.len()) + length(compressed.len());

        let mut inodes = Vec::new();
        let header = |kind: u16, mode: u16, number: u32| {
            fields(&[&kind, &mode, &0_u16, &0_u16, &77_u32, &number])
        };
        inodes.extend(header(9, 0o644, 1));
        let size = u64::from(BLOCK) * 3 + 10;
        inodes.extend(fields(&[&DATA, &size, &u64::from(BLOCK), &1_u32, &0_u32, &12_u32, &0_u32]));
        inodes.extend(fields(&[&(BLOCK | 1 << 24), &0_u32, &(compressed.len() as u32)]));
        inodes.resize(LINK.into(), 0);
        inodes.extend(header(3, 0o777, 2));
        inodes.extend(fields(&[&1_u32, &6_u32]));
        inodes.extend(b"target");
        inodes.resize(PIPE.into(), 0);
        inodes.extend(header(6, 0o600, 3));
        inodes.extend(fields(&[&1_u32]));
        inodes.resize(ROOT.into(), 0);
        inodes.extend(header(1, 0o755, 4));
        let directories = listing(&[("f", FILE, 2), ("l", LINK, 3), ("p", PIPE, 6)]);
        let listed_size = directories.len() as u16 + 3;
        inodes.extend(fields(&[&0_u32, &2_u32, &listed_size, &0_u16, &5_u32]));
        inodes.resize(8192, 0);

        let mut xattr_pairs = fields(&[&0_u16, &1_u16]);
        xattr_pairs.extend(b"a");
        xattr_pairs.extend(fields(&[&5_u32]));
        xattr_pairs.extend(b"value");
        // trusted.b, out of line: the value of user.a, which starts at byte 5.
        xattr_pairs.extend(fields(&[&0x101_u16, &1_u16]));
        xattr_pairs.extend(b"b");
        xattr_pairs.extend(fields(&[&8_u32, &5_u64]));
        Self {
            data,
            inodes,
            directories,
            fragments: fields(&[&fragment_start, &(fragment.len() as u32), &0_u32]),
            xattr_pairs,
            xattr_ids: fields(&[&0_u64, &2_u32, &20_u32]),
            root: u64::from(ROOT),
            fragment_count: 1,
            id_count: 1,
        }
    }

    /// The bytes of the image.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 96];
        bytes.extend(&self.data);
        let inode_table = block(&mut bytes, &self.inodes);
        let directory_table = block(&mut bytes, &self.directories);
        let fragment_table = table(&mut bytes, &self.fragments);
        let pairs = block(&mut bytes, &self.xattr_pairs);
        let id_table = table(&mut bytes, &1000_u32.to_le_bytes());
        let ids = block(&mut bytes, &self.xattr_ids);
        let xattr_table = length(bytes.len());
        bytes.extend(fields(&[&pairs, &1_u32, &0_u32, &ids]));
        let used = length(bytes.len());
        let superblock = fields(&[
            &0x7371_7368_u32,
            &4_u32,
            &77_u32,
            &BLOCK,
            &self.fragment_count,
            &6_u16,
            &12_u16,
            &0_u16,
            &self.id_count,
            &4_u16,
            &0_u16,
            &self.root,
            &used,
            &id_table,
            &xattr_table,
            &inode_table,
            &directory_table,
            &fragment_table,
            &u64::MAX,
        ]);
        bytes[..96].copy_from_slice(&superblock);
        bytes
    }

    /// Writes `field` into the inode table at `offset`.
    pub(super) fn inode(mut self, offset: u16, field: &dyn Field) -> Self {
        overwrite(&mut self.inodes, offset.into(), field);
        self
    }

    /// Writes `field` into the directory table at `offset`.
    pub(super) fn directory(mut self, offset: usize, field: &dyn Field) -> Self {
        overwrite(&mut self.directories, offset, field);
        self
    }
}

/// A listing of one run: (name, offset of the inode, type).
pub(super) fn listing(entries: &[(&str, u16, u16)]) -> Vec<u8> {
    let mut bytes = fields(&[&(entries.len() as u32 - 1), &0_u32, &1_u32]);
    for (name, offset, kind) in entries {
        bytes.extend(fields(&[offset, &0_u16, kind, &(name.len() as u16 - 1)]));
        bytes.extend(name.as_bytes());
    }
    bytes
}

/// A number in its on-disk form.
pub(super) trait Field {
    fn put(&self, bytes: &mut Vec<u8>);
}

macro_rules! field {
    ($($number:ty),*) => {
        $(impl Field for $number {
            fn put(&self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }
        })*
    };
}
field!(u8, u16, u32, u64);

pub(super) fn fields(fields: &[&dyn Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in fields {
        field.put(&mut bytes);
    }
    bytes
}

pub(super) fn overwrite(bytes: &mut [u8], offset: usize, field: &dyn Field) {
    let field = fields(&[field]);
    bytes[offset..offset + field.len()].copy_from_slice(&field);
}

/// Appends an uncompressed metadata block. Returns its offset.
fn block(bytes: &mut Vec<u8>, content: &[u8]) -> u64 {
    let start = length(bytes.len());
    bytes.extend((content.len() as u16 | 0x8000).to_le_bytes());
    bytes.extend(content);
    start
}

/// Appends a metadata block and the list with its position. Returns the offset of the list.
fn table(bytes: &mut Vec<u8>, content: &[u8]) -> u64 {
    let block = block(bytes, content);
    let start = length(bytes.len());
    bytes.extend(block.to_le_bytes());
    start
}
