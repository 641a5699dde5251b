//! What wakes the daemon: signals, the end of its session, a request after a quiet time.
//!
//! Owns the pipes that a handler or a thread writes to, so that the daemon waits in one call for
//! everything. `relay` passes signals on to the command of `run`.
//! Invariant: a handler only writes a byte or sets a flag; whatever has to be done is done by the
//! daemon's loop.
//!
//! SIGINT is the exit handler of ctrlc: at once. A thread of ctrlc's calls it, which may be late,
//! and who comes after the signal must not be given what ends. So the signal sets a flag, too,
//! before the daemon's loop goes on. SIGTERM and SIGHUP leave a grace, so they come by another
//! pipe. In a job of Slurm SIGINT and SIGCONT come by that pipe as well, because there it matters
//! who sent a signal and after what (`slurm_end`).
//!
//! All other signals that would end a process are ignored (`ignore_others`): a batch system sends
//! them to every process of a job, and the daemon has nothing to do on them.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::mem::ManuallyDrop;
use std::os::unix::net::UnixStream;
// What signal-hook takes, also where a model of threads replaces the others.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags};
use rustix::io::ioctl_fionbio;
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGIO, SIGPIPE, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1,
    SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
};
use signal_hook::flag;
use signal_hook::iterator::backend::{Handle, SignalDelivery};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

use crate::error::{Error, Result};
use crate::kernel_file;
use crate::lifecycle::daemon::slurm_end::{Script, SlurmEnd};
use crate::lifecycle::system::raw_signals::{self, Mask};

/// Signals that end a process that does not handle them, besides those that ask archfs to end
/// (`ENDING`), real-time signals, and the faults of a program (SIGSEGV, SIGBUS, SIGFPE, SIGILL,
/// SIGTRAP, SIGABRT, SIGSYS).
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

/// Signals that ask archfs to end.
pub(in crate::lifecycle) const ENDING: [i32; 3] = [SIGTERM, SIGHUP, SIGINT];

/// What happened since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::lifecycle) struct Woken {
    /// How many signals asked for an end within the grace.
    pub(in crate::lifecycle) asked: usize,
    /// Whether a signal asked for an end at once.
    pub(in crate::lifecycle) at_once: bool,
    /// Whether the session has ended.
    pub(in crate::lifecycle) session_ended: bool,
}

/// The reading ends.
#[derive(Debug)]
pub(in crate::lifecycle) struct Wakes {
    asked: Received,
    told: PipeReader,
    interrupted: Arc<AtomicBool>,
    slurm: Option<SlurmEnd>,
}

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lifecycle) struct Arrival {
    pub(in crate::lifecycle) signal: i32,
    /// `None` where no process sent it.
    pub(in crate::lifecycle) sender: Option<SenderId>,
    /// Whether the kernel did: for a terminal, a timer or a limit.
    pub(in crate::lifecycle) is_by_kernel: bool,
}

/// The process that sent a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lifecycle) struct SenderId {
    /// 0 outside of this pid namespace.
    pub(in crate::lifecycle) pid: i32,
    pub(in crate::lifecycle) uid: u32,
}

/// Signals that came, each with its sender.
///
/// Its handlers stay until the process ends, and so does the socket that they write to. A write to
/// a socket without a reader raises SIGPIPE; the handler of SIGPIPE would write again, and never
/// end.
#[derive(Debug)]
pub(in crate::lifecycle) struct Received(ManuallyDrop<SignalDelivery<UnixStream, WithOrigin>>);

/// Tells the daemon that its session has ended.
#[derive(Debug)]
pub(in crate::lifecycle) struct SessionEnd(PipeWriter);

/// What is written for SIGINT, for the end of the session, and to have the daemon look around.
const AT_ONCE: u8 = b'i';
const SESSION_ENDED: u8 = b's';
const LOOK: u8 = b'l';

/// What becomes of signals that this process was started to ignore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lifecycle) enum Ignored {
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

