//! The superblock and the compressor options after it (squashfs.rst, sections 3 and 3.2).
//!
//! Invariant: options are written exactly where squashfs-tools writes them.

use super::geometry::Compressor;

pub(super) const SIZE: usize = 96;

const NO_TABLE: u64 = u64::MAX;

/// Flags: what is uncompressed, and what the image contains.
const UNCOMPRESSED_INODES: u16 = 1;
const UNCOMPRESSED_DATA: u16 = 2;
const UNCOMPRESSED_FRAGMENTS: u16 = 8;
const NO_FRAGMENTS: u16 = 0x10;
const ALL_TAILS: u16 = 0x20;
const DUPLICATES: u16 = 0x40;
const EXPORT: u16 = 0x80;
const UNCOMPRESSED_XATTRS: u16 = 0x100;
const NO_XATTRS: u16 = 0x200;
const OPTIONS: u16 = 0x400;
const UNCOMPRESSED_IDS: u16 = 0x800;

/// The fields of a superblock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Superblock {
    pub(super) compressor: Compressor,
    pub(super) block_size: u32,
    pub(super) has_all_tails: bool,
    pub(super) inodes: u32,
    /// Seconds since 1970.
    pub(super) modified: u32,
    pub(super) fragments: u32,
    pub(super) owners: u16,
    pub(super) root: u64,
    /// Bytes of the image, without padding.
    pub(super) bytes_used: u64,
    pub(super) id_table: u64,
    pub(super) xattr_table: Option<u64>,
    pub(super) inode_table: u64,
    pub(super) directory_table: u64,
    pub(super) fragment_table: Option<u64>,
    pub(super) export_table: u64,
}

impl Superblock {
    pub(super) fn encode(&self) -> [u8; SIZE] {
        let mut bytes = Vec::with_capacity(SIZE);
        bytes.extend_from_slice(b"hsqs");
        for field in [self.inodes, self.modified, self.block_size, self.fragments] {
            bytes.extend(field.to_le_bytes());
        }
        let log = self.block_size.trailing_zeros() as u16;
        for field in [number(self.compressor), log, self.flags(), self.owners, 4, 0] {
            bytes.extend(field.to_le_bytes());
        }
        for field in [
            self.root,
            self.bytes_used,
            self.id_table,
            self.xattr_table.unwrap_or(NO_TABLE),
            self.inode_table,
            self.directory_table,
            self.fragment_table.unwrap_or(NO_TABLE),
            self.export_table,
        ] {
            bytes.extend(field.to_le_bytes());
        }
        let mut superblock = [0; SIZE];
        superblock.copy_from_slice(&bytes);
        superblock
    }

    fn flags(&self) -> u16 {
        let mut flags = DUPLICATES | EXPORT;
        if self.compressor == Compressor::None {
            flags |= UNCOMPRESSED_INODES
                | UNCOMPRESSED_DATA
                | UNCOMPRESSED_FRAGMENTS
                | UNCOMPRESSED_XATTRS
                | UNCOMPRESSED_IDS;
        }
        for (is_set, flag) in [
            (self.fragments == 0, NO_FRAGMENTS),
            (self.has_all_tails, ALL_TAILS),
            (self.xattr_table.is_none(), NO_XATTRS),
            (options(self.compressor).is_some(), OPTIONS),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        flags
    }
}

/// The number of a compressor. An image without compression may name any.
fn number(compressor: Compressor) -> u16 {
    match compressor {
        Compressor::Gzip(_) | Compressor::None => 1,
        Compressor::Xz => 4,
        Compressor::Lz4 => 5,
        Compressor::Zstd(_) => 6,
    }
}

/// The options after the superblock, as a metadata block; `None` if they have the defaults that
/// readers assume. For xz, readers assume a dictionary of one block.
pub(super) fn options(compressor: Compressor) -> Option<Vec<u8>> {
    let options = match compressor {
        // Level, window bits, strategies.
        Compressor::Gzip(level) if level != 9 => {
            [&level.to_le_bytes()[..], &15_u16.to_le_bytes(), &[0; 2]].concat()
        }
        Compressor::Zstd(level) if level != 15 => level.to_le_bytes().to_vec(),
        // Version and flags. Linux rejects LZ4 images without them.
        Compressor::Lz4 => [1_u32.to_le_bytes(), 0_u32.to_le_bytes()].concat(),
        _ => return None,
    };
    let size_field = options.len() as u16 | 0x8000;
    Some([&size_field.to_le_bytes()[..], &options].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_written_unless_they_are_the_defaults() {
        assert_eq!(options(Compressor::Zstd(15)), None);
        assert_eq!(options(Compressor::Gzip(9)), None);
        assert_eq!(options(Compressor::Xz), None);
        assert_eq!(options(Compressor::None), None);
        assert_eq!(options(Compressor::Zstd(3)), Some(vec![4, 0x80, 3, 0, 0, 0]));
        assert_eq!(options(Compressor::Gzip(1)), Some(vec![8, 0x80, 1, 0, 0, 0, 15, 0, 0, 0]));
        assert_eq!(options(Compressor::Lz4), Some(vec![8, 0x80, 1, 0, 0, 0, 0, 0, 0, 0]));
    }
}
