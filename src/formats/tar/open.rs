//! Opens a tar: with its saved index, or after a scan that makes a new one, which is saved as its
//! `IndexPolicy` says. A compressed tar also needs seek points, which are saved with the index or
//! found in one pass over all of it.
//!
//! Invariants: every member in the tree can be read, and in a compressed tar its bytes passed the
//! checksums of the container. A saved index that does not match the archive costs a scan, never a
//! wrong tree.

use std::path::Path;

use super::header::{self, BLOCK, BLOCK_LEN};
use super::header_checks::HeaderChecks;
use super::lone_file::{self, LoneFile};
use super::member::Nesting;
use super::saved_index::{SAMPLES, SavedIndex};
use super::scan;
use super::source::{Damage, Unpacked, Unpacking};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{Reader, index};
use crate::formats::compressed::{ChunkCache, Compressed, Container, FirstPass, SeekIndex, Spool};
use crate::formats::foreign;
use crate::formats::index::{
    Acls, Allowance, FinishedTree, Index, IndexFile, IndexOptions, notes, unsaved,
};
use crate::formats::limits::TAR_EMPTY_MAX;
use crate::progress::Progress;
use crate::storage::{FileStorage, Scanning, Storage};
use crate::sync::{Arc, AtomicU64};
use crate::units::format_size;
use crate::vfs::{Finding, Location};

/// How to open an archive.
pub(crate) struct TarOptions<'o> {
    /// Whether archives in it are shown as directories.
    pub(crate) recursive: bool,
    /// Where to find and save an index. `None` if the archive is not a file of its own.
    pub(crate) saved: Option<SavedIndexOptions<'o>>,
    pub(crate) progress: &'o Progress,
    /// Whether a tar with missing members is opened. Otherwise that is an error.
    pub(crate) partial: bool,
    /// Which notes of the index are logged.
    pub(crate) logged: notes::Logged,
    /// Memory for decompressed chunks, bytes.
    pub(crate) memory: u64,
    pub(crate) acls: Acls,
    /// The file to show if a compressed archive contains no tar. Without it, that is an error.
    pub(crate) lone_file: Option<LoneFile>,
    /// Bytes that may still be decompressed, if it is inside an archive; `None` for any number.
    pub(crate) most: Option<&'o AtomicU64>,
    /// Memory for blocks of indexes.
    pub(crate) indexes: &'o Arc<Allowance>,
}

impl TarOptions<'_> {
    pub(super) fn nesting(&self) -> Nesting {
        if self.recursive { Nesting::Recognize } else { Nesting::Ignore }
    }
}

/// Where a saved index may be, and what to do with it.
pub(crate) struct SavedIndexOptions<'o> {
    /// The archive.
    pub(crate) file: &'o FileStorage,
    /// The path of the index that the user gave. Then no other path is tried.
    pub(crate) path: Option<&'o Path>,
    pub(crate) policy: IndexPolicy,
}

/// When a saved index is used, and when a new one is saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexPolicy {
    /// Uses a saved one. Saves a new one if it took long to make. A failure to save is only a
    /// warning.
    #[default]
    SaveIfWorthwhile,
    /// Always makes and saves a new one: the user asked for it.
    Save,
    /// Makes a new one and compares it with the saved one. Saves nothing.
    Compare,
    /// Makes a new one, ignores a saved one, and saves nothing.
    Ignore,
}

/// Number of samples that distinguish compressed archives of the same length and time.
const COMPRESSED_SAMPLES: u64 = 16;

/// The bytes of an archive.
pub(crate) enum Bytes {
    /// Uncompressed.
    Uncompressed(Arc<dyn Storage>),
    /// Compressed as a whole.
    Compressed(CompressedTar),
}

/// A compressed archive.
pub(crate) struct CompressedTar {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) container: Container,
    /// The cache for decompressed chunks, and the number of this archive in its keys.
    pub(crate) cache: Arc<ChunkCache>,
    pub(crate) archive: u32,
}

