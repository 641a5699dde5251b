//! The command of `run`: mounted before it starts, unmounted when it has ended.
//!
//! Owns starting the command, passing signals on to it, what it leaves running, and its status. The
//! mount itself belongs to a daemon that lives for this process and the command, so a SIGKILL here
//! leaves nothing mounted either.
//! Invariant: the mount is gone when `run` returns, whatever became of the command, unless others
//! hold it.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, geteuid, kill_process, set_child_subreaper, wait, waitpid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

use super::attach;
use super::launcher::{Launched, Started};
use super::lease::{Client, Left};
use super::mountpoint;
use super::occupant::{self, Occupant};
use super::process::ProcessId;
use super::registry::PlaceLock;
use super::{MountPlan, Way, fusermount, join, leftover, mount, namespace, signals, unmount};
use crate::error::{Error, Result};
use crate::progress::Show;
use crate::sync::{AtomicBool, Ordering};

/// How often it is looked whether what a command left running still uses the mount.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// After what time a person is told why nothing happens.
const PATIENCE: Duration = Duration::from_secs(2);

/// Signals that are passed on: those that end a job, and those that tell it to save its work. One
/// that was ignored before, as by nohup, stays ignored, and the command's to ignore.
const PASSED_ON: [i32; 6] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// The exit status of a daemon that may not mount (docs/CLI.md).
const CANNOT_MOUNT: i32 = 4;

/// Who shall see the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privacy {
    /// All processes of the user; only the command where there is no other way.
    Usual,
    /// Only the command.
    Private,
}

/// What became of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ended with that status.
    Exited(i32),
    /// That signal ended it.
    Killed(i32),
    /// There is no such command.
    NotFound,
    /// It is there, but can not be executed.
    NotExecutable,
    /// Mounting failed, with that exit status, and it never started. Why has been said.
    NotMounted(i32),
}

/// Mounts as `plan` says, or takes part in such a mount, runs `command`, unmounts. `arguments` are
/// those with which this program is the daemon. `show` shows waits that are not the command's.
///
/// # Errors
/// What mounting reports before the daemon starts; `Io` where the system refuses to start or watch
/// the daemon or the command.
pub fn run(
    plan: &MountPlan,
    arguments: &dyn Fn(Way) -> Vec<OsString>,
    privacy: Privacy,
    command: &[OsString],
    show: Show<'_>,
) -> Result<Outcome> {
    let place = mountpoint::locate(&plan.mountpoint)?;
    // A signal before this is done ends this process, and the daemon with it.
    let mut lease = match obtain(&place, plan, arguments, privacy, show)? {
        Ok(lease) => lease,
        Err(status) => return Ok(Outcome::NotMounted(status)),
    };
    let failed = |error| Error::io("can not watch for signals", error);
    let signals = SignalsInfo::<WithOrigin>::new(
        PASSED_ON.into_iter().filter(|it| !signals::is_ignored(*it)),
    )
    .map_err(failed)?;
    // Orphans of the command become children of this process, which so knows of them.
    let _ = set_child_subreaper(Some(rustix::process::getpid()));
    let outcome = execute(signals, &place, command, &mut lease, show);
    lease.end(&place, show);
    outcome
}

/// The hold on a mount.
struct Lease {
    client: Client,
    /// Whether this process mounted it, in its namespace.
    is_private: bool,
}

fn obtain(
    place: &Path,
    plan: &MountPlan,
    arguments: &dyn Fn(Way) -> Vec<OsString>,
    privacy: Privacy,
    show: Show<'_>,
) -> Result<Started<Lease>> {
    if privacy == Privacy::Private {
        return mount_privately(place, plan, arguments);
    }
    if !geteuid().is_root() && !fusermount::is_there() {
        log::warn!("no fusermount3 here; mounting where only the command sees it");
        return mount_privately(place, plan, arguments);
    }
    match mount::obtain(plan, arguments, show)? {
        Ok((client, _)) => Ok(Ok(Lease { client, is_private: false })),
        // It has said why: a place that is not the user's, say, or root in a user namespace, which
        // may mount only in one of its own.
        Err(CANNOT_MOUNT) if fusermount::device_can_be_opened() => {
            log::warn!("mounting where only the command sees it, then");
            mount_privately(place, plan, arguments)
        }
        Err(status) => Ok(Err(status)),
    }
}

/// Mounts in a namespace of this process, and so of the command. The daemon stays outside, where it
/// can remove what it made once the namespace is gone.
fn mount_privately(
    place: &Path,
    plan: &MountPlan,
    arguments: &dyn Fn(Way) -> Vec<OsString>,
) -> Result<Started<Lease>> {
    let lock = PlaceLock::acquire(place)?;
    let mut launched = Launched::start(&arguments(Way::Private), Some(&lock))?;
    let opened = launched.wait_until_opened();
    // Nothing about the place concerns others from here on.
    unmount::forget(place, lock)?;
    if let Err(status) = opened? {
        return Ok(Err(status));
    }
    let source = join::real_paths(plan).into_iter().next().unwrap_or_default();
    let connection =
        match namespace::enter().and_then(|()| attach::mount_here(place, &source, plan.access)) {
            Ok(connection) => connection,
            Err(error) => {
                launched.give_up();
                return Err(error);
            }
        };
    let answers = match launched.hand_over(connection) {
        Ok(()) => launched.wait_until_answers(place),
        Err(error) => {
            launched.give_up();
            Err(error)
        }
    };
    if !matches!(answers, Ok(Ok(_))) {
        // A daemon that still ran has removed its directory, and the mount with it.
        let _ = attach::detach_here(place);
        mountpoint::remove_left_over(place);
    }
    Ok(answers?.map(|client| Lease { client, is_private: true }))
}

