//! Opening a tar: its saved index, or a scan and a new index.
//!
//! Owns that decision, and what is the same and what is not for stored and compressed tars.
//! Invariant: a saved index that does not fit in any way costs a scan, never a wrong tree.

use std::path::Path;

use super::acl::Acls;
use super::chain::Nesting;
use super::compressed_tar::{self, CompressedTar};
use super::header::{self, BLOCK};
use super::index::{Allowance, Draft, Index, IndexFile, IndexOptions, unsaved};
use super::saved::{New, SAMPLES, Saved};
use super::scan;
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::index;
use crate::formats::compressed::Compressed;
use crate::formats::limits::TAR_EMPTY_MAX;
use crate::progress::Progress;
use crate::storage::{FileStorage, Storage};
use crate::sync::Arc;

/// An index is saved by itself where making it took at least so many members.
const WORTH_SAVING: usize = 1000;

/// Or where so many compressed bytes had to be decoded.
const WORTH_DECODING_ONCE: u64 = 4 << 20;

/// The bytes of an archive.
pub(crate) enum Bytes {
    /// As they are.
    Stored(Arc<dyn Storage>),
    /// Compressed as a whole.
    Compressed(CompressedTar),
}

/// How to open an archive.
pub(crate) struct TarOptions<'o> {
    /// Whether archives in it are shown as folders.
    pub(crate) recursive: bool,
    /// What is known of saved indexes; `None` where the archive is no file of its own.
    pub(crate) saved: Option<SavedIndex<'o>>,
    pub(crate) progress: &'o Progress,
    /// Whether the archive is opened to see if it is sound.
    pub(crate) verified: bool,
    /// Memory for decoded chunks, bytes.
    pub(crate) memory: u64,
    pub(crate) acls: Acls,
    /// Memory for blocks of indexes.
    pub(crate) indexes: &'o Arc<Allowance>,
}

/// A tar that was opened.
pub(super) struct Opened {
    /// Its bytes, decoded.
    pub(super) storage: Arc<dyn Storage>,
    /// The same of a compressed one, with its chunks.
    pub(super) packed: Option<Arc<Compressed>>,
    pub(super) index: Index,
    /// Whether the next one to open it finds a saved index.
    pub(super) is_kept: bool,
}

/// Where a saved index may be, and whether to make one.
pub(crate) struct SavedIndex<'o> {
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
    /// Never: one that is there is compared with a new one, for who verifies.
    Compared,
    /// Never, and one that is there is not looked at: for who packs the archive anew, and must know
    /// what is wrong with it.
    Never,
}

/// The tar in `bytes`.
///
/// # Errors
/// As `Tar::open`.
pub(super) fn open(name: &str, bytes: Bytes, options: &TarOptions<'_>) -> Result<Opened> {
    let opened = match bytes {
        Bytes::Stored(storage) => stored(name, storage, options),
        Bytes::Compressed(packed) => compressed_tar::open(name, packed, options),
    };
    opened.map_err(|error| error.within(name))
}

/// Whether `storage`, which begins with zeros, holds nothing else: an empty tar. Disk images begin
/// with zeros, too, and must not be taken for one.
fn is_empty(storage: &dyn Storage) -> Result<bool> {
    if storage.len() > TAR_EMPTY_MAX {
        return Ok(false);
    }
    let mut bytes = vec![0; index(storage.len())];
    storage.read_exact_at(&mut bytes, 0)?;
    Ok(bytes.iter().all(|&byte| byte == 0))
}

/// The error for what begins as an empty tar does and goes on as none.
pub(super) fn only_zeros() -> Error {
    Error::new(Kind::UnknownFormat, "begins with zeros, but is no empty tar")
        .with_hint("a disk image must be mounted with mount -o loop")
}

