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

use super::mountinfo::MountEntry;
use super::registry::MountId;

type Answer = rustix::io::Result<()>;

thread_local! {
    /// What this thread has asked and heard nothing of so far.
    static OPEN: RefCell<Vec<(MountId, Receiver<Answer>)>> = const { RefCell::new(Vec::new()) };
}

/// What `entry`, which is mounted at `place`, answers within `limit`; `None` where it does not.
pub(super) fn of(place: &Path, entry: &MountEntry, limit: Duration) -> Option<Answer> {
    let mount = MountId::of(entry);
    let asked = OPEN.with_borrow_mut(|open| {
        let at = open.iter().position(|(asked, _)| *asked == mount)?;
        Some(open.swap_remove(at).1)
    });
    let answer = asked.or_else(|| ask(place))?;
    match answer.recv_timeout(limit) {
        Ok(answer) => Some(answer),
        Err(RecvTimeoutError::Timeout) => {
            OPEN.with_borrow_mut(|open| open.push((mount, answer)));
            None
        }
        Err(RecvTimeoutError::Disconnected) => None,
    }
}

/// `None` where no thread can be started.
fn ask(place: &Path) -> Option<Receiver<Answer>> {
    let (tell, answer) = channel();
    let place = place.to_owned();
    let asking = move || {
        // Who asked may have gone on.
        let _ = tell.send(statfs(&place).map(drop));
    };
    thread::Builder::new().spawn(asking).ok().map(|_| answer)
}
