//! What wakes the daemon: signals, and the end of its session.
//!
//! Owns the pipes that a handler or a thread writes to, so that the daemon waits in one place for
//! everything. `child` passes signals on and has its own way.
//! Invariant: a handler only writes a byte; whatever has to be done is done by the daemon's loop.
//!
//! SIGINT is the exit handler of ctrlc: at once. SIGTERM and SIGHUP leave a grace, so they come by
//! another pipe. SIGCONT, which Slurm sends before SIGTERM, has no handler and does nothing.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags};
use rustix::io::ioctl_fionbio;
use signal_hook::consts::{SIGHUP, SIGTERM};
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
}

/// Tells the daemon that its session has ended.
#[derive(Debug)]
pub(super) struct SessionEnd(PipeWriter);

/// What is written for SIGINT, and for the end of the session.
const AT_ONCE: u8 = b'i';
const SESSION_ENDED: u8 = b's';

/// From now on signals are noted and end nothing by themselves.
///
/// # Errors
/// `Io` where the system refuses.
pub(super) fn watch() -> Result<(Wakes, SessionEnd)> {
    let failed = |error| Error::io("can not watch for signals", error);
    let (told, teller) = io::pipe().map_err(failed)?;
    let mut interrupt = teller.try_clone().map_err(failed)?;
    ctrlc::set_handler(move || {
        let _ = interrupt.write_all(&[AT_ONCE]);
    })
    .map_err(|error| failed(io::Error::other(error)))?;
    let (asked, sender) = UnixStream::pair().map_err(failed)?;
    asked.set_nonblocking(true).map_err(failed)?;
    ioctl_fionbio(&told, true).map_err(|error| failed(error.into()))?;
    for signal in [SIGTERM, SIGHUP] {
        pipe::register(signal, sender.try_clone().map_err(failed)?).map_err(failed)?;
    }
    Ok((Wakes { asked, told }, SessionEnd(teller)))
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
            at_once: told.contains(&AT_ONCE),
            session_ended: told.contains(&SESSION_ENDED),
        }
    }
}

impl SessionEnd {
    /// Wakes the daemon.
    pub(super) fn tell(mut self) {
        // Nobody listens any more when the daemon is at its end.
        let _ = self.0.write_all(&[SESSION_ENDED]);
    }
}
