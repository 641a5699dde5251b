//! Opens a tar: with its saved index, or after a scan that makes a new one. A compressed tar also
//! needs seek points, which are saved with the index or found in one pass over all of it.
//!
//! Invariant: every member in the tree can be read, and in a compressed tar its bytes passed the
//! checksums of the container.

use super::header::{self, BLOCK, BLOCK_LEN};
use super::index_source::{IndexSource, OpenIndex, TarOptions};
use super::saved_index::SAMPLES;
use super::scan;
use super::source::{Damage, Unpacked, Unpacking};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{Reader, index};
use crate::formats::compressed::{ChunkCache, Compressed, Container, FirstPass, SeekIndex, Spool};
use crate::formats::index::{FinishedTree, IndexFile, notes};
use crate::formats::limits::TAR_EMPTY_MAX;
use crate::storage::{Scanning, Storage};
use crate::sync::Arc;
use crate::units::format_size;
use crate::vfs::{Finding, Location};

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
    if header::is_zero(&first) {
        match is_only_zeros(storage.as_ref())? {
            false => return Err(no_empty_tar()),
            true if !options.partial => return Err(only_zeros()),
            true => {}
        }
    }
    let source = IndexSource::new(name, options);
    let check = |file: &IndexFile| match file.seek_points.is_empty() {
        true if file.archive_len == storage.len() => Ok(()),
        _ => Err(Error::corrupt("not used: it belongs to a compressed archive")),
    };
    let index = match source.load(check) {
        Some(((), index)) => index,
        None => {
            let finished =
                scan::uncompressed(storage.as_ref(), options.nesting(), options.progress)?;
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
    if let Some((seek_index, index)) = source.load(|file| seek_index(file, tar.storage.len())) {
        return Ok(opened(tar.decompressed(name, seek_index, None, options)?, index));
    }
    let (storage, container) = (Arc::clone(&tar.storage), tar.container);
    let scanning = Scanning::of(storage.as_ref());
    let first_pass = FirstPass::start(name, Arc::clone(&storage), container, &tar.cache)?;
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
    let step = storage.len().checked_div(COMPRESSED_SAMPLES).unwrap_or(0);
    let offsets: Vec<_> = (0..COMPRESSED_SAMPLES).map(|nth| step.saturating_mul(nth)).collect();
    let index = source.make(finished, archive_len, &offsets)?;
    Ok(opened(decompressed, index))
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

/// The error for a file of zeros alone. A file that was never written has only zeros as well, so an
/// empty tar is refused unless the user wants what there is of the archive.
fn only_zeros() -> Error {
    Error::corrupt("contains only zeros: an empty tar, or a file that was not written")
        .with_hint("copy the archive again, or add --partial to mount an empty directory")
}

/// The error for a file that starts with zeros but is no empty tar.
fn no_empty_tar() -> Error {
    Error::new(Kind::UnknownFormat, "begins with zeros, but is not an empty tar")
        .with_hint("mount a disk image with mount -o loop")
}
