//! Opens one archive: detects its format, divides the memory, and opens the archives inside it.
//!
//! A `Part` keeps the format beside the tree, for callers that need more than a tree provides.
//!
//! Invariant: an inner archive that cannot be read causes a warning; the outer one is mounted
//! anyway.

use std::ops::RangeInclusive;
use std::time::Instant;

use super::bytes::{index, length};
use super::compressed::{ChunkCache, Container, new_number};
use super::index::{Allowance, notes};
use super::info::SlowReads;
use super::limits::{CHUNK_MAX, INNER_RATIO_MAX, INNER_SPARE, NESTING_MAX, SEPARATE_ARCHIVES_MAX};
use super::nested::{self, NestedFile};
use super::squashfs::{Shared, SquashFs};
use super::tar::{self, Bytes, CompressedTar, LoneFile, SavedIndexOptions, Tar, TarOptions};
use super::zip::{self, LargeMembers, Zip, ZipOptions};
use super::{CompressedFiles, FindingSink, IndexPolicy, OpenOptions, foreign};
use crate::cache::MemoryLimit;
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;
use crate::storage::{FileRange, FileStorage, Metered, Storage};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};
use crate::units::format_duration;
use crate::vfs::{Finding, Layer, Location, Severity, Tree, View, joined, list_root};

#[cfg(test)]
mod tests;

/// How the memory for decoded blocks is divided.
pub(super) struct Memory {
    /// Chunks of all compressed archives, by nesting level. Those of one level share a cache,
    /// because any of them may be read next. Those of an inner archive have another one: to decode
    /// them, chunks of the outer archive are needed, and a thread that holds room for a chunk must
    /// not wait for more of the same room.
    chunks: Vec<Arc<ChunkCache>>,
    chunk_bytes: u64,
    /// Memory of each archive for the blocks of its images, bytes.
    image_bytes: u64,
    /// Number of inner archives opened.
    inner: AtomicU64,
    /// Bytes that may still be decompressed from inner archives.
    inner_bytes: AtomicU64,
    /// Inner archives that could not be opened. The lock is never held together with another.
    findings: Mutex<Vec<Finding>>,
    shared: Shared,
    /// Seek points of large members of ZIP archives.
    seek_points: Arc<LargeMembers>,
    /// Memory that all tar indexes may keep of their files.
    indexes: Arc<Allowance>,
}

/// Memory for blocks of index files: this fraction of the memory for decoded blocks, within these
/// bounds, bytes. Other blocks are read again, mostly from the page cache, which all daemons on a
/// node share.
const INDEX_SHARE: u64 = 8;
const INDEX_BYTES: RangeInclusive<u64> = (1 << 20)..=(64 << 20);

impl Memory {
    /// One archive gets all the memory. Several archives may be of both kinds, and so may inner
    /// archives.
    pub(super) fn new(archives: usize, options: &OpenOptions) -> Self {
        let kinds = if archives > 1 || options.recursive { 2 } else { 1 };
        let chunk_bytes = options.cache_bytes.checked_div(kinds).unwrap_or(0);
        let images = length(archives.max(1));
        let room = MemoryLimit::new(options.cache_bytes);
        let resized = Arc::downgrade(&room);
        options.budget.add(resized);
        let shared = Shared::new(Arc::clone(&room));
        let workers = Arc::clone(&shared.workers);
        let levels = if options.recursive { NESTING_MAX.saturating_add(1) } else { 1 };
        let level_bytes = |level| bytes_of_level(chunk_bytes, options.recursive, level);
        let mut chunks = Vec::new();
        for level in 0..levels {
            let bytes = level_bytes(level);
            let own_room = if level == 0 { Arc::clone(&room) } else { MemoryLimit::new(bytes) };
            let cache = ChunkCache::within(own_room, bytes, CHUNK_MAX, Arc::clone(&workers));
            cache.report_to(&options.stats);
            let cache = Arc::new(cache);
            cache.draw_on(&options.budget);
            chunks.push(cache);
            if level > 0 {
                room.set_aside(bytes);
            }
        }
        Self {
            chunks,
            chunk_bytes,
            image_bytes: chunk_bytes.checked_div(images).unwrap_or(0),
            inner: AtomicU64::new(0),
            inner_bytes: AtomicU64::new(INNER_SPARE),
            findings: Mutex::default(),
            shared,
            seek_points: Arc::new(LargeMembers::new(chunk_bytes)),
            indexes: Arc::new(Allowance::new(
                options
                    .cache_bytes
                    .checked_div(INDEX_SHARE)
                    .unwrap_or(0)
                    .clamp(*INDEX_BYTES.start(), *INDEX_BYTES.end()),
            )),
        }
    }

