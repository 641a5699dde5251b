//! Files that are one stream without parts that can be decoded independently (.lzma, .lz): each is
//! decoded once into a temporary file.

use std::marker::PhantomData;

use super::buffers::Buffers;
use super::chunk_cache::ChunkCache;
use super::container::Container;
use super::extent::{Extent, ExtentDecoder};
use super::format::{ChunkDecoder, ContainerFormat};
use super::forward::Forward;
use super::pass::Start;
use super::streams::{StreamFormat, Streams};
use crate::error::{Error, Result};
use crate::storage::Storage;
use crate::sync::Arc;

/// What differs between such formats.
pub(super) trait UndividedFormat: StreamFormat + Sync + 'static {
    /// Whether a file of this format can start with `head`.
    fn recognizes(head: &[u8]) -> bool;

    /// What the owner of the file can do to avoid a temporary file.
    const ADVICE: &'static str;
}

/// The container of files of the format `F`.
pub(super) struct Undivided<F>(pub(super) PhantomData<fn() -> F>);

impl<F: UndividedFormat> ContainerFormat for Undivided<F> {
    fn recognizes(&self, head: &[u8]) -> bool {
        F::recognizes(head)
    }

    fn first_pass(
        &self,
        _name: &str,
        _storage: &Arc<dyn Storage>,
        _cache: &Arc<ChunkCache>,
    ) -> Result<Start> {
        Ok(Start::Spool { why: self.too_large_reason().to_owned() })
    }

    fn open_forward(&self, name: &str, storage: Arc<dyn Storage>) -> Result<Box<dyn Forward>> {
        Ok(Box::new(Streams::<F>::new(name, storage)?))
    }

    fn chunk_decoder(&self) -> ChunkDecoder {
        ChunkDecoder::Extents(&Self(PhantomData))
    }

    fn too_large_reason(&self) -> &'static str {
        "only one part"
    }

    fn advice(&self) -> &'static str {
        F::ADVICE
    }
}

/// For a saved index that lists extents of such a file, which is wrong.
impl<F: UndividedFormat> ExtentDecoder for Undivided<F> {
    fn container(&self) -> Container {
        F::CONTAINER
    }

    fn decode(
        &self,
        _storage: &dyn Storage,
        _extent: &Extent,
        _max_len: usize,
        _buffers: &Buffers,
    ) -> Result<Vec<u8>> {
        Err(Error::corrupt("a file without parts"))
    }
}
