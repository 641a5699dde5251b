//! Makes archives from directories, lists of files and other archives.
//!
//! Sources fill a catalog, a writer turns the catalog into an archive, and the archive appears
//! under its name when it is complete. `formats` reads archives.
//!
//! Invariants: the same sources give the same bytes on any number of threads. Every file that could
//! not be packed is reported. A failed run leaves no partial archive, and an archive lacks files
//! only if the request allows that.

use std::collections::HashSet;
use std::path::PathBuf;

use self::catalog::Catalog;
use self::output::Output;
use self::source::Gathered;
use self::squashfs::Base;
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;
use crate::sync::{AtomicBool, Mutex, OnceLock, Ordering};
use crate::vfs::{Finding, Severity};

mod catalog;
mod feed;
mod output;
mod shards;
mod source;
mod squashfs;
mod stale_bytecode;
mod tar;

pub use catalog::Owner;
pub use output::Existing;
pub use shards::{Labels, Sharded, Shards};
pub use source::{Excludes, FileList, OtherMounts, OutputNames, Separator, Sources, XattrRule};
pub use squashfs::{Compressor, Layout, Profile, Recipe};
pub use tar::{Holes, Members};

/// What to pack, and where to.
#[derive(Clone, Debug)]
pub struct Request {
    /// What to pack.
    pub sources: Sources,
    /// The path of the archive. For shards, their common name with `.tar`.
    pub archive: PathBuf,
    /// What happens to an existing file at that path.
    pub existing: Existing,
    /// The form of the archive.
    pub form: Form,
    /// An earlier image, whose blocks are copied for files that have not changed. Only for images.
    pub base: Option<PathBuf>,
    /// What happens to the archive if files cannot be packed.
    pub on_problem: OnProblem,
    /// Threads that read and compress.
    pub threads: usize,
}

/// The form of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// A SquashFS image.
    Image(Recipe),
    /// A tar archive.
    Tar {
        /// Later times are replaced by this one, seconds since 1970.
        epoch: Option<i64>,
        /// How holes are stored.
        holes: Holes,
    },
    /// Tar archives of samples.
    Shards {
        /// Their size and order.
        shards: Shards,
        /// Later times are replaced by this one, seconds since 1970.
        epoch: Option<i64>,
    },
}

/// The outcome of a run.
#[derive(Debug)]
pub struct PackOutcome {
    /// The archive; `None` if files could not be packed and the request does not allow that.
    pub archive: Option<CreatedArchive>,
    /// Files that could not be packed, by their names.
    pub problems: Vec<Problem>,
    /// Number of files hidden by files with the same path in later sources.
    pub hidden: u64,
    /// The path of one of them, without a leading slash.
    pub hidden_path: Vec<u8>,
    /// Number of files and directories that were excluded, not counting those below excluded
    /// directories.
    pub excluded: u64,
    /// Whether the run ended before contents were read, so that more files may have problems.
    pub only_listed: bool,
}

