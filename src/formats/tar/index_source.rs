//! Gets the index of an archive, as its `IndexPolicy` says: loads the saved one, or makes a new one
//! of a scanned tree and saves it.
//!
//! Invariant: a saved index that does not match the archive costs a scan, never a wrong tree.

use std::path::Path;

use super::header_checks::HeaderChecks;
use super::member::Nesting;
use super::saved_index::SavedIndex;
use crate::error::Result;
use crate::formats::index::{
    Acls, Allowance, FinishedTree, Index, IndexFile, IndexOptions, unsaved,
};
use crate::progress::Progress;
use crate::storage::FileStorage;
use crate::sync::Arc;

/// How to open an archive.
pub(crate) struct TarOptions<'o> {
    /// Whether archives in it are shown as directories.
    pub(crate) recursive: bool,
    /// Where to find and save an index. `None` if the archive is not a file of its own.
    pub(crate) saved: Option<SavedIndexOptions<'o>>,
    pub(crate) progress: &'o Progress,
    /// Whether a tar with missing members is opened. Otherwise that is an error.
    pub(crate) partial: bool,
    /// Whether the notes of the index are logged.
    pub(crate) logs_notes: bool,
    /// Memory for decompressed chunks, bytes.
    pub(crate) memory: u64,
    pub(crate) acls: Acls,
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

/// An index with at least this many members is saved without being asked for.
const MIN_MEMBERS_SAVED: usize = 1000;

/// So is an index that took at least this many compressed bytes to make.
const MIN_COMPRESSED_SAVED: u64 = 4 << 20;

/// Where the index of one archive comes from.
pub(super) struct IndexSource<'o> {
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
    pub(super) fn new(name: &'o str, options: &'o TarOptions<'o>) -> Self {
        let saved = options.saved.as_ref().map(|&SavedIndexOptions { file, path, policy }| {
            (policy, SavedIndex::new(file, path, options.recursive, options.indexes))
        });
        Self { name, options, saved }
    }

    /// The first saved index that can be trusted and passes `check`, with what that returned, if
    /// the policy is to use a saved index.
    pub(super) fn load<T>(
        &self,
        check: impl Fn(&IndexFile) -> Result<T>,
    ) -> Option<(T, OpenIndex)> {
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
    pub(super) fn make(
        &self,
        finished: FinishedTree,
        archive_len: u64,
        offsets: &[u64],
    ) -> Result<OpenIndex> {
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
        let wanted = saved.can_be_identified() && (worthwhile || saved.is_named);
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
