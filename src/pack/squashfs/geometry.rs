//! How an image is written: the recipe of the user, and the geometry, which also has what the
//! recipe leaves open.
//!
//! Invariant: the same recipe and catalog give the same geometry.
//!
//! The default block size is 128 KiB, as in mksquashfs. If most bytes are in files of more than 128
//! KiB and at most 1 MiB, the block size is a larger power of two. It holds nine in ten of those
//! files whole, so one read gets such a file and nothing else. An archive that is not read at
//! random gets 1 MiB, the maximum.
//!
//! A small file shares a fragment block with others, and reading it decodes the whole block. So a
//! fragment block is no larger than what may be decoded for one file (`read_cost`). Larger files
//! get blocks of their own.

use crate::codecs::Method;
use crate::error::{Error, Kind, Result};
use crate::formats::READ_COST;
use crate::pack::catalog::{Catalog, InodeId};

/// How blocks are compressed. Blocks that do not get smaller are stored uncompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressor {
    /// Zstandard, level 1 to 22.
    Zstd(i32),
    /// DEFLATE, level 1 to 9 as in zlib and mksquashfs.
    Gzip(u32),
    /// LZMA2 at its default preset, with a dictionary of one block.
    Xz,
    /// LZ4 in its fast mode.
    Lz4,
    /// No compression.
    None,
}

impl Compressor {
    /// The level of zstd if none is named.
    pub const ZSTD_LEVEL: i32 = 15;

    /// The level of gzip if none is named.
    pub const GZIP_LEVEL: u32 = 9;

    /// Its name, as the user gives it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Zstd(_) => "zstd",
            Self::Gzip(_) => "gzip",
            Self::Xz => "xz",
            Self::Lz4 => "lz4",
            Self::None => "none",
        }
    }

    /// Its level, if it has levels.
    pub(super) fn level(self) -> Option<u32> {
        match self {
            Self::Zstd(level) => Some(level.unsigned_abs()),
            Self::Gzip(level) => Some(level),
            Self::Xz | Self::Lz4 | Self::None => None,
        }
    }
}

/// What an archive is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Files are read in random order: few bytes are decoded to read one file.
    #[default]
    Random,
    /// The smallest archive.
    Archive,
}

/// The settings of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// How blocks are compressed; `None` leaves it to the profile.
    pub compressor: Option<Compressor>,
    /// What the image is for.
    pub profile: Profile,
    /// Bytes that may be decoded to read a small file; `None` leaves it to the profile.
    pub read_cost: Option<u64>,
    /// Block size in bytes, a power of two from 4 KiB to 1 MiB; `None` chooses it by the sizes of
    /// the files.
    pub block_size: Option<u32>,
    /// Seconds since 1970: the modification time of the image, and the limit of all file times in
    /// it (SOURCE_DATE_EPOCH). `None` takes the time of the newest file.
    pub epoch: Option<i64>,
}

impl Recipe {
    /// The smallest and the largest block size, bytes (squashfs.rst of Linux, section 2).
    pub const BLOCK_SIZES: std::ops::RangeInclusive<u32> = 4096..=1 << 20;

    /// Checks that the format allows all values.
    ///
    /// # Errors
    /// `Usage` if it does not.
    pub fn checked(self) -> Result<Self> {
        let usage = |message: String| Err(Error::new(Kind::Usage, message));
        match self.compressor() {
            Compressor::Zstd(level) if !(1..=22).contains(&level) => {
                return usage(format!("--compressor zstd:{level}: the level must be from 1 to 22"));
            }
            Compressor::Gzip(level) if !(1..=9).contains(&level) => {
                return usage(format!("--compressor gzip:{level}: the level must be from 1 to 9"));
            }
            _ => {}
        }
        match self.block_size {
            Some(size) if !size.is_power_of_two() || !Self::BLOCK_SIZES.contains(&size) => {
                usage(format!("--block-size {size}: must be a power of two from 4K to 1M"))
            }
            _ => Ok(self),
        }
    }
}

impl Recipe {
    /// How blocks are compressed.
    pub(super) fn compressor(&self) -> Compressor {
        self.compressor.unwrap_or(match self.profile {
            Profile::Random => Compressor::Zstd(Compressor::ZSTD_LEVEL),
            Profile::Archive => Compressor::Zstd(22),
        })
    }
}

const DEFAULT_BLOCK_SIZE: u32 = 128 << 10;

/// The choices for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Size of a data block, bytes.
    pub(super) block_size: u32,
    /// Maximum size of a fragment block, bytes; no more than a data block.
    pub(super) fragment_size: u32,
    /// What goes into fragment blocks.
    pub(super) tails: Tails,
    pub(super) saving: Saving,
    pub(super) compressor: Compressor,
}

/// What goes into fragment blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tails {
    /// Files smaller than a fragment block, if they are compressible.
    SmallFiles,
    /// The end of every file.
    All,
}

/// How much compressing a block must save, because every read has to decode it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saving {
    /// One byte.
    Anything,
    /// One byte in fifty.
    Fiftieth,
}

impl Saving {
    /// The maximum compressed length of `len` bytes.
    pub(super) fn limit(self, len: usize) -> usize {
        match self {
            Self::Anything => len.saturating_sub(1),
            Self::Fiftieth => len.saturating_sub((len / 50).max(1)),
        }
    }
}

