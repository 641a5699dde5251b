//! The command of `run`: mounted before it starts, unmounted when it has ended.
//!
//! Owns starting the command, passing signals on to it, and its status. The mount itself belongs to
//! a daemon that lives for this process, so a SIGKILL here leaves nothing mounted either.
//! Invariant: the mount is gone when `run` returns, whatever became of the command.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

use super::attach::Detach;
use super::daemon;
use super::unmount::unmount;
use crate::error::{Error, Kind, Result};

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

/// Starts the daemon `archfs DAEMON`, whose mount is at `mountpoint`, runs `command`, unmounts.
///
/// # Errors
/// `Io` where the system refuses to start or watch either.
pub fn run(daemon: &[OsString], mountpoint: &Path, command: &[OsString]) -> Result<Outcome> {
    // A signal before this is done ends this process, and the daemon with it.
    if let Err(status) = daemon::start(daemon)? {
        return Ok(Outcome::NotMounted(status));
    }
    let failed = |error| Error::io("can not watch for signals", error);
    let signals = SignalsInfo::<WithOrigin>::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
    let place = std::fs::canonicalize(mountpoint).unwrap_or_else(|_| mountpoint.to_owned());
    let outcome = execute(signals, &place, command);
    let done = match unmount(&place, Detach::IfIdle) {
        // Processes that the command left behind keep their files; the name is gone all the same.
        Err(error) if error.kind() == Kind::Busy => unmount(&place, Detach::Lazily),
        done => done,
    };
    match done {
        // The command unmounted it, or a signal did.
        Err(error) if error.kind() == Kind::NotMounted => {}
        Err(error) => log::error!("{error}"),
        Ok(()) => {}
    }
    outcome
}

fn execute(
    mut signals: SignalsInfo<WithOrigin>,
    place: &Path,
    command: &[OsString],
) -> Result<Outcome> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(Outcome::NotFound);
    };
    let shown = Path::new(program).display();
    let spawned = Command::new(program).args(arguments).env("ARCHFS_MOUNTPOINT", place).spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            log::error!("{shown}: command not found");
            return Ok(Outcome::NotFound);
        }
        Err(error) => {
            log::error!("{shown}: can not be executed: {error}");
            return Ok(Outcome::NotExecutable);
        }
    };
    let target = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let handle = signals.handle();
    let watching = thread::scope(|scope| {
        scope.spawn(|| {
            for origin in &mut signals {
                // The terminal sends Ctrl-C to all of its processes, so the command has it already.
                if matches!(origin.cause, Cause::Kernel) {
                    continue;
                }
                if let (Some(pid), Some(signal)) = (target, Signal::from_named_raw(origin.signal)) {
                    let _ = kill_process(pid, signal);
                }
            }
        });
        let status = child.wait();
        handle.close();
        status
    });
    watching.map(outcome).map_err(|error| Error::io("can not wait for the command", error))
}

fn outcome(status: ExitStatus) -> Outcome {
    match (status.code(), status.signal()) {
        (Some(code), _) => Outcome::Exited(code),
        (None, Some(signal)) => Outcome::Killed(signal),
        (None, None) => Outcome::Exited(1),
    }
}
