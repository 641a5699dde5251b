//! One run of packing, from what was asked for to what came of it.
//!
//! Owns the order of the work and what becomes of files that can not be packed; leaves each step to
//! its module.
//! Invariant: an archive appears only when all of it is written, and without files only when that
//! was asked for.

use std::path::PathBuf;

use super::catalog::{Catalog, InodeId};
use super::output::{Existing, Output};
use super::recipe::Recipe;
use super::shards::{self, Sharded, Shards};
use super::source::{self, Sources};
use super::squashfs::{self, Layout};
use super::tar::{self, Members};
use super::{Job, OnProblem, Problem};
use crate::error::Result;
use crate::progress::Progress;
use crate::sync::AtomicBool;

/// What to make of what.
#[derive(Clone, Debug)]
pub struct Request {
    /// What is packed.
    pub sources: Sources,
    /// What the archive will be called; of shards their common part, with `.tar`.
    pub archive: PathBuf,
    /// What becomes of a file of that name.
    pub existing: Existing,
    /// What is made.
    pub form: Form,
    /// What becomes of the archive where files can not be packed.
    pub on_problem: OnProblem,
    /// Threads that read and compress.
    pub threads: usize,
}

/// What is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// A SquashFS image.
    Image(Recipe),
    /// A tar.
    Tar {
        /// The latest time that anything in it shows, seconds since 1970.
        epoch: Option<i64>,
    },
    /// Tars of samples.
    Shards {
        /// Of which size, in which order.
        shards: Shards,
        /// The latest time that anything in them shows, seconds since 1970.
        epoch: Option<i64>,
    },
}

/// What came of it.
#[derive(Debug)]
pub struct PackOutcome {
    /// What was made; `None` where files could not be packed and so nothing was.
    pub made: Option<CreatedArchive>,
    /// Files that could not be packed, by their names.
    pub problems: Vec<Problem>,
    /// Files hidden by files of the same path in later sources.
    pub hidden: u64,
    /// Whether it ended before contents were read, so that there may be more problems.
    pub only_listed: bool,
}

/// An archive that was made.
#[derive(Debug)]
pub enum CreatedArchive {
    /// An image.
    Image(Layout),
    /// A tar.
    Tar(Members),
    /// Tars of samples.
    Shards(Sharded),
}

/// Packs what was asked for; stops soon after `stop` is set.
///
/// # Errors
/// Where a source, a list or a map can not be used at all; `Interrupted`; where the archive can not
/// be written. Files that can not be packed are no error, but told in the answer.
pub fn pack(request: &Request, progress: &Progress, stop: &AtomicBool) -> Result<PackOutcome> {
    let job = Job::new(request.threads, progress, stop);
    // First of all: what can not be written to is known before anything is read.
    let output = || Output::create(&request.archive, request.existing);
    let unwritten = match &request.form {
        Form::Image(recipe) => Unwritten::Image(*recipe, output()?),
        Form::Tar { epoch } => Unwritten::Tar(*epoch, output()?),
        Form::Shards { shards, epoch } => Unwritten::Shards(*shards, *epoch),
    };
    let catalog = source::gather(&job, &request.sources)?;
    let hidden = catalog.hidden();
    let gives_up = || request.on_problem == OnProblem::GiveUp && job.has_problems();
    if gives_up() {
        let problems = job.into_problems();
        return Ok(PackOutcome { made: None, problems, hidden, only_listed: true });
    }
    let (made, unnamed) = unwritten.write(&job, &catalog, request)?;
    if gives_up() {
        let problems = job.into_problems();
        return Ok(PackOutcome { made: None, problems, hidden, only_listed: false });
    }
    job.check()?;
    match unnamed {
        Unnamed::One(output) => output.publish()?,
        Unnamed::Shards(shards) => shards.publish()?,
    }
    let problems = job.into_problems();
    Ok(PackOutcome { made: Some(made), problems, hidden, only_listed: false })
}

/// What is to be written, and where to.
enum Unwritten {
    Image(Recipe, Output),
    Tar(Option<i64>, Output),
    Shards(Shards, Option<i64>),
}

/// What is written and waits for its name.
enum Unnamed {
    One(Output),
    Shards(shards::Waiting),
}

impl Unwritten {
    fn write(
        self,
        job: &Job<'_>,
        catalog: &Catalog,
        request: &Request,
    ) -> Result<(CreatedArchive, Unnamed)> {
        job.progress.begin("packing");
        match self {
            Self::Image(recipe, mut output) => {
                let layout =
                    squashfs::write(job, catalog, &recipe, request.on_problem, &mut output)?;
                Ok((CreatedArchive::Image(layout), Unnamed::One(output)))
            }
            Self::Tar(epoch, mut output) => {
                job.progress.expect(total_bytes(catalog));
                let members = tar::write(job, catalog, epoch, &mut output)?;
                Ok((CreatedArchive::Tar(members), Unnamed::One(output)))
            }
            Self::Shards(shards, epoch) => {
                job.progress.expect(total_bytes(catalog));
                let (archive, existing) = (&request.archive, request.existing);
                let (waiting, sharded) =
                    shards::write(job, catalog, &shards, epoch, archive, existing)?;
                Ok((CreatedArchive::Shards(sharded), Unnamed::Shards(waiting)))
            }
        }
    }
}

/// Bytes of all regular files that have a name, holes among them.
fn total_bytes(catalog: &Catalog) -> u64 {
    let named =
        (0..catalog.len()).map(|nth| InodeId(nth as u32)).filter(|&id| catalog.links(id) > 0);
    named.fold(0, |sum: u64, id| sum.saturating_add(catalog.inode(id).size()))
}
