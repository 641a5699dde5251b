//! The first pass over a compressed file: its decoded bytes in order, and its seek points after
//! that.
//!
//! Owns the choice of how a file is read, and giving it up for a temporary file once a chunk turns
//! out too large. Invariant: the pieces are the decoded bytes from the first on, each once, up to
//! the end or the damage, which is told once.
//!
//! Damage is noticed late where a checksum stands only behind all that it covers: a wrong bit in a
//! gzip member gives wrong bytes and goes unseen until the member's end. What was delivered since
//! the last sound checksum is therefore not counted as seekable, and a reader never gets it. A file
//! that only ends early is another matter: nothing says that what came before the cut is wrong, but
//! for the DEFLATE block that was cut (a wrong bit there may hide its end).

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

/// A first pass under way.
pub(crate) struct FirstPass {
    name: String,
    storage: Arc<dyn Storage>,
    container: Container,
    /// Gives room for what is being decoded.
    cache: Arc<ChunkCache>,
    pass: Pass,
    /// Bytes delivered; after damage, of them, those that are known to be right.
    delivered: u64,
    ended: bool,
}

enum Pass {
    Gzip(Box<PointFinder>),
    Extents(Box<Pipeline>),
    Spool(Arc<Spool>),
}

/// What a pass came to.
pub(super) enum Found {
    Piece(SharedBytes),
    /// A chunk that is too large to be decoded at once.
    Giant,
    End,
}

impl FirstPass {
    /// Starts on `storage`, which `recognise` found to be a `container`; `name` is for messages.
    /// What is being decoded counts in `cache`.
    ///
    /// # Errors
    /// `Io` where the file can not be read or threads can not be had.
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

    /// The next decoded bytes in order, up to some MiB; `None` at the end.
    ///
    /// # Errors
    /// `Corrupt` where the file is damaged and `Truncated` where it is cut short, after everything
    /// before that, and once; `Unsupported` or `Io` where it can not be decoded here.
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

    /// Where something begins that is not of the container, after the end.
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

    /// The seek points of what was delivered, after its end or its damage; of a damaged file, of
    /// what is known to be right.
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
    /// Decoded bytes that are right for all that is known, after damage of the kind `damage`.
    fn verified_len(&self, damage: Kind) -> u64 {
        match self {
            Self::Gzip(pass) => pass.verified_len(damage),
            Self::Extents(pipeline) => pipeline.verified_len(damage),
            Self::Spool(spool) => spool.verified_len(),
        }
    }
}

/// The blocks of an xz file, or why it has to be decoded forward.
fn xz_blocks(storage: &dyn Storage) -> Result<std::result::Result<xz::Blocks, String>> {
    match xz::Blocks::read(storage) {
        Ok(blocks) if blocks.has_giant() => Ok(Err(unit(Container::Xz).to_owned())),
        Ok(blocks) => Ok(Ok(blocks)),
        Err(error) if error.is_damage() => Ok(Err(format!("no index ({error})"))),
        Err(error) => Err(error),
    }
}

/// Goes over to a temporary file; `why` completes "it has ...".
fn spooled(
    name: &str,
    storage: &Arc<dyn Storage>,
    container: Container,
    cache: &ChunkCache,
    why: &str,
) -> Result<Pass> {
    let advice = advice(container);
    log::warn!("{name}: it has {why}, so it is decoded once into a temporary file; {advice}");
    let (storage, limit) = (Arc::clone(storage), cache.spools());
    Ok(Pass::Spool(Arc::new(Spool::start(name, storage, container, limit, None)?)))
}
