//! The daemon of `mount` and `run`: archfs again, with its plan from a launcher.
//!
//! It reads no option, no variable and no configuration file. The rest of its command line is for
//! users who look for the mount in a list of processes.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{exit, mount, prepare_to_mount, term};
use crate::error::{Kind, Result};
use crate::lifecycle::{
    self, Background, DAEMON_OPTION, DaemonPlan, Launcher, STEP, Task, Unfinished,
};
use crate::progress::Progress;
use crate::sync::Arc;

/// Serves, if this process was started as a daemon: by a launcher on this node, or by srun.
pub(super) fn called(arguments: &[OsString]) -> Option<fn() -> Result<u8>> {
    let [_, command, option, ..] = arguments else { return None };
    let value = option.as_bytes().strip_prefix(DAEMON_OPTION.as_bytes())?;
    (command == "mount").then_some(match value == STEP.as_bytes() {
        true => serve_in_step,
        false => serve_in_background,
    })
}

/// Becomes fuse-overlayfs, if a daemon has started this process for that.
pub(super) fn called_for_overlay(arguments: &[OsString]) -> Option<io::Result<()>> {
    match arguments {
        [_, word, layer, lock, mount_point, program] if word == lifecycle::SERVE_OVERLAY => {
            let layer = (Path::new(layer), lock.as_os_str());
            Some(lifecycle::serve_overlay(layer, Path::new(mount_point), Path::new(program)))
        }
        _ => None,
    }
}

fn serve_in_background() -> Result<u8> {
    // Before signals are unblocked, because the launcher has created the record already.
    let unfinished = Unfinished::begin();
    prepare_to_mount();
    lifecycle::receive_while_opening();
    let (launcher, DaemonPlan { mount: plan, role, .. }) = Launcher::adopt(unfinished)?;
    let Background { source, has_fallback } = role;
    let progress = Arc::new(Progress::default());
    let bar = mount::opening_bar(&plan, &progress);
    match lifecycle::serve_in_background(launcher, &plan, source, &progress, || drop(bar)) {
        Err(error) if has_fallback && error.kind() == Kind::CannotMount => {
            term::print_warning(&error.to_string());
            Ok(exit::of(&error))
        }
        served => served.map(|()| 0),
    }
}

/// Serves as a task of a job step. The task reports to the launcher and not by its exit status,
/// because Slurm would report a failed job if a task failed.
fn serve_in_step() -> Result<u8> {
    prepare_to_mount();
    let task = Task::own();
    let Some(plan) = task.begin_to_mount()? else { return Ok(0) };
    match task.serve(&plan, &Progress::default()) {
        Ok(()) => Ok(0),
        Err(error) => {
            let status = exit::show(&error);
            Ok(if task.fail(status) { 0 } else { status })
        }
    }
}
