//! What was laid down: what a person is told of an image, and what scripts read of it.
//!
//! Owns the numbers; leaves the words for them to `cli::pack`.
//! Invariant: each number is counted from the image itself, none is an estimate.

use serde::Serialize;

/// An image in numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Layout {
    /// Regular files, each once however many names it has.
    pub files: u64,
    /// Folders, with the root.
    pub folders: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, named pipes and sockets.
    pub specials: u64,
    /// Files that were left out because they could not be read or stored.
    pub failed: u64,
    /// Bytes of all files, with their holes.
    pub bytes: u64,
    /// Bytes of them that are holes.
    pub hole_bytes: u64,
    /// Bytes of the image, without padding.
    pub stored_bytes: u64,
    /// Bytes of it that are tables: inodes, names, attributes.
    pub metadata_bytes: u64,
    /// The name of the compressor.
    pub compressor: &'static str,
    /// Bytes of a block.
    pub block_size: u32,
    /// Bytes that are decoded at most to read a file that is smaller than that.
    pub read_cost: u32,
    /// Bytes that are decoded on average to read one file, each as likely as any other.
    pub mean_decoded: f64,
    /// Files that have the bytes of another.
    pub duplicates: u64,
    /// Their bytes.
    pub duplicate_bytes: u64,
    /// Blocks that are stored as they are.
    pub plain_blocks: u64,
    /// Blocks that are compressed.
    pub compressed_blocks: u64,
    /// Of both, those that several files share.
    pub fragments: u64,
    /// What could not be kept, in sentences.
    pub notes: Vec<String>,
}
