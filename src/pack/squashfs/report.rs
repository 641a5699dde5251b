//! The contents of an image in numbers, counted and not estimated, for messages and scripts.

use serde::Serialize;

/// An image in numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Layout {
    /// Regular files, each once however many names it has.
    pub files: u64,
    /// Directories, including the root.
    #[serde(rename = "folders")]
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, named pipes and sockets.
    pub specials: u64,
    /// Files that were left out because they could not be read or stored.
    pub failed: u64,
    /// Bytes of all files, including their holes.
    pub bytes: u64,
    /// Bytes of holes.
    pub hole_bytes: u64,
    /// Bytes of the image, without padding.
    pub stored_bytes: u64,
    /// Bytes of tables: inodes, names, attributes.
    pub metadata_bytes: u64,
    /// The name of the compressor.
    pub compressor: &'static str,
    /// Block size, bytes.
    pub block_size: u32,
    /// Maximum number of bytes decoded to read a file smaller than a fragment block.
    pub read_cost: u32,
    /// Bytes decoded on average to read one file, each equally likely.
    pub mean_decoded: f64,
    /// Files with the same bytes as an earlier file.
    pub duplicates: u64,
    /// Bytes of the duplicates.
    pub duplicate_bytes: u64,
    /// Number of uncompressed blocks.
    pub plain_blocks: u64,
    /// Number of compressed blocks.
    pub compressed_blocks: u64,
    /// Number of fragment blocks, which several files share. The two numbers above include them.
    pub fragments: u64,
    /// What could not be kept, in sentences.
    pub notes: Vec<String>,
}
