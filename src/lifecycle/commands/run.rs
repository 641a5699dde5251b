//! `archfs run`: mounts, runs a command, and unmounts when the command has ended.
//!
//! `relay` passes signals on to the command. The mount belongs to a daemon, and this process and
//! the command hold it. So SIGKILL of this process leaves nothing mounted either.
//! Invariant: unless others hold the mount, it is gone when `run` returns and when the grace period
//! has ended, whatever happened to the command.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};
use rustix::process::{Pid, WaitOptions, WaitStatus, geteuid, set_child_subreaper, wait, waitpid};

use crate::error::{Error, Kind, Result, reason};
use crate::lifecycle::commands::daemon_messages::DaemonMessages;
use crate::lifecycle::commands::descendants;
use crate::lifecycle::commands::held_files::{self, Display, HeldFiles, RunOptions};
use crate::lifecycle::commands::mount_lease::Environment;
use crate::lifecycle::commands::relay::{CommandState, Relay};
use crate::lifecycle::daemon::signals;
use crate::lifecycle::mount::mount_point;
use crate::lifecycle::mount::overlay::{self, HeldLayer, LayerWriter};
use crate::lifecycle::{Lifetime, MountPlan, registry};
use crate::os::mountinfo::{self, MountEntry};
use crate::os::process::{OWN_PROGRAM, ProcessId};
use crate::os::signal::Mask;
use crate::progress::Show;
use crate::sync::{AtomicBool, Ordering};
use crate::units::processes;
use crate::url;

/// How often to check whether processes that the command left running still use the mount.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Time after which a message explains the wait.
const EXPLAIN_AFTER: Duration = Duration::from_secs(2);

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It exited with this status.
    Exited(i32),
    /// This signal killed it.
    Killed(i32),
    /// There is no such command.
    NotFound,
    /// The command exists but cannot be executed.
    NotExecutable,
}

/// Mounts `plan` or shares such a mount, runs a command, and unmounts. `command` returns the
/// command for the directory with the files: the mount point, or the extracted files.
///
/// # Errors
/// Errors of mounting from before the daemon starts, or of extracting; `Io` if the daemon or the
/// command cannot be started or watched.
pub fn run(
    plan: &MountPlan,
    options: RunOptions<'_>,
    command: &dyn Fn(&Path) -> Vec<OsString>,
    display: Display<'_>,
) -> Result<Outcome> {
    let relay = Relay::new()?;
    // After `Relay::new`, so that a signal that is pending is kept for the command and does not end
    // this process.
    let mask = Mask::clear();
    let layer = options.overlay.map(HeldLayer::take).transpose()?;
    if let Some(layer) = &layer {
        layer.check(&registry::identity_on_all_nodes(plan), LayerWriter::Kernel)?;
    }
    // Until `catch_ending_signals`, a signal that asks for the end ends this process, and the
    // daemon with it.
    let held = held_files::obtain(plan, options, display)?;
    // Only now, because a process with threads cannot enter a user namespace.
    signals::receive_in_order();
    relay.catch_ending_signals()?;
    // Orphans of the command become children of this process, which can then find them.
    let _ = set_child_subreaper(Some(rustix::process::getpid()));
    let path = held.path();
    let mut environment = vec![("ARCHFS_MOUNTPOINT", path.clone().into_os_string())];
    if options.is_direct {
        environment.extend(held.direct_reads());
    }
    let mut messages = held.messages();
    let mut held = Some(held);
    // The daemon, and processes of a shell that has replaced itself by this process.
    let others = descendants::children();
    let command = match &layer {
        Some(layer) => in_overlay(layer, &path, command(&path))?,
        None => command(&path),
    };
    let outcome = execute(
        relay,
        mask,
        &path,
        plan.lifetime,
        (&command, environment),
        (&mut held, messages.as_mut()),
        display.show,
    );
    let is_unmounted =
        held.is_some_and(|held| held.end(display.show, display.chart, messages.as_mut()));
    let _ = layer.as_ref().map(HeldLayer::make_removable);
    if is_unmounted {
        note_left_behind(&path, &descendants::all_except(&others));
    }
    outcome
}

const NAMED: usize = 3;

