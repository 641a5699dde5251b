//! Gets the index of an archive, as its `IndexPolicy` says: loads the saved one, or makes a new one
//! of a scanned tree and saves it.
//!
//! Invariant: a saved index that does not match the archive costs a scan, never a wrong tree.

use super::header_checks::HeaderChecks;
use super::options::{IndexPolicy, SavedIndexOptions, TarOptions};
use super::saved_index::{New, SavedIndex};
use crate::error::Result;
use crate::formats::index::{FinishedTree, Index, IndexFile, IndexOptions, unsaved};
use crate::sync::Arc;

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
    saved: Option<(&'o SavedIndexOptions<'o>, SavedIndex)>,
}

/// A new index.
pub(super) struct NewIndex {
    pub(super) index: Index,
    pub(super) is_saved: bool,
}

impl<'o> IndexSource<'o> {
    /// The index of the archive `name`.
    pub(super) fn new(name: &'o str, options: &'o TarOptions<'o>) -> Self {
        let with_index = |saved: &'o SavedIndexOptions<'o>| {
            (saved, SavedIndex::new(saved.file, saved.path, options.recursive))
        };
        Self { name, options, saved: options.saved.as_ref().map(with_index) }
    }

    /// The result of `SavedIndex::load`, if the policy is to use a saved index.
    pub(super) fn load<T>(
        &self,
        fit: impl Fn(IndexFile) -> Result<T>,
    ) -> Option<(T, Option<HeaderChecks>)> {
        let (saved, saved_index) = self.saved.as_ref()?;
        match saved.policy {
            IndexPolicy::SaveIfWorthwhile => {
                saved_index.load(saved.file, self.options.indexes, fit)
            }
            IndexPolicy::Save | IndexPolicy::Compare | IndexPolicy::Ignore => None,
        }
    }

    /// Makes the index of a new tree, of an archive of `archive_len` bytes. Saves it or compares it
    /// with the saved one. Samples of blocks at some of `offsets` identify the archive.
    pub(super) fn make(
        &self,
        finished: FinishedTree,
        archive_len: u64,
        offsets: &[u64],
    ) -> Result<NewIndex> {
        let &Self { name, options, ref saved } = self;
        let unsaved = |finished| unsaved(finished, archive_len, name, options.indexes);
        let not_saved = |finished| {
            log::info!("{name}: index made, not saved");
            Ok(NewIndex { index: unsaved(finished)?, is_saved: false })
        };
        let Some((saved, saved_index)) = saved else {
            return not_saved(finished);
        };
        if saved.policy == IndexPolicy::Compare {
            let seek_points = finished.seek_points.clone();
            let mut index = unsaved(finished)?;
            let findings = saved_index.compare(saved.file, &index, &seek_points, options.indexes);
            index.findings.extend(findings);
            return Ok(NewIndex { index, is_saved: false });
        }
        match save(&finished, archive_len, offsets, (saved, saved_index), options)? {
            Some(index) => {
                Ok(NewIndex { index: index.with_findings(finished.findings), is_saved: true })
            }
            None => not_saved(finished),
        }
    }
}

/// Saves a new index if that is worthwhile or asked for, and returns it if it was saved.
fn save(
    finished: &FinishedTree,
    archive_len: u64,
    offsets: &[u64],
    (saved, saved_index): (&SavedIndexOptions<'_>, &SavedIndex),
    options: &TarOptions<'_>,
) -> Result<Option<Index>> {
    let &SavedIndexOptions { file, policy, .. } = saved;
    let key = saved_index.key(file, offsets)?;
    let is_slow_to_make = !finished.seek_points.is_empty() && key.len >= MIN_COMPRESSED_SAVED;
    let worthwhile = finished.len() >= MIN_MEMBERS_SAVED || is_slow_to_make;
    let wanted = saved_index.can_be_identified() && (worthwhile || saved_index.is_named());
    if policy == IndexPolicy::SaveIfWorthwhile && !wanted {
        return Ok(None);
    }
    let new = New { finished, key: &key, archive_len };
    match saved_index.save(file, &new, policy == IndexPolicy::Save) {
        Ok((path, file)) => {
            let (archive, index) = (saved_index.archive().display(), path.display());
            match policy {
                IndexPolicy::Save => {
                    crate::log::note(format_args!("{archive}: index saved as {index}"));
                }
                _ => log::info!("{archive}: index saved as {index}"),
            }
            let name = path.display().to_string();
            let index_options = IndexOptions::new(&name, options.indexes);
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