/// An open tar.
pub(super) struct Opened {
    /// The uncompressed bytes.
    pub(super) storage: Arc<dyn Storage>,
    /// The same storage for a compressed archive, with its chunks.
    pub(super) compressed: Option<Arc<Compressed>>,
    pub(super) index: OpenIndex,
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
    let is_empty = header::is_zero(&first);
    if is_empty && !is_only_zeros(storage.as_ref())? {
        return Err(foreign::zeros(name, Some(storage.as_ref())));
    }
    let source = IndexSource::new(name, options);
    let check = |file: &IndexFile| match file.seek_points.is_empty() {
        true if file.archive_len == storage.len() => Ok(()),
        _ => Err(Error::corrupt("not used: it belongs to a compressed archive")),
    };
    let index = match source.load(check) {
        Some(((), index)) => index,
        None => {
            let mut finished =
                scan::uncompressed(storage.as_ref(), options.nesting(), options.progress)?;
            if is_empty {
                finished.lose(&only_zeros());
            }
            let offsets = finished.header_offsets(SAMPLES, BLOCK_LEN);
            source.make(finished, storage.len(), &offsets)?
        }
    };
    Ok(Opened { storage, compressed: None, index })
}

fn compressed(name: &str, tar: CompressedTar, options: &TarOptions<'_>) -> Result<Opened> {
    let source = IndexSource::new(name, options);
    let opened = |decompressed: Arc<Compressed>, index| {
        let storage: Arc<dyn Storage> = Arc::<Compressed>::clone(&decompressed);
        Opened { storage, compressed: Some(decompressed), index }
    };
    let saved = source.load(|file| {
        match options.lone_file.is_none() && lone_file::is_indexed_by(&file.index) {
            true => Err(Error::corrupt("not used: it belongs to a file with another name")),
            false => seek_index(file, tar.storage.len()),
        }
    });
    if let Some((seek_index, mut found)) = saved {
        let lone_file =
            options.lone_file.as_ref().filter(|_| lone_file::is_indexed_by(&found.index));
        if let Some(file) = lone_file {
            let len = seek_index.len();
            found.index = unsaved(file.tree(len)?, len, name, options.indexes)?;
        }
        // A lone file has no headers that would show that the index is of another file.
        if lone_file.is_none() || found.checks.is_none() {
            return Ok(opened(tar.decompressed(name, seek_index, None, options)?, found));
        }
    }
    let (storage, container) = (Arc::clone(&tar.storage), tar.container);
    let scanning = Scanning::of(storage.as_ref());
    let first_pass = FirstPass::start(name, Arc::clone(&storage), container, &tar.cache)?;
    let mut unpacking = Unpacking::new(first_pass, options.progress, options.most);
    let (is_tar, starts_with_zeros) = unpacking.probe()?;
    // Zeros are an empty tar, but also the start of many other files.
    let is_other = !is_tar || starts_with_zeros;
    let found = match &options.lone_file {
        Some(file) if is_other => Found::LoneFile(file),
        _ if is_tar => Found::Tar(Box::new(scan::forward(&mut unpacking, options.nesting())?)),
        _ => return Err(not_a_tar(container, unpacking.container())),
    };
    let Unpacked { seek_index, spool, damage, garbage } = unpacking.finish()?;
    drop(scanning);
    let is_tar = matches!(found, Found::Tar(_));
    let mut finished = match found {
        Found::Tar(finished) => *finished,
        Found::LoneFile(file) => file.tree(seek_index.len())?,
    };
    if is_tar && starts_with_zeros && finished.is_empty() {
        if seek_index.len() > TAR_EMPTY_MAX || !finished.notes.is_empty() {
            return Err(foreign::zeros(name, None));
        }
        // Inside an archive, no copy was cut off.
        if options.most.is_none() {
            finished.lose(&only_zeros());
        }
    }
    let archive_len = seek_index.len();
    let mut seek_points = Vec::new();
    seek_index.write(&mut seek_points);
    let decompressed = tar.decompressed(name, seek_index, spool, options)?;
    if let Some(Damage { error, in_doubt }) = damage {
        if (in_doubt || !is_tar) && decompressed.is_empty() {
            return Err(nothing_sound(&error));
        }
        // The first scan went further than the checksums are right, because it noticed the damage
        // only at a later one.
        if in_doubt && is_tar {
            let (nesting, progress) = (options.nesting(), options.progress);
            finished = scan::uncompressed(decompressed.as_ref(), nesting, progress)?;
        }
        let what = format!("damaged: {error}; everything after it is missing");
        finished.lose(&Error::corrupt(what).with_details_of(&error));
    }
    if let Some(at) = garbage {
        let what = format!("bytes after the {} data at {at:#x} are ignored", container.name());
        finished.findings.push(Finding::damage(Location::Archive, what));
    }
    finished.seek_points = seek_points;
    let step = storage.len().checked_div(COMPRESSED_SAMPLES).unwrap_or(0);
    let offsets: Vec<_> = (0..COMPRESSED_SAMPLES).map(|nth| step.saturating_mul(nth)).collect();
    let index = source.make(finished, archive_len, &offsets)?;
    Ok(opened(decompressed, index))
}

