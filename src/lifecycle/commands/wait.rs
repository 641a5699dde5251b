//! Waiting until another process has mounted.
//!
//! Owns noticing it: the kernel tells of each change of the mount table. Invariant: success means
//! that the mount there is this user's archfs mount and answers.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{Error, Kind, Result};
use crate::lifecycle::commands::list;
use crate::lifecycle::mount::mount_point;
use crate::lifecycle::share::{self, MountState};
use crate::lifecycle::system::probe;
use crate::mountinfo;

/// How often one looks at what the kernel does not tell of: folders on the way to the mount point,
/// and the daemon's record, which is written just after it mounted; and how long a mount is
/// listened to until then.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Waits until files of a mount of archfs at `path` can be read, at most `limit`.
///
/// # Errors
/// `TimedOut`; `NotMounted` where something else is mounted there; `Io`.
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
            let shown = path.display();
            let context = match found {
                Found::Silent => format!("{shown}: mounted, but no answer in the time given"),
                Found::Nothing | Found::Answers => {
                    format!("{shown}: not mounted in the time given")
                }
            };
            return Err(Error::new(Kind::TimedOut, context).with_hint(list::LIST));
        }
        let left = deadline.map_or(LOOK_AGAIN, |deadline| LOOK_AGAIN.min(deadline - now));
        let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        // Readable always; a change is an exceptional condition (proc_pid_mounts(5)).
        let _ = poll(&mut [PollFd::new(&changes, PollFlags::PRI)], Some(&left));
    }
}

/// What is at a mount point for somebody who waits for a mount of archfs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// None yet, or a dead one.
    Nothing,
    /// One that does not answer: its daemon has just mounted, is stopped, or hangs.
    Silent,
    /// One that answers.
    Answers,
}

fn look(path: &Path) -> Result<Found> {
    let mount_point = match mount_point::locate(path) {
        Err(error) if error.kind() == Kind::NotFound => return Ok(Found::Nothing),
        mount_point => mount_point?,
    };
    let entry = match share::look_within(&mount_point, LOOK_AGAIN)? {
        MountState::Alive(entry, ..) => entry,
        // A mount that another process made and handed over has no record.
        MountState::Other(entry) if entry.is_own() => entry,
        MountState::Other(entry) if entry.may_be_touched() => return Ok(Found::Nothing),
        MountState::Free | MountState::Starting(_) | MountState::Ending | MountState::Stale(_) => {
            return Ok(Found::Nothing);
        }
        MountState::Other(entry) => {
            let context = format!(
                "{}: {} is mounted here, not by archfs for you",
                mount_point.display(),
                entry.describe()
            );
            return Err(Error::new(Kind::NotMounted, context));
        }
    };
    Ok(match probe::of(&mount_point, &entry, LOOK_AGAIN) {
        Some(Ok(())) => Found::Answers,
        // It has just ended.
        Some(Err(_)) => Found::Nothing,
        None => Found::Silent,
    })
}
