//! Making archives: from folders, lists of files and other archives to one that is read fast.
//!
//! Owns the order of the work: sources make a catalog of everything, a writer lays it down, the
//! output appears under its name when it is whole. Leaves reading archives to `formats`.
//! Invariants: the same sources give the same bytes, on any number of threads; what could not be
//! packed is named, and nothing half made is left.

use std::collections::HashSet;

use crate::error::{Error, Kind, Result};
use crate::progress::Progress;
use crate::sync::{AtomicBool, Mutex, Ordering};

mod catalog;
mod content;
mod feed;
mod output;
mod recipe;
mod request;
mod shards;
mod source;
mod squashfs;
mod tar;
mod walk;

pub use catalog::Owner;
pub use output::Existing;
pub use recipe::{Compressor, Profile, Recipe};
pub use request::{CreatedArchive, Form, PackOutcome, Request, pack};
pub use shards::{Labels, Sharded, Shards};
pub use source::{FileList, Names, OtherMounts, Separator, Sources};
pub use squashfs::Layout;
pub use tar::Members;

/// What all parts of a run share.
pub(crate) struct Job<'j> {
    /// Threads that read and compress.
    pub(crate) threads: usize,
    pub(crate) progress: &'j Progress,
    /// Set when the run is to stop.
    pub(crate) stop: &'j AtomicBool,
    /// What could not be packed, and of which files that is said. Guards only that; taken alone.
    problems: Mutex<(Vec<Problem>, HashSet<String>)>,
}

/// What becomes of the archive where files can not be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnProblem {
    /// It is made without them.
    GoOn,
    /// There is none. Where all could be listed, all is read, so that every such file is named.
    GiveUp,
}

/// A file that could not be packed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What it is called in its source.
    pub origin: String,
    /// Why.
    pub why: String,
}

impl<'j> Job<'j> {
    /// A run of which nothing is done yet.
    pub(crate) fn new(threads: usize, progress: &'j Progress, stop: &'j AtomicBool) -> Self {
        Self { threads, progress, stop, problems: Mutex::default() }
    }

    /// Whether the run may go on.
    ///
    /// # Errors
    /// `Interrupted` where it may not.
    pub(crate) fn check(&self) -> Result<()> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Error::new(Kind::Interrupted, "interrupted; nothing was made")),
            false => Ok(()),
        }
    }

    /// Remembers a file that can not be packed; the first reason counts.
    pub(crate) fn problem(&self, origin: impl Into<String>, error: &Error) {
        let (origin, why) = (origin.into(), error.to_string());
        // Errors name their file, and so does the list.
        let why = why.strip_prefix(&format!("{origin}: ")).unwrap_or(&why).to_owned();
        let mut problems = self.problems.lock();
        let (list, known) = &mut *problems;
        if known.insert(origin.clone()) {
            list.push(Problem { origin, why });
        }
    }

    /// Remembers something of a source that is missing in the archive; there may be several of one
    /// name.
    pub(crate) fn loss(&self, origin: impl Into<String>, why: impl Into<String>) {
        let problem = Problem { origin: origin.into(), why: why.into() };
        let mut problems = self.problems.lock();
        let (list, known) = &mut *problems;
        // No path holds a NUL.
        if known.insert(format!("{}\0{}", problem.origin, problem.why)) {
            list.push(problem);
        }
    }

    /// Whether there is a file that can not be packed.
    pub(crate) fn has_problems(&self) -> bool {
        !self.problems.lock().0.is_empty()
    }

    /// Files that can not be packed, by name.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        let (mut problems, _) = self.problems.into_inner();
        problems.sort_by(|a, b| a.origin.cmp(&b.origin));
        problems
    }
}
