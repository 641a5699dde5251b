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
