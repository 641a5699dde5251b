//! How a SquashFS image is written, as far as the user can choose it.
//!
//! `cli::pack` parses the options; the writer chooses what the recipe leaves open.

use crate::error::{Error, Kind, Result};

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
    /// How blocks are compressed.
    pub compressor: Compressor,
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
        match self.compressor {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_values_of_the_format() {
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
