//! Blocks of bzip2 files. A block starts at any bit, marked only by a 48-bit magic number (pi).
//!
//! A scan for the magic numbers cuts the file into extents. Each is wrapped into a stream of its
//! own to decode it, as bzip2recover does. Data may contain the magic numbers by chance or on
//! purpose.
//!
//! Invariant: a false match never changes the decoded bytes. It cuts a block in two, the first part
//! fails to decode, and the parts are joined and decoded again. A block that is cut more than
//! `BZIP2_JOINS_MAX` times is reported as damage.

mod block;
pub(super) mod blocks;
pub(super) mod magic;

use super::buffers::Buffers;
use super::chunk_cache::ChunkCache;
use super::container::Container;
use super::extent::{Extent, ExtentDecoder, Size};
use super::format::{ChunkDecoder, ContainerFormat};
use super::forward::Forward;
use super::pass::Start;
use super::pipeline::Pipeline;
use crate::error::{Error, Kind, Result};
use crate::storage::Storage;
use crate::sync::Arc;

/// Memory of a decoder, bytes.
const DECODER: u64 = 4 << 20;

/// Decoded size of a block of `bzip2 -9` with a few runs in it, bytes. A block of runs only decodes
/// to up to 46 MB.
const USUAL_BLOCK: u64 = 2 << 20;

pub(super) struct Bzip2;

impl ContainerFormat for Bzip2 {
    fn recognizes(&self, head: &[u8]) -> bool {
        matches!(head, [b'B', b'Z', b'h', b'1'..=b'9', rest @ ..]
            if rest.starts_with(&magic::BLOCK) || rest.starts_with(&magic::END))
    }

    fn first_pass(
        &self,
        name: &str,
        storage: &Arc<dyn Storage>,
        cache: &Arc<ChunkCache>,
    ) -> Result<Start> {
        let blocks = Box::new(blocks::Blocks::new(name, Arc::clone(storage)));
        let pipeline = Pipeline::start(&Self, Arc::clone(storage), blocks, Arc::clone(cache))?;
        Ok(Start::Pass(Box::new(pipeline)))
    }

    fn open_forward(&self, _name: &str, _storage: Arc<dyn Storage>) -> Result<Box<dyn Forward>> {
        let context = "bzip2 has no blocks that are too large to be decoded at once";
        Err(Error::new(Kind::InvalidInput, context))
    }

    fn chunk_decoder(&self) -> ChunkDecoder {
        ChunkDecoder::Extents(&Self)
    }

    fn too_large_reason(&self) -> &'static str {
        "a bzip2 block"
    }

    fn advice(&self) -> &'static str {
        "re-pack it with bzip2"
    }
}

impl ExtentDecoder for Bzip2 {
    fn container(&self) -> Container {
        Container::Bzip2
    }

    fn max_memory_needed(&self, extent: &Extent, size: Size) -> u64 {
        // The size of a block is known only after decoding. It is almost never more than this.
        let output = match size {
            Size::Exactly(decoded) => decoded,
            Size::AtMost(decoded) => decoded.min(USUAL_BLOCK),
        };
        // The input is in bits and is shifted into a second buffer.
        (extent.encoded_len() >> 2).saturating_add(output).saturating_add(DECODER)
    }

    fn decode(
        &self,
        storage: &dyn Storage,
        extent: &Extent,
        max_len: usize,
        _buffers: &Buffers,
    ) -> Result<Vec<u8>> {
        block::decode(storage, extent, max_len)
    }
}
