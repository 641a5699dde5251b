//! A cap for every number that an archive controls, met before anything is allocated or looped over.
//!
//! Owns the numbers and where each comes from; the structures check them.

/// The largest data block of SquashFS 4.0, bytes (kernel: SQUASHFS_FILE_MAX_SIZE).
pub(crate) const SQUASHFS_BLOCK_MAX: u32 = 1 << 20;

/// The smallest, bytes: mksquashfs refuses less than a page.
pub(crate) const SQUASHFS_BLOCK_MIN: u32 = 4 << 10;

/// A metadata block decodes to at most this, bytes (SQUASHFS_METADATA_SIZE).
pub(crate) const SQUASHFS_METADATA_MAX: usize = 8 << 10;

/// The longest name in a directory, bytes (SQUASHFS_NAME_LEN is 256, Linux shows 255).
pub(crate) const SQUASHFS_NAME_MAX: u32 = 255;

/// Entries that one directory header may announce (SQUASHFS_DIR_COUNT).
pub(crate) const SQUASHFS_DIR_RUN_MAX: u32 = 256;

/// The longest target of a symbolic link, bytes. Linux follows 4095; formats allow more.
pub(crate) const SYMLINK_MAX: u32 = 64 << 10;

/// The largest value of an extended attribute, bytes (Linux: XATTR_SIZE_MAX).
pub(crate) const XATTR_VALUE_MAX: u32 = 64 << 10;

/// The names of all extended attributes of one file together, bytes (Linux: XATTR_LIST_MAX).
pub(crate) const XATTR_LIST_MAX: usize = 64 << 10;

/// Blocks of one file: 4 TiB in blocks of 4 KiB, 128 TiB in blocks of 128 KiB. More would make the
/// walk along a block list long enough to look like a hang.
pub(crate) const SQUASHFS_FILE_BLOCKS_MAX: u64 = 1 << 30;

/// The largest file Linux can show, bytes.
pub(crate) const FILE_SIZE_MAX: u64 = i64::MAX.unsigned_abs();

/// The body of one extension header of a tar (pax records, a long name), bytes. Attributes of 64 KiB
/// and long sparse maps fit; nothing larger was ever seen.
pub(crate) const TAR_EXTENSION_MAX: u64 = 16 << 20;

/// The longest path of a tar member, bytes: eight times what Linux takes in one call.
pub(crate) const TAR_PATH_MAX: usize = 32 << 10;

/// Pieces of one sparse member.
pub(crate) const TAR_SPARSE_MAX: usize = 1 << 20;

/// How far to look behind zeros or damage for another header, bytes: tapes were padded to records
/// of at most some MiB.
pub(crate) const TAR_SEARCH_MAX: u64 = 64 << 20;

/// Archives within archives within archives, with --recursive.
pub(crate) const NESTING_MAX: u32 = 8;
