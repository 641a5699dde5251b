//! The archive formats: finding out which one a file is, and opening it as a tree.
//!
//! Owns what can be asked of archives, and several of them as one tree; leaves one archive to
//! `opening`, each format to its folder.
//! Invariants: nothing above this layer names a format; no byte of an archive can make code here
//! panic (the lints see to it), and every number it controls has a cap in `limits`.
#![cfg_attr(
    not(any(test, fuzzing)),
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

use std::path::PathBuf;

use crate::cache::Budget;
use crate::error::{Error, Result};
use crate::ordered::try_ordered;
use crate::progress::Progress;
use crate::stats::Stats;
use crate::storage::{self, Changes, FileStorage};
use crate::sync::Arc;
use crate::vfs::{Finding, Layer, Tree, Union};

mod bytes;
mod compressed;
mod foreign;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod info;
mod inside;
mod limits;
mod opening;
mod squashfs;
mod tar;
mod verify;

use opening::{Memory, Opening};

pub use info::{
    Compressed, Cost, Fragments, Image, ImageEstimate, Info, Kinds, Layout, READ_COST, Shares,
    Sizes, TarLayout, info,
};
pub use inside::{HEAD, is_within};
pub use tar::{Acls, Saving};
pub use verify::verify;

/// How to open archives.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Where in the file the archive starts, bytes.
    pub offset: u64,
    /// Memory for decoded blocks, bytes, for all archives together.
    pub cache_bytes: u64,
    /// Makes those caches smaller and larger while they serve.
    pub budget: Budget,
    /// Whether archives stored in an archive are shown as folders.
    pub recursive: bool,
    /// Where the saved index of a tar is, instead of the usual places.
    pub index: Option<PathBuf>,
    /// How the ACLs of tars are used.
    pub acls: Acls,
    /// When a new index is saved.
    pub saving: Saving,
    /// Where reads from the archives, and what their caches do, are counted.
    pub stats: Arc<Stats>,
}

/// Archives opened at once, each by a thread: on a parallel file system most of it is waiting.
const OPENED_AT_ONCE: usize = 8;

/// Opens the archives at `paths` as one tree; of two files with one path the later archive's is
/// shown.
///
/// # Errors
/// `NotFound`, `IsADirectory` or `Io` where one can not be read; `UnknownFormat`, `Unsupported` or
/// `Corrupt` where it can.
pub fn open(
    paths: &[PathBuf],
    options: &OpenOptions,
    progress: &Progress,
) -> Result<Arc<dyn Tree>> {
    open_files(&storage::open_files(paths, Changes::default())?, options, progress)
}

/// The same for files that are open.
///
/// # Errors
/// As `open`.
pub fn open_files(
    files: &[Arc<FileStorage>],
    options: &OpenOptions,
    progress: &Progress,
) -> Result<Arc<dyn Tree>> {
    let (tree, findings) = open_partly(files, options, progress)?;
    // Nobody else has them any more: an archive within that can not be opened is missing.
    match findings.into_iter().next() {
        Some(finding) => Err(Error::corrupt(finding.what)),
        None => Ok(tree),
    }
}

/// The same where archives within that can not be opened are no error: what there is to tell of
/// them, if `options.saving` has it kept rather than warned of.
///
/// # Errors
/// As `open`.
pub fn open_partly(
    files: &[Arc<FileStorage>],
    options: &OpenOptions,
    progress: &Progress,
) -> Result<(Arc<dyn Tree>, Vec<Finding>)> {
    progress.begin("reading headers");
    let memory = Memory::new(files.len(), options);
    let mut layers = Vec::new();
    let open = |nth: usize| {
        files.get(nth).map_or_else(
            || Ok(Vec::new()),
            |file| {
                let number = u32::try_from(nth).unwrap_or(u32::MAX);
                let image_bytes = memory.image_bytes;
                let opening = Opening { options, memory: &memory, progress, number, image_bytes };
                opening.file(file)
            },
        )
    };
    try_ordered(files.len(), OPENED_AT_ONCE, open, |opened| layers.extend(opened))?;
    let tree: Arc<dyn Tree> = match layers.as_slice() {
        [Layer { path, tree }] if path.is_empty() => Arc::clone(tree),
        _ => {
            let union = Union::new(&layers)?;
            if union.hidden() > 0 {
                let hidden = union.hidden();
                log::warn!("{hidden} files hidden by files of the same path in later archives");
            }
            Arc::new(union)
        }
    };
    Ok((tree, memory.into_findings()))
}
