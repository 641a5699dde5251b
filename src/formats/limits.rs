//! A cap for every number that an archive controls, met before anything is allocated or looped
//! over.
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

/// The body of one extension header of a tar (pax records, a long name), bytes. Attributes of 64
/// KiB and long sparse maps fit; nothing larger was ever seen.
pub(crate) const TAR_EXTENSION_MAX: u64 = 16 << 20;

/// The longest path of a tar member, bytes: eight times what Linux takes in one call.
pub(crate) const TAR_PATH_MAX: usize = 32 << 10;

/// Folders above a tar member: paths of many short names would cost a hundred times their length.
pub(crate) const TAR_DEPTH_MAX: usize = 1024;

/// Extension headers in front of one tar member; GNU tar writes four at most.
pub(crate) const TAR_EXTENSIONS_MAX: u32 = 64;

/// Images within one archive, with --recursive: each has caches of its own.
pub(crate) const INNER_IMAGES_MAX: usize = 4096;

/// The length up to which zeros alone are taken for an empty tar, bytes; tars are padded to records
/// of 10 KiB, or as `tar -b` says.
pub(crate) const TAR_EMPTY_MAX: u64 = 1 << 20;

/// Pieces of one sparse member.
pub(crate) const TAR_SPARSE_MAX: usize = 1 << 20;

/// Pieces of all sparse members of one archive: 384 MiB of memory.
pub(crate) const TAR_PIECES_MAX: usize = 1 << 24;

/// Extended attributes of all members of one archive, bytes, equal sets counted once. Ten million
/// members with a short label each have a dozen sets; a checksum for each of a million takes 90 MB.
pub(crate) const TAR_XATTRS_MAX: usize = 256 << 20;

/// How far to look behind zeros or damage for another header, bytes: tapes were padded to records
/// of at most some MiB.
pub(crate) const TAR_SEARCH_MAX: u64 = 64 << 20;

/// Archives within archives within archives, with --recursive.
pub(crate) const NESTING_MAX: u32 = 8;

/// The size of chunk that compressed files are cut into where their format leaves the choice,
/// decoded bytes: large enough that its start costs little, small enough to be decoded for one
/// read.
pub(crate) const CHUNK_TARGET: u64 = 1 << 20;

/// The largest chunk that is decoded at once, bytes: a file with a larger one is decoded forward
/// into a temporary file. `xz -T0` makes blocks of 24 MiB, with -9 of 192 MiB.
pub(crate) const GIANT_CHUNK_MAX: u64 = 64 << 20;

/// The largest chunk before decoding, bytes: what can not be compressed grows a little, and what
/// grows more is no work of a compressor.
pub(crate) const GIANT_EXTENT_MAX: u64 = GIANT_CHUNK_MAX + (GIANT_CHUNK_MAX >> 2);

/// The spacing of seek points of a gzip file, decoded bytes. A point comes at the first block that
/// starts so far after the last, and blocks are some 50 to 400 KiB: so most chunks stay below
/// `CHUNK_TARGET`, and a random read costs the decoding of at most about a MiB.
pub(crate) const GZIP_SPACING: u64 = 768 << 10;

/// Seek points of one gzip file above which they are thinned out.
pub(crate) const GZIP_POINTS_MAX: usize = 8192;

/// The widest spacing of seek points that thinning goes to, decoded bytes: 24 MiB.
pub(crate) const GZIP_SPACING_MAX: u64 = GZIP_SPACING << 5;

/// The window of DEFLATE, bytes (RFC 1951).
pub(crate) const GZIP_WINDOW: usize = 32 << 10;

/// The extra field, name or comment of a gzip header, bytes. RFC 1952 sets no limit to the last
/// two.
pub(crate) const GZIP_FIELD_MAX: u64 = 64 << 10;

/// A block of bzip2 decodes to at most this, bytes: 900,000 after its run lengths, five of which
/// are a run of 259.
pub(crate) const BZIP2_BLOCK_MAX: u64 = 900_000 / 5 * 259;

/// A block of bzip2 takes at most this in the file, bits: 900,000 symbols of 20 bits, with tables.
pub(crate) const BZIP2_BLOCK_BITS_MAX: u64 = 900_050 * 20 + (1 << 18);

/// How often one block of bzip2 is taken for cut by a false magic number and tried again with what
/// follows. Chance makes one of 2^48 bits the start of one, so a second is as good as never seen;
/// a file made of magic numbers would be decoded again from its start for each of them.
pub(crate) const BZIP2_JOINS_MAX: u32 = 8;

/// The largest index of one xz stream that is kept in memory, bytes.
pub(crate) const XZ_INDEX_MAX: u64 = 64 << 20;

/// Blocks of an xz file, with one more for each stream: a record takes two bytes of an index, and
/// twenty times that in memory. Blocks of 64 KiB would make this 256 GiB.
pub(crate) const XZ_BLOCKS_MAX: usize = 4 << 20;

/// Stream padding of an xz file, bytes in all. Who pads (tapes, disk sectors) pads by less; more is
/// a file whose end was never written.
pub(crate) const XZ_PADDING_MAX: u64 = 64 << 20;

/// The largest seek table of a seekable zstd file, bytes (its format allows 2^27 entries).
pub(crate) const ZSTD_SEEK_TABLE_MAX: u64 = 256 << 20;

/// A block of zstd decodes to at most this, bytes (RFC 8878, 3.1.1.2.4).
pub(crate) const ZSTD_BLOCK_MAX: u64 = 128 << 10;

/// A block of a legacy lz4 frame decodes to at most this, bytes.
pub(crate) const LZ4_LEGACY_BLOCK: u64 = 8 << 20;
