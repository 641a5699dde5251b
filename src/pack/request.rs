//! One run of packing, from what was asked for to what came of it.
//!
//! Owns the order of the work and what becomes of files that can not be packed; leaves each step to
//! its module.
//! Invariant: an archive appears only when all of it is written, and without files only when that
//! was asked for.

use std::path::PathBuf;

use super::catalog::{Catalog, What};
use super::output::{Existing, Output};
use super::recipe::Recipe;
use super::shards::{self, Shards};
use super::source::{self, Sources};
use super::squashfs::{self, Layout};
use super::tar::{self, Members};
use super::{Job, Problem};
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
    /// What becomes of files that can not be packed.
    pub failures: Failures,
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
    Shards(Shards),
}

/// What becomes of the archive where files can not be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failures {
    /// There is none.
    Refuse,
    /// It is made without them.
    LeaveOut,
}

/// What came of it.
#[derive(Debug)]
pub struct Packed {
    /// What was made; `None` where files could not be packed and so nothing was.
    pub made: Option<Made>,
    /// Files that could not be packed, by their names.
    pub problems: Vec<Problem>,
    /// Files hidden by files of the same path in later sources.
    pub hidden: u64,
}

/// An archive that was made.
#[derive(Debug)]
pub enum Made {
    /// An image.
    Image(Layout),
    /// A tar.
    Tar(Members),
    /// Tars of samples.
    Shards(shards::Written),
}

/// Packs what was asked for; stops soon after `stop` is set.
///
/// # Errors
/// Where a source, a list or a map can not be used at all; `Interrupted`; where the archive can not
/// be written. Files that can not be packed are no error, but told in the answer.
pub fn pack(request: &Request, progress: &Progress, stop: &AtomicBool) -> Result<Packed> {
    let job = Job::new(request.threads, progress, stop);
    // First of all: what can not be written to is known before anything is read.
    let output = match request.form {
        Form::Shards(_) => None,
        _ => Some(Output::create(&request.archive, request.existing)?),
    };
    let catalog = source::gather(&job, &request.sources)?;
    let refuses = request.failures == Failures::Refuse;
    let nothing = |problems| Packed { made: None, problems, hidden: catalog.hidden() };
    if refuses && job.has_problems() {
        return Ok(nothing(job.into_problems()));
    }
    progress.begin("packing");
    progress.expect(total_bytes(&catalog));
    let (made, publish) = match (&request.form, output) {
        (Form::Image(recipe), Some(mut output)) => {
            let layout = squashfs::write(&job, &catalog, recipe, request.failures, &mut output)?;
            (Made::Image(layout), Publish::One(output))
        }
        (Form::Tar { epoch }, Some(mut output)) => {
            let members = tar::write(&job, &catalog, *epoch, &mut output)?;
            (Made::Tar(members), Publish::One(output))
        }
        (Form::Shards(shards), _) => {
            let (written, outputs) =
                shards::write(&job, &catalog, shards, &request.archive, request.existing)?;
            (Made::Shards(written), Publish::Shards(outputs))
        }
        _ => unreachable!("an image and a tar have an output"),
    };
    if refuses && job.has_problems() {
        return Ok(nothing(job.into_problems()));
    }
    job.check()?;
    match publish {
        Publish::One(output) => output.publish()?,
        Publish::Shards(outputs) => outputs.publish()?,
    }
    Ok(Packed { made: Some(made), problems: job.into_problems(), hidden: catalog.hidden() })
}

/// What waits for its name.
enum Publish {
    One(Output),
    Shards(shards::Unpublished),
}

/// Bytes of all regular files that have a name, holes among them.
fn total_bytes(catalog: &Catalog) -> u64 {
    let files = catalog.files();
    files.iter().fold(0, |sum: u64, &file| match catalog.inode(file).what {
        What::File { size, .. } => sum.saturating_add(size),
        _ => sum,
    })
}