    /// Memory for chunks of archives at nesting level `depth`, bytes.
    fn chunk_bytes(&self, depth: u32) -> u64 {
        bytes_of_level(self.chunk_bytes, self.chunks.len() > 1, depth)
    }

    /// The cache for chunks of archives at nesting level `depth`.
    fn chunks(&self, depth: u32) -> Result<&Arc<ChunkCache>> {
        let too_deep = || Error::new(Kind::Unsupported, "archives nested too deeply");
        self.chunks.get(index(depth)).ok_or_else(too_deep)
    }

    /// The findings about inner archives that could not be opened.
    pub(super) fn into_findings(self) -> Vec<Finding> {
        self.findings.into_inner()
    }
}

/// The part of `chunk_bytes` for a nesting level. All levels together have `chunk_bytes`, if there
/// is more than one.
fn bytes_of_level(chunk_bytes: u64, has_several: bool, level: u32) -> u64 {
    let first = if has_several { chunk_bytes / 2 } else { chunk_bytes };
    first.checked_shr(level).unwrap_or(0)
}

/// The path of a tree that is shown at `path` in an archive that is shown at `directory`.
fn below(directory: &[u8], path: &[u8]) -> Vec<u8> {
    if path.is_empty() { directory.to_vec() } else { joined(directory, path) }
}

/// An open archive: its tree and its format.
pub(super) struct Part {
    pub(super) layer: Layer,
    pub(super) format: Format,
}

/// The supported formats.
pub(super) enum Format {
    Image(Arc<SquashFs>),
    Tar(Arc<Tar>),
    Zip(Arc<Zip>),
}

impl Format {
    /// The format for a message: `SquashFS image, zstd, blocks of 128.0 KiB`.
    fn describe(&self) -> String {
        match self {
            Self::Image(image) => image.describe(),
            Self::Tar(tar) => tar.describe(),
            Self::Zip(zip) => zip.describe(),
        }
    }

    fn slow_reads(&self) -> Option<SlowReads> {
        match self {
            Self::Image(image) => image.slow_reads(),
            Self::Tar(tar) => tar.slow_reads(),
            // A read decodes the file that is read, and no others.
            Self::Zip(_) => None,
        }
    }
}

/// The parameters for opening one archive.
#[derive(Clone, Copy)]
pub(super) struct Opening<'o> {
    options: &'o OpenOptions,
    memory: &'o Memory,
    progress: &'o Progress,
    /// Memory left for the blocks of its images, bytes.
    image_bytes: u64,
}

impl<'o> Opening<'o> {
    /// Opens archives with all of `memory`.
    pub(super) fn new(
        options: &'o OpenOptions,
        memory: &'o Memory,
        progress: &'o Progress,
    ) -> Self {
        Self { options, memory, progress, image_bytes: memory.image_bytes }
    }

    /// Opens the archive in `file`. Returns its tree first, then those of inner archives.
    pub(super) fn file(&self, file: &Arc<FileStorage>) -> Result<Vec<Layer>> {
        Ok(self.parts(file)?.into_iter().map(|part| part.layer).collect())
    }

    /// The same with the formats.
    pub(super) fn parts(&self, file: &Arc<FileStorage>) -> Result<Vec<Part>> {
        let name = file.path().display().to_string();
        let OpenOptions { offset, index_policy: policy, ref stats, .. } = *self.options;
        let whole = Arc::<FileStorage>::clone(file);
        let mut storage: Arc<dyn Storage> = Arc::new(Metered::new(whole, Arc::clone(stats)));
        let read = Arc::clone(&storage);
        if offset != 0 {
            let file_range =
                FileRange::new(storage, offset).map_err(|error| error.within(&name))?;
            storage = Arc::new(file_range);
        }
        // A range of a file has no modification time and no name to store an index under.
        let path = self.options.index.as_deref();
        let use_index = offset == 0 && policy != IndexPolicy::Ignore;
        let saved = use_index.then_some(SavedIndexOptions { file, path, policy });
        self.progress.expect(storage.len());
        let inner = storage.len().saturating_mul(INNER_RATIO_MAX);
        let add = |left: u64| Some(left.saturating_add(inner));
        let _ = self.memory.inner_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let start = Instant::now();
        let is_lone_shown = self.options.compressed_files == CompressedFiles::Shown && offset == 0;
        let lone_file = if is_lone_shown { LoneFile::of(file) } else { None };
        let mut parts = self.open_storage(&name, storage, saved, lone_file, 0)?;
        if let Some(shown) = nested::shown_path(&self.options.directories, file.path()) {
            for Part { layer, .. } in &mut parts {
                layer.path = below(&shown, &layer.path);
            }
        }
        file.note_opened(self.options.reads_all);
        if self.options.reads_all {
            // It goes on until the file is closed.
            read.begin_scan();
        }
        if let Some(Part { format, .. }) = parts.first() {
            let (format, time) = (format.describe(), format_duration(start.elapsed()));
            log::info!("{name}: {format}; opened in {time}");
        }
        if self.options.notes_slow_reads {
            // Of an archive and those inside it, one note is enough.
            let slow = parts.iter().find_map(|part| part.format.slow_reads());
            if let Some(slow) = slow {
                let pack = format!("`archfs pack {name} new.sqfs`");
                crate::log::note(format_args!("{name}: {slow}; {pack} makes a faster image"));
            }
        }
        Ok(parts)
    }

