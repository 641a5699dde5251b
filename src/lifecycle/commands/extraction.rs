//! Extracts archives for `run --or-extract`, once for all processes that hold the files.

use std::path::Path;
use std::time::Instant;

use crate::error::{Error, Kind, Result};
use crate::extract::{self, Existing, ExtractOptions, Extracted, Hold, LeftOut, SafeParent};
use crate::formats::{self, OpenOptions};
use crate::lifecycle::daemon::opening;
use crate::lifecycle::{MountPlan, registry};
use crate::progress::{Progress, Show, Watch};
use crate::sync::{Arc, AtomicBool};
use crate::units::{counted, format_duration, format_size};
use crate::vfs::{Finding, Location, Severity};

/// A hold on the files of `plan`, in a directory below `parent`. Extracts them if no other process
/// has. `show` displays waits for other processes, `watch` the extraction.
pub(super) fn obtain(
    plan: &MountPlan,
    parent: &SafeParent,
    show: Show<'_>,
    watch: Watch<'_>,
) -> Result<Hold> {
    let hold = Hold::take_in(parent, &registry::name_on_all_nodes(plan), show)?;
    let shown = hold.path().display().to_string();
    let mut start = Instant::now();
    let extracted = hold.extract_once(show, |part| {
        start = Instant::now();
        let progress = Arc::new(Progress::default());
        let watched = watch(&progress);
        let extracted = extract(plan, part, &shown, &progress)?;
        drop(watched);
        report(plan, &extracted)?;
        Ok(extracted)
    });
    match extracted {
        Ok(Some(Extracted { counts, .. })) => {
            let (files, bytes) = (counted(counts.files, "file"), format_size(counts.bytes));
            let time = format_duration(start.elapsed());
            crate::log::note(format_args!("{shown}: extracted {files}, {bytes}, in {time}"));
            Ok(hold)
        }
        Ok(None) => Ok(hold),
        Err(error) => {
            if let Err(error) = hold.end() {
                crate::log::error(&error);
            }
            Err(error)
        }
    }
}

fn extract(plan: &MountPlan, part: &Path, shown: &str, progress: &Progress) -> Result<Extracted> {
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
    extract::extract(tree.as_ref(), part, options, progress).map_err(|error| error.within(shown))
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
