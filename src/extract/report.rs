//! What happened during an extraction, gathered from all threads.
//!
//! Invariant: no lock is held over I/O.

use rustix::io::Errno;

use super::{Extracted, LeftOut};
use crate::error::{Error, Kind, Result, reason};
use crate::sync::{AtomicBool, Mutex, Ordering};
use crate::vfs::{Counts, Finding, Location};

/// Why a file was not written, or its attributes were not restored.
pub(super) enum Failure {
    /// The archive cannot be read.
    Tree(Error),
    /// There is a file with its name.
    Exists,
    /// There is something else in the place of a directory.
    NotADirectory,
    /// What could not be done, and the answer of the system.
    System(&'static str, Errno),
}

/// Gathers results.
pub(super) struct Report<'i> {
    interrupt: &'i AtomicBool,
    is_full: AtomicBool,
    /// Guards only these; no other lock is held with it.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    extracted: Extracted,
    /// Why everything has to stop.
    fatal: Option<Error>,
}

/// An error of the system about the target that every other file would meet as well.
fn is_fatal(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::STALE)
}

impl<'i> Report<'i> {
    pub(super) fn new(interrupt: &'i AtomicBool) -> Self {
        Self { interrupt, is_full: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Whether the work has to stop.
    pub(super) fn is_stopped(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed) || self.is_full.load(Ordering::Relaxed)
    }

    pub(super) fn check_stopped(&self) -> Result<()> {
        if let Some(error) = self.state.lock().fatal.take() {
            return Err(error);
        }
        if self.interrupt.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Interrupted, "interrupted; the directory is incomplete"));
        }
        Ok(())
    }

    /// Counts something that was written.
    pub(super) fn written(&self, counts: Counts) {
        self.state.lock().extracted.counts.add(counts);
    }

    /// A problem of one file, with this error.
    pub(super) fn problem_of(&self, path: Vec<u8>, error: &Error) {
        self.problem(Finding::from_error(Location::Path(path), error));
    }

    /// A problem of one file.
    pub(super) fn problem(&self, finding: Finding) {
        self.state.lock().extracted.problems.push(finding);
    }

    /// A file could not be written, or its attributes could not be restored.
    pub(super) fn failed(&self, path: Vec<u8>, failure: &Failure) {
        match failure {
            Failure::Tree(error) => self.problem_of(path, error),
            Failure::Exists => {
                self.problem_of(path, &Error::new(Kind::Busy, "already exists"));
                self.state.lock().extracted.existing += 1;
            }
            Failure::NotADirectory => {
                let context = "exists and is not a directory";
                self.problem_of(path, &Error::new(Kind::Busy, context));
            }
            Failure::System(doing, errno) => self.unwritable(path, doing, *errno),
        }
    }

    /// The system did not do something.
    pub(super) fn unwritable(&self, path: Vec<u8>, doing: &str, errno: Errno) {
        let error = Error::io(doing, errno.into());
        if is_fatal(errno) {
            self.is_full.store(true, Ordering::Relaxed);
            let error = error.within(String::from_utf8_lossy(&path));
            self.state.lock().fatal.get_or_insert(error);
            return;
        }
        self.problem_of(path, &error);
    }

    /// `what` of a file was not restored.
    pub(super) fn left_out(&self, what: &'static str, path: &dyn Fn() -> Vec<u8>, errno: Errno) {
        let why = reason(std::io::Error::from(errno));
        let mut state = self.state.lock();
        let known = &mut state.extracted.left_out;
        match known.iter_mut().find(|known| known.what == what && known.why == why) {
            Some(known) => known.count += 1,
            None => known.push(LeftOut { what, why, count: 1, path: path() }),
        }
    }

    pub(super) fn into_extracted(self) -> Extracted {
        let mut extracted = self.state.into_inner().extracted;
        extracted.problems.sort_by(|a, b| (&a.location, &a.what).cmp(&(&b.location, &b.what)));
        extracted
    }
}
