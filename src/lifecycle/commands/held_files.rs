//! The files that `run` holds for its command: a mount or, on a node that cannot mount, extracted
//! files.

use std::path::{Path, PathBuf};

use super::extraction;
use super::mount_lease::{self, CANNOT_MOUNT, Environment, MountLease};
use super::run_options::{Chart, Display, RunOptions};
use crate::error::{Error, Kind, Result};
use crate::extract::{Hold, SafeParent};
use crate::lifecycle::MountPlan;
use crate::lifecycle::mount::device;
use crate::os::process::ProcessId;
use crate::progress::Show;

/// What `run` holds.
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
    let hold = extraction::obtain(plan, &safe_parent?, display.show, display.watch)?;
    Ok(HeldFiles::Extracted(hold))
}

fn warn_of_extraction(parent: &Path, why: Option<Error>) {
    let parent = parent.display();
    match why {
        Some(error) => log::warn!("{error}; extracting to {parent} instead"),
        None => log::warn!("extracting to {parent} instead"),
    }
}

impl HeldFiles {
    /// The directory with the files.
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

    /// Starts the command with `spawn`.
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
    pub(super) fn end(self, show: Show<'_>, chart: Option<Chart<'_>>) -> bool {
        match self {
            Self::Mounted(lease) => lease.end(show, chart),
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
