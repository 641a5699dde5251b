//! The command of `run`: mounted before it starts, unmounted when it has ended.
//!
//! Owns starting the command, what it leaves running, and its status; `relay` passes signals on to
//! it. The mount itself belongs to a daemon that lives for this process and the command, so a
//! SIGKILL here leaves nothing mounted either.
//! Invariant: the mount is gone when `run` returns, and when the grace period has ended, whatever
//! became of the command, unless others hold it.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitOptions, WaitStatus, geteuid, set_child_subreaper, wait, waitpid};

use crate::error::{Error, Result};
use crate::lifecycle::commands::relay::{Course, Relay};
use crate::lifecycle::commands::{descendants, mount};
use crate::lifecycle::daemon::launcher::{Launched, Started};
use crate::lifecycle::mount::{attach, fusermount, mount_point, namespace, owned_directory};
use crate::lifecycle::share::{self, Client, LeaseEnd, MountState};
use crate::lifecycle::system::process::ProcessId;
use crate::lifecycle::system::raw_signals::Mask;
use crate::lifecycle::{ConnectionSource, Lifetime, MountPlan};
use crate::progress::Show;
use crate::sync::{AtomicBool, Ordering};

/// How often it is looked whether what a command left running still uses the mount.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// After what time a person is told why nothing happens.
const PATIENCE: Duration = Duration::from_secs(2);

/// The exit status of a daemon that may not mount (docs/CLI.md).
const CANNOT_MOUNT: i32 = 4;

/// Who shall see the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privacy {
    /// All processes of the user; only the command where there is no other way.
    Default,
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
    arguments: &dyn Fn(ConnectionSource) -> Vec<OsString>,
    privacy: Privacy,
    command: &[OsString],
    show: Show<'_>,
) -> Result<Outcome> {
    let relay = Relay::new()?;
    // Only now: a signal that came before is kept for the command, and does not end this process.
    let mask = Mask::clear();
    let mount_point = mount_point::locate(&plan.mountpoint)?;
    // A signal that asks for the end ends this process until this is done, and the daemon with it.
    let lease = match obtain(&mount_point, plan, arguments, privacy, show)? {
        Ok(lease) => lease,
        Err(status) => return Ok(Outcome::NotMounted(status)),
    };
    relay.survive()?;
    // Orphans of the command become children of this process, which so knows of them.
    let _ = set_child_subreaper(Some(rustix::process::getpid()));
    let mut lease = Some(lease);
    let outcome = execute(relay, mask, &mount_point, plan.lifetime, command, &mut lease, show);
    if let Some(lease) = lease {
        lease.end(&mount_point, show);
    }
    outcome
}

/// The hold on a mount.
struct RunLease {
    client: Client,
    /// Whether this process mounted it, in its namespace.
    is_private: bool,
}

fn obtain(
    mount_point: &Path,
    plan: &MountPlan,
    arguments: &dyn Fn(ConnectionSource) -> Vec<OsString>,
    privacy: Privacy,
    show: Show<'_>,
) -> Result<Started<RunLease>> {
    if privacy == Privacy::Private {
        return mount_privately(mount_point, plan, arguments);
    }
    if !geteuid().is_root() && !fusermount::is_there() {
        log::warn!("no fusermount3 here; mounting where only the command sees it");
        return mount_privately(mount_point, plan, arguments);
    }
    match mount::obtain(plan, arguments, show)? {
        Ok((client, _)) => Ok(Ok(RunLease { client, is_private: false })),
        // It has said why: a mount point that is not the user's, say, or root in a user namespace,
        // which may mount only in one of its own.
        Err(CANNOT_MOUNT) if fusermount::device_can_be_opened() => {
            log::warn!("mounting where only the command sees it, then");
            mount_privately(mount_point, plan, arguments)
        }
        Err(status) => Ok(Err(status)),
    }
}

/// Mounts in a namespace of this process, and so of the command. The daemon stays outside, where it
/// can remove what it made once the namespace is gone.
fn mount_privately(
    mount_point: &Path,
    plan: &MountPlan,
    arguments: &dyn Fn(ConnectionSource) -> Vec<OsString>,
) -> Result<Started<RunLease>> {
    let mut launched = Launched::start(&arguments(ConnectionSource::Private), None)?;
    match launched.wait_until_opened() {
        Ok(Ok(())) => {}
        Ok(Err(status)) => return Ok(Err(status)),
        Err(error) => {
            clear_private(mount_point);
            return Err(error);
        }
    }
    let source = share::real_paths(plan).into_iter().next().unwrap_or_default();
    let connection = match namespace::enter()
        .and_then(|()| attach::mount_here(mount_point, &source, plan.access))
    {
        Ok(connection) => connection,
        Err(error) => {
            launched.give_up();
            return Err(error);
        }
    };
    let answers = match launched.hand_over(connection) {
        Ok(()) => launched.wait_until_answers(mount_point),
        Err(error) => {
            launched.give_up();
            Err(error)
        }
    };
    if !matches!(answers, Ok(Ok(_))) {
        // A daemon that still ran has removed its directory, and the mount with it.
        let _ = attach::detach_here(mount_point);
        clear_private(mount_point);
    }
    Ok(answers?.map(|client| RunLease { client, is_private: true }))
}

