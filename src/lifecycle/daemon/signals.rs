//! What wakes the daemon: signals, the end of its session, a request after an idle time.
//!
//! Signal handlers and threads write to pipes, so that the daemon waits for everything in one call.
//! `relay` passes signals on to the command of `run`.
//! Invariant: a handler only writes a byte or sets a flag. The daemon's loop does the rest.
//!
//! SIGINT ends the daemon at once. ctrlc calls its handler in a thread, which may run late, and a
//! process that comes after the signal must not get a lease on a mount that is ending. So the
//! signal also sets a flag, before the daemon's loop continues. SIGTERM and SIGHUP start a grace
//! period, so they use another pipe. In a Slurm job SIGINT and SIGCONT use that pipe as well,
//! because their senders and their order matter there (`slurm_end`), and one thread handles them
//! (`receive_in_order`).
//!
//! All other signals that would end a process are ignored (`ignore_others`). A batch system sends
//! them to every process of a job, and they mean nothing to the daemon.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
// The types that signal-hook takes, even if a thread model replaces those of `sync`.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags};
use rustix::io::ioctl_fionbio;
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGIO, SIGPIPE, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1,
    SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
};
use signal_hook::flag;

use crate::error::{Error, Result};
use crate::lifecycle::daemon::slurm_end::{Script, SlurmEnd};
use crate::os::kernel_file;
pub(crate) use crate::os::signal::ENDING;
use crate::os::signal::SignalReceiver;
use crate::os::signal::{self, Mask};

/// Signals that end a process without a handler, except those that ask archfs to end (`ENDING`),
/// real-time signals, and program faults (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT,
/// SIGSYS).
const OTHERS: [i32; 12] = [
    SIGQUIT,
    SIGUSR1,
    SIGUSR2,
    SIGPIPE,
    SIGALRM,
    libc::SIGSTKFLT,
    SIGXCPU,
    SIGXFSZ,
    SIGVTALRM,
    SIGPROF,
    SIGIO,
    libc::SIGPWR,
];

/// Signals that say in a Slurm job whether it ends (`slurm_end`).
const SENT_BY_SLURM: [i32; 4] = [SIGTERM, SIGHUP, SIGINT, SIGCONT];

/// What happened since the last call of `WakeSources::take`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WakeEvents {
    /// Number of signals that asked for an end within the grace period.
    pub(crate) end_requests: usize,
    pub(crate) end_now: bool,
    pub(crate) session_ended: bool,
}

#[derive(Debug)]
pub(crate) struct WakeSources {
    received: SignalReceiver,
    pipe: PipeReader,
    interrupted: Arc<AtomicBool>,
    slurm: Option<SlurmEnd>,
}

/// Notifies the daemon that its session has ended.
#[derive(Debug)]
pub(crate) struct SessionEnd(PipeWriter);

/// Bytes written for SIGINT, for the end of the session, and to make the daemon check everything.
const AT_ONCE: u8 = b'i';
const SESSION_ENDED: u8 = b's';
const CHECK: u8 = b'l';

/// What to do with signals that this process was started to ignore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ignored {
    /// Keep ignoring them, as nohup and shells want.
    Stay,
    /// Handle them: a daemon does not belong to the process that ignored them.
    AreHandled,
}

/// Gives SIGCHLD and SIGXFSZ handlers that do nothing, so that system calls report the condition.
/// Programs that this process starts have the default actions.
///
/// SIGCHLD: if the process that started this one ignores it, the kernel discards the exit statuses
/// of children. SIGXFSZ: without a handler, writing past the limit of ulimit -f ends the process.
pub fn leave_to_system_calls() {
    let unused = Arc::new(AtomicBool::new(false));
    for signal in [SIGCHLD, SIGXFSZ] {
        let _ = flag::register(signal, Arc::clone(&unused));
    }
}

