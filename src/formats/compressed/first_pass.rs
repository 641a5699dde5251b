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

use super::gzip::PointFinder;
use super::pipeline::{Pipeline, Walk};
use super::seek_index::{Chunks, SeekIndex};
use super::spool::{Spool, advice, unit};
use super::{ChunkCache, Container, bzip2, lz4, xz, zstd};
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
    pass: Pass,
    /// Bytes delivered. After damage, those of them that are known to be correct.
    delivered: u64,
    ended: bool,
}

enum Pass {
    Gzip(Box<PointFinder>),
    Extents(Box<Pipeline>),
    Spool(Arc<Spool>),
}

/// One step of a pass.
pub(super) enum Found {
    Piece(SharedBytes),
    /// A chunk that is too large to be decoded at once.
    Giant,
    End,
}

impl FirstPass {
    /// Starts a pass over `storage`, which `recognise` identified as a `container`; `name` is for
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
        let file = Arc::clone(&storage);
        let extents = |walk: Box<dyn Walk>| -> Result<Pass> {
            let pipeline = Pipeline::start(container, storage.clone(), walk, Arc::clone(cache))?;
            Ok(Pass::Extents(Box::new(pipeline)))
        };
        let pass = match container {
            Container::Gzip => Pass::Gzip(Box::new(PointFinder::new(name, file))),
            Container::Bzip2 => extents(Box::new(bzip2::Blocks::new(name, file)))?,
            Container::Xz => match xz_blocks(&*file)? {
                Ok(blocks) => extents(Box::new(blocks))?,
                Err(why) => spooled(name, &file, container, cache, &why)?,
            },
            Container::Zstd => extents(Box::new(zstd::Frames::new(name, file)?))?,
            Container::Lz4 => extents(Box::new(lz4::Blocks::new(name, file)))?,
        };
        let (name, cache) = (name.to_owned(), Arc::clone(cache));
        Ok(Self { name, storage, container, cache, pass, delivered: 0, ended: false })
    }

    /// The next decoded bytes, up to some MiB; `None` at the end.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged and `Truncated` if it is cut short, once, after everything
    /// before that; `Unsupported` or `Io` if it cannot be decoded here.
    pub(crate) fn next_piece(&mut self) -> Result<Option<SharedBytes>> {
        while !self.ended {
            let found = match &mut self.pass {
                Pass::Gzip(pass) => pass.next(),
                Pass::Extents(pipeline) => pipeline.next(),
                Pass::Spool(spool) => {
                    spool.piece(self.delivered).map(|piece| piece.map_or(Found::End, Found::Piece))
                }
            };
            match found {
                Ok(Found::Piece(piece)) => {
                    self.delivered = self.delivered.saturating_add(length(piece.len()));
                    return Ok(Some(piece));
                }
                Ok(Found::Giant) => {
                    let why = unit(self.container);
                    let (name, storage) = (&self.name, &self.storage);
                    self.pass = spooled(name, storage, self.container, &self.cache, why)?;
                }
                Ok(Found::End) => self.ended = true,
                Err(error) => {
                    self.ended = true;
                    self.delivered = self.delivered.min(self.pass.verified_len(error.kind()));
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// Offset in the file of other data after the end of the container.
    pub(crate) fn garbage(&self) -> Option<u64> {
        match &self.pass {
            Pass::Gzip(pass) => pass.garbage(),
            Pass::Extents(pipeline) => pipeline.garbage(),
            Pass::Spool(spool) => spool.garbage(),
        }
    }

    /// Compressed bytes consumed so far, for a progress bar.
    pub(crate) fn position(&self) -> u64 {
        match &self.pass {
            Pass::Gzip(pass) => pass.position(),
            Pass::Extents(pipeline) => pipeline.position(),
            Pass::Spool(spool) => spool.position(),
        }
    }

    /// The seek points of the bytes that were delivered. For a damaged file, only of the bytes that
    /// are known to be correct.
    pub(crate) fn finish(self) -> SeekIndex {
        let chunks = match self.pass {
            Pass::Gzip(pass) => Chunks::Points(pass.into_points(self.delivered)),
            Pass::Extents(pipeline) => Chunks::Extents(pipeline.into_extents(self.delivered)),
            Pass::Spool(spool) => Chunks::Spooled(Some(spool)),
        };
        SeekIndex { container: self.container, len: self.delivered, chunks }
    }
}

impl Pass {
    /// Decoded bytes that count as correct after damage of the kind `damage`.
    fn verified_len(&self, damage: Kind) -> u64 {
        match self {
            Self::Gzip(pass) => pass.verified_len(damage),
            Self::Extents(pipeline) => pipeline.verified_len(damage),
            Self::Spool(spool) => spool.verified_len(),
        }
    }
}

/// The blocks of an xz file, or the reason why it must be decoded into a temporary file.
fn xz_blocks(storage: &dyn Storage) -> Result<std::result::Result<xz::Blocks, String>> {
    match xz::Blocks::read(storage) {
        Ok(blocks) if blocks.has_giant() => Ok(Err(unit(Container::Xz).to_owned())),
        Ok(blocks) => Ok(Ok(blocks)),
        Err(error) if error.is_damage() => Ok(Err(format!("no index ({error})"))),
        Err(error) => Err(error),
    }
}

/// Starts to decode into a temporary file; `why` completes "it has ...".
fn spooled(
    name: &str,
    storage: &Arc<dyn Storage>,
    container: Container,
    cache: &ChunkCache,
    why: &str,
) -> Result<Pass> {
    let advice = advice(container);
    log::warn!("{name}: it has {why}, so it is decoded once into a temporary file; {advice}");
    let (storage, limit) = (Arc::clone(storage), cache.spool_limit());
    Ok(Pass::Spool(Arc::new(Spool::start(name, storage, container, limit, None)?)))
}
