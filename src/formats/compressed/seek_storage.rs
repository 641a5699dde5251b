//! A compressed file as storage of its decoded bytes.
//!
//! Invariant: no lock is held while a chunk is decoded, and only one of the readers that need it
//! decodes it.

use std::ops::Range;

use super::chunk_cache::{Chunk, ChunkCache, Demand};
use super::container::Container;
use super::extent::{self, Extent, ExtentDecoder, Size};
use super::format::ChunkDecoder;
use super::point::{Point, PointDecoder};
use super::registry;
use super::seek_index::{Chunks, SeekIndex};
use super::spool::Spool;
use crate::cache::Fetch;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::storage::Storage;
use crate::sync::{Arc, Weak};

/// The decoded bytes of a compressed file.
pub(crate) struct Compressed {
    name: String,
    storage: Arc<dyn Storage>,
    container: Container,
    len: u64,
    source: Source,
    cache: Arc<ChunkCache>,
    archive: u32,
    /// A reference to itself, for the threads that decode ahead.
    weak_self: Weak<Compressed>,
}

enum Source {
    Points(Vec<Point>, &'static dyn PointDecoder),
    Extents(Vec<Extent>, &'static dyn ExtentDecoder),
    Spool(Spool),
}

impl Compressed {
    /// The decoded bytes of `storage`, which has the seek points `seek_index`. `spool` is the
    /// temporary file of its first pass. Chunks are stored in `cache` under the number `archive`;
    /// `name` is used in errors.
    ///
    /// # Errors
    /// `Unsupported` if there are too many chunks, or more bytes than a temporary file may have;
    /// `Io` if a temporary file is needed and cannot be created, or if the memory limit of the job
    /// is too small for the largest chunk.
    pub(crate) fn new(
        name: &str,
        storage: Arc<dyn Storage>,
        seek_index: SeekIndex,
        spool: Option<Spool>,
        cache: Arc<ChunkCache>,
        archive: u32,
    ) -> Result<Arc<Self>> {
        let SeekIndex { container, len, chunks } = seek_index;
        let format = registry::format(container);
        let source = match (chunks, format.chunk_decoder(), spool) {
            (Chunks::Points(points), ChunkDecoder::Points(decoder), _) => {
                Source::Points(points, decoder)
            }
            (Chunks::Extents(extents), ChunkDecoder::Extents(decoder), _) => {
                Source::Extents(extents, decoder)
            }
            (Chunks::Spooled, _, Some(spool)) => Source::Spool(spool),
            (Chunks::Spooled, _, None) => {
                let (file, limit) = (Arc::clone(&storage), cache.spool_limit());
                Source::Spool(Spool::start(name, file, format, limit, Some(len))?)
            }
            _ => {
                let container = container.name();
                return Err(Error::corrupt(format!("{name}: not the seek points of {container}")));
            }
        };
        if u32::try_from(source.count()).is_err() {
            return Err(Error::new(Kind::Unsupported, format!("{name}: too many chunks")));
        }
        cache.check(source.most_memory_needed(len))?;
        let name = name.to_owned();
        Ok(Arc::new_cyclic(|weak_self| {
            let weak_self = Weak::clone(weak_self);
            Self { name, storage, container, len, source, cache, archive, weak_self }
        }))
    }

    /// The format it is compressed in.
    pub(crate) fn container(&self) -> Container {
        self.container
    }

    /// Number of chunks. `None` if the file is read from a temporary file.
    pub(crate) fn chunks(&self) -> Option<usize> {
        match self.source {
            Source::Spool(_) => None,
            _ => Some(self.source.count()),
        }
    }

    /// The range of the chunks that hold `range`, which is not empty: the bytes that reading it
    /// decodes.
    pub(crate) fn covering(&self, range: Range<u64>) -> Range<u64> {
        let last = self.find(range.end.saturating_sub(1));
        self.start(self.find(range.start))..self.start(last.saturating_add(1))
    }

    /// Length of the compressed file, bytes.
    pub(crate) fn encoded_len(&self) -> u64 {
        self.storage.len()
    }

    /// Decoded bytes of the largest chunk.
    pub(crate) fn largest_chunk(&self) -> u64 {
        let len = |nth: usize| self.start(nth.saturating_add(1)).saturating_sub(self.start(nth));
        (0..self.source.count()).map(len).max().unwrap_or(0)
    }

    /// Offset of chunk `number` in the decoded bytes. If there is no such chunk, the end of the
    /// last one.
    fn start(&self, number: usize) -> u64 {
        let start = match &self.source {
            Source::Points(points, _) => points.get(number).map(|point| point.decoded),
            Source::Extents(extents, _) => extents.get(number).map(|extent| extent.decoded),
            Source::Spool(_) => None,
        };
        start.unwrap_or(self.len)
    }

    /// The number of the chunk that `offset` lies in.
    fn find(&self, offset: u64) -> usize {
        let after = match &self.source {
            Source::Points(points, _) => points.partition_point(|point| point.decoded <= offset),
            Source::Extents(extents, _) => {
                extents.partition_point(|extent| extent.decoded <= offset)
            }
            Source::Spool(_) => 0,
        };
        after.saturating_sub(1)
    }

    /// Chunk `number`, decoded.
    fn chunk(&self, number: usize, demand: Demand) -> Result<Arc<Chunk>> {
        let key = (self.archive, u32::try_from(number).unwrap_or(u32::MAX));
        let len = self.start(number.saturating_add(1)).saturating_sub(self.start(number));
        let missing = || Error::corrupt(format!("there is no chunk {number}"));
        match &self.source {
            Source::Points(points, decoder) => {
                let memory_needed = || decoder.memory_needed(len);
                self.cache.get_or_decode(key, memory_needed, demand, || {
                    let point = points.get(number).ok_or_else(missing)?;
                    let next = points.get(number.saturating_add(1)).map(|next| next.bit);
                    decoder.decode(&self.storage, point, next, len, self.cache.buffers())
                })
            }
            Source::Extents(extents, decoder) => {
                let extent = extents.get(number).ok_or_else(missing)?;
                let size = Size::Exactly(len);
                let (decoder, storage) = (*decoder, &*self.storage);
                let memory_needed = || decoder.memory_needed(storage, extent, size);
                self.cache.get_or_decode(key, memory_needed, demand, || {
                    extent::decode(decoder, storage, extent, size, self.cache.buffers())
                })
            }
            Source::Spool(_) => Err(missing()),
        }
    }

    /// Requests the chunks after a read of `range`, if the file is read in order.
    fn read_ahead(&self, range: Range<u64>) {
        let Some(ahead) = self.cache.observe(self.archive, range, self.len) else {
            return;
        };
        // A chunk that starts before `ahead` was requested earlier or is being read.
        let first = self.find(ahead.start);
        let first = first.saturating_add(usize::from(self.start(first) < ahead.start));
        for number in first..=self.find(ahead.end.saturating_sub(1)) {
            let len = self.start(number.saturating_add(1)).saturating_sub(self.start(number));
            if !self.cache.decode_ahead(self.weak_self.clone(), number, len) {
                break;
            }
        }
    }

    fn read(&self, mut buffer: &mut [u8], mut offset: u64) -> Result<()> {
        let end = offset.checked_add(length(buffer.len()));
        if end.is_none_or(|end| end > self.len) {
            let (wanted, len) = (buffer.len(), self.len);
            let detail = format_args!("{wanted} bytes at {offset:#x}, end at {len:#x}");
            return Err(Error::corrupt("the decompressed data is shorter than recorded")
                .with_detail(detail));
        }
        if let Source::Spool(spool) = &self.source {
            return spool.read_exact_at(buffer, offset);
        }
        self.read_ahead(offset..end.unwrap_or(self.len));
        while !buffer.is_empty() {
            let number = self.find(offset);
            let chunk = self.chunk(number, Demand::Now)?;
            let skipped = index(offset.saturating_sub(self.start(number)));
            let source = chunk.bytes().get(skipped..).unwrap_or_default();
            let len = source.len().min(buffer.len());
            let (Some(source), Some((target, rest))) = (
                source.get(..len).filter(|source| !source.is_empty()),
                buffer.split_at_mut_checked(len),
            ) else {
                return Err(Error::corrupt(format!("chunk {number} is too short")));
            };
            target.copy_from_slice(source);
            offset = offset.saturating_add(length(len));
            buffer = rest;
        }
        Ok(())
    }
}

impl Source {
    /// Number of chunks; 0 if the file is spooled.
    fn count(&self) -> usize {
        match self {
            Self::Points(points, _) => points.len(),
            Self::Extents(extents, _) => extents.len(),
            Self::Spool(_) => 0,
        }
    }

    /// The most memory that decoding a chunk takes, bytes. `len` is the length of all decoded
    /// bytes.
    fn most_memory_needed(&self, len: u64) -> u64 {
        match self {
            Self::Points(points, decoder) => {
                let starts = points.iter().map(|point| point.decoded);
                let ends = starts.clone().skip(1).chain([len]);
                let lens = starts.zip(ends).map(|(start, end)| end.saturating_sub(start));
                lens.map(|len| decoder.memory_needed(len)).max().unwrap_or(0)
            }
            Self::Extents(extents, decoder) => {
                let ends = extents.iter().skip(1).map(|next| next.decoded).chain([len]);
                let sizes = extents.iter().zip(ends).map(|(extent, end)| {
                    let size = Size::Exactly(end.saturating_sub(extent.decoded));
                    decoder.max_memory_needed(extent, size)
                });
                sizes.max().unwrap_or(0)
            }
            Self::Spool(_) => 0,
        }
    }
}

impl Fetch for Compressed {
    /// Fetches the chunk with the number `file`.
    fn fetch(&self, file: u64, _whole: Range<u64>) {
        let number = index(file);
        let range = self.start(number)..self.start(number.saturating_add(1));
        if self.cache.is_wanted(self.archive, range)
            && let Err(error) = self.chunk(number, Demand::Ahead)
        {
            // A read of the chunk fails with the same error and reports it.
            log::debug!("{}: decoding ahead: {error}", self.name);
        }
    }
}

impl Storage for Compressed {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read(buffer, offset).map_err(|error| error.within(&self.name))
    }

    fn release(&self) {
        self.cache.release();
    }
}
