//! Opening a tar: its saved index, or a scan and a new index.
//!
//! Owns that decision, and what is the same and what is not for stored and compressed tars.
//! Invariant: a saved index that does not fit in any way costs a scan, never a wrong tree.

use std::path::Path;

use super::chain::Nesting;
use super::index::{Index, IndexFile};
use super::saved::Saved;
use super::scan;
use super::unpack::{Damage, Unpacking};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::Reader;
use crate::formats::compressed::{ChunkCache, Compressed, Container, Seekable, Survey};
use crate::progress::Progress;
use crate::storage::{FileStorage, Storage};
use crate::sync::Arc;

/// An index is saved by itself where making it took at least so many members.
const WORTH_SAVING: usize = 1000;

/// Parts of a compressed archive that tell it from another one of the same length and time.
const SAMPLED_PLACES: u64 = 16;

/// The bytes of an archive.
pub(crate) enum Bytes {
    /// As they are.
    Stored(Arc<dyn Storage>),
    /// Compressed as a whole.
    Compressed(Packed),
}

/// A compressed archive.
pub(crate) struct Packed {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) container: Container,
    /// Where decoded chunks are kept, under the number of this archive.
    pub(crate) cache: Arc<ChunkCache>,
    pub(crate) archive: u32,
}

/// How to open an archive.
pub(crate) struct TarOptions<'o> {
    /// Whether archives in it are shown as folders.
    pub(crate) recursive: bool,
    /// What is known of saved indexes; `None` where the archive is no file of its own.
    pub(crate) saved: Option<SavedIndex<'o>>,
    pub(crate) progress: &'o Progress,
    /// Memory for decoded chunks, bytes.
    pub(crate) memory: u64,
}

/// Where a saved index may be, and whether to make one.
pub(crate) struct SavedIndex<'o> {
    pub(crate) path: &'o Path,
    pub(crate) file: &'o FileStorage,
    /// The only place, where the user named one.
    pub(crate) place: Option<&'o Path>,
    pub(crate) saving: Saving,
}

/// When an index that had to be made is saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Saving {
    /// Where it took a while to make; that it can not be saved is no failure.
    #[default]
    Worthwhile,
    /// Always, and made anew even if there is one: it is what the user asked for.
    Demanded,
}

/// The bytes of the tar in `bytes`, decoded, and its tree.
///
/// # Errors
/// As `Tar::open`.
pub(super) fn open(
    name: &str,
    bytes: Bytes,
    options: &TarOptions<'_>,
) -> Result<(Arc<dyn Storage>, Index)> {
    let opened = match bytes {
        Bytes::Stored(storage) => stored(&storage, options).map(|index| (storage, index)),
        Bytes::Compressed(packed) => compressed(name, packed, options),
    };
    opened.map_err(|error| error.within(name))
}

fn stored(storage: &Arc<dyn Storage>, options: &TarOptions<'_>) -> Result<Index> {
    let TarOptions { progress, .. } = options;
    let scanned = || scan::stored(storage.as_ref(), options.nesting(), progress);
    let Some((known, saved)) = options.saved()? else {
        return scanned();
    };
    if let Some(found) = known.load(&saved)
        && found.seek_points.is_empty()
    {
        return Ok(found.index);
    }
    let index = scanned()?;
    let key = saved.key(known.file, &index.places())?;
    let file = IndexFile { key, seek_points: Vec::new(), decoded_len: storage.len(), index };
    save(&saved, &file, known.saving)?;
    Ok(file.index)
}

