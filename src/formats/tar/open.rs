//! Opens a tar with its saved index, or scans it and makes a new index.
//!
//! Invariant: a saved index that does not match the archive costs a scan, never a wrong tree.

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

/// An index with at least this many members is saved without being asked for.
const MIN_MEMBERS_SAVED: usize = 1000;

/// So is an index that took at least this many compressed bytes to make.
const MIN_COMPRESSED_SAVED: u64 = 4 << 20;

/// The bytes of an archive.
pub(crate) enum Bytes {
    /// Uncompressed.
    Stored(Arc<dyn Storage>),
    /// Compressed as a whole.
    Compressed(CompressedTar),
}

/// How to open an archive.
pub(crate) struct TarOptions<'o> {
    /// Whether archives in it are shown as directories.
    pub(crate) recursive: bool,
    /// Where to find and save an index. `None` if the archive is not a file of its own.
    pub(crate) saved: Option<SavedIndex<'o>>,
    pub(crate) progress: &'o Progress,
    /// Whether `archfs verify` opens the archive.
    pub(crate) verified: bool,
    /// Memory for decompressed chunks, bytes.
    pub(crate) memory: u64,
    pub(crate) acls: Acls,
    /// Memory for blocks of indexes.
    pub(crate) indexes: &'o Arc<Allowance>,
}

/// An open tar.
pub(super) struct Opened {
    /// The uncompressed bytes.
    pub(super) storage: Arc<dyn Storage>,
    /// The same storage for a compressed archive, with its chunks.
    pub(super) compressed: Option<Arc<Compressed>>,
    pub(super) index: Index,
    /// Whether the index is saved, so that the next mount can use it.
    pub(super) is_saved: bool,
}

/// Where a saved index may be, and whether to make one.
pub(crate) struct SavedIndex<'o> {
    pub(crate) file: &'o FileStorage,
    /// The path that the user gave. Then no other path is tried.
    pub(crate) place: Option<&'o Path>,
    pub(crate) saving: Saving,
}

/// When a new index is saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Saving {
    /// If it took long to make. A failure to save is only a warning.
    #[default]
    Worthwhile,
    /// Always, even if there is one already: the user asked for it.
    Demanded,
    /// Never. `archfs verify` compares an existing one with a new one.
    Compared,
    /// Never, and an existing one is ignored. `archfs pack` needs a new one to know what is wrong
    /// with the archive.
    Never,
}

/// Opens the tar in `bytes`.
///
/// # Errors
/// As `Tar::open`.
pub(super) fn open(name: &str, bytes: Bytes, options: &TarOptions<'_>) -> Result<Opened> {
    let opened = match bytes {
        Bytes::Stored(storage) => stored(name, storage, options),
        Bytes::Compressed(tar) => compressed_tar::open(name, tar, options),
    };
    opened.map_err(|error| error.within(name))
}

/// Whether `storage`, which starts with zeros, holds nothing else: an empty tar. Disk images also
/// start with zeros and must not be mistaken for one.
fn is_empty(storage: &dyn Storage) -> Result<bool> {
    if storage.len() > TAR_EMPTY_MAX {
        return Ok(false);
    }
    let mut bytes = vec![0; index(storage.len())];
    storage.read_exact_at(&mut bytes, 0)?;
    Ok(bytes.iter().all(|&byte| byte == 0))
}

/// The error for a file that starts like an empty tar but is not one.
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
    let fit = |file: IndexFile| match file.seek_points.is_empty() {
        true if file.decoded_len == storage.len() => Ok(file.index),
        _ => Err(Error::corrupt("not used: it is that of a compressed archive")),
    };
    if let Some((saved_index, saved)) = &saved
        && let Some(index) = saved_index.load(saved, options, fit)
    {
        return Ok(Opened { storage, compressed: None, index, is_saved: true });
    }
    let draft = scan::stored(storage.as_ref(), options.nesting(), options.progress)?;
    let len = storage.len();
    let offsets = draft.header_offsets(SAMPLES);
    let (index, is_saved) = make_index(name, draft, len, &offsets, saved, options)?;
    Ok(Opened { storage, compressed: None, index, is_saved })
}

impl TarOptions<'_> {
    /// Whether `archfs verify` opens the archive.
    pub(super) fn is_verified(&self) -> bool {
        self.verified
    }

    pub(super) fn nesting(&self) -> Nesting {
        if self.recursive { Nesting::Recognise } else { Nesting::Ignore }
    }

    /// Where the saved index may be, if the archive may have one.
    pub(super) fn saved(&self) -> Result<Option<(&SavedIndex<'_>, Saved)>> {
        let with_saved = |saved_index| {
            let &SavedIndex { file, place, .. } = saved_index;
            Saved::new(file, place, self.recursive).map(|saved| (saved_index, saved))
        };
        self.saved.as_ref().map(with_saved).transpose()
    }
}

impl SavedIndex<'_> {
    /// The result of `fit` for the saved index, unless a new index was asked for.
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

/// Makes the index of a new tree. Saves it or compares it with the saved one, as the options say.
/// Also returns whether it was saved. Samples of blocks at some of `offsets` identify the archive.
///
/// # Errors
/// As `save`.
pub(super) fn make_index(
    name: &str,
    draft: Draft,
    decoded_len: u64,
    offsets: &[u64],
    saved: Option<(&SavedIndex<'_>, Saved)>,
    options: &TarOptions<'_>,
) -> Result<(Index, bool)> {
    let indexes = options.indexes;
    let Some((saved_index, saved)) = saved else {
        return Ok((unsaved(draft, decoded_len, name, indexes)?, false));
    };
    if saved_index.saving == Saving::Compared {
        let seek_points = draft.seek_points.clone();
        let mut index = unsaved(draft, decoded_len, name, indexes)?;
        index.findings.extend(saved.compare(saved_index.file, &index, &seek_points, indexes));
        return Ok((index, false));
    }
    match save(&saved, &draft, decoded_len, offsets, saved_index, options)? {
        Some(index) => Ok((index.with_findings(draft.findings), true)),
        None => Ok((unsaved(draft, decoded_len, name, indexes)?, false)),
    }
}

/// Saves a new index if that is worthwhile or asked for, and returns it if it was saved.
///
/// # Errors
/// `Io` if it cannot be saved although the user asked for it.
fn save(
    saved: &Saved,
    draft: &Draft,
    decoded_len: u64,
    offsets: &[u64],
    saved_index: &SavedIndex<'_>,
    options: &TarOptions<'_>,
) -> Result<Option<Index>> {
    let saving = saved_index.saving;
    let key = saved.key(saved_index.file, offsets)?;
    let is_slow_to_make = !draft.seek_points.is_empty() && key.len >= MIN_COMPRESSED_SAVED;
    let worthwhile = draft.len() >= MIN_MEMBERS_SAVED || is_slow_to_make;
    if saving == Saving::Worthwhile && !worthwhile && !saved.is_named() {
        return Ok(None);
    }
    let new = New { draft, key: &key, decoded_len };
    match saved.save(saved_index.file, &new, saving == Saving::Demanded) {
        Ok((path, file)) => {
            log::info!("{}: index saved as {}", saved.archive().display(), path.display());
            let name = path.display().to_string();
            let index_options = IndexOptions::new(&name, options.indexes);
            let file = IndexFile::open(Arc::new(file), &index_options, &|_| Ok(()))?;
            Ok(Some(file.index))
        }
        Err(error) if saving == Saving::Demanded => Err(error),
        Err(error) => {
            log::warn!("{error}; the next mount has to read all headers again");
            Ok(None)
        }
    }
}
