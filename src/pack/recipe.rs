//! How an archive is to be laid down.
//!
//! Owns what a person can choose, as the writers need it; leaves the words for it to `cli::pack`,
//! and choosing by what is in the catalog to each writer.
//! Invariant: a recipe holds only what its format can hold.

use crate::error::{Error, Kind, Result};

/// How blocks are compressed, where that saves anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressor {
    /// Zstandard, level 1 to 22.
    Zstd(i32),
    /// DEFLATE, level 1 to 9, as zlib and mksquashfs count them.
    Gzip(u32),
    /// LZMA2 at its usual preset, with a dictionary as large as a block.
    Xz,
    /// LZ4, fast.
    Lz4,
    /// Not at all.
    None,
}

/// What an archive is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Files read in any order: what is decoded for one of them is bounded.
    #[default]
    Random,
    /// The smallest archive.
    Archive,
}

/// How an image is to be laid down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// How blocks are compressed.
    pub compressor: Compressor,
    /// What for.
    pub profile: Profile,
    /// Bytes that may be decoded to read a small file; `None`: as the profile says.
    pub read_cost: Option<u64>,
    /// Bytes of a block, a power of two from 4 KiB to 1 MiB; `None`: by the sizes of the files.
    pub block_size: Option<u32>,
    /// The time of the archive, seconds since 1970, and the latest that any file in it shows
    /// (SOURCE_DATE_EPOCH); `None`: that of the newest file.
    pub epoch: Option<i64>,
}

impl Recipe {
    /// The smallest and the largest block of an image, bytes (squashfs.rst of Linux, section 2).
    pub const BLOCK_SIZES: std::ops::RangeInclusive<u32> = 4096..=1 << 20;

    /// Checks that its numbers are those of the format.
    ///
    /// # Errors
    /// `Usage` where they are not.
    pub fn checked(self) -> Result<Self> {
        let usage = |what: String| Err(Error::new(Kind::Usage, what));
        match self.compressor {
            Compressor::Zstd(level) if !(1..=22).contains(&level) => {
                return usage(format!("zstd has levels from 1 to 22, not {level}"));
            }
            Compressor::Gzip(level) if !(1..=9).contains(&level) => {
                return usage(format!("gzip has levels from 1 to 9, not {level}"));
            }
            _ => {}
        }
        match self.block_size {
            Some(size) if !size.is_power_of_two() || !Self::BLOCK_SIZES.contains(&size) => {
                usage(format!("a block has a power of two from 4K to 1M of bytes, not {size}"))
            }
            _ => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_numbers_of_the_format_and_no_others() {
        let recipe = |compressor, block_size| Recipe {
            compressor,
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
}