/// What a compressed archive contains.
enum Found<'o> {
    Tar(Box<FinishedTree>),
    /// The tree is made when its length is known.
    LoneFile(&'o LoneFile),
}

/// The error for an archive that is damaged before the first right checksum.
fn nothing_sound(error: &Error) -> Error {
    // A wrong bit can hide the end of a block, so that the file seems to end early.
    let why = match error.kind() {
        Kind::Truncated => "it has no whole block before that, so any byte may be wrong",
        _ => "the only checksum is wrong, so any byte may be wrong",
    };
    Error::corrupt(format!("damaged: {error}; {why}")).with_details_of(error).with_hint(
        "compare its checksum with that of the original; --partial does not help here, but tar or \
         unzip may extract a part",
    )
}

/// The error for a `container` that does not contain a tar, but perhaps another container.
fn not_a_tar(container: Container, inner: Option<Container>) -> Error {
    let what = container.name();
    let (context, hint) = match inner {
        Some(inner) => (
            format!("{} data inside {what} data: compressed twice", inner.name()),
            format!("decompress the {what} data; the file inside can be mounted if it is a tar"),
        ),
        None => (
            format!("{what} data, but no tar inside"),
            format!("if it contains a SquashFS image, decompress the {what} data first"),
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
        spool: Option<Spool>,
        options: &TarOptions<'_>,
    ) -> Result<Arc<Compressed>> {
        let largest = seek_index.largest_chunk();
        if largest > options.memory {
            let what = format_args!(
                "{name}: reads will be slow: {} must be decompressed at once, but the cache has {}",
                format_size(largest),
                format_size(options.memory)
            );
            crate::log::warn(what, "raise --cache");
        }
        let Self { storage, cache, archive, .. } = self;
        Compressed::new(name, storage, seek_index, spool, cache, archive)
    }
}

/// Decodes the seek points in a saved index.
///
/// Fails with `Corrupt` if they are invalid, or if their end is not the end of the archive.
fn seek_index(file: &IndexFile, encoded_len: u64) -> Result<SeekIndex> {
    let mut reader = Reader::new("seek points", &file.seek_points);
    let seek_index = SeekIndex::parse(&mut reader, encoded_len)?;
    match seek_index.len() == file.archive_len && reader.remaining() == 0 {
        true => Ok(seek_index),
        false => Err(Error::corrupt("its seek points belong to another archive")),
    }
}

/// Whether `storage` has nothing but zeros, and no more of them than an empty tar. It starts with
/// zeros, as disk images and other files do.
fn is_only_zeros(storage: &dyn Storage) -> Result<bool> {
    if storage.len() > TAR_EMPTY_MAX {
        return Ok(false);
    }
    let mut bytes = vec![0; index(storage.len())];
    storage.read_exact_at(&mut bytes, 0)?;
    Ok(bytes.iter().all(|&byte| byte == 0))
}

/// The fault of a file of zeros alone. It is an empty tar, but a file that was never written has
/// only zeros as well.
fn only_zeros() -> Error {
    Error::corrupt("contains only zeros: an empty tar, or a file that was not written")
}

/// An index with at least this many members is saved without being asked for.
const MIN_MEMBERS_SAVED: usize = 1000;

/// So is an index that took at least this many compressed bytes to make.
const MIN_COMPRESSED_SAVED: u64 = 4 << 20;

/// Where the index of one archive comes from.
struct IndexSource<'o> {
    /// The name of the archive, for messages.
    name: &'o str,
    options: &'o TarOptions<'o>,
    /// `None` if the archive is not a file of its own.
    saved: Option<(IndexPolicy, SavedIndex<'o>)>,
}

/// An index, and how far it can be trusted.
pub(super) struct OpenIndex {
    pub(super) index: Index,
    /// `None` if the index is of this very file.
    pub(super) checks: Option<HeaderChecks>,
    /// Whether it is saved, so that the next mount can use it.
    pub(super) is_saved: bool,
}

impl<'o> IndexSource<'o> {
    /// The index of the archive `name`.
    fn new(name: &'o str, options: &'o TarOptions<'o>) -> Self {
        let saved = options.saved.as_ref().map(|&SavedIndexOptions { file, path, policy }| {
            (policy, SavedIndex::new(file, path, options.recursive, options.indexes))
        });
        Self { name, options, saved }
    }

    /// The first saved index that can be trusted and passes `check`, with what that returned, if
    /// the policy is to use a saved index.
    fn load<T>(&self, check: impl Fn(&IndexFile) -> Result<T>) -> Option<(T, OpenIndex)> {
        match self.saved.as_ref()? {
            (IndexPolicy::SaveIfWorthwhile, saved) => {
                let (found, file, checks) = saved.load(check)?;
                Some((found, OpenIndex { index: file.index, checks, is_saved: true }))
            }
            (IndexPolicy::Save | IndexPolicy::Compare | IndexPolicy::Ignore, _) => None,
        }
    }

    /// Makes the index of a new tree, of an archive of `archive_len` bytes. Saves it or compares it
    /// with the saved one. Samples of blocks at some of `offsets` identify the archive.
    fn make(&self, finished: FinishedTree, archive_len: u64, offsets: &[u64]) -> Result<OpenIndex> {
        let &Self { name, options, ref saved } = self;
        let unsaved = |finished| unsaved(finished, archive_len, name, options.indexes);
        let opened = |index, is_saved| OpenIndex { index, checks: None, is_saved };
        if let Some((IndexPolicy::Compare, saved)) = saved {
            let seek_points = finished.seek_points.clone();
            let mut index = unsaved(finished)?;
            let findings = saved.compare(&index, &seek_points);
            index.findings.extend(findings);
            return Ok(opened(index, false));
        }
        if let Some((policy, saved)) = saved
            && let Some(index) = self.save(&finished, archive_len, offsets, *policy, saved)?
        {
            return Ok(opened(index.with_findings(finished.findings), true));
        }
        log::info!("{name}: index made, not saved");
        Ok(opened(unsaved(finished)?, false))
    }

    /// Saves a new index if that is worthwhile or asked for, and returns it if it was saved.
    fn save(
        &self,
        finished: &FinishedTree,
        archive_len: u64,
        offsets: &[u64],
        policy: IndexPolicy,
        saved: &SavedIndex<'_>,
    ) -> Result<Option<Index>> {
        let key = saved.key(offsets)?;
        let is_slow_to_make = !finished.seek_points.is_empty() && key.len >= MIN_COMPRESSED_SAVED;
        let worthwhile = finished.len() >= MIN_MEMBERS_SAVED || is_slow_to_make;
        let is_missed = saved.is_named || saved.was_rejected.get();
        let wanted = saved.can_be_identified() && (worthwhile || is_missed);
        if policy == IndexPolicy::SaveIfWorthwhile && !wanted {
            return Ok(None);
        }
        match saved.save(finished, &key, archive_len, policy == IndexPolicy::Save) {
            Ok((path, file)) => {
                let (archive, index) = (saved.archive.path().display(), path.display());
                match policy {
                    IndexPolicy::Save => {
                        crate::log::note(format_args!("{archive}: index saved as {index}"));
                    }
                    _ => log::info!("{archive}: index saved as {index}"),
                }
                let name = index.to_string();
                let index_options = IndexOptions::new(&name, self.options.indexes);
                let file = IndexFile::open(Arc::new(file), &index_options, &|_| Ok(()))?;
                Ok(Some(file.index))
            }
            Err(error) if policy == IndexPolicy::Save => Err(error),
            Err(error) => {
                let why = crate::log::text_of(&error);
                let what = format_args!("{why}: the next mount reads all headers again");
                crate::log::warn(what, "use --index FILE to save the index where you can write");
                Ok(None)
            }
        }
    }
}
