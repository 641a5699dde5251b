//! Walks through a source: lists many directories at once and reports files in a fixed order.
//!
//! Invariant: files are reported level by level and by name in a directory, on any number of
//! threads.
//!
//! On a parallel file system each request is a round trip to a server, and the walk takes the
//! number of requests times the latency. So there are more threads than CPU cores, and a directory
//! with many files is cut into parts. Each level is finished before the next one begins. This costs
//! a wait for the last directory of every level, but keeps the order without buffering everything.

use std::ops::ControlFlow;

use super::placing::{CatalogFiller, Destination, Directory, Found, FoundKind, Listed, Source};
use super::selection::{Selection, Wanted};
use crate::error::{Error, Kind, Result};
use crate::ordered::ordered;
use crate::pack::Job;

/// Files that one thread examines at a time.
const PART: usize = 1024;

/// Threads per compute thread. Most of the time they wait.
const THREADS: usize = 4;

/// Minimum and maximum number of threads.
const THREADS_MIN: usize = 8;
const THREADS_MAX: usize = 64;

/// Number of threads that send requests to a file system.
pub(super) fn threads(job: &Job<'_>) -> usize {
    job.threads.saturating_mul(THREADS).clamp(THREADS_MIN, THREADS_MAX)
}

/// Stores a file in its source; returns the key of a directory or regular file.
pub(super) type Keep<'k> = dyn FnMut(&Directory, &[u8], &Found) -> Result<u64> + 'k;

/// A listed directory. `found` is empty for a large directory, whose files are examined in parts.
struct Listing {
    names: Vec<Listed>,
    /// What to pack of each name if a list selects; otherwise empty.
    wanted: Vec<Wanted>,
    found: Vec<Result<Option<Found>>>,
}

/// A walk through one source.
pub(super) struct Walk<'w, 'j> {
    pub(super) job: &'w Job<'j>,
    pub(super) source: &'w dyn Source,
    pub(super) selection: Option<&'w Selection>,
    /// Where the source goes in the catalog.
    pub(super) destination: Destination<'w>,
}

impl Walk<'_, '_> {
    /// Adds everything below `top`, which is the source itself.
    pub(super) fn run(
        &self,
        top: Directory,
        filler: &mut CatalogFiller<'_>,
        keep: &mut Keep<'_>,
    ) -> Result<()> {
        let mut level = vec![top];
        while !level.is_empty() {
            let mut below = Vec::new();
            let mut outcome = Ok(());
            let list = |nth: usize| self.list(&level[nth]);
            ordered(level.len(), threads(self.job), list, |nth, listing| {
                let directory = &level[nth];
                outcome = self.job.check();
                if outcome.is_err() {
                    return ControlFlow::Break(());
                }
                match listing {
                    Err(error) => self.problem(&directory.path, &directory.wanted, &error),
                    Ok(Listing { names, wanted, mut found }) => {
                        if found.is_empty() {
                            outcome = self.parts(directory, &names, &mut found);
                        }
                        let mut wanted = wanted.into_iter();
                        for (listed, found) in names.iter().zip(found) {
                            let wanted = wanted.next().unwrap_or(Wanted::All);
                            let entry = (listed.name.as_ref(), found, wanted);
                            below.extend(self.take(directory, entry, filler, keep));
                        }
                    }
                }
                if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            outcome?;
            level = below;
        }
        Ok(())
    }

    fn list(&self, directory: &Directory) -> Result<Listing> {
        let (names, wanted) = match (&directory.wanted, self.selection) {
            (Wanted::Only(range), Some(selection)) => {
                let children = selection.children(range.clone(), directory.path.len());
                children.map(|(name, wanted)| (Listed { name, number: None }, wanted)).unzip()
            }
            _ => {
                let mut names = self.source.names(directory)?;
                names.sort();
                (names, Vec::new())
            }
        };
        let small = names.len() <= PART && self.job.check().is_ok();
        let found = if small { self.source.examine(directory, &names) } else { Vec::new() };
        Ok(Listing { names, wanted, found })
    }

    fn parts(
        &self,
        directory: &Directory,
        names: &[Listed],
        found: &mut Vec<Result<Option<Found>>>,
    ) -> Result<()> {
        found.reserve_exact(names.len());
        let parts: Vec<_> = names.chunks(PART).collect();
        let examine = |nth: usize| match self.job.check() {
            Ok(()) => self.source.examine(directory, parts[nth]),
            Err(_) => Vec::new(),
        };
        ordered(parts.len(), threads(self.job), examine, |_, answers| {
            found.extend(answers);
            ControlFlow::Continue(())
        });
        self.job.check()
    }

    /// Adds one file to the catalog. Returns the directory to be listed if the file is one.
    fn take(
        &self,
        directory: &Directory,
        (name, found, wanted): (&[u8], Result<Option<Found>>, Wanted),
        filler: &mut CatalogFiller<'_>,
        keep: &mut Keep<'_>,
    ) -> Option<Directory> {
        let found = found.transpose()?;
        let path = directory.path_of(name);
        let entered = match &found {
            Ok(Found { kind: FoundKind::Directory { entered }, .. }) => Some(*entered),
            _ => None,
        };
        if filler.excludes(self.destination.path, &path, entered.is_some()) {
            return None;
        }
        // Leaving out a directory that the list names is a problem; leaving out one below it is
        // not.
        if let (Wanted::Only(_), Some(false)) = (&directory.wanted, entered) {
            let context = "is on another file system, which --one-file-system leaves out";
            self.problem(&path, &wanted, &Error::new(Kind::InvalidInput, context));
        }
        let added = found.and_then(|found| {
            if let (Wanted::Only(_), None) = (&wanted, entered) {
                return Err(Error::new(Kind::NotADirectory, "its parent is not a directory"));
            }
            let (id, key) = (found.id, keep(directory, name, &found)?);
            Ok((id, key, filler.add(&self.destination, directory, name, found, key)?))
        });
        match added {
            Ok((id, key, inode)) => (entered == Some(true)).then(|| Directory {
                path: path.into(),
                id,
                key,
                inode,
                wanted,
            }),
            Err(error) => {
                self.problem(&path, &wanted, &error);
                None
            }
        }
    }

    /// Reports a file that cannot be packed, or all paths below it that the list names.
    fn problem(&self, path: &[u8], wanted: &Wanted, error: &Error) {
        match (wanted, self.selection) {
            (Wanted::Only(range), Some(selection)) => {
                for path in selection.paths(range.clone()) {
                    self.job.problem(self.source.origin(path), error);
                }
            }
            _ => self.job.problem(self.source.origin(path), error),
        }
    }
}
