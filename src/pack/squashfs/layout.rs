//! How an image is laid down: sizes of blocks and fragments, and what compressing must save.
//!
//! Owns the choices that a recipe leaves open, made by the sizes of the files; knows no bytes.
//! Invariant: the same recipe and catalog give the same geometry.
//!
//! The size of a block, where the recipe names none: 128 KiB, as mksquashfs has it. Where most of
//! the bytes are in files of more than 128 KiB and at most 1 MiB, it is the power of two that holds
//! nine of ten of those files whole, so that one read takes such a file and nothing else.
//! An archive that is kept and not read at random has 1 MiB, the largest there is.
//!
//! A small file shares a block with others (a fragment block), and who reads it decodes all of
//! that. So a fragment block holds no more than may be decoded for one file (`read_cost`), and what
//! is larger has blocks of its own.

use crate::codecs::Method;
use crate::formats::READ_COST;
use crate::pack::catalog::{Catalog, InodeId};
use crate::pack::recipe::{Compressor, Profile, Recipe};

/// Bytes of a block where nothing speaks against it.
const USUAL: u32 = 128 << 10;

/// What was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Bytes of a block of data.
    pub(super) block_size: u32,
    /// Bytes that a fragment block holds at most; no more than a block.
    pub(super) fragment_size: u32,
    /// What goes into fragment blocks.
    pub(super) tails: Tails,
    /// What compressing must save.
    pub(super) saving: Saving,
    pub(super) compressor: Compressor,
}

/// What goes into fragment blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tails {
    /// Files that are smaller than one, if they can be compressed.
    SmallFiles,
    /// The end of every file.
    All,
}

/// What compressing a block must save, for it costs decoding with every read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saving {
    /// A byte.
    Anything,
    /// One in fifty.
    Fiftieth,
}

impl Saving {
    /// The length that `len` bytes must be compressed to, at most.
    pub(super) fn limit(self, len: usize) -> usize {
        match self {
            Self::Anything => len.saturating_sub(1),
            Self::Fiftieth => len.saturating_sub((len / 50).max(1)),
        }
    }
}

impl Geometry {
    /// What `recipe` says, the rest by the sizes of `files`.
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

    /// How blocks are compressed.
    pub(super) fn method(&self) -> Method {
        match self.compressor {
            Compressor::Zstd(level) => Method::Zstd(level),
            Compressor::Gzip(level) => Method::Gzip(level),
            Compressor::Xz => Method::Xz { dictionary: self.block_size },
            Compressor::Lz4 => Method::Lz4,
            Compressor::None => Method::None,
        }
    }
}

/// The size of a block for files of these sizes.
fn block_size(sizes: impl Iterator<Item = u64>) -> u32 {
    let (least, most) = (u64::from(USUAL), u64::from(*Recipe::BLOCK_SIZES.end()));
    let mut bytes = 0_u64;
    let mut fitting = 0_u64;
    // Files above the usual size, by the power of two that holds them whole.
    let mut counts = [0_u64; 64];
    for size in sizes {
        bytes = bytes.saturating_add(size);
        if size > least && size <= most {
            fitting = fitting.saturating_add(size);
            counts[size.next_power_of_two().trailing_zeros() as usize] += 1;
        }
    }
    if fitting <= bytes / 2 {
        return USUAL;
    }
    let wanted = (counts.iter().sum::<u64>() * 9).div_ceil(10);
    let mut held = 0;
    for (log, count) in counts.iter().enumerate() {
        held += count;
        if held > 0 && held >= wanted {
            return (1_u32 << log).clamp(USUAL, *Recipe::BLOCK_SIZES.end());
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
        assert_eq!(sized(&[]), USUAL);
        assert_eq!(sized(&[128 * K; 100]), USUAL);
        assert_eq!(sized(&[128 * K + 1; 100]), 256 << 10);
        assert_eq!(sized(&[256 * K; 100]), 256 << 10);
        assert_eq!(sized(&[256 * K + 1; 100]), 512 << 10);
        assert_eq!(sized(&[1024 * K; 100]), 1 << 20);
        assert_eq!(sized(&[1024 * K + 1; 100]), USUAL);
        // Half of the bytes are not most of them.
        assert_eq!(sized(&[200 * K, 100 * K, 100 * K]), USUAL);
        assert_eq!(sized(&[200 * K, 100 * K, 99 * K]), 256 << 10);
        // Nine of ten count, and the tenth does not.
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
