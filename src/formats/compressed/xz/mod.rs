//! Blocks of .xz files, found by the indexes of the streams, each decoded as a file of its own.
//!
//! A file may have any number of streams with padding between them.
//!
//! Invariant: an index is used only if its checksum, the length of its stream, and the header and
//! footer of the stream agree with it. Otherwise the file is decoded from the start instead.

pub(super) mod block;
pub(super) mod index;
mod stream;

use stream::HEADER_MAGIC;

use super::buffers::Buffers;
use super::chunk_cache::ChunkCache;
use super::container::Container;
use super::extent::{Extent, ExtentDecoder, Size, decode_whole};
use super::format::{ChunkDecoder, ContainerFormat};
use super::forward::Forward;
use super::pass::Start;
use super::pipeline::Pipeline;
use super::streams::{StreamFormat, Streams};
use crate::codecs::{Streaming, xz_stream};
use crate::error::Result;
use crate::formats::cursor::Cursor;
use crate::formats::limits::XZ_PADDING_MAX;
use crate::storage::Storage;
use crate::sync::Arc;

/// Memory of a decoder without its window, bytes.
const DECODER: u64 = 128 << 10;

pub(super) struct Xz;

impl ContainerFormat for Xz {
    fn recognizes(&self, head: &[u8]) -> bool {
        head.starts_with(&HEADER_MAGIC)
    }

    fn first_pass(
        &self,
        _name: &str,
        storage: &Arc<dyn Storage>,
        cache: &Arc<ChunkCache>,
    ) -> Result<Start> {
        let blocks = match index::Blocks::read(&**storage) {
            Ok(blocks) if blocks.has_giant() => {
                return Ok(Start::Spool { why: self.too_large_reason().to_owned() });
            }
            Ok(blocks) => Box::new(blocks),
            Err(error) if error.is_damage() => {
                return Ok(Start::Spool { why: format!("no index ({error})") });
            }
            Err(error) => return Err(error),
        };
        let pipeline = Pipeline::start(&Self, Arc::clone(storage), blocks, Arc::clone(cache))?;
        Ok(Start::Pass(Box::new(pipeline)))
    }

    fn open_forward(&self, name: &str, storage: Arc<dyn Storage>) -> Result<Box<dyn Forward>> {
        Ok(Box::new(Streams::<Self>::new(name, storage)?))
    }

    fn chunk_decoder(&self) -> ChunkDecoder {
        ChunkDecoder::Extents(&Self)
    }

    fn too_large_reason(&self) -> &'static str {
        "an xz block of more than 64 MiB"
    }

    fn advice(&self) -> &'static str {
        "re-pack it for random access: xz -dc FILE | xz -T0 > NEW"
    }
}

impl ExtentDecoder for Xz {
    fn container(&self) -> Container {
        Container::Xz
    }

    fn memory_needed(&self, storage: &dyn Storage, extent: &Extent, size: Size) -> u64 {
        memory_needed(block::window(storage, extent.start), extent, size)
    }

    fn max_memory_needed(&self, extent: &Extent, size: Size) -> u64 {
        memory_needed(None, extent, size)
    }

    fn decode(
        &self,
        storage: &dyn Storage,
        extent: &Extent,
        max_len: usize,
        buffers: &Buffers,
    ) -> Result<Vec<u8>> {
        decode_whole(storage, extent, max_len, buffers, |source, target| {
            block::decode(source, extent.detail, target)
        })
    }
}

impl StreamFormat for Xz {
    const CONTAINER: Container = Container::Xz;
    const PADDING_MAX: Option<u64> = Some(XZ_PADDING_MAX);
    const DECODER_PER_STREAM: bool = true;

    fn decoder(memory: u64) -> Result<Box<dyn Streaming>> {
        Ok(Box::new(xz_stream(memory)?))
    }

    fn is_stream(cursor: &mut Cursor) -> Result<bool> {
        Ok(cursor.peek(HEADER_MAGIC.len())? == HEADER_MAGIC)
    }
}

/// The most memory that decoding takes with a window of `window` bytes, or of any size.
fn memory_needed(window: Option<u64>, extent: &Extent, size: Size) -> u64 {
    // The decoder uses no more of its window than the decoded size.
    let decoded = size.max();
    let window = window.map_or(decoded, |window| window.min(decoded));
    let buffers = decoded.saturating_add(extent.encoded_len());
    buffers.saturating_add(window).saturating_add(DECODER)
}