/// Prints which processes of the command still run although their files are gone.
fn note_left_behind(path: &Path, left: &[ProcessId]) {
    if left.is_empty() {
        return;
    }
    let named: Vec<_> = left
        .iter()
        .take(NAMED)
        .map(|process| format!("{} ({})", process.pid(), process.name()))
        .collect();
    let more = match left.len().saturating_sub(NAMED) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let (processes, named) = (processes(left.len()), named.join(", "));
    crate::log::note(format_args!(
        "{}: unmounted; {processes} {named}{more} of the command can open no more files there",
        path.display()
    ));
}

fn execute(
    relay: Relay,
    mask: Mask,
    path: &Path,
    lifetime: Lifetime,
    (command, environment): (&[OsString], Environment),
    (held, messages): (&mut Option<HeldFiles>, Option<&mut DaemonMessages>),
    show: Show<'_>,
) -> Result<Outcome> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(Outcome::NotFound);
    };
    let name = Path::new(program).display();
    let mut command = Command::new(program);
    command.args(arguments).envs(environment);
    mask.pass_to(&mut command);
    let spawned = match held {
        Some(held) => held.shared_with(|| command.spawn()),
        None => command.spawn(),
    };
    let child = match spawned {
        Ok(child) => child,
        Err(error) => return Ok(not_started(program, &error)),
    };
    let pid = Pid::from_child(&child);
    let process = ProcessId::of(pid.as_raw_nonzero().get()).ok();
    // If this process is killed, the command still holds the mount and keeps its files.
    if let (Some(process), Some(held)) = (process, held.as_mut()) {
        held.hold_for(process);
    }
    let state = CommandState::default();
    let passing_on = relay.passing_on();
    let (has_ended, end) = mpsc::channel();
    let status = thread::scope(|scope| {
        let detach = || {
            if let Some(held) = held.take() {
                held.end_before(process);
            }
        };
        let pass_on = || relay.pass_on(pid, lifetime, &state, detach);
        if let Err(error) = thread::Builder::new().spawn_scoped(scope, pass_on) {
            log::warn!("{name}: signals are not passed on: {}", reason(&error));
        }
        if let Some(messages) = messages {
            // Without a thread, they are printed in the end.
            let follow = move || messages.follow(end);
            let _ = thread::Builder::new().spawn_scoped(scope, follow);
        }
        let status = reap(pid);
        drop(has_ended);
        state.has_ended.store(true, Ordering::Relaxed);
        let shown = show("waiting for processes that the command left running");
        wait_for_descendants(path, &state.end_requested);
        drop(shown);
        drop(passing_on);
        status
    });
    status
        .map(outcome)
        .map_err(|error| Error::io(format!("{name}: cannot wait for it"), error.into()))
}

/// The first word of the command line by which archfs executes the command in an overlay.
pub const IN_OVERLAY: &str = "run-in-overlay";

/// The command line that executes `command` with `layer` over the files at `path`.
///
/// The namespace of the overlay begins there: this process, which ends the mount, stays outside.
fn in_overlay(layer: &HeldLayer, path: &Path, command: Vec<OsString>) -> Result<Vec<OsString>> {
    let [layer, lock] = layer.pass_on().map_err(cannot_pass_on)?;
    let own = [OWN_PROGRAM.into(), IN_OVERLAY.into(), layer, lock, path.as_os_str().to_owned()];
    Ok(own.into_iter().chain(command).collect())
}

fn cannot_pass_on(error: std::io::Error) -> Error {
    Error::io("cannot use the layer of --overlay", error)
}

/// Executes `command` in place of this process, with a layer over the files at `path`: `layer` and
/// `lock` are as `HeldLayer::pass_on` returns them. Returns only on failure, and prints why the
/// command did not start.
///
/// # Errors
/// As those of `overlay::enter`.
pub fn execute_in_overlay(
    (layer, lock): (&Path, &OsStr),
    path: &Path,
    command: &[OsString],
) -> Result<Outcome> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(Outcome::NotFound);
    };
    let mask = Mask::clear();
    overlay::enter(path, layer, lock)?;
    let mut command = Command::new(program);
    command.args(arguments);
    mask.pass_to(&mut command);
    Ok(not_started(program, &command.exec()))
}

/// Prints why `program` was not started.
fn not_started(program: &OsStr, error: &std::io::Error) -> Outcome {
    let name = Path::new(program).display();
    if is_not_found(error, program) {
        log::error!("{name}: command not found");
        return Outcome::NotFound;
    }
    log::error!("{name}: cannot execute: {}", reason(error));
    Outcome::NotExecutable
}

