//! Data that few members have, in tables beside the pending nodes.

use super::super::headers::Headers;
use super::directories::DirectoryId;
use super::sparse_maps::SparseMaps;
use super::xattrs::XattrSets;

/// The tables that an index takes over.
pub(super) struct SideTables {
    pub(super) sparse_maps: SparseMaps,
    pub(super) xattrs: XattrSets,
    /// Images in the archive: the directory that shows the image, its offset, its length and the
    /// headers before it.
    pub(super) nested_archives: Vec<(DirectoryId, u64, u64, Headers)>,
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
