//! A compressed file as storage of its decoded bytes.
//!
//! Invariant: no lock is held while a chunk is decoded, and only one of the readers that need it
//! decodes it.

use std::ops::Range;

use super::chunk_cache::{Chunk, ChunkCache, Demand};
use super::chunks::{Chunks, Size};
use super::container::Container;
use super::format::ChunkFormat;
use super::gzip;
use super::seek_index::SeekIndex;
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
    chunks: Chunks,
    /// The temporary file, if the file has no chunks.
    spool: Option<Spool>,
    cache: Arc<ChunkCache>,
    archive: u32,
    /// A reference to itself, for the threads that decode ahead.
    weak_self: Weak<Compressed>,
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
        if u32::try_from(chunks.count()).is_err() {
            return Err(Error::new(Kind::Unsupported, format!("{name}: too many chunks")));
        }
        let spool = match (&chunks, spool) {
            (Chunks::Spooled, None) => {
                let (file, limit) = (Arc::clone(&storage), cache.spool_limit());
                Some(Spool::start(name, file, container.spool_format()?, limit, Some(len))?)
            }
            (_, spool) => spool,
        };
        let (name, weak_self) = (name.to_owned(), Weak::new());
        let new = Self { name, storage, container, len, chunks, spool, cache, archive, weak_self };
        let memory_needed = (0..new.chunks.count()).map(|number| new.memory_needed(number, None));
        new.cache.check(memory_needed.max().unwrap_or(0))?;
        Ok(Arc::new_cyclic(|weak_self| Self { weak_self: Weak::clone(weak_self), ..new }))
    }

    /// The format it is compressed in.
    pub(crate) fn container(&self) -> Container {
        self.container
    }

    /// Number of chunks. `None` if the file is read from a temporary file.
    pub(crate) fn chunks(&self) -> Option<usize> {
        self.spool.is_none().then(|| self.chunks.count())
    }

    /// The range of the chunks that hold `range`, which is not empty: the bytes that reading it
    /// decodes.
    pub(crate) fn covering(&self, range: Range<u64>) -> Range<u64> {
        let last = self.chunks.find(range.end.saturating_sub(1));
        self.start(self.chunks.find(range.start))..self.range(last).end
    }

    /// Length of the compressed file, bytes.
    pub(crate) fn encoded_len(&self) -> u64 {
        self.storage.len()
    }

    /// Decoded bytes of the largest chunk.
    pub(crate) fn largest_chunk(&self) -> u64 {
        self.chunks.largest(self.len)
    }

    /// Offset of chunk `number` in the decoded bytes. If there is no such chunk, the end of the
    /// last one.
    fn start(&self, number: usize) -> u64 {
        self.chunks.start(number).unwrap_or(self.len)
    }

    /// The decoded bytes that chunk `number` holds.
    fn range(&self, number: usize) -> Range<u64> {
        self.start(number)..self.start(number.saturating_add(1))
    }

    /// Decoded length of chunk `number`.
    fn chunk_len(&self, number: usize) -> u64 {
        let Range { start, end } = self.range(number);
        end.saturating_sub(start)
    }

    /// The most memory that decoding chunk `number` takes, bytes. Less if `storage` tells more.
    fn memory_needed(&self, number: usize, storage: Option<&dyn Storage>) -> u64 {
        let len = self.chunk_len(number);
        match (&self.chunks, &self.container.format().chunks) {
            (Chunks::Points(_), _) => gzip::memory_needed(len),
            (Chunks::Extents(extents), ChunkFormat::Extents(format)) => extents
                .get(number)
                .map_or(0, |extent| (format.memory_needed)(storage, extent, Size::Exactly(len))),
            _ => 0,
        }
    }

    /// Chunk `number`, from the cache or decoded.
    fn chunk(&self, number: usize, demand: Demand) -> Result<Arc<Chunk>> {
        let key = (self.archive, u32::try_from(number).unwrap_or(u32::MAX));
        let memory_needed = || self.memory_needed(number, Some(&*self.storage));
        self.cache.get_or_decode(key, memory_needed, demand, || self.decode(number))
    }

    fn decode(&self, number: usize) -> Result<Vec<u8>> {
        let (len, buffers) = (self.chunk_len(number), self.cache.buffers());
        let missing = || Error::corrupt(format!("there is no chunk {number}"));
        match (&self.chunks, &self.container.format().chunks) {
            (Chunks::Points(points), _) => {
                let point = points.get(number).ok_or_else(missing)?;
                let next = points.get(number.saturating_add(1)).map(|next| next.bit);
                gzip::decode(&self.storage, point, next, len, buffers)
            }
            (Chunks::Extents(extents), ChunkFormat::Extents(format)) => {
                let extent = extents.get(number).ok_or_else(missing)?;
                format.decode(&*self.storage, extent, Size::Exactly(len), buffers)
            }
            _ => Err(missing()),
        }
    }

    /// Requests the chunks after a read of `range`, if the file is read in order.
    fn read_ahead(&self, range: Range<u64>) {
        let Some(ahead) = self.cache.observe(self.archive, range, self.len) else {
            return;
        };
        // A chunk that starts before `ahead` was requested earlier or is being read.
        let first = self.chunks.find(ahead.start);
        let first = first.saturating_add(usize::from(self.start(first) < ahead.start));
        for number in first..=self.chunks.find(ahead.end.saturating_sub(1)) {
            let len = self.chunk_len(number);
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
        if let Some(spool) = &self.spool {
            return spool.read_exact_at(buffer, offset);
        }
        self.read_ahead(offset..end.unwrap_or(self.len));
        while !buffer.is_empty() {
            let number = self.chunks.find(offset);
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

impl Fetch for Compressed {
    /// Fetches the chunk with the number `file`.
    fn fetch(&self, file: u64, _whole: Range<u64>) {
        let number = index(file);
        if self.cache.is_wanted(self.archive, self.range(number))
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