/// Whether `error` means that there is no such command. If a directory of PATH cannot be searched,
/// execvp(3) returns EACCES, even if no directory has such a command.
fn is_not_found(error: &std::io::Error, program: &OsStr) -> bool {
    match error.kind() {
        ErrorKind::NotFound => true,
        ErrorKind::PermissionDenied if !program.as_bytes().contains(&b'/') => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            !std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
        }
        _ => false,
    }
}

/// Waits for the end of `pid`, and reaps the orphans that end in the meantime.
fn reap(pid: Pid) -> rustix::io::Result<WaitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if ended == pid => return Ok(status),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits as long as processes of the command's group use the mount. A signal that asks for the end
/// stops the wait.
fn wait_for_descendants(mount_point: &Path, end_requested: &AtomicBool) {
    let since = Instant::now();
    let mut has_explained = false;
    while !end_requested.load(Ordering::Relaxed) {
        while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
        let users = descendants::users_of(mount_point);
        if users.is_empty() {
            return;
        }
        if !has_explained && since.elapsed() >= EXPLAIN_AFTER {
            has_explained = true;
            let noun = processes(users.len());
            let users: Vec<_> = users.iter().map(i32::to_string).collect();
            crate::log::warn(
                format_args!(
                    "{}: the command has exited; waiting for {noun} {} that it left running",
                    mount_point.display(),
                    users.join(", ")
                ),
                "send SIGTERM to archfs to unmount now",
            );
        }
        thread::sleep(CHECK_INTERVAL);
    }
}

fn outcome(status: WaitStatus) -> Outcome {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Outcome::Exited(code),
        (None, Some(signal)) => Outcome::Killed(signal),
        (None, None) => Outcome::Exited(1),
    }
}

/// The mount point of `archfs run` for `plan`, whose own is ignored, if the user names none. It
/// exists already if the plan is mounted.
///
/// Its name follows from the user, the job and what the mount shows. So all tasks of a node that
/// ask for the same archives find the same directory and share one mount, and the paths of files
/// are the same on all nodes. Everybody can work out the name, so a directory of another user at
/// that path is passed over.
///
/// # Errors
/// `CannotMount` if there is no directory for temporary files; `Io` if /proc cannot be read.
pub fn choose_mount_point(plan: &MountPlan) -> Result<PathBuf> {
    let name = registry::name_on_all_nodes(plan);
    let parents = [Some("/dev/shm".into()), std::env::var_os("TMPDIR"), Some("/tmp".into())];
    for parent in parents.into_iter().flatten().map(PathBuf::from) {
        // The mount table has paths without symbolic links.
        let Ok(parent) = fs::canonicalize(parent) else { continue };
        let path = parent.join(&name);
        if may_create_in(&parent) && is_free_or_own(&path)? {
            return Ok(path);
        }
    }
    let context = "no directory for a mount point: tried /dev/shm, $TMPDIR and /tmp";
    Err(Error::new(Kind::CannotMount, context)
        .with_hint("name one: archfs run ARCHIVE... MOUNTPOINT -- COMMAND"))
}

/// Whether `path`, an archive or a mount point, is an archive: a file or a block device.
/// Does not ask a FUSE mount at that path, which may hang, and as root nothing that another user
/// serves.
pub fn is_archive(path: &Path) -> bool {
    if url::is_url(path) {
        return true;
    }
    let Ok(path) = mount_point::locate(path) else { return false };
    let is_served = |entry: Option<MountEntry>| entry.is_some_and(|entry| entry.is_fuse());
    !mountinfo::topmost(&path).is_ok_and(is_served)
        && fs::metadata(&path)
            .is_ok_and(|found| found.is_file() || found.file_type().is_block_device())
}

fn may_create_in(parent: &Path) -> bool {
    parent.is_dir() && access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Whether nothing is at `path`, or a directory or a mount of this user.
fn is_free_or_own(path: &Path) -> Result<bool> {
    // First, because stat(2) of a stale mount fails, and of one that hangs it does not return.
    if let Some(entry) = mountinfo::topmost(path)? {
        return Ok(entry.is_own());
    }
    let found = fs::symlink_metadata(path);
    Ok(found.map_or(true, |found| found.is_dir() && found.uid() == geteuid().as_raw()))
}
