//! Compressed members, decoded.
//!
//! A member of at most `ZIP_WHOLE_MAX` bytes is decoded at once, checked against its checksum, and
//! cached, unless one read returns all of it. A larger one is decoded and checked once when it is
//! first read, which finds seek points (`compressed`). Later reads decode from those. Seek points
//! take memory, so that only those of the members that were used last are kept.
//!
//! Invariant: no byte of a compressed member is returned before its checksum was right.

use std::ops::Range;

use super::directory::{CentralDirectory, SPAN, no_zip64};
use super::local::{LocalHeaders, Packed};
use super::method::{Method, most_compressed};
use crate::cache::{Cache, Cached};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{index, length};
use crate::formats::compressed::{Chunk, ChunkCache, Compressed, Demand, FirstPass, new_number};
use crate::formats::index::NodeId;
use crate::formats::limits::ZIP_WHOLE_MAX;
use crate::storage::{FileRange, Storage};
use crate::sync::Arc;
use crate::vfs::{ReadBytes, Scratch};

/// Memory for seek points of large members, as a fraction of the cache for chunks.
const SEEK_POINTS_SHARE: u64 = 8;

/// The least memory for them, bytes. A member of 1 GiB has about 20 MiB of them.
const SEEK_POINTS_MIN: u64 = 32 << 20;

/// A compressed member, as its entry describes it.
pub(super) struct Described {
    /// The archive and its path, for messages.
    pub(super) name: String,
    pub(super) packed: Packed,
    pub(super) crc32: u32,
}

impl Described {
    fn method(&self) -> Result<Method> {
        Method::from_code(self.packed.method).ok_or_else(|| {
            let name = Method::unsupported_name(self.packed.method);
            Error::new(Kind::Unsupported, format!("compressed with {name}"))
        })
    }

    fn check(&self, crc32: u32) -> Result<()> {
        match crc32 == self.crc32 {
            true => Ok(()),
            false => Err(Error::corrupt("its checksum (CRC-32) is wrong")),
        }
    }
}

/// A large member whose checksum is right.
struct Decoded {
    /// Length of the decoded data, bytes.
    len: u64,
    pass: FirstPass,
    /// Its data as a compressed file.
    file: Arc<dyn Storage>,
}

/// A large member with its seek points.
#[derive(Clone)]
struct Large(Arc<Compressed>, u64);

impl Cached for Large {
    fn weight(&self) -> u64 {
        self.1
    }
}

/// The large members that were read last, of all archives of a mount, with their seek points.
pub(crate) struct LargeMembers {
    /// By number of the archive, and of the member.
    cache: Cache<(u32, u32), Large>,
    /// Memory for seek points, bytes. One member may take more.
    bytes: u64,
}

impl LargeMembers {
    /// For a mount whose caches of chunks have `chunk_bytes`.
    pub(crate) fn new(chunk_bytes: u64) -> Self {
        let bytes = (chunk_bytes / SEEK_POINTS_SHARE).max(SEEK_POINTS_MIN);
        Self { cache: Cache::new(bytes, bytes), bytes }
    }
}

/// Decodes the members of one archive.
pub(super) struct Decoder {
    /// The name of the archive, for messages.
    name: String,
    storage: Arc<dyn Storage>,
    pub(super) directory: CentralDirectory,
    pub(super) local_headers: LocalHeaders,
    chunks: Arc<ChunkCache>,
    large: Arc<LargeMembers>,
    /// The number of this archive in the keys of both.
    number: u32,
}

