//! Chooses what a recipe leaves open: sizes of blocks and fragment blocks, and how much compression
//! must save.
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
use crate::formats::READ_COST;
use crate::pack::catalog::{Catalog, InodeId};
use crate::pack::recipe::{Compressor, Profile, Recipe};

/// The default block size, bytes.
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
    /// How much compression must save.
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
        Self { block_size, fragment_size, tails, saving, compressor: recipe.compressor }
    }

    /// The compression method.
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

/// Highest level of zstd for metadata.
const METADATA_LEVEL_MAX: i32 = 9;

/// The block size for files of these sizes.
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
