//! Asking a mount for an answer, for a limited time.
//!
//! Owns the one system call that goes to whoever serves what is mounted, which may be stopped or
//! hang. Invariant: that costs who asks the limit, and one thread however often it asks again.
//!
//! stat(2) may be answered from the kernel's cache, also for the dead; statfs(2) never is. Nothing
//! but its answer or the end of the process ends such a call, so a thread makes it that nobody
//! waits for. The kernel lets a process end whose question no daemon has taken yet, and one that is
//! stopped takes none.

use std::cell::RefCell;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::fs::statfs;
use rustix::io::Errno;

use crate::mountinfo::{MountEntry, MountId};

type Answer = rustix::io::Result<()>;

thread_local! {
    /// What this thread has asked and heard nothing of so far.
    static OPEN: RefCell<Vec<(MountId, Receiver<Answer>)>> = const { RefCell::new(Vec::new()) };
}

/// What `entry`, which is mounted at `mount_point`, answers within `limit`; `None` where it does
/// not.
pub(in crate::lifecycle) fn of(
    mount_point: &Path,
    entry: &MountEntry,
    limit: Duration,
) -> Option<Answer> {
    let mount = MountId::of(entry);
    let asked = OPEN.with_borrow_mut(|open| {
        let at = open.iter().position(|(asked, _)| *asked == mount)?;
        Some(open.swap_remove(at).1)
    });
    let answer = asked.or_else(|| ask(mount_point))?;
    match answer.recv_timeout(limit) {
        Ok(answer) => Some(answer),
        Err(RecvTimeoutError::Timeout) => {
            OPEN.with_borrow_mut(|open| open.push((mount, answer)));
            None
        }
        Err(RecvTimeoutError::Disconnected) => None,
    }
}

/// Whether `entry`, which is mounted at `mount_point`, has no daemon any more. While a daemon exits
/// the kernel says that the connection was aborted.
pub(in crate::lifecycle) fn is_stale(
    mount_point: &Path,
    entry: &MountEntry,
    limit: Duration,
) -> bool {
    matches!(of(mount_point, entry, limit), Some(Err(Errno::NOTCONN | Errno::CONNABORTED)))
}

/// `None` where no thread can be started.
fn ask(mount_point: &Path) -> Option<Receiver<Answer>> {
    let (tell, answer) = channel();
    let mount_point = mount_point.to_owned();
    let asking = move || {
        // Who asked may have gone on.
        let _ = tell.send(statfs(&mount_point).map(drop));
    };
    thread::Builder::new().spawn(asking).ok().map(|_| answer)
}