    /// Opens the archive in `storage`, at nesting level `depth`. A compressed file that contains no
    /// tar is shown as `lone_file`.
    fn open_storage(
        &self,
        name: &str,
        storage: Arc<dyn Storage>,
        saved: Option<SavedIndexOptions<'_>>,
        lone_file: Option<LoneFile>,
        depth: u32,
    ) -> Result<Vec<Part>> {
        let mut head = [0; tar::HEAD];
        let len = index(storage.len()).min(head.len());
        let head = head.get_mut(..len).unwrap_or_default();
        storage.read_exact_at(head, 0)?;
        if SquashFs::recognizes(head) {
            return self.open_image(name, storage, depth);
        }
        if zip::recognizes(head) {
            return self.open_zip(name, storage, depth);
        }
        let container = Container::of(&*storage, head).map_err(|error| error.within(name))?;
        let bytes = match container {
            Some(container) => {
                if depth > 0 {
                    self.progress.begin(format!("decompressing {name}"));
                    self.progress.expect(storage.len());
                }
                let cache = Arc::clone(self.memory.chunks(depth)?);
                let archive = new_number();
                Bytes::Compressed(CompressedTar { storage, container, cache, archive })
            }
            None if tar::recognizes(head) => Bytes::Uncompressed(storage),
            // Other data may come before a ZIP archive.
            None if zip::has_directory(storage.as_ref())? => {
                return self.open_zip(name, storage, depth);
            }
            None => {
                return Err(foreign::unknown(name, head, &*storage, self.options.offset));
            }
        };
        let OpenOptions { partial, acls, .. } = *self.options;
        // Deeper archives stay files.
        let recursive = self.options.recursive && depth < NESTING_MAX;
        let (progress, memory) = (self.progress, self.memory.chunk_bytes(depth));
        let most = (depth > 0).then_some(&self.memory.inner_bytes);
        let indexes = &self.memory.indexes;
        let options = TarOptions {
            recursive,
            saved,
            progress,
            partial,
            logged: self.logged(),
            memory,
            acls,
            lone_file,
            most,
            indexes,
        };
        let tar = Tar::open(name, bytes, &options)?;
        let opening = self.with_share(tar.nested_archives().len());
        let mut parts = Vec::new();
        for nested_archive in tar.nested_archives() {
            let nested_bytes = tar.nested_bytes(nested_archive)?;
            // The directory exists in the tar. It stays empty if the image cannot be opened.
            opening.open_inner(
                name,
                &nested_archive.path,
                Arc::new(nested_bytes),
                depth,
                &mut parts,
            )?;
        }
        let tar = Arc::new(tar);
        let tree: Arc<dyn Tree> = Arc::<Tar>::clone(&tar);
        let layer = Layer { path: Vec::new(), name: name.to_owned(), tree };
        parts.insert(0, Part { layer, format: Format::Tar(tar) });
        Ok(parts)
    }

    fn logged(&self) -> notes::Logged {
        match (self.options.index_policy, self.options.findings) {
            // `archfs verify` reports all notes itself, with more detail.
            (IndexPolicy::Compare, _) => notes::Logged::Nothing,
            (_, FindingSink::Return) => notes::Logged::Unusual,
            (_, FindingSink::Log) => notes::Logged::All,
        }
    }

    /// Opens an image, and the archives in it if `options.recursive` is set.
    fn open_image(&self, name: &str, storage: Arc<dyn Storage>, depth: u32) -> Result<Vec<Part>> {
        self.refuse_index(name, "a SquashFS image", depth)?;
        // Inner archives get half of the image's memory.
        let own = if self.options.recursive { self.with_share(2) } else { *self };
        let image = SquashFs::open(name, storage, own.image_bytes, &self.memory.shared)?;
        image.report_to(&self.options.stats);
        image.draw_on(&self.options.budget);
        let tree: Arc<dyn Tree> = Arc::<SquashFs>::clone(&image);
        own.with_inner(name, tree, Format::Image(image), depth)
    }

