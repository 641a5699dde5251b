//! A limit for every number that an archive controls, checked before allocating or looping.

/// Largest data block of SquashFS 4.0, bytes (kernel: SQUASHFS_FILE_MAX_SIZE).
pub(crate) const SQUASHFS_BLOCK_MAX: u32 = 1 << 20;

/// Smallest data block, bytes. mksquashfs accepts nothing below a page.
pub(crate) const SQUASHFS_BLOCK_MIN: u32 = 4 << 10;

/// Largest metadata block, decompressed bytes (SQUASHFS_METADATA_SIZE).
pub(crate) const SQUASHFS_METADATA_MAX: usize = 8 << 10;

/// Longest name in a directory, bytes (SQUASHFS_NAME_LEN is 256, Linux shows 255).
pub(crate) const SQUASHFS_NAME_MAX: u32 = 255;

/// Most entries of one directory header (SQUASHFS_DIR_COUNT).
pub(crate) const SQUASHFS_DIR_RUN_MAX: u32 = 256;

/// Longest target of a symbolic link, bytes. Linux follows 4095; the formats allow more.
pub(crate) const SYMLINK_MAX: u32 = 64 << 10;

/// Largest value of an extended attribute, bytes (Linux: XATTR_SIZE_MAX).
pub(crate) const XATTR_VALUE_MAX: u32 = 64 << 10;

/// Names of all extended attributes of one file together, bytes (Linux: XATTR_LIST_MAX).
pub(crate) const XATTR_LIST_MAX: usize = 64 << 10;

/// Most blocks of one file: 4 TiB in blocks of 4 KiB, 128 TiB in blocks of 128 KiB. A longer block
/// list would take so long to walk that the mount seems to hang.
pub(crate) const SQUASHFS_FILE_BLOCKS_MAX: u64 = 1 << 30;

/// Largest file Linux supports, bytes.
pub(crate) const FILE_SIZE_MAX: u64 = i64::MAX.unsigned_abs();

/// Largest body of an extension header of a tar (pax records, a long name), bytes. Attributes of 64
/// KiB and long sparse maps fit; no larger one is known.
pub(crate) const TAR_EXTENSION_MAX: u64 = 16 << 20;

/// Bytes of decoded data for each byte of DEFLATE data, at most: a match of 258 bytes takes at
/// least two bits.
pub(crate) const DEFLATE_RATIO_MAX: u64 = 1032;

/// What compressed data may have in excess of its decoded size and a quarter of it, bytes.
pub(crate) const MEMBER_OVERHEAD_MAX: u64 = 64 << 10;

/// Largest member of a ZIP archive that is decompressed at once and cached as a whole, decompressed
/// bytes. A larger one gets seek points when it is first read.
pub(crate) const ZIP_WHOLE_MAX: u64 = 8 << 20;

/// Longest path of a member, bytes: eight times PATH_MAX of Linux.
pub(crate) const MEMBER_PATH_MAX: usize = 32 << 10;

/// Most directories above a member. Paths of many short names would take 100x their length in
/// memory.
pub(crate) const MEMBER_DEPTH_MAX: usize = 1024;

/// Most extension headers before one tar member. GNU tar writes at most four.
pub(crate) const TAR_EXTENSIONS_MAX: u32 = 64;

/// Most images, ZIP archives and compressed tars within one archive, with --nested. Each has caches
/// of its own.
pub(crate) const SEPARATE_ARCHIVES_MAX: usize = 4096;

/// Bytes that may be decompressed from the compressed tars inside the archives of a mount when they
/// are opened: this many for each byte of the archives, and `INNER_SPARE` more.
pub(crate) const INNER_RATIO_MAX: u64 = 256;
pub(crate) const INNER_SPARE: u64 = 1 << 30;

/// Longest file of only zeros that counts as an empty tar, bytes. Tars are padded to records of 10
/// KiB, or the size given to `tar -b`.
pub(crate) const TAR_EMPTY_MAX: u64 = 1 << 20;

/// Most pieces of one sparse member.
pub(crate) const TAR_SPARSE_MAX: usize = 1 << 20;

/// Most pieces of all sparse members of an archive: 384 MiB of memory.
pub(crate) const MEMBER_SEGMENTS_MAX: usize = 1 << 24;