fn compressed(
    name: &str,
    packed: Packed,
    options: &TarOptions<'_>,
) -> Result<(Arc<dyn Storage>, Index)> {
    let saved = options.saved()?;
    if let Some((known, saved)) = &saved
        && let Some(found) = known.load(saved)
        && let Some(seekable) = seekable(&found, packed.storage.len())
    {
        return Ok((packed.decoded(name, seekable, options)?, found.index));
    }
    let Packed { storage, container, .. } = &packed;
    let (storage, survey) = (storage.clone(), Survey::start(name, storage.clone(), *container)?);
    let mut unpacking = Unpacking::new(survey, options.progress);
    if !unpacking.is_tar()? {
        return Err(no_tar(*container, unpacking.container()));
    }
    let mut index = scan::forward(&mut unpacking, options.nesting())?;
    let (seekable, damage) = unpacking.finish()?;
    let (mut seek_points, decoded_len) = (Vec::new(), seekable.len());
    seekable.write(&mut seek_points);
    let decoded = packed.decoded(name, seekable, options)?;
    if let Some(Damage { error, in_doubt }) = damage {
        if in_doubt {
            index = scan_sound(decoded.as_ref(), &error, options)?;
        }
        index.notes.push(format!("damaged: {error}; what comes behind is missing"));
    }
    if let Some((known, saved)) = saved {
        let part = storage.len().checked_div(SAMPLED_PLACES).unwrap_or(0);
        let places: Vec<_> = (0..SAMPLED_PLACES).map(|nth| part.saturating_mul(nth)).collect();
        let key = saved.key(known.file, &places)?;
        let file = IndexFile { key, seek_points, decoded_len, index };
        save(&saved, &file, known.saving)?;
        index = file.index;
    }
    Ok((decoded, index))
}

/// Scans the part of a damaged archive that is known to be right: the first scan went further, up to
/// where the damage was noticed, over bytes whose checksum turned out wrong.
fn scan_sound(sound: &dyn Storage, error: &Error, options: &TarOptions<'_>) -> Result<Index> {
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

impl Packed {
    /// Its decoded bytes.
    fn decoded(
        self,
        name: &str,
        seekable: Seekable,
        options: &TarOptions<'_>,
    ) -> Result<Arc<dyn Storage>> {
        let largest = seekable.largest_chunk();
        if largest > options.memory {
            log::warn!(
                "{name}: parts of {largest} bytes must be decoded as one, and the memory for that \
                 is {} bytes: reading will be slow; --cache makes it larger",
                options.memory
            );
        }
        let Self { storage, cache, archive, .. } = self;
        Ok(Arc::new(Compressed::new(name, storage, seekable, cache, archive)?))
    }
}

/// The seek points in a saved index, if they are sound and end where its tree says.
fn seekable(found: &IndexFile, encoded_len: u64) -> Option<Seekable> {
    let mut reader = Reader::new("seek points", &found.seek_points);
    let parsed = Seekable::parse(&mut reader, encoded_len);
    parsed.ok().filter(|seekable| seekable.len() == found.decoded_len)
}

impl TarOptions<'_> {
    fn nesting(&self) -> Nesting {
        if self.recursive { Nesting::Recognise } else { Nesting::Ignore }
    }

    /// Where the saved index may be, if there may be one.
    fn saved(&self) -> Result<Option<(&SavedIndex<'_>, Saved)>> {
        let with_places = |known| {
            let &SavedIndex { path, file, place, .. } = known;
            Saved::new(path, file, place, self.recursive).map(|saved| (known, saved))
        };
        self.saved.as_ref().map(with_places).transpose()
    }
}

impl SavedIndex<'_> {
    /// The index that is there, unless a new one was asked for.
    fn load(&self, saved: &Saved) -> Option<IndexFile> {
        match self.saving {
            Saving::Worthwhile => saved.load(self.file),
            Saving::Demanded => None,
        }
    }
}

/// Saves a new index, or says why not.
///
/// # Errors
/// `Io` where it can not be saved, and that was what the user asked for.
fn save(saved: &Saved, file: &IndexFile, saving: Saving) -> Result<()> {
    let worthwhile = file.index.len() >= WORTH_SAVING || !file.seek_points.is_empty();
    if saving == Saving::Worthwhile && !worthwhile && !saved.is_named() {
        return Ok(());
    }
    match saved.save(file) {
        Ok(place) => {
            log::info!("{}: index saved as {}", saved.archive().display(), place.display());
            Ok(())
        }
        Err(error) if saving == Saving::Demanded => Err(error),
        Err(error) => {
            log::warn!("{error}; the next mount has to read all headers again");
            Ok(())
        }
    }
}
