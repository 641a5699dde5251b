//! lz4 files, of current and of legacy frames.

mod block;
mod content;
mod forward;
mod frame;
mod runs;

use super::buffers::Buffers;
use super::chunk_cache::ChunkCache;
use super::container::Container;
use super::extent::{Extent, ExtentDecoder, decode_whole};
use super::format::{ChunkDecoder, ContainerFormat};
use super::forward::Forward;
use super::pass::Start;
use super::pipeline::Pipeline;
use crate::error::Result;
use crate::storage::Storage;
use crate::sync::Arc;

pub(super) struct Lz4;

impl ContainerFormat for Lz4 {
    fn recognizes(&self, head: &[u8]) -> bool {
        let starts_with = |magic: u32| head.starts_with(&magic.to_le_bytes());
        starts_with(frame::MAGIC) || starts_with(frame::LEGACY_MAGIC)
    }

    fn first_pass(
        &self,
        name: &str,
        storage: &Arc<dyn Storage>,
        cache: &Arc<ChunkCache>,
    ) -> Result<Start> {
        let runs = Box::new(runs::Runs::new(name, Arc::clone(storage)));
        let pipeline = Pipeline::start(&Self, Arc::clone(storage), runs, Arc::clone(cache))?;
        Ok(Start::Pass(Box::new(pipeline)))
    }

    fn open_forward(&self, name: &str, storage: Arc<dyn Storage>) -> Result<Box<dyn Forward>> {
        Ok(Box::new(forward::Blocks::new(name, storage)))
    }

    fn chunk_decoder(&self) -> ChunkDecoder {
        ChunkDecoder::Extents(&Self)
    }

    fn too_large_reason(&self) -> &'static str {
        "an lz4 frame of linked blocks of more than 64 MiB"
    }

    fn advice(&self) -> &'static str {
        "re-pack it for random access: lz4 -dc FILE | lz4 -BI > NEW"
    }
}

impl ExtentDecoder for Lz4 {
    fn container(&self) -> Container {
        Container::Lz4
    }

    fn decode(
        &self,
        storage: &dyn Storage,
        extent: &Extent,
        max_len: usize,
        buffers: &Buffers,
    ) -> Result<Vec<u8>> {
        decode_whole(storage, extent, max_len, buffers, |run, target| {
            block::decode_run(run, extent.detail, target)
        })
    }
}
