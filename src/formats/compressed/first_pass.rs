//! The first pass over a compressed file: returns its decoded bytes in order, then its seek points.
//!
//! If a chunk turns out to be too large to hold in memory, the pass continues with a temporary
//! file.
//!
//! Invariant: `next_piece` returns each decoded byte once and in order, up to the end or the
//! damage. It returns an error once.
//!
//! Damage is often noticed late, because a checksum follows all the bytes that it covers. A wrong
//! bit in a gzip member gives wrong bytes, which go unnoticed until the end of the member. Bytes
//! delivered after the last correct checksum are therefore left out of the seek index, and no
//! reader gets them. A file that ends early is different: the bytes before the cut are correct,
//! except those of the DEFLATE block that was cut, because a wrong bit there may hide its end.

use super::chunk_cache::ChunkCache;
use super::chunks::Chunks;
use super::container::Container;
use super::format::{ChunkFormat, Output, Pass, Start};
use super::gzip;
use super::pipeline::Pipeline;
use super::seek_index::SeekIndex;
use super::spool::Spool;
use crate::error::{Kind, Result};
use crate::formats::bytes::length;
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::SharedBytes;

/// A first pass in progress.
pub(crate) struct FirstPass {
    name: String,
    storage: Arc<dyn Storage>,
    container: Container,
    /// Provides permits for memory.
    cache: Arc<ChunkCache>,
    source: Source,
    /// Bytes delivered. After damage, those of them that are known to be correct.
    delivered: u64,
    ended: bool,
}

/// Where the decoded bytes come from.
enum Source {
    Pass(Box<dyn Pass>),
    Spool(Spool),
}

impl FirstPass {
    /// Starts a pass over `storage`, which `recognize` identified as a `container`; `name` is for
    /// messages. Memory used for decoding counts in `cache`.
    ///
    /// # Errors
    /// `Io` if the file cannot be read or threads cannot be started.
    pub(crate) fn start(
        name: &str,
        storage: Arc<dyn Storage>,
        container: Container,
        cache: &Arc<ChunkCache>,
    ) -> Result<Self> {
        let spooled = |why| spooled(name, &storage, container, cache, why);
        let source = match &container.format().chunks {
            ChunkFormat::Points => Source::Pass(gzip::first_pass(name, Arc::clone(&storage))),
            ChunkFormat::Extents(format) => match (format.walk)(name, &storage)? {
                Start::Walk(walk) => {
                    let (storage, cache) = (Arc::clone(&storage), Arc::clone(cache));
                    Source::Pass(Box::new(Pipeline::start(format, storage, walk, cache)?))
                }
                Start::ChunkTooLarge => spooled(None)?,
                Start::NoIndex(error) => spooled(Some(format!("no index ({error})")))?,
            },
            ChunkFormat::None => spooled(None)?,
        };
        let (name, cache) = (name.to_owned(), Arc::clone(cache));
        Ok(Self { name, storage, container, cache, source, delivered: 0, ended: false })
    }

    /// The next decoded bytes, up to some MiB; `None` at the end.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged and `Truncated` if it is cut short, once, after everything
    /// before that; `Unsupported` or `Io` if it cannot be decoded here.
    pub(crate) fn next_piece(&mut self) -> Result<Option<SharedBytes>> {
        while !self.ended {
            let output = match &mut self.source {
                Source::Pass(pass) => pass.next(),
                Source::Spool(spool) => spool
                    .piece(self.delivered)
                    .map(|piece| piece.map_or(Output::End, Output::Piece)),
            };
            match output {
                Ok(Output::Piece(piece)) => {
                    self.delivered = self.delivered.saturating_add(length(piece.len()));
                    return Ok(Some(piece));
                }
                Ok(Output::ChunkTooLarge) => {
                    let (name, storage) = (&self.name, &self.storage);
                    self.source = spooled(name, storage, self.container, &self.cache, None)?;
                }
                Ok(Output::End) => self.ended = true,
                Err(error) => {
                    self.ended = true;
                    self.delivered = self.delivered.min(self.source.usable_len(error.kind()));
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// Offset in the file of other data after the end of the container.
    pub(crate) fn trailing_garbage_at(&self) -> Option<u64> {
        match &self.source {
            Source::Pass(pass) => pass.trailing_garbage_at(),
            Source::Spool(spool) => spool.trailing_garbage_at(),
        }
    }

    /// Compressed bytes consumed so far, for a progress bar.
    pub(crate) fn position(&self) -> u64 {
        match &self.source {
            Source::Pass(pass) => pass.position(),
            Source::Spool(spool) => spool.position(),
        }
    }

    /// The seek points of the bytes that were delivered. For a damaged file, only of the bytes that
    /// are known to be correct. Also returns the temporary file, if there is one.
    pub(crate) fn finish(self) -> (SeekIndex, Option<Spool>) {
        let (chunks, spool) = match self.source {
            Source::Pass(pass) => (pass.into_chunks(self.delivered), None),
            Source::Spool(spool) => (Chunks::Spooled, Some(spool)),
        };
        (SeekIndex { container: self.container, len: self.delivered, chunks }, spool)
    }
}

impl Source {
    /// Decoded bytes that readers may get after damage of the kind `damage`.
    fn usable_len(&self, damage: Kind) -> u64 {
        match self {
            Self::Pass(pass) => pass.usable_len(damage),
            Self::Spool(spool) => spool.usable_len(),
        }
    }
}

/// Starts to decode into a temporary file; `why` completes "it has ...". By default, a chunk is too
/// large.
fn spooled(
    name: &str,
    storage: &Arc<dyn Storage>,
    container: Container,
    cache: &ChunkCache,
    why: Option<String>,
) -> Result<Source> {
    let format = container.spool_format()?;
    let why = why.as_deref().unwrap_or(format.reason);
    let what =
        format_args!("{name}: decompressed once into a temporary file, because it has {why}");
    crate::log::warn(what, format.advice);
    let (storage, limit) = (Arc::clone(storage), cache.spool_limit());
    Ok(Source::Spool(Spool::start(name, storage, format, limit, None)?))
}
