//! What archfs needs to know of a container: how to find its chunks, and how to decode it.

use super::chunk_cache::ChunkCache;
use super::extent::ExtentDecoder;
use super::forward::Forward;
use super::pass::Start;
use super::point::PointDecoder;
use crate::error::Result;
use crate::storage::Storage;
use crate::sync::Arc;

/// The implementation of a container.
pub(super) trait ContainerFormat: Sync {
    /// Whether a file of this container can start with `head`. A skippable frame does not count.
    fn recognizes(&self, head: &[u8]) -> bool;

    /// Starts a first pass over `storage`; `name` is for messages.
    fn first_pass(
        &self,
        name: &str,
        storage: &Arc<dyn Storage>,
        cache: &Arc<ChunkCache>,
    ) -> Result<Start>;

    /// Decodes `storage` from its start, whatever the size of its chunks; `name` is for messages.
    fn open_forward(&self, name: &str, storage: Arc<dyn Storage>) -> Result<Box<dyn Forward>>;

    fn chunk_decoder(&self) -> ChunkDecoder;

    /// Why a chunk is too large to be decoded at once; completes "it has ...".
    fn too_large_reason(&self) -> &'static str;

    /// What the owner of a spooled file can do to avoid spooling.
    fn advice(&self) -> &'static str;
}

/// Decodes the chunks of a container.
pub(super) enum ChunkDecoder {
    Points(&'static dyn PointDecoder),
    Extents(&'static dyn ExtentDecoder),
}