fn stored(name: &str, storage: Arc<dyn Storage>, options: &TarOptions<'_>) -> Result<Opened> {
    let mut first = [0; BLOCK];
    storage.read_exact_at(&mut first, 0)?;
    if header::is_zero(&first) && !is_empty(storage.as_ref())? {
        return Err(only_zeros());
    }
    let saved = options.saved()?;
    let fit = |found: IndexFile| match found.seek_points.is_empty() {
        true if found.decoded_len == storage.len() => Ok(found.index),
        _ => Err(Error::corrupt("not used: it is that of a compressed archive")),
    };
    if let Some((known, saved)) = &saved
        && let Some(index) = known.load(saved, options, fit)
    {
        return Ok(Opened { storage, packed: None, index, is_kept: true });
    }
    let draft = scan::stored(storage.as_ref(), options.nesting(), options.progress)?;
    let len = storage.len();
    let offsets = draft.places(SAMPLES);
    let (index, is_kept) = keep(name, draft, len, &offsets, saved, options)?;
    Ok(Opened { storage, packed: None, index, is_kept })
}

impl TarOptions<'_> {
    /// Whether the archive is opened to see if it is sound.
    pub(super) fn is_verified(&self) -> bool {
        self.verified
    }

    pub(super) fn nesting(&self) -> Nesting {
        if self.recursive { Nesting::Recognise } else { Nesting::Ignore }
    }

    /// Where the saved index may be, if there may be one.
    pub(super) fn saved(&self) -> Result<Option<(&SavedIndex<'_>, Saved)>> {
        let with_places = |known| {
            let &SavedIndex { file, place, .. } = known;
            Saved::new(file, place, self.recursive).map(|saved| (known, saved))
        };
        self.saved.as_ref().map(with_places).transpose()
    }
}

impl SavedIndex<'_> {
    /// What `fit` makes of the index that is there, unless a new one was asked for.
    pub(super) fn load<T>(
        &self,
        saved: &Saved,
        options: &TarOptions<'_>,
        fit: impl Fn(IndexFile) -> Result<T>,
    ) -> Option<T> {
        match self.saving {
            Saving::Worthwhile => saved.load(self.file, options.indexes, fit),
            Saving::Demanded | Saving::Compared | Saving::Never => None,
        }
    }
}

/// The index of a tree that was scanned: saved, or compared with the one that is there; tells
/// whether it was saved. Blocks at some of `offsets` tell the archive from others.
///
/// # Errors
/// As `save`.
pub(super) fn keep(
    name: &str,
    draft: Draft,
    decoded_len: u64,
    offsets: &[u64],
    saved: Option<(&SavedIndex<'_>, Saved)>,
    options: &TarOptions<'_>,
) -> Result<(Index, bool)> {
    let indexes = options.indexes;
    let Some((known, saved)) = saved else {
        return Ok((unsaved(draft, decoded_len, name, indexes)?, false));
    };
    if known.saving == Saving::Compared {
        let seek_points = draft.seek_points.clone();
        let mut index = unsaved(draft, decoded_len, name, indexes)?;
        index.findings.extend(saved.compare(known.file, &index, &seek_points, indexes));
        return Ok((index, false));
    }
    match save(&saved, &draft, decoded_len, offsets, known, options)? {
        Some(index) => Ok((index.with_findings(draft.findings), true)),
        None => Ok((unsaved(draft, decoded_len, name, indexes)?, false)),
    }
}

/// Saves a new index, or says why not; returns it where it did.
///
/// # Errors
/// `Io` where it cannot be saved, and that was what the user asked for.
fn save(
    saved: &Saved,
    draft: &Draft,
    decoded_len: u64,
    offsets: &[u64],
    known: &SavedIndex<'_>,
    options: &TarOptions<'_>,
) -> Result<Option<Index>> {
    let saving = known.saving;
    let key = saved.key(known.file, offsets)?;
    let takes_long = !draft.seek_points.is_empty() && key.len >= WORTH_DECODING_ONCE;
    let worthwhile = draft.len() >= WORTH_SAVING || takes_long;
    if saving == Saving::Worthwhile && !worthwhile && !saved.is_named() {
        return Ok(None);
    }
    let new = New { draft, key: &key, decoded_len };
    match saved.save(known.file, &new, saving == Saving::Demanded) {
        Ok((place, file)) => {
            log::info!("{}: index saved as {}", saved.archive().display(), place.display());
            let name = place.display().to_string();
            let opening = IndexOptions::new(&name, options.indexes);
            let found = IndexFile::open(Arc::new(file), &opening, &|_| Ok(()))?;
            Ok(Some(found.index))
        }
        Err(error) if saving == Saving::Demanded => Err(error),
        Err(error) => {
            log::warn!("{error}; the next mount has to read all headers again");
            Ok(None)
        }
    }
}
