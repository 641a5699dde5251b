//! Opens a compressed tar, with its saved index and seek points, or after one pass over all of it.
//!
//! Invariant: every member in the tree can be read, and its bytes passed the checksums of the
//! container.

use super::empty::{no_empty_tar, only_zeros};
use super::header_checks::HeaderChecks;
use super::index_source::{IndexSource, NewIndex};
use super::options::TarOptions;
use super::scan;
use super::unpack::{Damage, Unpacked, Unpacking};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::Reader;
use crate::formats::compressed::{ChunkCache, Compressed, Container, FirstPass, SeekIndex, Spool};
use crate::formats::index::notes;
use crate::formats::index::{FinishedTree, Index, IndexFile};
use crate::formats::limits::TAR_EMPTY_MAX;
use crate::storage::{Scanning, Storage};
use crate::sync::Arc;
use crate::units::format_size;
use crate::vfs::{Finding, Location};

/// Number of samples that distinguish compressed archives of the same length and time.
const SAMPLES: u64 = 16;

/// A compressed archive.
pub(crate) struct CompressedTar {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) container: Container,
    /// The cache for decompressed chunks, and the number of this archive in its keys.
    pub(crate) cache: Arc<ChunkCache>,
    pub(crate) archive: u32,
}

/// An open compressed tar.
pub(super) struct OpenedCompressed {
    /// The uncompressed bytes.
    pub(super) decompressed: Arc<Compressed>,
    pub(super) index: Index,
    pub(super) checks: Option<HeaderChecks>,
    /// Whether the index is saved, so that the next mount can use it.
    pub(super) is_saved: bool,
}

/// Opens a compressed tar.
pub(super) fn open(
    name: &str,
    tar: CompressedTar,
    options: &TarOptions<'_>,
) -> Result<OpenedCompressed> {
    let source = IndexSource::new(name, options);
    let fit = |file: IndexFile| Ok((seek_index(&file, tar.storage.len())?, file.index));
    if let Some(((seek_index, index), checks)) = source.load(fit) {
        let decompressed = tar.decompressed(name, seek_index, None, options)?;
        return Ok(OpenedCompressed { decompressed, index, checks, is_saved: true });
    }
    let CompressedTar { ref storage, container, .. } = tar;
    let storage = storage.clone();
    let scanning = Scanning::of(storage.as_ref());
    let first_pass = FirstPass::start(name, storage.clone(), container, &tar.cache)?;
    let mut unpacking = Unpacking::new(first_pass, options.progress);
    let (is_tar, starts_with_zeros) = unpacking.probe()?;
    if !is_tar {
        return Err(not_a_tar(container, unpacking.container()));
    }
    let mut finished = scan::forward(&mut unpacking, options.nesting())?;
    let Unpacked { seek_index, spool, damage, garbage } = unpacking.finish()?;
    drop(scanning);
    let is_long = seek_index.len() > TAR_EMPTY_MAX;
    if starts_with_zeros && finished.is_empty() && (is_long || !finished.notes.is_empty()) {
        return Err(no_empty_tar());
    }
    if starts_with_zeros && finished.is_empty() && !options.partial {
        return Err(only_zeros());
    }
    let archive_len = seek_index.len();
    let mut seek_points = Vec::new();
    seek_index.write(&mut seek_points);
    let decompressed = tar.decompressed(name, seek_index, spool, options)?;
    if let Some(Damage { error, in_doubt }) = damage {
        if in_doubt {
            finished = scan_sound(decompressed.as_ref(), &error, options)?;
        }
        let what = format!("damaged: {error}; everything after it is missing");
        let error = Error::corrupt(what).with_details_of(&error);
        finished.notes.push(notes::loss_of(&error));
        finished.findings.push(Finding::from_error(Location::Archive, &error));
    }
    if let Some(at) = garbage {
        let what = format!("bytes after the {} data at {at:#x} are ignored", container.name());
        finished.findings.push(Finding::damage(Location::Archive, what));
    }
    finished.seek_points = seek_points;
    let step = storage.len().checked_div(SAMPLES).unwrap_or(0);
    let offsets: Vec<_> = (0..SAMPLES).map(|nth| step.saturating_mul(nth)).collect();
    let NewIndex { index, is_saved } = source.make(finished, archive_len, &offsets)?;
    Ok(OpenedCompressed { decompressed, index, checks: None, is_saved })
}

/// Scans the part of a damaged archive whose checksums are right. The first scan went further,
/// because it noticed the damage only at a later checksum.
fn scan_sound(
    sound: &dyn Storage,
    error: &Error,
    options: &TarOptions<'_>,
) -> Result<FinishedTree> {
    if sound.is_empty() {
        // A wrong bit can hide the end of a block, so that the file seems to end early.
        let why = match error.kind() {
            Kind::Truncated => "it has no whole block before that, so any byte may be wrong",
            _ => "the only checksum is wrong, so any byte may be wrong",
        };
        return Err(Error::corrupt(format!("damaged: {error}; {why}"))
            .with_details_of(error)
            .with_hint("copy it again: it may be incomplete"));
    }
    scan::uncompressed(sound, options.nesting(), options.progress)
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
