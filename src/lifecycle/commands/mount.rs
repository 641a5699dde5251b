//! `archfs mount` in the background: shares an existing mount, or starts a daemon for a new one.
//!
//! Invariant: when it returns success, files can be read and the daemon knows what holds the mount.

use std::path::Path;

use crate::error::{Error, Kind, Result};
use crate::lifecycle::commands::holder::Holder;
use crate::lifecycle::daemon::launcher::Launched;
use crate::lifecycle::mount::{inherited, mount_point};
use crate::lifecycle::ready::Ready;
use crate::lifecycle::registry::{self, Client, JoinOutcome, Record};
use crate::lifecycle::{Background, ConnectionSource, MountPlan};
use crate::progress::Show;

/// The mount that the caller got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountOutcome {
    /// A new mount.
    New,
    /// The mount of this daemon, which another process had asked for.
    Shared(i32),
}

/// The process that asks for a mount.
#[derive(Debug)]
pub struct Caller<'a> {
    /// What holds the mount.
    pub holder: Holder,
    /// Where processes wait until files can be read.
    pub ready: &'a mut Ready,
}

impl Caller<'_> {
    /// Reports, once, that files can be read, and lets the holder hold the mount of `client`.
    /// Returns `false` if the mount has ended. After an error only `client` holds the mount.
    fn announce_and_hold(&mut self, client: &mut Client) -> Result<bool> {
        self.ready.announce()?;
        match self.holder {
            Holder::Process(process) => client.watch(process),
            Holder::UntilUnmount(_) => client.keep_until_unmount(),
        }
    }
}

/// Mounts `plan` in the background for `caller`, or shares such a mount. `show` displays the wait
/// for other processes.
///
/// # Errors
/// `Reported` if the daemon failed and has printed why; `Busy` if something else is mounted there;
/// `NotFound` if the holder has ended; `Io`, also if the process that waits for `ready` is gone.
pub fn mount(plan: &MountPlan, mut caller: Caller<'_>, show: Show<'_>) -> Result<MountOutcome> {
    if let Some(number) = inherited::number(&plan.mount_point) {
        let connection = inherited::connection(number)?;
        let role = Background { source: ConnectionSource::Handed, has_fallback: false };
        let mut launched = Launched::start(plan, role, None)?;
        launched.wait_until_opened()?;
        launched.hand_over(connection)?;
        let mut client = launched.wait_until_ready()?;
        return match caller.announce_and_hold(&mut client)? {
            true => Ok(MountOutcome::New),
            false => Err(ended(&plan.mount_point)),
        };
    }
    loop {
        let (mut client, shared) = obtain(plan, false, show)?;
        let mounted =
            shared.map_or(MountOutcome::New, |record| MountOutcome::Shared(record.process.pid()));
        let error = match caller.announce_and_hold(&mut client) {
            Ok(true) => return Ok(mounted),
            // The mount ended on behalf of another process, so this one tries again like a new
            // caller.
            Ok(false) if mounted != MountOutcome::New => continue,
            Ok(false) => ended(&plan.mount_point),
            Err(error) => error,
        };
        // A killed daemon leaves its mount behind.
        let _ = client.leave();
        registry::clean_up_after_exit(
            &mount_point::locate(&plan.mount_point)?,
            registry::EXIT_TIMEOUT,
        )?;
        return Err(error);
    }
}

fn ended(mount_point: &Path) -> Error {
    let context = format!("{}: the mount ended before it could be shared", mount_point.display());
    Error::new(Kind::Io, context)
}

/// A lease on the mount that `plan` asks for, and its record if the mount is shared. A caller that
/// `has_fallback` mounts in another way if the daemon cannot.
pub(crate) fn obtain(
    plan: &MountPlan,
    has_fallback: bool,
    show: Show<'_>,
) -> Result<(Client, Option<Record>)> {
    let mount_point = mount_point::locate(&plan.mount_point)?;
    // The daemon shows a progress bar of its own.
    let shown = show(&format!("waiting to mount at {}", mount_point.display()));
    let entry = registry::join_or_lock(&mount_point, plan);
    drop(shown);
    let mut lock = match entry? {
        JoinOutcome::Joined(client, record) => return Ok((client, Some(record))),
        JoinOutcome::Locked(lock) => lock,
    };
    let role = Background { source: ConnectionSource::Mount, has_fallback };
    let started = Launched::start(plan, role, Some(&mut lock))
        .and_then(|launched| launched.wait_until_answers(&mount_point))
        .map_err(|error| error.within(mount_point.display()));
    drop(lock);
    if started.is_err() {
        // A helper that the daemon started may still hold the lock.
        registry::clean_up_after_exit(&mount_point, registry::EXIT_TIMEOUT)?;
    }
    Ok((started?, None))
}
