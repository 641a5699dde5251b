//! Writes a tree to a directory: contents in parallel, in the order of the archive.
//!
//! Invariants: nothing is written outside the target, because every directory is opened by its name
//! in the one above it and no symbolic link is followed. A file that could not be written
//! completely is removed. Directories get their permissions and times last, when nothing in them
//! changes any more.
//!
//! Memory grows with the number of names (about 60 bytes and the name), not with the bytes.

use std::fs::File;
use std::path::Path;

use rustix::fs::fstatvfs;
use rustix::io::Errno;

use crate::error::{Error, Kind, Result, reason};
use crate::os::{memory, processors, unlinked};
use crate::progress::Progress;
use crate::sync::{AtomicBool, Mutex, Ordering};
use crate::units::{Size, counted};
use crate::vfs::{Counts, Finding, Location, Tree};

mod attributes;
mod contents;
mod hold;
mod listing;
mod target;

pub(crate) use hold::{Hold, SafeParent, keep, remove_ended};

use contents::Contents;
use listing::{Listing, Selection};
use target::Target;

/// How to extract a tree.
#[derive(Clone, Copy, Debug)]
pub struct ExtractOptions<'o> {
    /// The paths to extract, with everything below them; all if empty.
    pub only: &'o [Vec<u8>],
    /// What to do with a file that exists.
    pub existing: Existing,
    /// Number of threads that write.
    pub threads: usize,
    /// Set when the work must stop.
    pub interrupt: &'o AtomicBool,
}

/// What to do with a file that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Keep it and report an error.
    Keep,
    /// Replace it.
    Replace,
}

/// What was extracted.
#[derive(Debug, Default)]
pub struct Extracted {
    /// Counts of what was written. A hard link counts as a file; its bytes count once.
    pub counts: Counts,
    /// The files that were not written, sorted by path.
    pub problems: Vec<Finding>,
    /// Number of problems that are files which exist.
    pub existing: u64,
    /// What this system or this user cannot set, such as the owner.
    pub left_out: Vec<LeftOut>,
}

/// Something that was not restored, for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// What it is, such as `owner`.
    pub what: &'static str,
    /// Why, as the system says it.
    pub why: String,
    /// Number of files.
    pub count: u64,
    /// The path of one of them.
    pub path: Vec<u8>,
}

/// The least number of threads. On a parallel file system, creating files is mostly waiting.
const THREADS_MIN: usize = 4;

/// Number of threads by default.
pub fn usual_threads() -> usize {
    processors::count().max(THREADS_MIN)
}

/// Writes `tree` to `directory`, which is created if it is missing.
///
/// # Errors
/// `NotFound` if a path of `options.only` is not in the tree; `Io` if the directory cannot be used,
/// if there is no room, or if the file system became full; `Interrupted`. Other errors are problems
/// of single files.
pub fn extract(
    tree: &dyn Tree,
    directory: &Path,
    options: ExtractOptions<'_>,
    progress: &Progress,
) -> Result<Extracted> {
    progress.begin("reading names");
    let selection = Selection::of(tree, options.only)?;
    let report = Report::new(options.interrupt);
    let listing = Listing::of(tree, &selection, &report)?;
    let target = Target::open(directory)?;
    if options.existing == Existing::Keep {
        check_room(target.file(), &listing).inspect_err(|_| target.give_up())?;
    }
    progress.begin("extracting");
    progress.expect(listing.bytes);
    let unusable = target::create_directories(&listing, &target, &report);
    let contents = Contents {
        tree,
        listing: &listing,
        target: &target,
        unusable: &unusable,
        existing: options.existing,
        report: &report,
        progress,
    };
    contents.write(options.threads);
    report.check_stopped()?;
    target::complete_directories(tree, (&listing, &unusable), &target, &report);
    report.check_stopped()?;
    Ok(report.into_extracted())
}

/// Fails if the file system of `target` cannot hold the files.
fn check_room(target: &File, listing: &Listing) -> Result<()> {
    let failed = |error| Error::io("cannot get the free space", error);
    let needed = listing.bytes_on_disk;
    if let Some(free) = unlinked::free_bytes(target).map_err(failed)?.filter(|&free| free < needed)
    {
        return Err(does_not_fit(needed, &format!("only {} are free", Size(free))));
    }
    if let Some(left) = memory::headroom().filter(|left| left.bytes < needed)
        && unlinked::is_in_memory(target)
    {
        let left = format!("{} {}", left.bound.leaves(), Size(left.bytes));
        return Err(does_not_fit(needed, &format!("the directory is in memory, and {left}")));
    }
    let statistics = fstatvfs(target).map_err(|error| failed(error.into()))?;
    // Some file systems have no fixed number of inodes and report 0.
    let inodes = listing.entries.len() as u64 + listing.directories.len() as u64;
    if statistics.f_files > 0 && statistics.f_favail < inodes {
        let (files, free) = (counted(inodes, "file"), statistics.f_favail);
        let context = format!("{files} do not fit: the file system has room for {free}");
        return Err(Error::new(Kind::Io, context));
    }
    Ok(())
}

