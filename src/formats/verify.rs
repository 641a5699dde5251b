//! Checks an archive: reads all data and compares the tables.
//!
//! Headers are scanned again, and findings in inner archives are reported under their paths.
//!
//! Invariant: no index is saved, and no saved index is trusted.

use std::path::PathBuf;
use std::slice;

use super::opening::{Memory, Opening};
use super::{FindingSink, IndexPolicy, OpenOptions};
use crate::error::Result;
use crate::progress::Progress;
use crate::storage::{self, Changes, FillScope};
use crate::vfs::{self, Layer, Verified};

/// Reads the whole archive at `path` with `threads` threads. Ignores `options.index_policy`
/// and `options.findings`.
pub fn verify(
    path: &PathBuf,
    options: &OpenOptions,
    threads: usize,
    progress: &Progress,
) -> Result<Verified> {
    let files =
        storage::open_files(slice::from_ref(path), Changes::default(), FillScope::Announced)?;
    let options = OpenOptions {
        index_policy: IndexPolicy::Compare,
        findings: FindingSink::Return,
        partial: true,
        reads_all: true,
        ..options.clone()
    };
    progress.begin(super::reading_headers(&files));
    let memory = Memory::new(1, &options);
    let image_bytes = memory.image_bytes;
    let opening = Opening { options: &options, memory: &memory, progress, image_bytes };
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
