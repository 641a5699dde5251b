//! The superblock: the first 96 bytes of an image, with the positions of all tables
//! (Documentation/filesystems/squashfs.rst of Linux; squashfs_fs.h).
//!
//! Invariant: every table of a parsed superblock starts inside the image, and the image ends inside
//! its file.

use crate::codecs::Codec;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{Reader, length};
use crate::formats::limits::{SQUASHFS_BLOCK_MAX, SQUASHFS_BLOCK_MIN, SQUASHFS_METADATA_MAX};

/// Size on disk, bytes.
pub(super) const SIZE: usize = 96;

/// `hsqs`, little-endian.
const MAGIC: u32 = 0x7371_7368;

/// The magic number of a big-endian image. Version 4.0 has none, but some vendors write one.
const MAGIC_SWAPPED: u32 = 0x6873_7173;

/// Flag: options of the compressor are stored (SQUASHFS_COMP_OPT).
const OPTIONS_STORED: u16 = 1 << 10;

/// Flags: no data block and no fragment block is compressed (SQUASHFS_NOD, SQUASHFS_NOF).
const UNCOMPRESSED_DATA: u16 = 1 << 1 | 1 << 3;

/// The offset of a table that does not exist.
const NO_TABLE: u64 = u64::MAX;

/// The checked superblock of an image.
#[derive(Clone, Debug)]
pub(super) struct Superblock {
    pub(super) codec: Codec,
    /// Size of a data block, bytes; a power of two.
    pub(super) block_size: u32,
    pub(super) inode_count: u32,
    pub(super) fragment_count: u32,
    pub(super) id_count: u16,
    /// Inode reference of the root directory.
    pub(super) root: u64,
    /// Size of the image, bytes, without padding.
    pub(super) bytes_used: u64,
    pub(super) id_table: u64,
    pub(super) xattr_table: Option<u64>,
    pub(super) inode_table: u64,
    pub(super) directory_table: u64,
    pub(super) fragment_table: Option<u64>,
    pub(super) export_table: Option<u64>,
    /// Whether the options of the compressor are stored after the superblock.
    pub(super) has_options: bool,
    /// Whether the image says that no block with contents of files is compressed.
    pub(super) is_uncompressed: bool,
}

impl Superblock {
    /// Whether a file that starts with `bytes` looks like an image.
    pub(super) fn recognizes(bytes: &[u8]) -> bool {
        let magic = Reader::new("superblock", bytes).u32();
        matches!(magic, Ok(MAGIC | MAGIC_SWAPPED))
    }

    /// Parses and checks the superblock of an image in a file of `file_len` bytes.
    ///
    /// Fails with `UnknownFormat` for another magic number, `Unsupported` for other versions and
    /// compressors, `Corrupt` for contradictions and for a file that is shorter than its image.
    pub(super) fn parse(bytes: &[u8; SIZE], file_len: u64) -> Result<Self> {
        let mut reader = Reader::new("superblock", bytes);
        let magic = reader.u32()?;
        let inode_count = reader.u32()?;
        let _modified = reader.u32()?;
        let block_size = reader.u32()?;
        let fragment_count = reader.u32()?;
        let compressor = reader.u16()?;
        let block_log = reader.u16()?;
        let flags = reader.u16()?;
        let id_count = reader.u16()?;
        let version = (reader.u16()?, reader.u16()?);
        let root = reader.u64()?;
        let bytes_used = reader.u64()?;
        let id_table = reader.u64()?;
        let xattr_table = reader.u64()?;
        let inode_table = reader.u64()?;
        let directory_table = reader.u64()?;
        let fragment_table = reader.u64()?;
        let export_table = reader.u64()?;

        check_identity(magic, version)?;
        let codec = codec(compressor)?;
        check_block_size(block_size, block_log)?;
        if bytes_used > file_len {
            return Err(truncated(format!(
                "truncated: the image has {bytes_used} bytes, the file only {file_len}"
            )));
        }
        let inside = |name: &str, offset: u64| {
            let is_after_superblock = u64::try_from(SIZE).is_ok_and(|size| offset >= size);
            if is_after_superblock && offset < bytes_used {
                return Ok(offset);
            }
            let detail = format!("it is at {offset:#x}, the image ends at {bytes_used:#x}");
            Err(Error::corrupt(format!("superblock: the {name} table is outside the image"))
                .with_detail(detail))
        };
        let optional = |name: &str, offset: u64| match offset {
            NO_TABLE => Ok(None),
            offset => inside(name, offset).map(Some),
        };
        if id_count == 0 {
            return Err(Error::corrupt("superblock: no owners (id count 0)"));
        }
        let superblock = Self {
            codec,
            block_size,
            inode_count,
            fragment_count,
            id_count,
            root,
            bytes_used,
            id_table: inside("id", id_table)?,
            xattr_table: optional("xattr", xattr_table)?,
            inode_table: inside("inode", inode_table)?,
            directory_table: inside("directory", directory_table)?,
            // Without fragments the offset is ignored; mksquashfs writes -1 or an empty table.
            fragment_table: match fragment_count {
                0 => None,
                _ => Some(inside("fragment", fragment_table)?),
            },
            export_table: optional("export", export_table)?,
            has_options: flags & OPTIONS_STORED != 0,
            is_uncompressed: flags & UNCOMPRESSED_DATA == UNCOMPRESSED_DATA,
        };
        if superblock.inode_table >= superblock.directory_table {
            return Err(Error::corrupt(
                "superblock: the inode table comes after the directory table",
            ));
        }
        Ok(superblock)
    }

