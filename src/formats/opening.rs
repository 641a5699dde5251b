//! From one archive to its trees: which format it is, and the archives within it.
//!
//! Owns the choice of format, the memory that each archive gets, and where archives within an
//! archive are shown. Leaves finding those to each format: a tar knows its own from the scan.
//! A `Part` keeps the format beside the tree, for who asks what a tree does not tell.
//! Invariant: an archive within that can not be read costs a warning, never the mount.

use std::ops::RangeInclusive;

use super::bytes::{index, length};
use super::compressed::{ChunkCache, Container};
use super::inside::{self, Inside};
use super::limits::{GIANT_CHUNK_MAX, INNER_IMAGES_MAX, NESTING_MAX};
use super::squashfs::{Shared, SquashFs};
use super::tar::{self, Allowance, Bytes, CompressedTar, SavedIndex, Tar, TarOptions};
use super::{OpenOptions, Saving, foreign};
use crate::cache::Room;
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;
use crate::storage::{FileStorage, Metered, Storage, Window};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};
use crate::vfs::{Finding, Layer, Location, Tree, View};

#[cfg(test)]
mod faults;

/// How the memory for decoded blocks is shared out.
pub(super) struct Memory {
    /// Chunks of compressed tars, of all of them: which one is read next nobody knows.
    chunks: Arc<ChunkCache>,
    chunk_bytes: u64,
    /// What each archive gets for the blocks of its images, bytes.
    pub(super) image_bytes: u64,
    /// Archives within archives that were opened.
    inner: AtomicU64,
    /// Archives within archives that could not be opened. Guards only that; taken alone.
    findings: Mutex<Vec<Finding>>,
    shared: Shared,
    /// What all indexes of tars may keep of their files.
    indexes: Arc<Allowance>,
}

/// Memory for blocks of indexes, bytes: a part of what decoded blocks may take. Blocks beyond it
/// are read again, mostly from the page cache, which daemons on a node share.
const INDEX_SHARE: u64 = 8;
const INDEX_BYTES: RangeInclusive<u64> = (1 << 20)..=(64 << 20);

impl Memory {
    /// One archive has all of it. Several may be of both kinds, and so may those in an archive.
    pub(super) fn new(archives: usize, options: &OpenOptions) -> Self {
        let kinds = if archives > 1 || options.recursive { 2 } else { 1 };
        let chunk_bytes = options.cache_bytes.checked_div(kinds).unwrap_or(0);
        let images = length(archives.max(1));
        let room = Room::new(options.cache_bytes);
        let resized = Arc::downgrade(&room);
        options.budget.add(resized);
        let shared = Shared::new(Arc::clone(&room));
        let workers = Arc::clone(&shared.workers);
        let chunks = ChunkCache::within(room, chunk_bytes, GIANT_CHUNK_MAX, workers);
        chunks.report_to(&options.stats);
        let chunks = Arc::new(chunks);
        chunks.draw_on(&options.budget);
        Self {
            chunks,
            chunk_bytes,
            image_bytes: chunk_bytes.checked_div(images).unwrap_or(0),
            inner: AtomicU64::new(0),
            findings: Mutex::default(),
            shared,
            indexes: Arc::new(Allowance::new(
                options
                    .cache_bytes
                    .checked_div(INDEX_SHARE)
                    .unwrap_or(0)
                    .clamp(*INDEX_BYTES.start(), *INDEX_BYTES.end()),
            )),
        }
    }

    /// What there is to tell of archives within that could not be opened.
    pub(super) fn into_findings(self) -> Vec<Finding> {
        self.findings.into_inner()
    }
}

/// An archive that was opened: its tree, and what that is made of.
pub(super) struct Part {
    pub(super) layer: Layer,
    pub(super) format: Format,
}

/// The formats there are.
pub(super) enum Format {
    Image(Arc<SquashFs>),
    Tar(Arc<Tar>),
}

/// One archive on its way to be opened.
#[derive(Clone, Copy)]
pub(super) struct Opening<'o> {
    pub(super) options: &'o OpenOptions,
    pub(super) memory: &'o Memory,
    pub(super) progress: &'o Progress,
    /// Its number among all archives.
    pub(super) number: u32,
    /// What is left for the blocks of its images, bytes.
    pub(super) image_bytes: u64,
}