/// What a new archive contains.
#[derive(Debug)]
pub enum CreatedArchive {
    /// A SquashFS image.
    Image(Layout),
    /// A tar archive.
    Tar(Members),
    /// Tar archives of samples.
    Shards(Sharded),
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

/// Most problems that are logged if there is no outcome.
const PROBLEMS_LOGGED: usize = 10;

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

/// Packs what `request` names. Stops soon after `stop` is set.
///
/// # Errors
/// If a source, a list or a map is unusable; `Interrupted`; if the archive cannot be written. Files
/// that cannot be packed are no error: the outcome lists them.
pub fn pack(request: &Request, progress: &Progress, stop: &AtomicBool) -> Result<PackOutcome> {
    let job = Job::new(request.threads, progress, stop);
    let mut outcome = pack_by(&job, request).inspect_err(|_| job.log_problems())?;
    outcome.problems = job.into_problems();
    Ok(outcome)
}

fn pack_by(job: &Job<'_>, request: &Request) -> Result<PackOutcome> {
    // Create the output first, to fail before anything is read.
    let output = || Output::create_striped(&request.archive, request.existing);
    let unwritten = match &request.form {
        Form::Image(recipe) => {
            let output = output()?;
            let base = request.base.as_ref().map(|path| Base::open(job, path)).transpose()?;
            let recipe = base.as_ref().map_or(Ok(*recipe), |base| base.fitted(*recipe))?;
            Unwritten::Image(recipe, base, output)
        }
        Form::Tar { epoch, holes } => Unwritten::Tar(*epoch, *holes, output()?),
        Form::Shards { shards, epoch } => Unwritten::Shards(*shards, *epoch),
    };
    let Gathered { catalog, excluded } = source::gather(job, &request.sources)?;
    job.check()?;
    let is_aborted = || request.on_problem == OnProblem::Abort && job.has_problems();
    let mut outcome = PackOutcome {
        archive: None,
        problems: Vec::new(),
        hidden: catalog.hidden,
        hidden_path: catalog.hidden_path.clone(),
        excluded,
        only_listed: is_aborted(),
    };
    if !outcome.only_listed {
        let (archive, unnamed) = unwritten.write(job, &catalog, request)?;
        if !is_aborted() {
            job.check()?;
            catalog.check()?;
            match unnamed {
                Unnamed::One(output) => output.publish()?,
                Unnamed::Shards(shards) => shards.publish()?,
            }
            outcome.archive = Some(archive);
        }
    }
    Ok(outcome)
}

/// An archive that is not written yet, and where it goes.
enum Unwritten {
    Image(Recipe, Option<Base>, Output),
    Tar(Option<i64>, Holes, Output),
    Shards(Shards, Option<i64>),
}

/// An archive that is complete but has no name yet.
enum Unnamed {
    One(Output),
    Shards(shards::ShardSet),
}

impl Unwritten {
    fn write(
        self,
        job: &Job<'_>,
        catalog: &Catalog,
        request: &Request,
    ) -> Result<(CreatedArchive, Unnamed)> {
        job.progress.begin("packing");
        let stale =
            |epoch: Option<i64>| epoch.and_then(|epoch| stale_bytecode::note(catalog, epoch));
        match self {
            Self::Image(recipe, base, mut output) => {
                let on_problem = request.on_problem;
                let mut layout =
                    squashfs::write(job, catalog, &recipe, base.as_ref(), on_problem, &mut output)?;
                layout.notes.extend(stale(recipe.epoch));
                Ok((CreatedArchive::Image(layout), Unnamed::One(output)))
            }
            Self::Tar(epoch, holes, mut output) => {
                job.progress.expect(total_bytes(catalog));
                let mut members = tar::write(job, catalog, epoch, holes, &mut output)?;
                members.notes.extend(stale(epoch));
                Ok((CreatedArchive::Tar(members), Unnamed::One(output)))
            }
            Self::Shards(shards, epoch) => {
                job.progress.expect(total_bytes(catalog));
                let (archive, existing) = (&request.archive, request.existing);
                let (unpublished, sharded) =
                    shards::write(job, catalog, &shards, epoch, archive, existing)?;
                Ok((CreatedArchive::Shards(sharded), Unnamed::Shards(unpublished)))
            }
        }
    }
}

/// Bytes of all regular files that have a name, holes included.
fn total_bytes(catalog: &Catalog) -> u64 {
    catalog.named().fold(0, |sum: u64, id| sum.saturating_add(catalog.inode(id).size()))
}

/// State shared by all parts of a run.
pub(crate) struct Job<'j> {
    pub(crate) threads: usize,
    pub(crate) progress: &'j Progress,
    /// Set to stop the run.
    pub(crate) stop: &'j AtomicBool,
    /// The problems, and a set that keeps them unique. Never held together with another lock.
    problems: Mutex<(Vec<Problem>, HashSet<String>)>,
    /// Why the run stops, other than by `stop`.
    fatal: OnceLock<Error>,
}

impl<'j> Job<'j> {
    pub(crate) fn new(threads: usize, progress: &'j Progress, stop: &'j AtomicBool) -> Self {
        Self { threads, progress, stop, problems: Mutex::default(), fatal: OnceLock::new() }
    }

    /// Checks that the run was not interrupted, and that all servers answer.
    ///
    /// # Errors
    /// `Interrupted` if it was; `Unreachable`.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(error) = self.fatal.get() {
            return Err(error.copy().within("no archive was made"));
        }
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Error::new(Kind::Interrupted, "interrupted; no archive was made")),
            false => Ok(()),
        }
    }

    /// Records a file that cannot be packed. Only the first reason for each file is kept.
    pub(crate) fn problem(&self, origin: impl Into<String>, error: &Error) {
        let (origin, why) = (origin.into(), error.to_string());
        if error.kind() == Kind::Unreachable {
            // All other files would wait as long.
            let _ = self.fatal.set(error.copy());
        }
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

    pub(crate) fn has_problems(&self) -> bool {
        !self.problems.lock().0.is_empty()
    }

    /// Logs the recorded problems, for a caller that gets no outcome.
    fn log_problems(&self) {
        for Problem { origin, why, .. } in self.problems.lock().0.iter().take(PROBLEMS_LOGGED) {
            log::error!("{origin}: {why}");
        }
    }

    /// The recorded problems, sorted by path.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        let (mut problems, _) = self.problems.into_inner();
        problems.sort_by(|a, b| a.origin.cmp(&b.origin));
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// > `extract`, `pack` and `verify` stop at the first read that a server does not answer in
    /// > time.
    #[test]
    fn a_server_that_does_not_answer_ends_a_run() {
        let (progress, stop) = (Progress::default(), AtomicBool::new(false));
        let job = Job::new(1, &progress, &stop);
        job.problem("a", &Error::corrupt("damaged"));
        job.check().unwrap();
        job.problem("b", &Error::new(Kind::Unreachable, "no answer"));
        let error = job.check().unwrap_err();
        assert_eq!((error.kind(), job.has_problems()), (Kind::Unreachable, true));
        assert_eq!(error.to_string(), "no archive was made: no answer");
    }
}
