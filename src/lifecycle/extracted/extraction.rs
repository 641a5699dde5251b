//! Extracts archives to a directory, once for all processes that hold it.

use std::time::Instant;

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;

use super::directory::{ExtractedDirectory, SafeParent};
use super::hold::Hold;
use super::keeper;
use crate::error::{Error, Kind, Result};
use crate::extract::{self, Existing, ExtractOptions, Extracted, LeftOut};
use crate::formats::{self, OpenOptions};
use crate::lifecycle::daemon::opening;
use crate::lifecycle::{MountPlan, registry};
use crate::progress::{Progress, Show, Watch};
use crate::sync::{Arc, AtomicBool};
use crate::units::{counted, format_duration, format_size};
use crate::vfs::{Finding, Location, Severity};

/// A hold on the files of `plan`, in a directory below `parent`. Extracts them if no other process
/// has. `show` displays waits for other processes, `watch` the extraction.
pub(in crate::lifecycle) fn obtain(
    plan: &MountPlan,
    parent: &SafeParent,
    show: Show<'_>,
    watch: Watch<'_>,
) -> Result<Hold> {
    let name = registry::name_on_all_nodes(plan);
    let hold = Hold::take(&|| ExtractedDirectory::create(parent, &name), show)?;
    match extract_once(plan, &hold, show, watch) {
        Ok(()) => Ok(hold),
        Err(error) => {
            if let Err(error) = hold.end() {
                crate::log::error(&error);
            }
            Err(error)
        }
    }
}

fn extract_once(plan: &MountPlan, hold: &Hold, show: Show<'_>, watch: Watch<'_>) -> Result<()> {
    let directory = hold.directory();
    let shown = directory.path().display();
    let failed = |error| Error::io(format!("{shown}: cannot extract"), error);
    let extracting = directory.extracting().map_err(failed)?;
    let waiting = show(&format!("waiting until another process has extracted to {shown}"));
    retry_on_intr(|| flock(&extracting, FlockOperation::LockExclusive))
        .map_err(|errno| failed(errno.into()))?;
    drop(waiting);
    if directory.has_files() {
        log::info!("{shown}: sharing the files that another process extracted");
        return Ok(());
    }
    keeper::start(directory).map_err(|error| error.within(directory.path().display()))?;
    // A process that was killed may have left a part.
    directory.remove_part().map_err(failed)?;
    let start = Instant::now();
    let progress = Arc::new(Progress::default());
    let watched = watch(&progress);
    let extracted = extract(plan, directory, &progress)?;
    drop(watched);
    report(plan, &extracted)?;
    directory.complete().map_err(failed)?;
    let (files, bytes) = (counted(extracted.counts.files, "file"), extracted.counts.bytes);
    let (bytes, time) = (format_size(bytes), format_duration(start.elapsed()));
    crate::log::note(format_args!("{shown}: extracted {files}, {bytes}, in {time}"));
    Ok(())
}

fn extract(
    plan: &MountPlan,
    directory: &ExtractedDirectory,
    progress: &Progress,
) -> Result<Extracted> {
    let options = OpenOptions { reads_all: true, ..opening::options(plan) };
    let tree = formats::open(&plan.archives, &options, progress)?;
    let tree = opening::view(plan, tree)?;
    let options = ExtractOptions {
        only: &[],
        existing: Existing::Keep,
        threads: plan.threads.unwrap_or_else(extract::usual_threads),
        // A signal ends this process, and the keeper removes the files.
        interrupt: &AtomicBool::new(false),
    };
    extract::extract(tree.as_ref(), &directory.part(), options, progress)
        .map_err(|error| error.within(directory.path().display()))
}

/// Fails if a file is missing, unless the user wants what is left of a damaged archive.
fn report(plan: &MountPlan, extracted: &Extracted) -> Result<()> {
    for LeftOut { what, why, count, .. } in &extracted.left_out {
        log::info!("{what} not restored for {}: {why}", counted(*count, "file"));
    }
    let Some(Finding { location, what, severity, .. }) = extracted.problems.first() else {
        return Ok(());
    };
    let path = match location {
        Location::Path(path) => path.escape_ascii().to_string(),
        _ => "/".to_owned(),
    };
    let count = counted(extracted.problems.len() as u64, "file");
    let context = format!("{count} cannot be extracted, for example {path}: {what}");
    if plan.partial {
        log::warn!("{context}");
        return Ok(());
    }
    let kind = if *severity == Severity::Damage { Kind::Corrupt } else { Kind::Io };
    Err(Error::new(kind, context).with_hint("--partial runs the command without these files"))
}