/// The signals that would end a process and do not ask archfs to.
pub(in crate::lifecycle) fn others() -> impl Iterator<Item = i32> {
    OTHERS.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// Ignores those signals, in this process and in the daemon that it starts, and blocks none,
/// whatever the caller blocked. Call it before the first thread is started.
pub fn ignore_others() {
    // SIGXFSZ has a handler already, so that what this process starts has it as usual.
    for signal in others().filter(|signal| *signal != SIGXFSZ) {
        raw_signals::ignore(signal);
    }
    // Only now: one that came before would end this process.
    Mask::clear();
}

/// The signals that this process ignores now.
#[derive(Clone, Copy, Debug)]
pub(in crate::lifecycle) struct IgnoredNow(u64);

impl IgnoredNow {
    /// As /proc says.
    pub(in crate::lifecycle) fn read() -> Self {
        let mask = kernel_file::own_status("SigIgn");
        Self(mask.and_then(|mask| u64::from_str_radix(&mask, 16).ok()).unwrap_or(0))
    }

    /// Whether `signal` is one of them.
    pub(in crate::lifecycle) fn has(self, signal: i32) -> bool {
        signal.checked_sub(1).is_some_and(|bit| self.0 >> bit & 1 == 1)
    }
}

/// Whether this process ignores `signal` now.
pub(in crate::lifecycle) fn is_ignored(signal: i32) -> bool {
    IgnoredNow::read().has(signal)
}

/// From now on signals are noted and end nothing by themselves.
///
/// # Errors
/// `Io` where the system refuses.
pub(in crate::lifecycle) fn watch(ignored: Ignored) -> Result<(Wakes, SessionEnd)> {
    let heeds = |signal| ignored == Ignored::AreHeeded || !is_ignored(signal);
    let failed = |error| Error::io("can not watch for signals", error);
    let (told, teller) = io::pipe().map_err(failed)?;
    let mut interrupt = teller.try_clone().map_err(failed)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let slurm = SlurmEnd::watch();
    if heeds(SIGINT) && slurm.is_none() {
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
    ioctl_fionbio(&told, true).map_err(|error| failed(error.into()))?;
    let signals: &[i32] = match slurm {
        Some(_) => &[SIGTERM, SIGHUP, SIGINT, SIGCONT],
        None => &[SIGTERM, SIGHUP],
    };
    let asked = Received::new(signals.iter().copied().filter(|signal| heeds(*signal)))?;
    Ok((Wakes { asked, told, interrupted, slurm }, SessionEnd(teller)))
}

impl Received {
    /// From now on `signals` are noted.
    ///
    /// # Errors
    /// `Io` where the system refuses.
    pub(in crate::lifecycle) fn new(signals: impl Iterator<Item = i32>) -> Result<Self> {
        let failed = |error| Error::io("can not watch for signals", error);
        let (reader, writer) = UnixStream::pair().map_err(failed)?;
        SignalDelivery::with_pipe(reader, writer, WithOrigin::default(), signals)
            .map(|delivery| Self(ManuallyDrop::new(delivery)))
            .map_err(failed)
    }

    /// By which more signals are added, and the wait for them is ended.
    pub(in crate::lifecycle) fn handle(&self) -> Handle {
        self.0.handle()
    }

    /// What to poll for.
    pub(in crate::lifecycle) fn watched(&self) -> PollFd<'_> {
        PollFd::new(self.0.get_read(), PollFlags::IN)
    }

    /// Those that came since the last call, SIGCONT first; waits for nothing. Of one that came
    /// several times since then there may be one.
    pub(in crate::lifecycle) fn take(&mut self) -> Vec<Arrival> {
        let mut arrivals: Vec<_> = self.0.pending().map(|origin| Arrival::of(&origin)).collect();
        arrivals.sort_by_key(|arrival| arrival.signal != SIGCONT);
        arrivals
    }
}

impl Arrival {
    fn of(origin: &Origin) -> Self {
        let sender = origin.process.map(|process| SenderId { pid: process.pid, uid: process.uid });
        Self { signal: origin.signal, sender, is_by_kernel: origin.cause == Cause::Kernel }
    }
}

impl Wakes {
    /// What to poll for.
    pub(in crate::lifecycle) fn watched(&self) -> [PollFd<'_>; 2] {
        [self.asked.watched(), PollFd::new(&self.told, PollFlags::IN)]
    }

    /// What happened, in a job whose batch script is as `script` says; waits for nothing.
    pub(in crate::lifecycle) fn take(&mut self, script: Script) -> Woken {
        let mut bytes = [0; 64];
        let count = self.told.read(&mut bytes).unwrap_or(0);
        let told = bytes.get(..count).unwrap_or_default();
        let mut woken = Woken {
            asked: 0,
            at_once: self.interrupted.swap(false, Ordering::Relaxed) | told.contains(&AT_ONCE),
            session_ended: told.contains(&SESSION_ENDED),
        };
        for arrival in self.asked.take() {
            if let Some(slurm) = &mut self.slurm
                && !slurm.is_the_end(arrival, script)
            {
                continue;
            }
            match arrival.signal {
                SIGINT => woken.at_once = true,
                _ => woken.asked += 1,
            }
        }
        woken
    }
}

impl SessionEnd {
    /// Something else that wakes the daemon and tells it nothing: it looks at everything then.
    ///
    /// # Errors
    /// `Io` where the system refuses.
    pub(in crate::lifecycle) fn waker(&self) -> Result<impl Fn() + Send + Sync + 'static> {
        let teller = self.0.try_clone();
        let teller = teller.map_err(|error| Error::io("can not watch for requests", error))?;
        Ok(move || {
            let _ = (&teller).write_all(&[LOOK]);
        })
    }

    /// Wakes the daemon.
    pub(in crate::lifecycle) fn tell(mut self) {
        // Nobody listens any more when the daemon is at its end.
        let _ = self.0.write_all(&[SESSION_ENDED]);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use signal_hook::low_level::raise;

    use super::*;

    /// As of SIGINT that meets `run` while it unmounts.
    #[test]
    fn a_signal_that_comes_when_nobody_receives_any_more_is_handled_once() {
        // Kept, since unregistering would wait for a handler that does not end.
        std::mem::forget(Received::new([SIGPIPE, SIGUSR1].into_iter()).unwrap().handle());
        let (tell, told) = channel();
        thread::spawn(move || tell.send(raise(SIGUSR1).is_ok()));
        assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(true), "handled without end");
    }
}