/// Removes what a killed daemon of a private mount has left.
fn clear_private(mount_point: &Path) {
    share::clear_others(mount_point);
    owned_directory::remove_unused(mount_point, None);
}

impl RunLease {
    /// Gives it back although `command` still runs, as when that has ended.
    fn end_before(mut self, command: Option<ProcessId>, mount_point: &Path) {
        // A daemon that does not answer is told of by what follows.
        let _ = command.map(|command| self.client.release(command));
        self.end(mount_point, &|_| Box::new(()));
    }

    /// Gives it back; returns when the mount is gone, or stays for others.
    fn end(self, mount_point: &Path, show: Show<'_>) {
        // Before it is detached, which is what a private one ends by.
        let has_ended = matches!(
            share::look(mount_point),
            Ok(MountState::Stale(_) | MountState::Ending | MountState::Free)
        );
        if self.is_private {
            // Files that are still open stay readable until they are closed.
            if let Err(error) = attach::detach_here(mount_point) {
                log::error!("{error}");
            }
        }
        let shown = show(&format!("unmounting {}", mount_point.display()));
        let left = self.client.leave();
        drop(shown);
        if let Ok(LeaseEnd::Gone(summary)) = &left {
            crate::log::tell(format_args!("{summary}"));
        }
        if has_ended {
            log::error!("{}: the mount had ended before the command did", mount_point.display());
        }
        // A daemon that was killed leaves its mount, dead, and its directory, or only that.
        let cleared = match &left {
            Ok(LeaseEnd::Stays) => Ok(()),
            Ok(LeaseEnd::Lost) if self.is_private => {
                clear_private(mount_point);
                Ok(())
            }
            Ok(LeaseEnd::Lost) => share::clear(mount_point, Instant::now() + share::EXIT),
            // What was below it is seen again, and is not ours.
            _ if self.is_private => Ok(()),
            _ => match share::look(mount_point) {
                Ok(MountState::Stale(_)) => share::clear(mount_point, Instant::now() + share::EXIT),
                _ => Ok(()),
            },
        };
        for error in [left.err(), cleared.err()].into_iter().flatten() {
            log::error!("{}: {error}", mount_point.display());
        }
    }
}

fn execute(
    relay: Relay,
    mask: Mask,
    mount_point: &Path,
    lifetime: Lifetime,
    command: &[OsString],
    lease: &mut Option<RunLease>,
    show: Show<'_>,
) -> Result<Outcome> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(Outcome::NotFound);
    };
    let shown = Path::new(program).display();
    let mut command = Command::new(program);
    command.args(arguments).env("ARCHFS_MOUNTPOINT", mount_point);
    mask.pass_to(&mut command);
    let child = match command.spawn() {
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
    let process = ProcessId::of(pid.as_raw_nonzero().get()).ok();
    // If this process is killed, the command keeps its files.
    if let (Some(process), Some(lease)) = (process, lease.as_mut()) {
        let _ = lease.client.watch(process);
    }
    let course = Course::default();
    let handle = relay.handle();
    let status = thread::scope(|scope| {
        let detach = || {
            if let Some(lease) = lease.take() {
                let shown = mount_point.display();
                log::warn!("{shown}: unmounting while the command runs; open files stay readable");
                lease.end_before(process, mount_point);
            }
        };
        let pass_on = || relay.pass_on(pid, lifetime, &course, detach);
        if let Err(error) = thread::Builder::new().spawn_scoped(scope, pass_on) {
            log::warn!("signals are not passed on: {error}");
        }
        let status = reap(pid);
        course.has_ended.store(true, Ordering::Relaxed);
        let shown = show("waiting for what the command left running");
        wait_for_descendants(mount_point, &course.is_asked);
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
fn wait_for_descendants(mount_point: &Path, asked: &AtomicBool) {
    let since = Instant::now();
    let mut told = false;
    while !asked.load(Ordering::Relaxed) {
        while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
        let users = descendants::users_of(mount_point);
        if users.is_empty() {
            return;
        }
        if !told && since.elapsed() >= PATIENCE {
            told = true;
            let users: Vec<_> = users.iter().map(i32::to_string).collect();
            log::warn!(
                "{}: the command has ended, waiting for process {} that it left; a signal unmounts",
                mount_point.display(),
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
