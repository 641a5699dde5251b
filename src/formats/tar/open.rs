//! Opens a tar with its saved index, or scans it and makes a new index.

use super::compressed_tar::{self, CompressedTar, OpenedCompressed};
use super::empty::{is_empty_tar, no_empty_tar, only_zeros};
use super::header::{self, BLOCK, BLOCK_LEN};
use super::header_checks::HeaderChecks;
use super::index_source::{IndexSource, NewIndex};
use super::options::TarOptions;
use super::saved_index::SAMPLES;
use super::scan;
use crate::error::{Error, Result};
use crate::formats::compressed::Compressed;
use crate::formats::index::{Index, IndexFile};
use crate::storage::Storage;
use crate::sync::Arc;

/// The bytes of an archive.
pub(crate) enum Bytes {
    /// Uncompressed.
    Uncompressed(Arc<dyn Storage>),
    /// Compressed as a whole.
    Compressed(CompressedTar),
}

/// An open tar.
pub(super) struct Opened {
    /// The uncompressed bytes.
    pub(super) storage: Arc<dyn Storage>,
    /// The same storage for a compressed archive, with its chunks.
    pub(super) compressed: Option<Arc<Compressed>>,
    pub(super) index: Index,
    /// `None` if the index is of this very file.
    pub(super) checks: Option<HeaderChecks>,
    /// Whether the index is saved, so that the next mount can use it.
    pub(super) is_saved: bool,
}

/// Opens the tar in `bytes`.
pub(super) fn open(name: &str, bytes: Bytes, options: &TarOptions<'_>) -> Result<Opened> {
    let opened = match bytes {
        Bytes::Uncompressed(storage) => uncompressed(name, storage, options),
        Bytes::Compressed(tar) => compressed(name, tar, options),
    };
    opened.map_err(|error| error.within(name))
}

fn uncompressed(name: &str, storage: Arc<dyn Storage>, options: &TarOptions<'_>) -> Result<Opened> {
    let mut first = [0; BLOCK];
    storage.read_exact_at(&mut first, 0)?;
    if header::is_zero(&first) {
        match is_empty_tar(storage.as_ref())? {
            false => return Err(no_empty_tar()),
            true if !options.partial => return Err(only_zeros()),
            true => {}
        }
    }
    let source = IndexSource::new(name, options);
    let fit = |file: IndexFile| match file.seek_points.is_empty() {
        true if file.archive_len == storage.len() => Ok(file.index),
        _ => Err(Error::corrupt("not used: it belongs to a compressed archive")),
    };
    if let Some((index, checks)) = source.load(fit) {
        return Ok(Opened { storage, compressed: None, index, checks, is_saved: true });
    }
    let finished = scan::uncompressed(storage.as_ref(), options.nesting(), options.progress)?;
    let offsets = finished.header_offsets(SAMPLES, BLOCK_LEN);
    let NewIndex { index, is_saved } = source.make(finished, storage.len(), &offsets)?;
    Ok(Opened { storage, compressed: None, index, checks: None, is_saved })
}

fn compressed(name: &str, tar: CompressedTar, options: &TarOptions<'_>) -> Result<Opened> {
    let opened = compressed_tar::open(name, tar, options)?;
    let OpenedCompressed { decompressed, index, checks, is_saved } = opened;
    let storage: Arc<dyn Storage> = Arc::<Compressed>::clone(&decompressed);
    Ok(Opened { storage, compressed: Some(decompressed), index, checks, is_saved })
}
