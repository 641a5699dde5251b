//! The command `wait`: waits until another process has mounted.
//!
//! The kernel reports every change of the mount table. Invariant: success means that this user's
//! archfs mount is there and answers.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{Error, Kind, Result};
use crate::lifecycle::commands::list;
use crate::lifecycle::mount::mount_point;
use crate::lifecycle::registry::{self, MountState};
use crate::os::mountinfo;

/// How often to check what the kernel does not report: directories on the way to the mount point,
/// and the daemon's record, which is written just after mounting. Also how long each check waits
/// for an answer of the mount.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Waits at most `limit` until files of an archfs mount at `path` can be read.
///
/// # Errors
/// `TimedOut`; `NotMounted` if something else is mounted there; `Io`.
pub fn wait(path: &Path, limit: Option<Duration>) -> Result<()> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let changes = mountinfo::changes()?;
    loop {
        let found = look(path)?;
        if found == Found::Answers {
            return Ok(());
        }
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            let (what, hint) = match found {
                Found::Silent => (
                    "mounted, but the daemon did not answer before the timeout",
                    list::LIST.to_owned(),
                ),
                Found::Stale => (list::STALE, list::clear(path)),
                Found::Nothing | Found::Answers => {
                    ("not mounted before the timeout", list::LIST.to_owned())
                }
            };
            let context = format!("{}: {what}", path.display());
            return Err(Error::new(Kind::TimedOut, context).with_hint(hint));
        }
        let left = deadline.map_or(CHECK_INTERVAL, |deadline| CHECK_INTERVAL.min(deadline - now));
        let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        // The file is always readable. A change is an exceptional condition (proc_pid_mounts(5)).
        let _ = poll(&mut [PollFd::new(&changes, PollFlags::PRI)], Some(&left));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// No archfs mount yet.
    Nothing,
    /// A stale mount. Another process may clear it and mount.
    Stale,
    /// A mount that does not answer: its daemon has just mounted, is stopped, or hangs.
    Silent,
    Answers,
}

fn look(path: &Path) -> Result<Found> {
    let mount_point = match mount_point::locate(path) {
        Err(error) if error.kind() == Kind::NotFound => return Ok(Found::Nothing),
        mount_point => mount_point?,
    };
    let entry = match registry::mount_state_within(&mount_point, CHECK_INTERVAL)? {
        MountState::Alive(entry, ..) => entry,
        // A mount that another process made and handed over has no record.
        MountState::Unrecorded(entry) if entry.is_own() => entry,
        MountState::Unrecorded(_)
        | MountState::Free
        | MountState::Starting(_)
        | MountState::Ending => return Ok(Found::Nothing),
        MountState::Stale(_) => return Ok(Found::Stale),
        MountState::Foreign(entry) => return Err(list::foreign(&mount_point, &entry)),
    };
    Ok(match entry.probe(CHECK_INTERVAL) {
        Some(Ok(())) => Found::Answers,
        // It has just been unmounted.
        Some(Err(_)) => Found::Nothing,
        None => Found::Silent,
    })
}