    /// Most words of block lists that the inode table can hold. A metadata block takes at least
    /// three bytes of the table.
    pub(super) fn words_max(&self) -> u64 {
        let stored = self.directory_table.saturating_sub(self.inode_table);
        stored.div_ceil(3).saturating_mul(length(SQUASHFS_METADATA_MAX) / 4)
    }
}

/// Checks that a file of `file_len` bytes has room for a superblock.
pub(super) fn check_length(file_len: u64) -> Result<()> {
    if u64::try_from(SIZE).is_ok_and(|size| file_len < size) {
        let context =
            format!("truncated: the superblock has {SIZE} bytes, the file only {file_len}");
        return Err(truncated(context));
    }
    Ok(())
}

fn truncated(context: String) -> Error {
    Error::corrupt(context).with_hint("copy it again and compare the sizes")
}

fn check_identity(magic: u32, version: (u16, u16)) -> Result<()> {
    match (magic, version) {
        (MAGIC, (4, 0)) => Ok(()),
        (MAGIC, (major, minor)) => Err(Error::new(
            Kind::Unsupported,
            format!("SquashFS {major}.{minor}; archfs reads only 4.0"),
        )
        .with_hint("unpack it with unsquashfs and pack it again with mksquashfs")),
        // Its numbers have the other byte order as well.
        (MAGIC_SWAPPED, (major, minor)) => {
            let [major, minor] = [major, minor].map(u16::swap_bytes);
            let context =
                format!("big-endian SquashFS {major}.{minor}; archfs reads only little-endian 4.0");
            Err(Error::new(Kind::Unsupported, context)
                .with_hint("unpack it with unsquashfs and pack it again with mksquashfs"))
        }
        _ => Err(Error::new(Kind::UnknownFormat, "not a SquashFS image")),
    }
}

fn codec(compressor: u16) -> Result<Codec> {
    match compressor {
        1 => Ok(Codec::Gzip),
        2 => Ok(Codec::Lzma),
        3 => Ok(Codec::Lzo),
        4 => Ok(Codec::Xz),
        5 => Ok(Codec::Lz4),
        6 => Ok(Codec::Zstd),
        other => Err(Error::new(
            Kind::Unsupported,
            format!(
                "compressor number {other}; known are 1 gzip, 2 lzma, 3 lzo, 4 xz, 5 lz4, 6 zstd"
            ),
        )),
    }
}

