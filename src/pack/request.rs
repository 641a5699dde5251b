//! One run of packing, from the request to the outcome.
//!
//! Invariant: an archive gets its name only when it is complete. It lacks files only if the request
//! allows that.

use std::path::PathBuf;

use super::catalog::Catalog;
use super::output::{Existing, Output};
use super::shards::{self, Sharded, Shards};
use super::source::{self, Gathered, Sources};
use super::squashfs::{self, Layout, Recipe};
use super::tar::{self, Holes, Members};
use super::{Job, OnProblem, Problem, stale_bytecode};
use crate::error::Result;
use crate::progress::Progress;
use crate::sync::AtomicBool;

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

/// Packs what `request` names. Stops soon after `stop` is set.
///
/// # Errors
/// If a source, a list or a map is unusable; `Interrupted`; if the archive cannot be written. Files
/// that cannot be packed are no error: the outcome lists them.
pub fn pack(request: &Request, progress: &Progress, stop: &AtomicBool) -> Result<PackOutcome> {
    let job = Job::new(request.threads, progress, stop);
    // Create the output first, to fail before anything is read.
    let output = || Output::create_striped(&request.archive, request.existing);
    let unwritten = match &request.form {
        Form::Image(recipe) => Unwritten::Image(*recipe, output()?),
        Form::Tar { epoch, holes } => Unwritten::Tar(*epoch, *holes, output()?),
        Form::Shards { shards, epoch } => Unwritten::Shards(*shards, *epoch),
    };
    let Gathered { catalog, excluded } = source::gather(&job, &request.sources)?;
    let is_aborted = || request.on_problem == OnProblem::Abort && job.has_problems();
    let mut outcome = PackOutcome {
        archive: None,
        problems: Vec::new(),
        hidden: catalog.hidden(),
        hidden_path: catalog.hidden_path().to_vec(),
        excluded,
        only_listed: is_aborted(),
    };
    if !outcome.only_listed {
        let (archive, unnamed) = unwritten.write(&job, &catalog, request)?;
        if !is_aborted() {
            job.check()?;
            match unnamed {
                Unnamed::One(output) => output.publish()?,
                Unnamed::Shards(shards) => shards.publish()?,
            }
            outcome.archive = Some(archive);
        }
    }
    outcome.problems = job.into_problems();
    Ok(outcome)
}

/// An archive that is not written yet, and where it goes.
enum Unwritten {
    Image(Recipe, Output),
    Tar(Option<i64>, Holes, Output),
    Shards(Shards, Option<i64>),
}

/// An archive that is complete but has no name yet.
enum Unnamed {
    One(Output),
    Shards(shards::Unpublished),
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
            Self::Image(recipe, mut output) => {
                let mut layout =
                    squashfs::write(job, catalog, &recipe, request.on_problem, &mut output)?;
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
