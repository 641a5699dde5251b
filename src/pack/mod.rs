//! Makes archives from directories, lists of files and other archives.
//!
//! Sources fill a catalog, a writer turns the catalog into an archive, and the archive appears
//! under its name when it is complete. `formats` reads archives.
//!
//! Invariants: the same sources give the same bytes on any number of threads. Every file that could
//! not be packed is reported. A failed run leaves no partial archive.

use std::collections::HashSet;

use crate::error::{Error, Kind, Result};
use crate::progress::Progress;
use crate::sync::{AtomicBool, Mutex, Ordering};
use crate::vfs::{Finding, Severity};

mod catalog;
mod feed;
mod output;
mod request;
mod shards;
mod source;
mod squashfs;
mod stale_bytecode;
mod tar;

pub use catalog::Owner;
pub use output::Existing;
pub use request::{CreatedArchive, Form, PackOutcome, Request, pack};
pub use shards::{Labels, Sharded, Shards};
pub use source::{Excludes, FileList, OtherMounts, OutputNames, Separator, Sources, XattrRule};
pub use squashfs::{Compressor, Layout, Profile, Recipe};
pub use tar::{Holes, Members};

/// State shared by all parts of a run.
pub(crate) struct Job<'j> {
    /// Threads that read and compress.
    pub(crate) threads: usize,
    pub(crate) progress: &'j Progress,
    /// Set to stop the run.
    pub(crate) stop: &'j AtomicBool,
    /// The problems, and a set that keeps them unique. Never held together with another lock.
    problems: Mutex<(Vec<Problem>, HashSet<String>)>,
}

/// What happens to the archive if files cannot be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnProblem {
    /// The archive is written without them.
    Continue,
    /// No archive is written. If all sources could be listed, all contents are still read, so that
    /// every such file is reported.
    Abort,
}

/// A file that could not be packed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its path, as shown in messages.
    pub origin: String,
    /// Why it could not be packed.
    pub why: String,
    /// Whether the archive that it comes from is damaged.
    pub is_damage: bool,
}

impl<'j> Job<'j> {
    /// A run that has not started yet.
    pub(crate) fn new(threads: usize, progress: &'j Progress, stop: &'j AtomicBool) -> Self {
        Self { threads, progress, stop, problems: Mutex::default() }
    }

    /// Checks that the run was not interrupted.
    ///
    /// # Errors
    /// `Interrupted` if it was.
    pub(crate) fn check(&self) -> Result<()> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Error::new(Kind::Interrupted, "interrupted; no archive was made")),
            false => Ok(()),
        }
    }

    /// Records a file that cannot be packed. Only the first reason for each file is kept.
    pub(crate) fn problem(&self, origin: impl Into<String>, error: &Error) {
        let (origin, why) = (origin.into(), error.to_string());
        // Errors name their file, and so does the list of problems.
        let why = why.strip_prefix(&format!("{origin}: ")).unwrap_or(&why).to_owned();
        let mut problems = self.problems.lock();
        let (list, known) = &mut *problems;
        if known.insert(origin.clone()) {
            list.push(Problem { origin, why, is_damage: error.is_damage() });
        }
    }

    /// Records something that the archive will lack. Unlike `problem`, it keeps several entries for
    /// one path.
    pub(crate) fn loss(&self, origin: impl Into<String>, finding: Finding) {
        let is_damage = finding.severity == Severity::Damage;
        let problem = Problem { origin: origin.into(), why: finding.what, is_damage };
        let mut problems = self.problems.lock();
        let (list, known) = &mut *problems;
        // Paths contain no NUL.
        if known.insert(format!("{}\0{}", problem.origin, problem.why)) {
            list.push(problem);
        }
    }

    /// Whether any problem was recorded.
    pub(crate) fn has_problems(&self) -> bool {
        !self.problems.lock().0.is_empty()
    }

    /// The recorded problems, sorted by path.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        let (mut problems, _) = self.problems.into_inner();
        problems.sort_by(|a, b| a.origin.cmp(&b.origin));
        problems
    }
}