impl Lease {
    /// Gives it back; returns when the mount is gone, or stays for others.
    fn end(self, place: &Path, show: Show<'_>) {
        // Before it is detached, which is what a private one ends by.
        let has_ended = matches!(
            occupant::look(place),
            Ok(Occupant::Dead(_) | Occupant::Leaving(_) | Occupant::Nothing)
        );
        if self.is_private {
            // Files that are still open stay readable until they are closed.
            if let Err(error) = attach::detach_here(place) {
                log::error!("{error}");
            }
        }
        let shown = show(&format!("unmounting {}", place.display()));
        let left = self.client.leave();
        drop(shown);
        if let Ok(Left::Gone(summary)) = &left {
            crate::log::tell(format_args!("{summary}"));
        }
        if has_ended {
            log::error!("{}: the mount had ended before the command did", place.display());
        }
        // A daemon that was killed leaves its mount, dead, and its directory, or only that.
        let cleared = match &left {
            Ok(Left::Stays) => Ok(()),
            Ok(Left::Lost) if self.is_private => {
                mountpoint::remove_left_over(place);
                Ok(())
            }
            Ok(Left::Lost) => unmount::clear_up(place),
            // What was below it is seen again, and is not ours.
            _ if self.is_private => Ok(()),
            _ => match occupant::look(place) {
                Ok(Occupant::Dead(_)) => unmount::clear_dead(place),
                _ => Ok(()),
            },
        };
        for error in [left.err(), cleared.err()].into_iter().flatten() {
            log::error!("{}: {error}", place.display());
        }
    }
}

fn execute(
    mut signals: SignalsInfo<WithOrigin>,
    place: &Path,
    command: &[OsString],
    lease: &mut Lease,
    show: Show<'_>,
) -> Result<Outcome> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(Outcome::NotFound);
    };
    let shown = Path::new(program).display();
    let spawned = Command::new(program).args(arguments).env("ARCHFS_MOUNTPOINT", place).spawn();
    let child = match spawned {
        Ok(child) => child,
        Err(error) if is_nowhere(&error, program) => {
            log::error!("{shown}: command not found");
            return Ok(Outcome::NotFound);
        }
        Err(error) => {
            log::error!("{shown}: can not be executed: {error}");
            return Ok(Outcome::NotExecutable);
        }
    };
    let pid = Pid::from_child(&child);
    // If this process is killed, the command keeps its files.
    if let Ok(process) = ProcessId::of(pid.as_raw_nonzero().get()) {
        let _ = lease.client.watch(process);
    }
    let has_ended = AtomicBool::new(false);
    let asked = AtomicBool::new(false);
    let handle = signals.handle();
    let status = thread::scope(|scope| {
        let pass_on = || {
            for origin in &mut signals {
                let ends = matches!(origin.signal, SIGTERM | SIGINT | SIGHUP);
                asked.fetch_or(ends, Ordering::Relaxed);
                // The terminal sends Ctrl-C to all of its processes, so the command has it already.
                let is_sent = matches!(origin.cause, Cause::Kernel);
                if !is_sent
                    && !has_ended.load(Ordering::Relaxed)
                    && let Some(signal) = Signal::from_named_raw(origin.signal)
                {
                    let _ = kill_process(pid, signal);
                }
            }
        };
        if let Err(error) = thread::Builder::new().spawn_scoped(scope, pass_on) {
            log::warn!("signals are not passed on: {error}");
        }
        let status = reap(pid);
        has_ended.store(true, Ordering::Relaxed);
        let shown = show("waiting for what the command left running");
        wait_for_leftovers(place, &asked);
        drop(shown);
        handle.close();
        status
    });
    status.map(outcome).map_err(|error| Error::io("can not wait for the command", error.into()))
}

/// Whether `error` means that there is no such command. A folder of PATH that may not be searched
/// gives another error (execvp(3)), which is not that of a command found and not executable.
fn is_nowhere(error: &std::io::Error, program: &OsStr) -> bool {
    match error.kind() {
        ErrorKind::NotFound => true,
        ErrorKind::PermissionDenied if !program.as_bytes().contains(&b'/') => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            !std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
        }
        _ => false,
    }
}

/// Waits for the end of `pid`, and buries orphans that were left to this process meanwhile.
fn reap(pid: Pid) -> rustix::io::Result<WaitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if ended == pid => return Ok(status),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// As long as processes of the command's group have files of the mount open, it is theirs; a signal
/// that asks for the end takes it from them.
fn wait_for_leftovers(place: &Path, asked: &AtomicBool) {
    let since = Instant::now();
    let mut told = false;
    while !asked.load(Ordering::Relaxed) {
        while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
        let users = leftover::users_of(place);
        if users.is_empty() {
            return;
        }
        if !told && since.elapsed() >= PATIENCE {
            told = true;
            let users: Vec<_> = users.iter().map(i32::to_string).collect();
            log::warn!(
                "{}: the command has ended, waiting for process {} that it left; a signal unmounts",
                place.display(),
                users.join(", ")
            );
        }
        thread::sleep(LOOK_AGAIN);
    }
}

fn outcome(status: WaitStatus) -> Outcome {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Outcome::Exited(code),
        (None, Some(signal)) => Outcome::Killed(signal),
        (None, None) => Outcome::Exited(1),
    }
}
