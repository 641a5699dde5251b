//! The files that `run` holds for its command: a mount or, on a node that cannot mount, extracted
//! files.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::daemon_messages::DaemonMessages;
use super::mount_lease::{self, CANNOT_MOUNT, Chart, Environment, MountLease, Privacy};
use crate::error::{Error, Kind, Result};
use crate::extract::{self, Existing, ExtractOptions, Extracted, Hold, LeftOut, SafeParent};
use crate::formats::{self, OpenOptions};
use crate::lifecycle::daemon::opening;
use crate::lifecycle::mount::device;
use crate::lifecycle::plan::Layer;
use crate::lifecycle::{MountPlan, registry};
use crate::os::process::ProcessId;
use crate::progress::{Progress, Show, Watch};
use crate::sync::{Arc, AtomicBool};
use crate::units::{counted, format_duration, format_size};
use crate::vfs::{Finding, Location, Severity};

/// How to run the command.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions<'o> {
    /// Which processes see the mount.
    pub privacy: Privacy,
    /// Whether the command reads uncompressed files from the archive itself.
    pub is_direct: bool,
    /// The layer over the files that the command may change.
    pub overlay: Option<&'o Layer>,
    /// The directory to extract to if this node cannot mount; `None` to fail then.
    pub or_extract: Option<&'o Path>,
}

/// How to show waits to the user.
#[derive(Clone, Copy)]
pub struct Display<'d> {
    /// Waits other than that for the command.
    pub show: Show<'d>,
    /// The progress of extracting.
    pub watch: Watch<'d>,
    /// Takes the statistics of a mount that has ended, as JSON; `None` if they are not wanted.
    pub chart: Option<Chart<'d>>,
}

pub(super) enum HeldFiles {
    Mounted(MountLease),
    Extracted(Hold),
}

/// The files of `plan`. Extracts them if this node cannot mount and `options` allow it.
pub(super) fn obtain(
    plan: &MountPlan,
    options: RunOptions<'_>,
    display: Display<'_>,
) -> Result<HeldFiles> {
    let mount = || mount_lease::obtain(plan, options.privacy, display.show).map(HeldFiles::Mounted);
    let Some(parent) = options.or_extract else { return mount() };
    // Before this process may enter a user namespace to mount.
    let safe_parent = SafeParent::check(parent);
    let why = match device::check() {
        // Mounting could only fail, and print errors.
        Err(error) => Some(error),
        Ok(()) => match mount() {
            // The daemon has printed why.
            Err(error) if error.kind() == CANNOT_MOUNT => None,
            Err(error) if error.kind() == Kind::CannotMount => Some(error),
            started => return started,
        },
    };
    warn_of_extraction(parent, why);
    let hold = extracted(plan, &safe_parent?, display)?;
    Ok(HeldFiles::Extracted(hold))
}

fn warn_of_extraction(parent: &Path, why: Option<Error>) {
    let parent = parent.display();
    match why {
        Some(error) => log::warn!("{error}; extracting to {parent} instead"),
        None => log::warn!("extracting to {parent} instead"),
    }
}

/// A hold on the files of `plan`, in a directory below `parent`. Extracts them if no other process
/// has.
fn extracted(
    plan: &MountPlan,
    parent: &SafeParent,
    Display { show, watch, .. }: Display<'_>,
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
        check_complete(plan, &extracted)?;
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
            end_hold(hold);
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
fn check_complete(plan: &MountPlan, extracted: &Extracted) -> Result<()> {
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

impl HeldFiles {
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Self::Mounted(lease) => lease.mount_point.clone(),
            Self::Extracted(hold) => hold.files(),
        }
    }

    /// The variables with which the command reads directly; none for extracted files, which it
    /// reads directly anyway.
    pub(super) fn direct_reads(&self) -> Environment {
        match self {
            Self::Mounted(lease) => lease.direct_reads(),
            Self::Extracted(_) => Environment::new(),
        }
    }

    pub(super) fn shared_with<T>(&self, spawn: impl FnOnce() -> T) -> T {
        match self {
            Self::Mounted(_) => spawn(),
            Self::Extracted(hold) => hold.shared_with(spawn),
        }
    }

    /// Lets `command`, which was started with `shared_with`, keep its files if this process is
    /// killed.
    pub(super) fn hold_for(&mut self, command: ProcessId) {
        if let Self::Mounted(lease) = self {
            lease.hold_for(command);
        }
    }

    /// What the daemon of a mount logs; `None` for extracted files.
    pub(super) fn messages(&self) -> Option<DaemonMessages> {
        match self {
            Self::Mounted(lease) => Some(lease.messages()),
            Self::Extracted(_) => None,
        }
    }

    /// Gives the files back although `command` still runs, as if it had ended.
    pub(super) fn end_before(self, command: Option<ProcessId>) {
        let path = self.path();
        let path = path.display();
        match self {
            Self::Mounted(lease) => {
                log::warn!("{path}: unmounting while the command runs; open files stay readable");
                lease.end_before(command);
            }
            Self::Extracted(hold) => {
                log::warn!(
                    "{path}: removing the files while the command runs; open files stay readable"
                );
                end_hold(hold);
            }
        }
    }

    /// Gives the files back. Returns when they are gone, or at once if others hold them; returns
    /// whether a mount is gone.
    pub(super) fn end(
        self,
        show: Show<'_>,
        chart: Option<Chart<'_>>,
        messages: Option<&mut DaemonMessages>,
    ) -> bool {
        match self {
            Self::Mounted(lease) => lease.end(show, chart, messages),
            Self::Extracted(hold) => {
                let _shown = show(&format!("removing {}", hold.files().display()));
                end_hold(hold);
                false
            }
        }
    }
}

fn end_hold(hold: Hold) {
    if let Err(error) = hold.end() {
        crate::log::error(&error);
    }
}
