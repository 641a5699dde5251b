//! Opening a compressed tar: its saved index and seek points, or one pass over all of it.
//!
//! Owns what a compressed tar needs besides a stored one; leaves decoding to `compressed`, and the
//! pass itself to `unpack` and `scan`.
//! Invariant: what is listed can be read, and its bytes passed the checks that the container has.

use super::index::{Draft, Index, IndexFile};
use super::open::{Opened, TarOptions, keep, only_zeros};
use super::scan;
use super::unpack::{Damage, Unpacked, Unpacking};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::Reader;
use crate::formats::compressed::{ChunkCache, Compressed, Container, FirstPass, SeekIndex};
use crate::formats::limits::TAR_EMPTY_MAX;
use crate::storage::Storage;
use crate::sync::Arc;
use crate::vfs::{Finding, Location};

/// Parts of a compressed archive that tell it from another one of the same length and time.
const SAMPLED_PLACES: u64 = 16;

/// A compressed archive.
pub(crate) struct CompressedTar {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) container: Container,
    /// Where decoded chunks are kept, under the number of this archive.
    pub(crate) cache: Arc<ChunkCache>,
    pub(crate) archive: u32,
}

/// The tar in `packed`.
///
/// # Errors
/// As `Tar::open`.
pub(super) fn open(name: &str, packed: CompressedTar, options: &TarOptions<'_>) -> Result<Opened> {
    let saved = options.saved()?;
    if let Some((known, saved)) = &saved
        && let Some((seek_index, index)) = known.load(saved, options, |found| {
            Ok((seek_index(&found, packed.storage.len())?, found.index))
        })
    {
        let decoded = packed.decoded(name, seek_index, options)?;
        return Ok(opened(decoded, index, true));
    }
    let CompressedTar { ref storage, container, .. } = packed;
    let first_pass = FirstPass::start(name, storage.clone(), container, &packed.cache)?;
    let storage = storage.clone();
    let mut unpacking = Unpacking::new(first_pass, options.progress);
    let (is_tar, starts_with_zeros) = unpacking.looks()?;
    if !is_tar {
        return Err(no_tar(container, unpacking.container()));
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
    let decoded = packed.decoded(name, seek_index, options)?;
    if let Some(Damage { error, in_doubt }) = damage {
        if in_doubt {
            draft = scan_sound(decoded.as_ref(), &error, options)?;
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
    let part = storage.len().checked_div(SAMPLED_PLACES).unwrap_or(0);
    let offsets: Vec<_> = (0..SAMPLED_PLACES).map(|nth| part.saturating_mul(nth)).collect();
    let (index, is_kept) = keep(name, draft, decoded_len, &offsets, saved, options)?;
    Ok(opened(decoded, index, is_kept))
}

fn opened(decoded: Arc<Compressed>, index: Index, is_kept: bool) -> Opened {
    let storage: Arc<dyn Storage> = Arc::<Compressed>::clone(&decoded);
    Opened { storage, packed: Some(decoded), index, is_kept }
}

/// Scans the part of a damaged archive that is known to be right: the first scan went further, up
/// to where the damage was noticed, over bytes whose checksum turned out wrong.
fn scan_sound(sound: &dyn Storage, error: &Error, options: &TarOptions<'_>) -> Result<Draft> {
    if sound.is_empty() {
        let context = format!("damaged: {error}; its only checksum is wrong, so nothing is sure");
        return Err(Error::corrupt(context).with_hint("was it copied whole? copy it again"));
    }
    scan::stored(sound, options.nesting(), options.progress)
}

/// What to say of a `container` that holds something else than a tar, perhaps another container.
fn no_tar(container: Container, inner: Option<Container>) -> Error {
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
    /// Its decoded bytes.
    fn decoded(
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

/// The seek points in a saved index.
///
/// # Errors
/// `Corrupt` where they are not sound, or do not end where the tree does.
fn seek_index(found: &IndexFile, encoded_len: u64) -> Result<SeekIndex> {
    let mut reader = Reader::new("seek points", &found.seek_points);
    let seek_index = SeekIndex::parse(&mut reader, encoded_len)?;
    match seek_index.len() == found.decoded_len && reader.remaining() == 0 {
        true => Ok(seek_index),
        false => Err(Error::corrupt("its seek points are those of another archive")),
    }
}