impl Opening<'_> {
    /// Opens the archive in `file`: its tree first, behind it those of archives within.
    ///
    /// # Errors
    /// As `super::open`.
    pub(super) fn file(&self, file: &Arc<FileStorage>) -> Result<Vec<Layer>> {
        Ok(self.parts(file)?.into_iter().map(|part| part.layer).collect())
    }

    /// The same with the formats.
    ///
    /// # Errors
    /// As `super::open`.
    pub(super) fn parts(&self, file: &Arc<FileStorage>) -> Result<Vec<Part>> {
        let name = file.path().display().to_string();
        let OpenOptions { offset, saving, ref stats, .. } = *self.options;
        let whole = Arc::<FileStorage>::clone(file);
        let mut storage: Arc<dyn Storage> = Arc::new(Metered::new(whole, Arc::clone(stats)));
        if offset != 0 {
            let window = Window::new(storage, offset).map_err(|error| error.within(&name))?;
            storage = Arc::new(window);
        }
        // A part of a file has no modification time of its own, and no name to keep an index under.
        let place = self.options.index.as_deref();
        let wanted = offset == 0 && saving != Saving::Never;
        let saved = wanted.then_some(SavedIndex { file, place, saving });
        self.progress.expect(storage.len());
        self.storage(&name, storage, saved, 0)
    }

    /// Opens the archive in `storage`, which lies within `depth` others.
    fn storage(
        &self,
        name: &str,
        storage: Arc<dyn Storage>,
        saved: Option<SavedIndex<'_>>,
        depth: u32,
    ) -> Result<Vec<Part>> {
        let mut head = [0; tar::HEAD];
        let len = index(storage.len()).min(head.len());
        let head = head.get_mut(..len).unwrap_or_default();
        storage.read_exact_at(head, 0)?;
        if SquashFs::recognises(head) {
            return self.image(name, storage, depth);
        }
        // Chunks are known by the number of the file, so only that itself may be compressed.
        let bytes = match Container::recognise(head).filter(|_| depth == 0) {
            Some(container) => {
                let cache = Arc::clone(&self.memory.chunks);
                Bytes::Compressed(CompressedTar { storage, container, cache, archive: self.number })
            }
            None if tar::recognises(head) => Bytes::Stored(storage),
            None => return Err(foreign::unknown(name, head, self.options.offset)),
        };
        let OpenOptions { recursive, saving, acls, .. } = *self.options;
        let (progress, memory) = (self.progress, self.memory.chunk_bytes);
        let verified = saving == Saving::Compared;
        let indexes = &self.memory.indexes;
        let options = TarOptions { recursive, saved, progress, verified, memory, acls, indexes };
        let tar = Tar::open(name, bytes, &options)?;
        let opening = self.sharing(tar.nested_images().len());
        let mut parts = Vec::new();
        for nested_image in tar.nested_images() {
            let window =
                Window::new(Arc::clone(tar.storage()), nested_image.at)?.cut(nested_image.len)?;
            // The folder is there, and stays empty if this can not be opened.
            opening.within(name, &nested_image.path, Arc::new(window), depth, &mut parts);
        }
        let tar = Arc::new(tar);
        let tree: Arc<dyn Tree> = Arc::<Tar>::clone(&tar);
        parts.insert(0, Part { layer: Layer { path: Vec::new(), tree }, format: Format::Tar(tar) });
        Ok(parts)
    }

    /// Opens an image and, where asked for, the archives in it.
    fn image(&self, name: &str, storage: Arc<dyn Storage>, depth: u32) -> Result<Vec<Part>> {
        if self.options.saving == Saving::Demanded && depth == 0 {
            let context = format!("{name}: an image, which needs no index");
            return Err(Error::new(Kind::InvalidInput, context));
        }
        // Images in it get half of its memory.
        let own = if self.options.recursive { self.sharing(2) } else { *self };
        let image = SquashFs::open(name, storage, own.image_bytes, &self.memory.shared)?;
        image.report_to(&self.options.stats);
        image.draw_on(&self.options.budget);
        let mut tree: Arc<dyn Tree> = Arc::<SquashFs>::clone(&image);
        let mut parts = Vec::new();
        if self.options.recursive && depth < NESTING_MAX {
            let mut shown = Vec::new();
            let found = inside::find(tree.as_ref());
            let opening = own.sharing(found.len());
            for inner in found {
                let storage = Arc::new(Inside::new(Arc::clone(&tree), inner.ino, inner.size));
                if opening.within(name, &inner.folder, storage, depth, &mut parts) {
                    shown.push(inner.ino);
                }
            }
            tree = View::without(tree, shown);
        }
        let layer = Layer { path: Vec::new(), tree };
        parts.insert(0, Part { layer, format: Format::Image(image) });
        Ok(parts)
    }

    /// The same with its part of the memory, where `count` archives share it.
    fn sharing(&self, count: usize) -> Self {
        let parts = length(count.max(1));
        Self { image_bytes: self.image_bytes.checked_div(parts).unwrap_or(0), ..*self }
    }

    /// Adds the trees of an archive within another, to be shown in `folder`; tells whether it
    /// could.
    fn within(
        &self,
        name: &str,
        folder: &[u8],
        storage: Arc<dyn Storage>,
        depth: u32,
        parts: &mut Vec<Part>,
    ) -> bool {
        let limit = length(INNER_IMAGES_MAX);
        if self.memory.inner.fetch_add(1, Ordering::Relaxed) >= limit {
            self.tell(Finding::note(format!(
                "more than {limit} archives within archives: the others are not opened"
            )));
            return false;
        }
        let name = format!("{name}: {}", folder.escape_ascii());
        match self.storage(&name, storage, None, depth.saturating_add(1)) {
            Ok(opened) => {
                parts.extend(opened.into_iter().map(|Part { layer, format }| {
                    let names = [folder, &layer.path];
                    let names: Vec<_> = names.into_iter().filter(|name| !name.is_empty()).collect();
                    Part { layer: Layer { path: names.join(&b'/'), ..layer }, format }
                }));
                true
            }
            Err(error) => {
                let mut finding = Finding::met(Location::Path(folder.to_vec()), &error);
                finding.what.push_str("; what is in it is not shown");
                self.tell(finding);
                false
            }
        }
    }
}

impl Opening<'_> {
    /// Tells of a finding, or keeps it for who verifies.
    fn tell(&self, finding: Finding) {
        match self.options.saving {
            Saving::Compared | Saving::Never => self.memory.findings.lock().push(finding),
            // Also where only what went wrong is to be said.
            _ => log::error!("{}", finding.what),
        }
    }
}