impl Geometry {
    /// Takes the values of `recipe`, and chooses the rest by the sizes of `files`.
    pub(super) fn choose(recipe: &Recipe, catalog: &Catalog, files: &[InodeId]) -> Self {
        let sizes = || files.iter().map(|&id| catalog.inode(id).size());
        let (saving, tails) = match recipe.profile {
            Profile::Random => (Saving::Fiftieth, Tails::SmallFiles),
            Profile::Archive => (Saving::Anything, Tails::All),
        };
        let block_size = recipe.block_size.unwrap_or_else(|| match recipe.profile {
            Profile::Random => block_size(sizes()),
            Profile::Archive => *Recipe::BLOCK_SIZES.end(),
        });
        let read_cost = recipe.read_cost.unwrap_or(match recipe.profile {
            Profile::Random => READ_COST,
            Profile::Archive => u64::from(block_size),
        });
        let fragment_size = u32::try_from(read_cost).unwrap_or(u32::MAX).min(block_size);
        Self { block_size, fragment_size, tails, saving, compressor: recipe.compressor() }
    }

    pub(super) fn method(&self) -> Method {
        match self.compressor {
            Compressor::Zstd(level) => Method::Zstd(level),
            Compressor::Gzip(level) => Method::Gzip(level),
            Compressor::Xz => Method::Xz { dictionary: self.block_size },
            Compressor::Lz4 => Method::Lz4,
            Compressor::None => Method::None,
        }
    }

    /// The compression method of metadata. Above this level, zstd takes ten times as long for
    /// tables, which then are no smaller.
    pub(super) fn metadata_method(&self) -> Method {
        match self.method() {
            Method::Zstd(level) => Method::Zstd(level.min(METADATA_LEVEL_MAX)),
            method => method,
        }
    }
}

const METADATA_LEVEL_MAX: i32 = 9;

fn block_size(sizes: impl Iterator<Item = u64>) -> u32 {
    let (min, max) = (u64::from(DEFAULT_BLOCK_SIZE), u64::from(*Recipe::BLOCK_SIZES.end()));
    let mut bytes = 0_u64;
    let mut fitting = 0_u64;
    // Counts files above the default size by the power of two that holds them whole.
    let mut counts = [0_u64; 64];
    for size in sizes {
        bytes = bytes.saturating_add(size);
        if size > min && size <= max {
            fitting = fitting.saturating_add(size);
            counts[size.next_power_of_two().trailing_zeros() as usize] += 1;
        }
    }
    if fitting <= bytes / 2 {
        return DEFAULT_BLOCK_SIZE;
    }
    let wanted = (counts.iter().sum::<u64>() * 9).div_ceil(10);
    let mut held = 0;
    for (log, count) in counts.iter().enumerate() {
        held += count;
        if held > 0 && held >= wanted {
            return (1_u32 << log).clamp(DEFAULT_BLOCK_SIZE, *Recipe::BLOCK_SIZES.end());
        }
    }
    *Recipe::BLOCK_SIZES.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_values_of_the_format() {
        let recipe = |compressor, block_size| Recipe {
            compressor: Some(compressor),
            profile: Profile::Random,
            read_cost: None,
            block_size,
            epoch: None,
        };
        for (compressor, block_size, sound) in [
            (Compressor::Zstd(1), Some(4096), true),
            (Compressor::Zstd(22), Some(1 << 20), true),
            (Compressor::Zstd(0), None, false),
            (Compressor::Zstd(23), None, false),
            (Compressor::Gzip(9), None, true),
            (Compressor::Gzip(10), None, false),
            (Compressor::None, Some(2048), false),
            (Compressor::None, Some(2 << 20), false),
            (Compressor::None, Some(12288), false),
        ] {
            assert_eq!(recipe(compressor, block_size).checked().is_ok(), sound, "{compressor:?}");
        }
    }

    const K: u64 = 1 << 10;

    #[test]
    fn blocks_are_128_kib_unless_most_bytes_are_in_somewhat_larger_files() {
        let sized = |sizes: &[u64]| block_size(sizes.iter().copied());
        assert_eq!(sized(&[]), DEFAULT_BLOCK_SIZE);
        assert_eq!(sized(&[128 * K; 100]), DEFAULT_BLOCK_SIZE);
        assert_eq!(sized(&[128 * K + 1; 100]), 256 << 10);
        assert_eq!(sized(&[256 * K; 100]), 256 << 10);
        assert_eq!(sized(&[256 * K + 1; 100]), 512 << 10);
        assert_eq!(sized(&[1024 * K; 100]), 1 << 20);
        assert_eq!(sized(&[1024 * K + 1; 100]), DEFAULT_BLOCK_SIZE);
        // Half of the bytes is not most of them.
        assert_eq!(sized(&[200 * K, 100 * K, 100 * K]), DEFAULT_BLOCK_SIZE);
        assert_eq!(sized(&[200 * K, 100 * K, 99 * K]), 256 << 10);
        // Nine in ten files decide.
        let mut sizes = [200 * K; 10];
        sizes[0] = 1000 * K;
        assert_eq!(sized(&sizes), 256 << 10);
        sizes[1] = 400 * K;
        assert_eq!(sized(&sizes), 512 << 10);
    }

    #[test]
    fn saving_is_a_byte_or_a_fiftieth() {
        assert_eq!(Saving::Anything.limit(100), 99);
        assert_eq!(Saving::Fiftieth.limit(100), 98);
        assert_eq!(Saving::Fiftieth.limit(40), 39);
        assert_eq!((Saving::Anything.limit(0), Saving::Fiftieth.limit(0)), (0, 0));
    }
}