impl Decoder {
    /// For the archive `name` in `storage`.
    pub(super) fn new(
        name: &str,
        storage: &Arc<dyn Storage>,
        directory: CentralDirectory,
        chunks: &Arc<ChunkCache>,
        large: &Arc<LargeMembers>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            local_headers: LocalHeaders::new(Arc::clone(storage), directory.start),
            storage: Arc::clone(storage),
            directory,
            chunks: Arc::clone(chunks),
            large: Arc::clone(large),
            number: new_number(),
        }
    }

    /// Reads `range` of the member of `size` bytes that the entry at `entry` describes. `id` is its
    /// node.
    pub(super) fn read<'s>(
        &self,
        (id, size): (NodeId, u64),
        entry: u64,
        range: Range<u64>,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        let len = index(range.end.saturating_sub(range.start));
        if len == 0 {
            return Ok(ReadBytes::Scratch(&[]));
        }
        let key = (self.number, id);
        if size <= ZIP_WHOLE_MAX {
            let chunk = self.whole(key, entry, size)?;
            if range == (0..size) {
                self.chunks.forget(key);
            }
            let start = index(range.start);
            return Ok(ReadBytes::Shared(chunk, start..start.saturating_add(len)));
        }
        let answer = scratch.answer(len);
        let Large(member, _) = self.large.cache.get_or_load(key, || self.large(entry, size))?;
        member.read_exact_at(answer, range.start)?;
        Ok(ReadBytes::Scratch(answer))
    }

    /// The member of `size` bytes whose entry is at `at`.
    fn describe(&self, at: u64, size: u64) -> Result<Described> {
        self.directory.with_entry(self.storage.as_ref(), at, |entry| {
            if entry.size != size {
                return Err(Error::corrupt("its entry in the central directory has changed"));
            }
            Ok(Described {
                name: format!("{}: {}", self.name, entry.path().escape_ascii()),
                packed: entry.packed(&self.directory)?,
                crc32: entry.crc32,
            })
        })
    }

    /// All bytes of a small member.
    fn whole(&self, key: (u32, NodeId), entry: u64, size: u64) -> Result<Arc<Chunk>> {
        // Decoded and compressed bytes. Of a dictionary, no more is used than the data has.
        let memory_needed = || size.saturating_add(most_compressed(size));
        self.chunks.get_or_decode(key, memory_needed, Demand::Now, || {
            let described = self.describe(entry, size)?;
            let (method, packed) = (described.method()?, described.packed);
            let (len, buffers) = (index(packed.len), self.chunks.buffers());
            let headers = &self.local_headers;
            let mut source = buffers.take(len.saturating_add(headers.allowance(packed)));
            let (_, data) = headers.read_with_data(packed, &mut source, len)?;
            let mut target = buffers.take(index(size));
            method.decode(source.get(data).unwrap_or_default(), &mut target)?;
            buffers.recycle(source);
            described.check(crc32fast::hash(&target))?;
            Ok(target)
        })
    }

    /// Decodes a large member once, checks it, and finds its seek points.
    fn large(&self, entry: u64, size: u64) -> Result<Large> {
        let described = self.describe(entry, size)?;
        self.first_pass(&described, size).map_err(|error| error.within(&described.name))
    }

    fn first_pass(&self, described: &Described, size: u64) -> Result<Large> {
        let Decoded { pass, file, .. } = self.decode(described, size, size)?;
        let (seek_index, spool) = pass.finish();
        // A temporary file takes no memory, but disk space.
        let weight = match &spool {
            Some(_) => self.large.bytes / 8,
            // One that is heavier than all takes the place of all.
            None => seek_index.weight().min(self.large.bytes),
        };
        let (name, chunks) = (&described.name, Arc::clone(&self.chunks));
        let compressed = Compressed::new(name, file, seek_index, spool, chunks, new_number())?;
        Ok(Large(compressed, weight))
    }

    /// The length of the decoded data of a member, whose entry has it modulo 4 GiB as `size`.
    ///
    /// Fails with `Corrupt` if it is damaged; `Unsupported` if the method does not mark the end of
    /// the data; `Io`.
    pub(super) fn len_of(&self, described: &Described, size: u64) -> Result<u64> {
        if described.method()? != Method::Deflate {
            return Err(no_zip64("its length is recorded modulo 4 GiB"));
        }
        Ok(self.decode(described, size, u64::MAX)?.len)
    }

    /// Decodes a large member once, and checks it. Stops after `most` bytes.
    fn decode(&self, described: &Described, size: u64, most: u64) -> Result<Decoded> {
        let Described { name, packed, crc32 } = described;
        let header_len = self.local_headers.len_of(*packed)?;
        let start = packed.header.saturating_add(length(header_len));
        let data = FileRange::new(Arc::clone(&self.storage), start)?.cut(packed.len)?;
        let (container, file) = described.method()?.file_of(data, size, *crc32)?;
        let mut pass = FirstPass::start(name, Arc::clone(&file), container, &self.chunks)?;
        let (mut hasher, mut len) = (crc32fast::Hasher::new(), 0_u64);
        while let Some(piece) = pass.next_piece()? {
            hasher.update(&piece);
            len = len.saturating_add(length(piece.len()));
            if len > most {
                return Err(Error::corrupt(format!("{size} bytes announced, more found"))
                    .with_hint(
                        "if the archive program of macOS made it of a file over 4 GiB, make it \
                         again with `ditto -c -k`, zip or 7z",
                    ));
            }
        }
        if len % SPAN != size % SPAN || len < size {
            return Err(Error::corrupt(format!("{size} bytes announced, {len} found")));
        }
        described.check(hasher.finalize())?;
        Ok(Decoded { len, pass, file })
    }

    /// Frees what can be decoded again.
    pub(super) fn release(&self) {
        self.chunks.release();
        self.large.cache.clear();
    }
}
