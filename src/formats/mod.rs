//! The archive formats: finding out which one a file is, and opening it as a tree.
//!
//! Owns the choice of format; leaves each format to its folder.
//! Invariants: nothing above this layer names a format; no byte of an archive can make code here
//! panic (the lints see to it), and every number it controls has a cap in `limits`.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing,
        clippy::string_slice,
        clippy::arithmetic_side_effects,
        clippy::as_conversions
    )
)]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::progress::Progress;
use crate::storage::{FilePool, FileStorage, Storage, Window};
use crate::sync::Arc;
use crate::vfs::{Layer, Tree, Union};

mod bytes;
mod compressed;
mod limits;
mod ordered;
mod squashfs;
mod tar;

use compressed::{ChunkCache, Container};
use squashfs::SquashFs;
use tar::{Bytes, Packed, SavedIndex, Tar, TarOptions};

pub use tar::Saving;

/// How to open archives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Where in the file the archive starts, bytes.
    pub offset: u64,
    /// Memory for decoded blocks, bytes, for all archives together.
    pub cache_bytes: u64,
    /// Whether archives stored in an archive are shown as folders.
    pub recursive: bool,
    /// Where the saved index of a tar is, instead of the usual places.
    pub index: Option<PathBuf>,
    /// When a new index is saved.
    pub saving: Saving,
}

/// Archives opened at once, each by a thread: on a parallel file system most of it is waiting.
const OPENED_AT_ONCE: usize = 8;

/// Bytes of a file that tell its format: two blocks of a tar.
const HEAD: usize = 1024;

/// Opens the archives at `paths` as one tree; of two files with one path the later archive's is shown.
///
/// # Errors
/// `NotFound`, `IsADirectory` or `Io` where one can not be read; `UnknownFormat`, `Unsupported` or
/// `Corrupt` where it can.
pub fn open(
    paths: &[PathBuf],
    options: &OpenOptions,
    progress: &Progress,
) -> Result<Arc<dyn Tree>> {
    let memory = Memory::new(paths.len(), options);
    let mut layers = Vec::new();
    let mut outcome = Ok(());
    // A pool is for more files than may be open: reads of a pooled file take its lock for a moment.
    if paths.len() > FilePool::room() {
        FilePool::enlarge_room();
    }
    let pool = (paths.len() > FilePool::room()).then(|| FilePool::new(FilePool::room()));
    let open = |nth: usize| {
        paths.get(nth).map(|path| {
            let file = match &pool {
                Some(pool) => FileStorage::open_in(path, pool),
                None => FileStorage::open(path),
            };
            let number = u32::try_from(nth).unwrap_or(u32::MAX);
            open_one(path, Arc::new(file?), number, options, &memory, progress)
        })
    };
    ordered::ordered(paths.len(), OPENED_AT_ONCE, open, |_, opened| {
        match opened.unwrap_or_else(|| Ok(Vec::new())) {
            Ok(opened) => {
                layers.extend(opened);
                ControlFlow::Continue(())
            }
            Err(error) => {
                outcome = Err(error);
                ControlFlow::Break(())
            }
        }
    });
    outcome?;
    match layers.as_slice() {
        [Layer { path, tree }] if path.is_empty() => Ok(Arc::clone(tree)),
        _ => {
            let union = Union::new(&layers)?;
            if union.hidden() > 0 {
                let hidden = union.hidden();
                log::warn!("{hidden} files hidden by files of the same path in later archives");
            }
            Ok(Arc::new(union))
        }
    }
}

/// How the memory for decoded blocks is shared out.
struct Memory {
    /// Chunks of compressed tars, of all of them: which one is read next nobody knows.
    chunks: Arc<ChunkCache>,
    chunk_bytes: u64,
    /// What each image gets for its own blocks, bytes.
    image_bytes: u64,
}

impl Memory {
    /// One archive has all of it. Several may be of both kinds, and so may those in an archive.
    fn new(archives: usize, options: &OpenOptions) -> Self {
        let kinds = if archives > 1 || options.recursive { 2 } else { 1 };
        let chunk_bytes = options.cache_bytes.checked_div(kinds).unwrap_or(0);
        let images = bytes::length(archives.max(1));
        Self {
            chunks: Arc::new(ChunkCache::new(chunk_bytes, limits::GIANT_CHUNK_MAX)),
            chunk_bytes,
            image_bytes: chunk_bytes.checked_div(images).unwrap_or(0),
        }
    }
}

/// Opens one archive: its tree, and behind it those of images within it.
fn open_one(
    path: &Path,
    file: Arc<FileStorage>,
    number: u32,
    options: &OpenOptions,
    memory: &Memory,
    progress: &Progress,
) -> Result<Vec<Layer>> {
    let name = path.display().to_string();
    let mut storage: Arc<dyn Storage> = Arc::<FileStorage>::clone(&file);
    if options.offset != 0 {
        let window = Window::new(storage, options.offset).map_err(|error| error.within(&name))?;
        storage = Arc::new(window);
    }
    let mut head = [0; HEAD];
    let len = bytes::index(storage.len()).min(head.len());
    let head = head.get_mut(..len).unwrap_or_default();
    storage.read_exact_at(head, 0)?;
    let at_root = |tree: Arc<dyn Tree>| Layer { path: Vec::new(), tree };
    if SquashFs::recognises(head) {
        return Ok(vec![at_root(Arc::new(SquashFs::open(&name, storage, memory.image_bytes)?))]);
    }
    progress.expect(storage.len());
    let bytes = match Container::recognise(head) {
        Some(container) => {
            let cache = Arc::clone(&memory.chunks);
            Bytes::Compressed(Packed { storage, container, cache, archive: number })
        }
        None if tar::recognises(head) => Bytes::Stored(storage),
        None => return Err(unknown(&name, head, options.offset)),
    };
    // A part of a file has no modification time of its own, and no name to keep an index under.
    let saved = (options.offset == 0).then_some(SavedIndex {
        path,
        file: &file,
        place: options.index.as_deref(),
        saving: options.saving,
    });
    let recursive = options.recursive;
    let tar = Tar::open(
        &name,
        bytes,
        &TarOptions { recursive, saved, progress, memory: memory.chunk_bytes },
    )?;
    let mut layers = Vec::new();
    let images = bytes::length(tar.grafts().len().max(1));
    let share = memory.image_bytes.checked_div(images).unwrap_or(0);
    for graft in tar.grafts() {
        let window = Window::new(Arc::clone(tar.storage()), graft.at)?.cut(graft.len)?;
        let inner = format!("{name}: {}", String::from_utf8_lossy(&graft.path));
        let tree = SquashFs::open(&inner, Arc::new(window), share)?;
        layers.push(Layer { path: graft.path.clone(), tree: Arc::new(tree) });
    }
    layers.insert(0, at_root(Arc::new(tar)));
    Ok(layers)
}

/// What to say of a file that is no archive archfs reads: what it seems to be, and what to do.
fn unknown(name: &str, head: &[u8], offset: u64) -> Error {
    let (what, hint) = match head {
        [] if offset == 0 => ("is empty", "was it copied whole?"),
        [] => ("has nothing at that offset", "check --offset"),
        [b'P', b'K', 3 | 5, 4 | 6, ..] => {
            ("a zip archive", "unpack it, then: mksquashfs DIRECTORY data.sqfs -comp zstd")
        }
        _ => (
            "neither a squashfs image nor a tar",
            "if it starts further into the file, say where with --offset",
        ),
    };
    Error::new(Kind::UnknownFormat, format!("{name}: {what}")).with_hint(hint)
}