/// Extended attributes of all members of an archive, bytes. Equal sets count once. Ten million
/// members with a short label each have a dozen sets; one million different checksums take 90 MB.
pub(crate) const MEMBER_XATTRS_MAX: usize = 256 << 20;

/// How far to search after zeros or damage for another header, bytes. Tapes were padded to records
/// of a few MiB at most.
pub(crate) const TAR_SEARCH_MAX: u64 = 64 << 20;

/// Most levels of archives within archives, with --nested.
pub(crate) const NESTING_MAX: u32 = 8;

/// Target size of chunks if the format leaves the choice, decoded bytes. Large enough that the
/// overhead per chunk is small, small enough to decode for one read.
pub(crate) const CHUNK_TARGET: u64 = 1 << 20;

/// Largest chunk that is decompressed in memory, decompressed bytes. A file with a larger chunk is
/// decompressed into a temporary file. `xz -T0` writes blocks of 24 MiB, with -9 of 192 MiB.
pub(crate) const CHUNK_MAX: u64 = 64 << 20;

/// Largest chunk that is decompressed in memory, compressed bytes. Incompressible data grows a
/// little; no compressor makes it grow more than this.
pub(crate) const EXTENT_MAX: u64 = CHUNK_MAX + (CHUNK_MAX >> 2);

/// Least distance of the seek points of a gzip file, decoded bytes. A point is recorded at the next
/// block boundary, and blocks are about 50 to 400 KiB. Most chunks therefore stay below
/// `CHUNK_TARGET`, and a random read decodes about 1 MiB at most.
pub(crate) const GZIP_SPACING: u64 = 768 << 10;

/// Number of seek points of a gzip file above which they are thinned.
pub(crate) const GZIP_POINTS_MAX: usize = 8192;

/// Widest spacing after thinning, decoded bytes: 24 MiB.
pub(crate) const GZIP_SPACING_MAX: u64 = GZIP_SPACING << 5;

/// Window of DEFLATE, bytes (RFC 1951).
pub(crate) const GZIP_WINDOW: usize = 32 << 10;

/// Longest extra field, name or comment of a gzip header, bytes. RFC 1952 does not limit the last
/// two.
pub(crate) const GZIP_FIELD_MAX: u64 = 64 << 10;

/// Largest block of bzip2, decoded bytes: 900,000 after the first run-length encoding, in which 5
/// bytes encode a run of up to 259.
pub(crate) const BZIP2_BLOCK_MAX: u64 = 900_000 / 5 * 259;

/// Largest block of bzip2, compressed bits: 900,000 symbols of 20 bits, with tables.
pub(crate) const BZIP2_BLOCK_BITS_MAX: u64 = 900_050 * 20 + (1 << 18);

/// How often a bzip2 block is joined with the data after a false magic number. By chance a false
/// one occurs once in 2^48 bits, so two in one block practically never occur. Without a limit, a
/// file made of magic numbers would be decoded again from its start for each of them.
pub(crate) const BZIP2_JOINS_MAX: u32 = 8;

/// Largest index of one xz stream, bytes. It is held in memory.
pub(crate) const XZ_INDEX_MAX: u64 = 64 << 20;

/// Most blocks of an xz file, plus one for each stream. A record takes 2 bytes in the index and 40
/// bytes in memory. With blocks of 64 KiB, this is a file of 256 GiB.
pub(crate) const XZ_BLOCKS_MAX: usize = 4 << 20;

/// Most stream padding in an xz file, bytes. Tapes and disk sectors need less; a file with more was
/// not written to its end.
pub(crate) const XZ_PADDING_MAX: u64 = 64 << 20;

/// Most skippable frames before the first frame of data in a zstd or lz4 file. pzstd writes one.
pub(crate) const SKIPPABLE_FIRST_MAX: usize = 64;

/// Largest seek table of a zstd file, bytes (the format allows 2^27 entries).
pub(crate) const ZSTD_SEEK_TABLE_MAX: u64 = 256 << 20;

/// Largest block of zstd, decoded bytes (RFC 8878, 3.1.1.2.4).
pub(crate) const ZSTD_BLOCK_MAX: u64 = 128 << 10;

/// Largest block of a legacy lz4 frame, decoded bytes.
pub(crate) const LZ4_LEGACY_BLOCK: u64 = 8 << 20;
