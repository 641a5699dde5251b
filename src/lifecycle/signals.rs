//! What wakes the daemon: signals, the end of its session, a request after a quiet time.
//!
//! Owns the pipes that a handler or a thread writes to, so that the daemon waits in one place for
//! everything. `child` passes signals on and has its own way.
//! Invariant: a handler only writes a byte or sets a flag; whatever has to be done is done by the
//! daemon's loop.
//!
//! SIGINT is the exit handler of ctrlc: at once. A thread of ctrlc's calls it, which may be late,
//! and who comes after the signal must not be given what ends. So the signal sets a flag, too,
//! before the daemon's loop goes on. SIGTERM and SIGHUP leave a grace, so they come by another
//! pipe. SIGCONT, which Slurm sends before SIGTERM, has no handler and does nothing.

use std::fs;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::unix::net::UnixStream;
// What signal-hook takes, also where a model of threads takes the place of the others.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags};
use rustix::io::ioctl_fionbio;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::low_level::pipe;

use crate::error::{Error, Result};

/// What happened since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Woken {
    /// How many signals asked for an end within the grace.
    pub(super) asked: usize,
    /// Whether a signal asked for an end at once.
    pub(super) at_once: bool,
    /// Whether the session has ended.
    pub(super) session_ended: bool,
}

/// The reading ends.
#[derive(Debug)]
pub(super) struct Wakes {
    asked: UnixStream,
    told: PipeReader,
    interrupted: Arc<AtomicBool>,
}

/// Tells the daemon that its session has ended.
#[derive(Debug)]
pub(super) struct SessionEnd(PipeWriter);

/// What is written for SIGINT, for the end of the session, and to have the daemon look around.
const AT_ONCE: u8 = b'i';
const SESSION_ENDED: u8 = b's';
const LOOK: u8 = b'l';

/// What becomes of signals that this process was started to ignore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ignored {
    /// They stay so: nohup and shells ask for that.
    Stay,
    /// They are heeded: a daemon has left whoever asked for that.
    AreHeeded,
}

/// Lets system calls tell this process of what these signals are about; what it starts has them as
/// usual. SIGCHLD: the kernel forgets children at once where whoever started this process ignores
/// it. SIGXFSZ: writing past the limit of ulimit -f ends a process that has no handler.
pub fn leave_to_system_calls() {
    let never_looked_at = Arc::new(AtomicBool::new(false));
    for signal in [SIGCHLD, SIGXFSZ] {
        let _ = flag::register(signal, Arc::clone(&never_looked_at));
    }
}

/// Whether this process ignores `signal` now.
pub(super) fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    signal.checked_sub(1).is_some_and(|bit| mask >> bit & 1 == 1)
}

/// From now on signals are noted and end nothing by themselves.
///
/// # Errors
/// `Io` where the system refuses.
pub(super) fn watch(ignored: Ignored) -> Result<(Wakes, SessionEnd)> {
    let heeds = |signal| ignored == Ignored::AreHeeded || !is_ignored(signal);
    let failed = |error| Error::io("can not watch for signals", error);
    let (told, teller) = io::pipe().map_err(failed)?;
    let mut interrupt = teller.try_clone().map_err(failed)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    if heeds(SIGINT) {
        ctrlc::set_handler(move || {
            let _ = interrupt.write_all(&[AT_ONCE]);
        })
        .map_err(|error| match error {
            ctrlc::Error::System(error) => failed(error),
            error => failed(io::Error::other(error)),
        })?;
        // It calls the handler that was there before it.
        flag::register(SIGINT, Arc::clone(&interrupted)).map_err(failed)?;
    }
    let (asked, sender) = UnixStream::pair().map_err(failed)?;
    asked.set_nonblocking(true).map_err(failed)?;
    ioctl_fionbio(&told, true).map_err(|error| failed(error.into()))?;
    for signal in [SIGTERM, SIGHUP].into_iter().filter(|signal| heeds(*signal)) {
        pipe::register(signal, sender.try_clone().map_err(failed)?).map_err(failed)?;
    }
    Ok((Wakes { asked, told, interrupted }, SessionEnd(teller)))
}

impl Wakes {
    /// What to poll for.
    pub(super) fn watched(&self) -> [PollFd<'_>; 2] {
        [PollFd::new(&self.asked, PollFlags::IN), PollFd::new(&self.told, PollFlags::IN)]
    }

    /// What happened; waits for nothing.
    pub(super) fn take(&mut self) -> Woken {
        let mut bytes = [0; 64];
        let asked = self.asked.read(&mut bytes).unwrap_or(0);
        let count = self.told.read(&mut bytes).unwrap_or(0);
        let told = bytes.get(..count).unwrap_or_default();
        Woken {
            asked,
            at_once: self.interrupted.swap(false, Ordering::Relaxed) | told.contains(&AT_ONCE),
            session_ended: told.contains(&SESSION_ENDED),
        }
    }
}

impl SessionEnd {
    /// Something else that wakes the daemon and tells it nothing: it looks at everything then.
    ///
    /// # Errors
    /// `Io` where the system refuses.
    pub(super) fn waker(&self) -> Result<impl Fn() + Send + Sync + 'static> {
        let teller = self.0.try_clone();
        let teller = teller.map_err(|error| Error::io("can not watch for requests", error))?;
        Ok(move || {
            let _ = (&teller).write_all(&[LOOK]);
        })
    }

    /// Wakes the daemon.
    pub(super) fn tell(mut self) {
        // Nobody listens any more when the daemon is at its end.
        let _ = self.0.write_all(&[SESSION_ENDED]);
    }
}