    /// Opens a ZIP archive, and the archives in it if `options.recursive` is set.
    fn open_zip(&self, name: &str, storage: Arc<dyn Storage>, depth: u32) -> Result<Vec<Part>> {
        self.refuse_index(name, "a ZIP archive", depth)?;
        let OpenOptions { names, partial, .. } = *self.options;
        let options = ZipOptions {
            names,
            progress: self.progress,
            partial,
            logged: self.logged(),
            chunks: self.memory.chunks(depth)?,
            seek_points: &self.memory.seek_points,
            indexes: &self.memory.indexes,
        };
        let zip = Arc::new(Zip::open(name, storage, &options)?);
        let tree: Arc<dyn Tree> = Arc::<Zip>::clone(&zip);
        self.with_inner(name, tree, Format::Zip(zip), depth)
    }

    /// Refuses to make an index for `what`, which has one in itself.
    fn refuse_index(&self, name: &str, what: &str, depth: u32) -> Result<()> {
        match self.options.index_policy == IndexPolicy::Save && depth == 0 {
            true => {
                let context = format!("{name}: {what}, which needs no index");
                Err(Error::new(Kind::InvalidInput, context))
            }
            false => Ok(()),
        }
    }

    /// The parts of an archive whose inner archives are files of `tree`: its own, and those of the
    /// archives in it if `options.recursive` is set.
    fn with_inner(
        &self,
        name: &str,
        mut tree: Arc<dyn Tree>,
        format: Format,
        depth: u32,
    ) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        if self.options.recursive && depth < NESTING_MAX {
            let mut shown = Vec::new();
            let found = nested::find(tree.as_ref());
            let opening = self.with_share(found.len());
            for inner in found {
                let storage = Arc::new(NestedFile::new(Arc::clone(&tree), inner.ino, inner.size));
                if opening.open_inner(name, &inner.directory, storage, depth, &mut parts)? {
                    shown.push(inner.ino);
                }
            }
            tree = View::without(tree, shown);
        }
        let layer = Layer { path: Vec::new(), name: name.to_owned(), tree };
        parts.insert(0, Part { layer, format });
        Ok(parts)
    }

    /// The same with 1/`count` of the memory.
    fn with_share(&self, count: usize) -> Self {
        let parts = length(count.max(1));
        Self { image_bytes: self.image_bytes.checked_div(parts).unwrap_or(0), ..*self }
    }

    /// Opens an inner archive and adds its trees to `parts`, to be shown in `directory`. Returns
    /// whether it could be opened.
    ///
    /// Fails with `Corrupt` or `Truncated` if it is damaged, unless `options.partial` is set.
    fn open_inner(
        &self,
        name: &str,
        directory: &[u8],
        storage: Arc<dyn Storage>,
        depth: u32,
        parts: &mut Vec<Part>,
    ) -> Result<bool> {
        let limit = length(SEPARATE_ARCHIVES_MAX);
        if self.memory.inner.fetch_add(1, Ordering::Relaxed) >= limit {
            self.report(Finding::note(format!(
                "{name}: more than {limit} archives inside archives: the others are not opened"
            )));
            return Ok(false);
        }
        let name = format!("{name}: {}", directory.escape_ascii());
        let opened = self.open_storage(&name, storage, None, None, depth.saturating_add(1));
        let opened = opened.and_then(|parts| {
            parts.first().map_or(Ok(()), |part| list_root(part.layer.tree.as_ref()))?;
            Ok(parts)
        });
        match opened {
            Ok(opened) => {
                parts.extend(opened.into_iter().map(|Part { layer, format }| {
                    let path = below(directory, &layer.path);
                    Part { layer: Layer { path, ..layer }, format }
                }));
                Ok(true)
            }
            Err(error) if error.is_damage() && !self.options.partial => Err(error),
            Err(error) => {
                let mut finding = Finding::from_error(Location::Path(directory.to_vec()), &error);
                if self.options.findings == FindingSink::Log {
                    finding.what = crate::log::text_of(&error);
                }
                finding.what.push_str("; its files are not shown");
                self.report(finding);
                Ok(false)
            }
        }
    }

    /// Logs a finding, or keeps it for the caller, depending on `options.findings`.
    fn report(&self, finding: Finding) {
        match self.options.findings {
            FindingSink::Return => self.memory.findings.lock().push(finding),
            // An error, because it is printed at every verbosity.
            FindingSink::Log if finding.severity == Severity::Damage => {
                crate::log::loss(format_args!("{}", finding.what));
            }
            FindingSink::Log => log::error!("{}", finding.what),
        }
    }
}