fn does_not_fit(needed: u64, left: &str) -> Error {
    let context = format!("the files take {}, but {left}", Size(needed));
    let hint = "mount the archive instead (`archfs mount`), or extract a part of it with --only";
    Error::new(Kind::Io, context).with_hint(hint)
}

/// Why a file was not written, or its attributes were not restored.
enum Failure {
    /// The archive cannot be read.
    Tree(Error),
    /// There is a file with its name.
    Exists,
    /// There is something else in the place of a directory.
    NotADirectory,
    /// What could not be done, and the answer of the system.
    System(&'static str, Errno),
}

/// What happened during an extraction, gathered from all threads. No lock is held over I/O.
struct Report<'i> {
    interrupt: &'i AtomicBool,
    has_ended: AtomicBool,
    /// Guards only these; no other lock is held with it.
    state: Mutex<ReportState>,
}

#[derive(Default)]
struct ReportState {
    extracted: Extracted,
    /// Why everything has to stop.
    fatal: Option<Error>,
}

/// An error of the system about the target that every other file would meet as well.
fn is_fatal(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::STALE)
}

impl<'i> Report<'i> {
    fn new(interrupt: &'i AtomicBool) -> Self {
        Self { interrupt, has_ended: AtomicBool::new(false), state: Mutex::default() }
    }

    fn is_stopped(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed) || self.has_ended.load(Ordering::Relaxed)
    }

    fn check_stopped(&self) -> Result<()> {
        if let Some(error) = self.state.lock().fatal.take() {
            return Err(error);
        }
        if self.interrupt.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Interrupted, "interrupted; the directory is incomplete"));
        }
        Ok(())
    }

    fn written(&self, counts: Counts) {
        self.state.lock().extracted.counts.add(counts);
    }

    /// A problem of one file, with this error.
    fn problem_of(&self, path: Vec<u8>, error: &Error) {
        self.problem(Finding::from_error(Location::Path(path), error));
    }

    fn problem(&self, finding: Finding) {
        self.state.lock().extracted.problems.push(finding);
    }

    /// A file could not be written, or its attributes could not be restored.
    fn failed(&self, path: Vec<u8>, failure: &Failure) {
        match failure {
            Failure::Tree(error) if error.kind() == Kind::Unreachable => {
                self.end(error.copy(), &path);
            }
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

    fn unwritable(&self, path: Vec<u8>, doing: &str, errno: Errno) {
        let error = Error::io(doing, errno.into());
        match is_fatal(errno) {
            true => self.end(error, &path),
            false => self.problem_of(path, &error),
        }
    }

    /// Stops everything because of the file at `path`.
    fn end(&self, error: Error, path: &[u8]) {
        self.has_ended.store(true, Ordering::Relaxed);
        let error = error.within(String::from_utf8_lossy(path));
        self.state.lock().fatal.get_or_insert(error);
    }

    fn left_out(&self, what: &'static str, path: &dyn Fn() -> Vec<u8>, errno: Errno) {
        let why = reason(std::io::Error::from(errno));
        let mut state = self.state.lock();
        let known = &mut state.extracted.left_out;
        match known.iter_mut().find(|known| known.what == what && known.why == why) {
            Some(known) => known.count += 1,
            None => known.push(LeftOut { what, why, count: 1, path: path() }),
        }
    }

    fn into_extracted(self) -> Extracted {
        let mut extracted = self.state.into_inner().extracted;
        extracted.problems.sort_by(|a, b| (&a.location, &a.what).cmp(&(&b.location, &b.what)));
        extracted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// > `extract`, `pack` and `verify` stop at the first read that a server does not answer in
    /// > time.
    #[test]
    fn a_server_that_does_not_answer_ends_an_extraction() {
        let interrupt = AtomicBool::new(false);
        let report = Report::new(&interrupt);
        report.failed(b"a".to_vec(), &Failure::Tree(Error::corrupt("damaged")));
        assert!(!report.is_stopped());
        let error = Error::new(Kind::Unreachable, "no answer").with_hint("ask again");
        report.failed(b"b".to_vec(), &Failure::Tree(error));
        assert!(report.is_stopped());
        let error = report.check_stopped().unwrap_err();
        assert_eq!((error.kind(), error.hint()), (Kind::Unreachable, Some("ask again")));
        assert_eq!(error.to_string(), "b: no answer");
    }
}
