//! `archfs run`: mounts, runs a command, and unmounts when the command has ended.
//!
//! `relay` passes signals on to the command. The mount belongs to a daemon, and this process and
//! the command hold it. So SIGKILL of this process leaves nothing mounted either.
//! Invariant: unless others hold the mount, it is gone when `run` returns and when the grace period
//! has ended, whatever happened to the command.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitOptions, WaitStatus, geteuid, set_child_subreaper, wait, waitpid};

use crate::direct;
use crate::error::{Error, Kind, Result, reason};
use crate::lifecycle::commands::relay::{CommandState, Relay};
use crate::lifecycle::commands::{descendants, mount};
use crate::lifecycle::daemon::launcher::{Launched, Started};
use crate::lifecycle::mount::{attach, fusermount, mount_point, namespace, owned_directory};
use crate::lifecycle::share::{self, Client, MountFate, MountState, Prepared, RecordSnapshot};
use crate::lifecycle::{ConnectionSource, Lifetime, MountPlan};
use crate::os::mountinfo;
use crate::os::process::ProcessId;
use crate::os::raw_signals::Mask;
use crate::progress::Show;
use crate::sync::{AtomicBool, Ordering};

/// How often to check whether processes that the command left running still use the mount.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Time after which a message explains the wait.
const EXPLAIN_AFTER: Duration = Duration::from_secs(2);

/// How long to wait for the table of direct reads before the command starts, so that `run` can say
/// that no file can be read directly. The command reads through the mount until the table is made.
const TABLE_WAIT: Duration = Duration::from_millis(300);
const TABLE_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Exit status of a daemon that is not allowed to mount (docs/CLI.md).
const CANNOT_MOUNT: i32 = 4;

/// Which processes see the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privacy {
    /// All processes of the user. Only the command, if archfs cannot mount in another way.
    Default,
    /// Only the command.
    Private,
}

/// How to run the command.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// Which processes see the mount.
    pub privacy: Privacy,
    /// Whether the command reads uncompressed files from the archive itself.
    pub is_direct: bool,
}

/// Variables for the environment of the command.
type Environment = Vec<(&'static str, OsString)>;

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
    /// Mounting failed with this exit status, and the command was not started. The error was
    /// printed.
    NotMounted(i32),
}

/// Mounts `plan` or shares such a mount, runs `command`, and unmounts. `arguments` are the command
/// line that runs this program as the daemon. `show` displays waits other than that for the
/// command.
///
/// # Errors
/// Errors of mounting from before the daemon starts; `Io` if the daemon or the command cannot be
/// started or watched.
pub fn run(
    plan: &MountPlan,
    arguments: &dyn Fn(ConnectionSource) -> Vec<OsString>,
    options: RunOptions,
    command: &[OsString],
    show: Show<'_>,
) -> Result<Outcome> {
    let relay = Relay::new()?;
    // After `Relay::new`, so that a signal that is pending is kept for the command and does not end
    // this process.
    let mask = Mask::clear();
    let mount_point = mount_point::locate(&plan.mountpoint)?;
    // Until `catch_ending_signals`, a signal that asks for the end ends this process, and the
    // daemon with it.
    let lease = match obtain(&mount_point, plan, arguments, options.privacy, show)? {
        Ok(lease) => lease,
        Err(status) => return Ok(Outcome::NotMounted(status)),
    };
    relay.catch_ending_signals()?;
    // Orphans of the command become children of this process, which can then find them.
    let _ = set_child_subreaper(Some(rustix::process::getpid()));
    let mut environment = vec![("ARCHFS_MOUNTPOINT", mount_point.clone().into_os_string())];
    if options.is_direct {
        environment.extend(direct_reads(&mount_point, lease.is_private));
    }
    let mut lease = Some(lease);
    let outcome =
        execute(relay, mask, &mount_point, plan.lifetime, (command, environment), &mut lease, show);
    if let Some(lease) = lease {
        lease.end(&mount_point, show);
    }
    outcome
}