fn check_block_size(block_size: u32, block_log: u16) -> Result<()> {
    if !(SQUASHFS_BLOCK_MIN..=SQUASHFS_BLOCK_MAX).contains(&block_size) {
        return Err(Error::corrupt(format!(
            "superblock: block size {block_size}, valid are {SQUASHFS_BLOCK_MIN} to {SQUASHFS_BLOCK_MAX}"
        )));
    }
    if 1_u32.checked_shl(u32::from(block_log)) != Some(block_size) {
        return Err(Error::corrupt(format!(
            "superblock: block size {block_size} is not 2 to the power of its logarithm {block_log}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE_LEN: u64 = 4096;

    /// A valid superblock of an image of 4096 bytes.
    fn valid() -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let mut put = |offset: usize, field: &[u8]| {
            bytes[offset..offset + field.len()].copy_from_slice(field);
        };
        put(0, &MAGIC.to_le_bytes());
        put(4, &3_u32.to_le_bytes());
        put(12, &(128_u32 << 10).to_le_bytes());
        put(20, &6_u16.to_le_bytes());
        put(22, &17_u16.to_le_bytes());
        put(26, &1_u16.to_le_bytes());
        put(28, &4_u16.to_le_bytes());
        put(40, &FILE_LEN.to_le_bytes());
        for (offset, table) in [(48, 600_u64), (56, NO_TABLE), (64, 200), (72, 300), (80, 400)] {
            put(offset, &table.to_le_bytes());
        }
        put(88, &NO_TABLE.to_le_bytes());
        bytes
    }

    fn with(offset: usize, field: &[u8]) -> Result<Superblock> {
        let mut bytes = valid();
        bytes[offset..offset + field.len()].copy_from_slice(field);
        Superblock::parse(&bytes, FILE_LEN)
    }

    #[test]
    fn accepts_a_valid_superblock() {
        let superblock = Superblock::parse(&valid(), FILE_LEN).unwrap();
        assert_eq!(superblock.codec, Codec::Zstd);
        assert_eq!(superblock.block_size, 128 << 10);
        assert_eq!(superblock.xattr_table, None);
        assert!(Superblock::recognizes(&valid()));
    }

    #[test]
    fn rejects_each_wrong_field_with_its_kind() {
        let cases: [(usize, &[u8], Kind, &str); 12] = [
            (0, b"PK\x03\x04", Kind::UnknownFormat, "not a SquashFS image"),
            (0, b"sqsh", Kind::Unsupported, "big-endian"),
            (28, &[3, 0], Kind::Unsupported, "SquashFS 3.0"),
            (30, &[1, 0], Kind::Unsupported, "SquashFS 4.1"),
            (20, &[0, 0], Kind::Unsupported, "compressor number 0"),
            (20, &[7, 0], Kind::Unsupported, "compressor number 7"),
            (12, &[0, 0, 0, 0], Kind::Corrupt, "block size 0"),
            (12, &(2_u32 << 20).to_le_bytes(), Kind::Corrupt, "block size 2097152"),
            (22, &[16, 0], Kind::Corrupt, "logarithm 16"),
            (22, &[77, 0], Kind::Corrupt, "logarithm 77"),
            (26, &[0, 0], Kind::Corrupt, "id count 0"),
            (64, &300_u64.to_le_bytes(), Kind::Corrupt, "after the directory table"),
        ];
        for (offset, field, kind, text) in cases {
            let error = with(offset, field).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn checks_the_limits_of_sizes_and_tables() {
        assert!(with(12, &[0, 16, 0, 0]).is_err(), "4096 against a logarithm of 17");
        let mut bytes = valid();
        bytes[12..16].copy_from_slice(&4096_u32.to_le_bytes());
        bytes[22] = 12;
        assert!(Superblock::parse(&bytes, FILE_LEN).is_ok());
        bytes[12..16].copy_from_slice(&2048_u32.to_le_bytes());
        bytes[22] = 11;
        assert!(Superblock::parse(&bytes, FILE_LEN).is_err());
        assert!(Superblock::parse(&valid(), FILE_LEN - 1).is_err(), "one byte is missing");
        assert!(with(48, &95_u64.to_le_bytes()).is_err(), "a table inside the superblock");
        assert!(with(48, &96_u64.to_le_bytes()).is_ok());
        assert!(with(48, &4095_u64.to_le_bytes()).is_ok());
        assert!(with(48, &4096_u64.to_le_bytes()).is_err(), "a table past the end");
    }
}
