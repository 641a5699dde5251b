//! Data that few members have, in tables beside the pending nodes.

use super::directories::DirectoryId;
use super::sparse_maps::SparseMaps;
use super::xattrs::XattrSets;

/// The tables that an index takes over.
pub(super) struct SideTables {
    pub(super) sparse_maps: SparseMaps,
    pub(super) xattrs: XattrSets,
    /// Images in the archive: the directory that shows the image, its offset and its length.
    pub(super) nested_archives: Vec<(DirectoryId, u64, u64)>,
}

impl SideTables {
    pub(super) fn new() -> Self {
        Self {
            sparse_maps: SparseMaps::new(),
            xattrs: XattrSets::new(),
            nested_archives: Vec::new(),
        }
    }
}
