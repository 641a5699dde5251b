//! The archive formats: recognizes the format of a file, and opens one or more archives as a tree.
//!
//! Invariants: nothing above this layer names a format. No archive can make code here panic (the
//! lints below check that). Every number that an archive controls has a limit in `limits`.
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

use std::path::{Path, PathBuf};
use std::slice;

use crate::cache::Budget;
use crate::error::{Error, Result};
use crate::ordered::try_ordered;
use crate::progress::Progress;
use crate::stats::Stats;
use crate::storage::{self, FileStorage};
use crate::sync::Arc;
use crate::units::counted;
use crate::vfs::{self, Finding, Hidden, Layer, Tree, Union, Verified};

mod bytes;
mod compressed;
mod foreign;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod index;
mod info;
mod limits;
mod nested;
mod opening;
mod squashfs;
mod tar;
mod zip;

use opening::{Memory, Opening};

pub use index::Acls;
pub(crate) use index::members::archive_stem;
pub use info::{
    Compressed, Cost, Fragments, Image, ImageEstimate, Info, Kinds, Layout, MethodShare, READ_COST,
    Shares, Sizes, TarLayout, ZipLayout, info,
};
pub use nested::{Contents, archives_in, contents};
pub use squashfs::{BaseImage, StoredContents, StoredFragment, StoredTail};
pub use tar::IndexPolicy;
pub use zip::NameEncoding;

/// How to open archives.
#[derive(Clone, Default)]
pub struct OpenOptions {
    /// Offset of the archive in the file, bytes.
    pub offset: u64,
    /// Memory for decoded blocks of all archives together, bytes.
    pub cache_bytes: u64,
    /// Resizes the caches while the file system is mounted.
    pub budget: Budget,
    /// Whether archives in an archive are shown as directories.
    pub recursive: bool,
    /// Directories of archives: each archive is shown below its path there, without its suffix.
    pub directories: Vec<PathBuf>,
    /// The encoding of names in ZIP archives that are not marked as UTF-8.
    pub names: Option<NameEncoding>,
    /// Whether an archive that is cut off or damaged is opened as far as it goes. Otherwise that is
    /// an error.
    pub partial: bool,
    /// Path of the saved index of a tar, instead of the usual ones.
    pub index: Option<PathBuf>,
    /// How the ACLs of tars are used.
    pub acls: Acls,
    /// When the saved index of a tar is used, and when a new one is saved.
    pub index_policy: IndexPolicy,
    /// Where findings go: about inner archives that cannot be opened, and about what is missing of
    /// those that can. A caller that takes the latter asks `Tree::audit`.
    pub findings: FindingSink,
    /// Counts reads from the archives and what the caches do.
    pub stats: Arc<Stats>,
    /// Whether all of the archives will be read, in order.
    pub reads_all: bool,
    /// How a compressed file that contains no tar is opened.
    pub compressed_files: CompressedFiles,
    /// Whether the log gets a note if reads in random order will be slow.
    pub notes_slow_reads: bool,
}

/// How a compressed file that contains no tar is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressedFiles {
    /// As a tree of one file, if its name says that it is compressed.
    #[default]
    Shown,
    /// Not at all.
    Refused,
}

/// Where findings go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FindingSink {
    /// To the log.
    #[default]
    Log,
    /// To the caller.
    Return,
}

/// Number of archives opened at once, one thread each. On a parallel file system, opening is mostly
/// waiting.
const OPENED_AT_ONCE: usize = 8;

/// Opens the archives at `paths` as one tree. If two archives have a file with the same path, the
/// later archive's file is shown.
///
/// # Errors
/// `NotFound`, `IsADirectory` or `Io` if an archive cannot be read; `UnknownFormat`, `Unsupported`
/// or `Corrupt` if its contents are wrong.
pub fn open(
    paths: &[PathBuf],
    options: &OpenOptions,
    progress: &Progress,
) -> Result<Arc<dyn Tree>> {
    open_files(&storage::open_files(paths, progress)?, options, progress)
}

