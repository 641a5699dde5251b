//! Probes a mount, for a limited time.
//!
//! The kernel may answer stat(2) from its cache, even for a stale mount, but it passes statfs(2) on
//! to the daemon. A daemon that is stopped or hangs does not answer, and the call returns only with
//! an answer or when the process ends. So a thread of its own makes the call, and no other thread
//! waits for it. If no daemon has read the request, the kernel drops it when this process exits; a
//! stopped daemon reads none.
//!
//! Invariant: a probe returns within its limit, and repeated probes of a mount share one thread.

use std::cell::RefCell;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::fs::statfs;
use rustix::io::Errno;

use crate::os::mountinfo::{MountEntry, MountId};

type Answer = rustix::io::Result<()>;

thread_local! {
    /// Probes by this thread that have no answer yet.
    static PENDING: RefCell<Vec<(MountId, Receiver<Answer>)>> = const { RefCell::new(Vec::new()) };
}

/// The answer of the mount `entry` at `mount_point`; `None` if there is none within `limit`.
pub(crate) fn of(mount_point: &Path, entry: &MountEntry, limit: Duration) -> Option<Answer> {
    let mount = MountId::of(entry);
    let earlier = PENDING.with_borrow_mut(|pending| {
        let index = pending.iter().position(|(earlier, _)| *earlier == mount)?;
        Some(pending.swap_remove(index).1)
    });
    let answer = earlier.or_else(|| start(mount_point))?;
    match answer.recv_timeout(limit) {
        Ok(answer) => Some(answer),
        Err(RecvTimeoutError::Timeout) => {
            PENDING.with_borrow_mut(|pending| pending.push((mount, answer)));
            None
        }
        Err(RecvTimeoutError::Disconnected) => None,
    }
}

/// Whether the mount `entry` at `mount_point` is stale. ECONNABORTED counts, which the kernel
/// returns while a daemon exits.
pub(crate) fn is_stale(mount_point: &Path, entry: &MountEntry, limit: Duration) -> bool {
    matches!(of(mount_point, entry, limit), Some(Err(Errno::NOTCONN | Errno::CONNABORTED)))
}

/// Starts a probe in a new thread; `None` if no thread can be started.
fn start(mount_point: &Path) -> Option<Receiver<Answer>> {
    let (sender, answer) = channel();
    let mount_point = mount_point.to_owned();
    let probe = move || {
        // The caller may have given up.
        let _ = sender.send(statfs(&mount_point).map(drop));
    };
    thread::Builder::new().spawn(probe).ok().map(|_| answer)
}
