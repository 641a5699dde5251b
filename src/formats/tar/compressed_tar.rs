//! Opens a compressed tar, with its saved index and seek points, or after one pass over all of it.
//!
//! Invariant: every member in the tree can be read, and its bytes passed the checksums of the
//! container.

use super::index::{Draft, Index, IndexFile};
use super::open::{Opened, TarOptions, make_index, only_zeros};
use super::scan;
use super::unpack::{Damage, Unpacked, Unpacking};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::Reader;
use crate::formats::compressed::{ChunkCache, Compressed, Container, FirstPass, SeekIndex};
use crate::formats::limits::TAR_EMPTY_MAX;
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::{Finding, Location};

/// Number of samples that tell a compressed archive from another of the same length and time.
const SAMPLES: u64 = 16;

/// A compressed archive.
pub(crate) struct CompressedTar {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) container: Container,
    /// The cache for decompressed chunks, and the number of this archive in its keys.
    pub(crate) cache: Arc<ChunkCache>,
    pub(crate) archive: u32,
}

/// Opens a compressed tar.
///
/// # Errors
/// As `Tar::open`.
pub(super) fn open(name: &str, tar: CompressedTar, options: &TarOptions<'_>) -> Result<Opened> {
    let saved = options.saved()?;
    if let Some((saved_index, saved)) = &saved
        && let Some((seek_index, index)) = saved_index
            .load(saved, options, |file| Ok((seek_index(&file, tar.storage.len())?, file.index)))
    {
        let decompressed = tar.decompressed(name, seek_index, options)?;
        return Ok(opened(decompressed, index, true));
    }
    let CompressedTar { ref storage, container, .. } = tar;
    let first_pass = FirstPass::start(name, storage.clone(), container, &tar.cache)?;
    let storage = storage.clone();
    let mut unpacking = Unpacking::new(first_pass, options.progress);
    let (is_tar, starts_with_zeros) = unpacking.probe()?;
    if !is_tar {
        return Err(not_a_tar(container, unpacking.container()));
    }
    let mut draft = scan::forward(&mut unpacking, options.nesting())?;
    let Unpacked { seek_index, damage, garbage } = unpacking.finish()?;
    let is_long = seek_index.len() > TAR_EMPTY_MAX;
    if starts_with_zeros && draft.is_empty() && (is_long || !draft.notes.is_empty()) {
        return Err(only_zeros());
    }
    let decoded_len = seek_index.len();
    let mut seek_points = Vec::new();
    seek_index.write(&mut seek_points);
    let decompressed = tar.decompressed(name, seek_index, options)?;
    if let Some(Damage { error, in_doubt }) = damage {
        if in_doubt {
            draft = scan_sound(decompressed.as_ref(), &error, options)?;
        }
        let what = format!("damaged: {error}; what comes behind is missing");
        draft.findings.push(Finding::damage(Location::Archive, what.clone()));
        draft.notes.push(what);
    }
    if let Some(at) = garbage {
        let what = format!("what follows the {} data at {at:#x} is ignored", container.name());
        draft.findings.push(Finding::damage(Location::Archive, what));
    }
    draft.seek_points = seek_points;
    let step = storage.len().checked_div(SAMPLES).unwrap_or(0);
    let offsets: Vec<_> = (0..SAMPLES).map(|nth| step.saturating_mul(nth)).collect();
    let (index, is_saved) = make_index(name, draft, decoded_len, &offsets, saved, options)?;
    Ok(opened(decompressed, index, is_saved))
}

fn opened(decompressed: Arc<Compressed>, index: Index, is_saved: bool) -> Opened {
    let storage: Arc<dyn Storage> = Arc::<Compressed>::clone(&decompressed);
    Opened { storage, compressed: Some(decompressed), index, is_saved }
}

/// Scans the part of a damaged archive whose checksums are right. The first scan went further,
/// because it noticed the damage only at a later checksum.
fn scan_sound(sound: &dyn Storage, error: &Error, options: &TarOptions<'_>) -> Result<Draft> {
    if sound.is_empty() {
        let context = format!("damaged: {error}; its only checksum is wrong, so nothing is sure");
        return Err(Error::corrupt(context).with_hint("was it copied whole? copy it again"));
    }
    scan::stored(sound, options.nesting(), options.progress)
}

/// The error for a `container` that does not contain a tar, but perhaps another container.
fn not_a_tar(container: Container, inner: Option<Container>) -> Error {
    let what = container.name();
    let (context, hint) = match inner {
        Some(inner) => (
            format!("{} data within {what} data: compressed twice", inner.name()),
            format!("undo the {what}; the file within can be mounted if it is a tar"),
        ),
        None => (
            format!("{what} data, but no tar within"),
            format!("to mount a squashfs image, undo the {what} first"),
        ),
    };
    Error::new(Kind::UnknownFormat, context).with_hint(hint)
}

impl CompressedTar {
    /// The uncompressed bytes as storage.
    fn decompressed(
        self,
        name: &str,
        seek_index: SeekIndex,
        options: &TarOptions<'_>,
    ) -> Result<Arc<Compressed>> {
        let largest = seek_index.largest_chunk();
        if largest > options.memory {
            log::warn!(
                "{name}: parts of {largest} bytes must be decoded as one, and the memory for that \
                 is {} bytes: reading will be slow; --cache makes it larger",
                options.memory
            );
        }
        let Self { storage, cache, archive, .. } = self;
        Compressed::new(name, storage, seek_index, cache, archive)
    }
}

/// Decodes the seek points in a saved index.
///
/// # Errors
/// `Corrupt` if they are invalid, or if their end is not the end of the archive.
fn seek_index(file: &IndexFile, encoded_len: u64) -> Result<SeekIndex> {
    let mut reader = Reader::new("seek points", &file.seek_points);
    let seek_index = SeekIndex::parse(&mut reader, encoded_len)?;
    match seek_index.len() == file.decoded_len && reader.remaining() == 0 {
        true => Ok(seek_index),
        false => Err(Error::corrupt("its seek points are those of another archive")),
    }
}