/// The same for open files.
pub fn open_files(
    files: &[Arc<FileStorage>],
    options: &OpenOptions,
    progress: &Progress,
) -> Result<Arc<dyn Tree>> {
    let (tree, findings) = open_partly(files, options, progress)?;
    // Without a caller that takes findings, an inner archive that cannot be opened is an error.
    match findings.into_iter().next() {
        Some(finding) => Err(Error::corrupt(finding.what)),
        None => Ok(tree),
    }
}

/// The same, but inner archives that cannot be opened are no error. They are returned as findings,
/// or logged, depending on `options.findings`.
pub fn open_partly(
    files: &[Arc<FileStorage>],
    options: &OpenOptions,
    progress: &Progress,
) -> Result<(Arc<dyn Tree>, Vec<Finding>)> {
    progress.begin(reading_headers(files));
    let memory = Memory::new(files.len(), options);
    let mut layers = Vec::new();
    let open = |nth: usize| {
        files.get(nth).map_or_else(
            || Ok(Vec::new()),
            |file| Opening::new(options, &memory, progress).file(file),
        )
    };
    try_ordered(files.len(), OPENED_AT_ONCE, open, |opened| layers.extend(opened))?;
    let tree: Arc<dyn Tree> = match layers.as_slice() {
        [Layer { path, tree, .. }] if path.is_empty() => Arc::clone(tree),
        _ => {
            let union = Union::new(&layers)?;
            warn_of_hidden(union.hidden());
            Arc::new(union)
        }
    };
    Ok((tree, memory.into_findings()))
}

/// Reads all data of the archive at `path` with `threads` threads, and compares its tables. Headers
/// are scanned again: no saved index is trusted, and none is saved. Ignores `options.index_policy`
/// and `options.findings`. Findings in inner archives have their paths.
pub fn verify(
    path: &PathBuf,
    options: &OpenOptions,
    threads: usize,
    progress: &Progress,
) -> Result<Verified> {
    let files = storage::open_files(slice::from_ref(path), progress)?;
    let options = OpenOptions {
        index_policy: IndexPolicy::Compare,
        findings: FindingSink::Return,
        partial: true,
        reads_all: true,
        ..options.clone()
    };
    progress.begin(reading_headers(&files));
    let memory = Memory::new(1, &options);
    let opening = Opening::new(&options, &memory, progress);
    let mut layers = Vec::new();
    for file in &files {
        layers.extend(opening.file(file)?);
    }
    let mut all = Verified { findings: memory.into_findings(), ..Verified::default() };
    for (nth, Layer { path, tree, .. }) in layers.into_iter().enumerate() {
        let Verified { mut counts, findings } = vfs::verify(tree.as_ref(), threads, progress);
        // The root of an inner archive is counted as a directory of the outer one.
        counts.directories = counts.directories.saturating_sub(u64::from(nth > 0));
        all.counts.add(counts);
        all.findings.extend(findings.into_iter().map(|finding| finding.below(&path)));
    }
    Ok(all)
}

/// Whether the file at `path`, which starts with `head`, is an archive only because its format is
/// built on one: .npz, .jar, .docx and others are ZIP archives.
pub fn is_built_on_archive(path: &Path, head: &[u8]) -> bool {
    let is_named = path.extension().is_some_and(|suffix| suffix.eq_ignore_ascii_case("zip"));
    zip::recognizes(head) && !is_named
}

/// The name of the phase in which archives are opened.
fn reading_headers(files: &[Arc<FileStorage>]) -> String {
    storage::phase(files.iter().map(|file| file.path()), "reading headers")
}

/// Most warnings about hidden files. A thousand archives may hide files of each other.
const HIDDEN_WARNINGS_MAX: usize = 3;

fn warn_of_hidden(hidden: &[Hidden]) {
    for Hidden { later, earlier, count, path } in hidden.iter().take(HIDDEN_WARNINGS_MAX) {
        let (files, path) = (counted(*count, "file"), path.escape_ascii());
        log::warn!("{later}: hides {files} of {earlier}, for example {path}");
    }
    let more = hidden.get(HIDDEN_WARNINGS_MAX..).unwrap_or_default();
    if let Some(Hidden { later, .. }) = more.first() {
        let count = more.iter().fold(0_u64, |sum, hidden| sum.saturating_add(hidden.count));
        let files = counted(count, "more file");
        log::warn!("{later}: this and other archives hide {files} of earlier ones");
    }
}
