//! `archfs mount` in the background: shared or new, and for whom.
//!
//! Owns the launcher's part: it ends once the daemon knows who holds the mount.
//! Invariant: when it returns success, files can be read and somebody holds the mount.

use std::ffi::OsString;
use std::time::Instant;

use crate::error::{Error, Kind, Result};
use crate::lifecycle::commands::holder::Holder;
use crate::lifecycle::daemon::launcher::{Launched, Started};
use crate::lifecycle::mount::{inherited, mount_point};
use crate::lifecycle::share::{self, Client, Entry, Record};
use crate::lifecycle::{ConnectionSource, MountPlan, daemon};
use crate::progress::Show;

/// A mount that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountOutcome {
    /// A new one.
    New,
    /// The one of that process, which others asked for before.
    Shared(i32),
}

/// Who asks for a mount.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// For whom it holds.
    pub holder: Holder,
    /// The descriptor at which somebody waits for the line `ready`.
    pub ready: Option<u32>,
}

impl Caller {
    /// Says that files can be read, once, and lets the mount of `client` hold; `false` where it has
    /// ended. Where that fails the mount holds for nobody but `client`.
    fn take(&mut self, client: &mut Client) -> Result<bool> {
        daemon::announce(self.ready.take())?;
        match self.holder {
            Holder::Process(process) => client.watch(process),
            Holder::Nobody(_) => client.keep(),
        }
    }
}

/// Mounts as `plan` says, for `caller`, in the background, or takes part in such a mount.
/// `arguments` are those with which this program is the daemon. `Ok(Err(status))` where the daemon
/// failed and has said why. What others do there is waited for, which `show` shows.
///
/// # Errors
/// `Busy` where something else is mounted there; `NotFound` where the holder has ended; `Io`, also
/// where nobody reads that it is ready.
pub fn mount(
    plan: &MountPlan,
    arguments: &dyn Fn(ConnectionSource) -> Vec<OsString>,
    mut caller: Caller,
    show: Show<'_>,
) -> Result<Started<MountOutcome>> {
    if let Some(number) = inherited::number(&plan.mountpoint) {
        let connection = inherited::connection(number)?;
        let mut launched = Launched::start(&arguments(ConnectionSource::Handed), None)?;
        if let Err(status) = launched.wait_until_opened()? {
            return Ok(Err(status));
        }
        launched.hand_over(connection)?;
        return match launched.wait_until_ready()? {
            Ok(mut client) => match caller.take(&mut client)? {
                true => Ok(Ok(MountOutcome::New)),
                false => Err(ended()),
            },
            Err(status) => Ok(Err(status)),
        };
    }
    loop {
        let (mut client, shared) = match obtain(plan, arguments, show)? {
            Ok(obtained) => obtained,
            Err(status) => return Ok(Err(status)),
        };
        let mounted =
            shared.map_or(MountOutcome::New, |record| MountOutcome::Shared(record.process.pid()));
        let error = match caller.take(&mut client) {
            Ok(true) => return Ok(Ok(mounted)),
            // Whoever ended it did not mean this caller, who asks again, as one who comes later.
            Ok(false) if mounted != MountOutcome::New => continue,
            Ok(false) => ended(),
            Err(error) => error,
        };
        // A daemon that was killed leaves its mount.
        let _ = client.leave();
        share::clear(&mount_point::locate(&plan.mountpoint)?, Instant::now() + share::EXIT)?;
        return Err(error);
    }
}

fn ended() -> Error {
    Error::new(Kind::Io, "the mount has ended before it was taken")
}

/// A lease on the mount that `plan` asks for, and its record where others made it.
///
/// # Errors
/// As `mount`.
pub(in crate::lifecycle) fn obtain(
    plan: &MountPlan,
    arguments: &dyn Fn(ConnectionSource) -> Vec<OsString>,
    show: Show<'_>,
) -> Result<Started<(Client, Option<Record>)>> {
    let mount_point = mount_point::locate(&plan.mountpoint)?;
    // The daemon has a bar of its own.
    let shown = show(&format!("waiting to mount at {}", mount_point.display()));
    let entry = share::enter(&mount_point, plan);
    drop(shown);
    let lock = match entry? {
        Entry::Shared(client, record) => return Ok(Ok((client, Some(record)))),
        Entry::Free(lock) => lock,
    };
    let started = Launched::start(&arguments(ConnectionSource::Mount), Some(&lock))
        .and_then(|launched| launched.wait_until_answers(&mount_point));
    drop(lock);
    if !matches!(started, Ok(Ok(_))) {
        // A helper that the daemon has started may still hold the lock.
        share::clear(&mount_point, Instant::now() + share::EXIT)?;
    }
    Ok(started?.map(|client| (client, None)))
}