/// Signals that would end a process and do not ask archfs to end.
pub(crate) fn others() -> impl Iterator<Item = i32> {
    OTHERS.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// Ignores those signals in this process and in the daemon that it starts, and unblocks all signals
/// that the caller blocked. Call this before the first thread is started.
pub fn ignore_others() {
    // SIGXFSZ already has a handler, so that programs started from here have the default action.
    for signal in others().filter(|signal| *signal != SIGXFSZ) {
        signal::ignore(signal);
    }
    // Only now, because a pending signal would end this process.
    Mask::clear();
}

/// In a Slurm job, makes this process handle SIGCONT before a signal that was sent after it. Call
/// this before any thread is started that lives as long as the mount.
pub fn receive_in_order() {
    if SlurmEnd::is_in_job() {
        signal::receive_in_one_thread(&SENT_BY_SLURM);
    }
}

/// Until `watch`, makes a thread handle the signals that ask archfs to end, because a thread that
/// waits for a file server that does not answer cannot. In a Slurm job, there is such a thread
/// already, which stays.
pub fn receive_while_opening() {
    if !SlurmEnd::is_in_job() {
        signal::receive_in_one_thread(&ENDING);
    }
}

/// The signals that this process ignores now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IgnoredNow(u64);

impl IgnoredNow {
    pub(crate) fn read() -> Self {
        let mask = kernel_file::own_status("SigIgn");
        Self(mask.and_then(|mask| u64::from_str_radix(&mask, 16).ok()).unwrap_or(0))
    }

    pub(crate) fn has(self, signal: i32) -> bool {
        signal.checked_sub(1).is_some_and(|bit| self.0 >> bit & 1 == 1)
    }
}

pub(crate) fn is_ignored(signal: i32) -> bool {
    IgnoredNow::read().has(signal)
}

/// Starts to receive signals, which then no longer end this process by themselves.
pub(crate) fn watch(ignored: Ignored) -> Result<(WakeSources, SessionEnd)> {
    let handles = |signal| ignored == Ignored::AreHandled || !is_ignored(signal);
    let failed = |error| Error::io("signal handlers: cannot be installed", error);
    let (reader, writer) = io::pipe().map_err(failed)?;
    let mut interrupt = writer.try_clone().map_err(failed)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let slurm = SlurmEnd::watch();
    if handles(SIGINT) && slurm.is_none() {
        ctrlc::set_handler(move || {
            let _ = interrupt.write_all(&[AT_ONCE]);
        })
        .map_err(|error| match error {
            ctrlc::Error::System(error) => failed(error),
            error => failed(io::Error::other(error)),
        })?;
        // It also calls the handler that was there before, which is that of ctrlc.
        flag::register(SIGINT, Arc::clone(&interrupted)).map_err(failed)?;
    }
    ioctl_fionbio(&reader, true).map_err(|error| failed(error.into()))?;
    let signals: &[i32] = match slurm {
        Some(_) => &SENT_BY_SLURM,
        None => &[SIGTERM, SIGHUP],
    };
    let received = SignalReceiver::new(signals.iter().copied().filter(|signal| handles(*signal)))?;
    if slurm.is_none() {
        // Ends `receive_while_opening`. This thread must not run on past a SIGINT.
        Mask::clear();
    }
    Ok((WakeSources { received, pipe: reader, interrupted, slurm }, SessionEnd(writer)))
}

impl WakeSources {
    pub(crate) fn watched(&self) -> [PollFd<'_>; 2] {
        [self.received.watched(), PollFd::new(&self.pipe, PollFlags::IN)]
    }

    /// What happened since the last call. Does not wait. `script` is the state of the batch script.
    pub(crate) fn take(&mut self, script: Script) -> WakeEvents {
        let mut bytes = [0; 64];
        let count = self.pipe.read(&mut bytes).unwrap_or(0);
        let bytes = bytes.get(..count).unwrap_or_default();
        let mut events = WakeEvents {
            end_requests: 0,
            end_now: self.interrupted.swap(false, Ordering::Relaxed) | bytes.contains(&AT_ONCE),
            session_ended: bytes.contains(&SESSION_ENDED),
        };
        for arrival in self.received.take() {
            if let Some(slurm) = &mut self.slurm
                && !slurm.means_end(arrival, script)
            {
                continue;
            }
            match arrival.signal {
                SIGINT => events.end_now = true,
                _ => events.end_requests += 1,
            }
        }
        events
    }
}

impl SessionEnd {
    /// A function that wakes the daemon without an event, so that it checks everything.
    pub(crate) fn waker(&self) -> Result<impl Fn() + Send + Sync + 'static> {
        let writer = self.0.try_clone();
        let writer = writer.map_err(|error| {
            Error::io("wake-up pipe of the daemon: cannot be duplicated", error)
        })?;
        Ok(move || {
            let _ = (&writer).write_all(&[CHECK]);
        })
    }

    pub(crate) fn notify(mut self) {
        // Nothing reads this any more if the daemon is exiting.
        let _ = self.0.write_all(&[SESSION_ENDED]);
    }
}
