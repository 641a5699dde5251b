//! Waiting until another process has mounted.
//!
//! Owns noticing it: the kernel tells of each change of the mount table. Invariant: success means
//! that the mount at the place is this user's archfs mount and answers.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::occupant::{self, Occupant};
use super::{list, mountinfo, mountpoint};
use crate::error::{Error, Kind, Result};

/// How often one looks at what the kernel does not tell of: folders on the way to the place, and
/// the daemon's record, which is written just after it mounted.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Waits until files of a mount of archfs at `path` can be read, at most `limit`.
///
/// # Errors
/// `TimedOut`; `NotMounted` where something else is mounted there; `Io`.
pub fn wait(path: &Path, limit: Option<Duration>) -> Result<()> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let changes = mountinfo::changes()?;
    loop {
        if is_mounted(path)? {
            return Ok(());
        }
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            let context = format!("{}: not mounted in the time given", path.display());
            return Err(Error::new(Kind::TimedOut, context).with_hint(list::LIST));
        }
        let left = deadline.map_or(LOOK_AGAIN, |deadline| LOOK_AGAIN.min(deadline - now));
        let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        // Readable always; a change is an exceptional condition (proc_pid_mounts(5)).
        let _ = poll(&mut [PollFd::new(&changes, PollFlags::PRI)], Some(&left));
    }
}

fn is_mounted(path: &Path) -> Result<bool> {
    let place = match mountpoint::locate(path) {
        Err(error) if error.kind() == Kind::NotFound => return Ok(false),
        place => place?,
    };
    match occupant::look(&place)? {
        // The daemon mounts before it can answer; asking for the root waits until it does.
        Occupant::Alive(..) => Ok(std::fs::symlink_metadata(&place).is_ok()),
        Occupant::Nothing | Occupant::Leaving(_) | Occupant::Dead(_) => Ok(false),
        // Between mounting and the record, this is how ours look.
        Occupant::Other(entry) if occupant::may_touch(&entry) => Ok(false),
        Occupant::Other(entry) => Err(Error::new(
            Kind::NotMounted,
            format!(
                "{}: {} is mounted here, not by archfs for you",
                place.display(),
                entry.describe()
            ),
        )),
    }
}