/// The lease on the mount.
struct RunLease {
    client: Client,
    /// Whether this process mounted it, in its own mount namespace.
    is_private: bool,
    /// Whether the summary of the mount is printed.
    is_summarised: bool,
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
        log::warn!(
            "{}: no fusermount3 on this node; mounting in a namespace that only the command sees",
            mount_point.display()
        );
        return mount_privately(mount_point, plan, arguments);
    }
    match mount::obtain(plan, arguments, show)? {
        Ok((client, _)) => {
            let is_summarised = plan.is_summarised();
            Ok(Ok(RunLease { client, is_private: false, is_summarised }))
        }
        // The daemon has printed why. For example, the mount point does not belong to the user, or
        // root in a user namespace may mount only in a mount namespace of its own.
        Err(CANNOT_MOUNT) if fusermount::device_can_be_opened() => {
            let path = mount_point.display();
            log::warn!("{path}: mounting in a namespace that only the command sees instead");
            mount_privately(mount_point, plan, arguments)
        }
        Err(status) => Ok(Err(status)),
    }
}

/// Mounts in a mount namespace of this process, which the command inherits. The daemon stays
/// outside, where it can remove the directory it created when the namespace has ended.
fn mount_privately(
    mount_point: &Path,
    plan: &MountPlan,
    arguments: &dyn Fn(ConnectionSource) -> Vec<OsString>,
) -> Result<Started<RunLease>> {
    let named = |error: Error| error.within(mount_point.display());
    let mut launched =
        Launched::start(&arguments(ConnectionSource::Private), None).map_err(named)?;
    match launched.wait_until_opened() {
        Ok(Ok(())) => {}
        Ok(Err(status)) => return Ok(Err(status)),
        Err(error) => {
            clear_private(mount_point);
            return Err(named(error));
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
        Ok(()) => launched.wait_until_answers(mount_point).map_err(named),
        Err(error) => {
            launched.give_up();
            Err(error)
        }
    };
    if !matches!(answers, Ok(Ok(_))) {
        // If the daemon still ran, it has removed its directory, and the mount with it.
        let _ = attach::detach_here(mount_point);
        clear_private(mount_point);
    }
    let is_summarised = plan.is_summarised();
    Ok(answers?.map(|client| RunLease { client, is_private: true, is_summarised }))
}

/// Removes what the killed daemon of a private mount left behind.
fn clear_private(mount_point: &Path) {
    share::remove_ended_records(mount_point);
    owned_directory::remove_unused(mount_point, None);
}

impl RunLease {
    /// Gives the lease back although `command` still runs, as if it had ended.
    fn end_before(mut self, command: Option<ProcessId>, mount_point: &Path) {
        // If the daemon does not answer, `end` reports that.
        let _ = command.map(|command| self.client.unwatch(command));
        self.end(mount_point, &|_| Box::new(()));
    }

    /// Gives the lease back. Returns when it is unmounted, or at once if it stays because others
    /// hold it.
    fn end(self, mount_point: &Path, show: Show<'_>) {
        // Checked first, because detaching a private mount ends it.
        let has_ended = matches!(
            share::mount_state(mount_point),
            Ok(MountState::Stale(_) | MountState::Ending | MountState::Free)
        );
        if self.is_private {
            // Files that are still open stay readable until they are closed.
            if let Err(error) = attach::detach_here(mount_point) {
                crate::log::error(&error);
            }
        }
        let shown = show(&format!("unmounting {}", mount_point.display()));
        let mount_fate = self.client.leave();
        drop(shown);
        if let Ok(MountFate::Unmounted(summary)) = &mount_fate
            && self.is_summarised
        {
            crate::log::note(format_args!("{summary}"));
        }
        if has_ended {
            log::error!("{}: the mount ended before the command exited", mount_point.display());
        }
        // A killed daemon leaves a stale mount and its directory, or only the directory.
        let cleared = match &mount_fate {
            Ok(MountFate::Stays) => Ok(()),
            Ok(MountFate::Lost) if self.is_private => {
                clear_private(mount_point);
                Ok(())
            }
            Ok(MountFate::Lost) => {
                share::clean_up_after_exit(mount_point, Instant::now() + share::EXIT_TIMEOUT)
            }
            // What the private mount covered is visible again, and is not ours to clear.
            _ if self.is_private => Ok(()),
            _ => match share::mount_state(mount_point) {
                Ok(MountState::Stale(_)) => {
                    share::clean_up_after_exit(mount_point, Instant::now() + share::EXIT_TIMEOUT)
                }
                _ => Ok(()),
            },
        };
        for error in [mount_fate.err(), cleared.err()].into_iter().flatten() {
            crate::log::error(&error.within(mount_point.display()));
        }
    }
}

/// The variables with which the command reads directly. Warns if it cannot; it reads through the
/// mount then.
fn direct_reads(mount_point: &Path, is_private: bool) -> Environment {
    let path = mount_point.display();
    let prepared = match is_private {
        true => Err(Error::new(Kind::Unsupported, "the mount is private")),
        false => prepare_direct_reads(mount_point),
    };
    match prepared {
        Ok(variables) => variables,
        Err(error) => {
            log::warn!("{path}: --direct has no effect: {error}");
            Vec::new()
        }
    }
}

fn prepare_direct_reads(mount_point: &Path) -> Result<Environment> {
    let missing = || Error::new(Kind::NotFound, "the mount has ended");
    let entry = mountinfo::topmost(mount_point)?.ok_or_else(missing)?;
    let owner = entry.owner().ok_or_else(missing)?;
    let snapshot = RecordSnapshot::of(mount_point, owner).ok_or_else(missing)?;
    // On a connection of its own: a daemon that does not know the request ends the connection.
    let mut client = snapshot.connect().ok_or_else(missing)?;
    let deadline = Instant::now() + TABLE_WAIT;
    let mut prepared = client.prepare_direct_reads()?;
    while prepared == Prepared::NotYet && Instant::now() < deadline {
        thread::sleep(TABLE_POLL_INTERVAL);
        prepared = client.prepare_direct_reads()?;
    }
    let why = match prepared {
        Prepared::Ready | Prepared::NotYet => None,
        Prepared::Never => Some("no file of the mount can be read directly"),
        Prepared::Unknown => Some("the daemon is of another version of archfs"),
    };
    if let Some(why) = why {
        return Err(Error::new(Kind::Unsupported, why));
    }
    let device = entry.device_number().ok_or_else(missing)?;
    let library = share::in_record_directory(direct::install)
        .map_err(|error| Error::new(Kind::Io, "cannot store the library").with_source(error))?;
    let inherited = |name: &str| std::env::var_os(name);
    Ok(direct::environment(&library, device, &snapshot.socket(), inherited).into())
}

fn execute(
    relay: Relay,
    mask: Mask,
    mount_point: &Path,
    lifetime: Lifetime,
    (command, environment): (&[OsString], Environment),
    lease: &mut Option<RunLease>,
    show: Show<'_>,
) -> Result<Outcome> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(Outcome::NotFound);
    };
    let name = Path::new(program).display();
    let mut command = Command::new(program);
    command.args(arguments).envs(environment);
    mask.pass_to(&mut command);
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) if is_not_found(&error, program) => {
            log::error!("{name}: command not found");
            return Ok(Outcome::NotFound);
        }
        Err(error) => {
            log::error!("{name}: cannot execute: {}", reason(&error));
            return Ok(Outcome::NotExecutable);
        }
    };
    let pid = Pid::from_child(&child);
    let process = ProcessId::of(pid.as_raw_nonzero().get()).ok();
    // If this process is killed, the command still holds the mount and keeps its files.
    if let (Some(process), Some(lease)) = (process, lease.as_mut()) {
        let _ = lease.client.watch(process);
    }
    let state = CommandState::default();
    let handle = relay.handle();
    let status = thread::scope(|scope| {
        let detach = || {
            if let Some(lease) = lease.take() {
                let path = mount_point.display();
                log::warn!("{path}: unmounting while the command runs; open files stay readable");
                lease.end_before(process, mount_point);
            }
        };
        let pass_on = || relay.pass_on(pid, lifetime, &state, detach);
        if let Err(error) = thread::Builder::new().spawn_scoped(scope, pass_on) {
            log::warn!("{name}: signals are not passed on: {}", reason(&error));
        }
        let status = reap(pid);
        state.has_ended.store(true, Ordering::Relaxed);
        let shown = show("waiting for processes that the command left running");
        wait_for_descendants(mount_point, &state.end_requested);
        drop(shown);
        handle.close();
        status
    });
    status
        .map(outcome)
        .map_err(|error| Error::io(format!("{name}: cannot wait for it"), error.into()))
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
            let noun = if users.len() == 1 { "process" } else { "processes" };
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
