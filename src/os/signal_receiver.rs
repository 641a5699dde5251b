//! Receives signals, each with the process that sent it.

use std::mem::ManuallyDrop;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags};
use signal_hook::consts::SIGCONT;
use signal_hook::iterator::backend::{Handle, SignalDelivery};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

use crate::error::{Error, Result};

/// Receives signals.
///
/// The handlers and the socket that they write to stay until the process ends. A write to a socket
/// without a reader raises SIGPIPE, whose handler would write again, without end.
#[derive(Debug)]
pub(crate) struct SignalReceiver(ManuallyDrop<SignalDelivery<UnixStream, WithOrigin>>);

/// A received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) signal: i32,
    /// `None` if no process sent it.
    pub(crate) sender: Option<SenderId>,
    /// Whether the kernel sent it: for a terminal, a timer or a limit.
    pub(crate) is_by_kernel: bool,
}

/// The process that sent a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SenderId {
    /// 0 if it is outside of this pid namespace.
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

impl SignalReceiver {
    /// Starts to receive `signals`.
    pub(crate) fn new(signals: impl Iterator<Item = i32>) -> Result<Self> {
        let failed = |error| Error::io("signal handlers: cannot be installed", error);
        let (reader, writer) = UnixStream::pair().map_err(failed)?;
        SignalDelivery::with_pipe(reader, writer, WithOrigin::default(), signals)
            .map(|delivery| Self(ManuallyDrop::new(delivery)))
            .map_err(failed)
    }

    /// A handle to add signals, and to end the wait for them.
    pub(crate) fn handle(&self) -> Handle {
        self.0.handle()
    }

    /// The descriptor to poll.
    pub(crate) fn watched(&self) -> PollFd<'_> {
        PollFd::new(self.0.get_read(), PollFlags::IN)
    }

    /// Signals received since the last call, SIGCONT first. Does not wait. A signal that was
    /// received several times may be returned once.
    pub(crate) fn take(&mut self) -> Vec<Arrival> {
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use signal_hook::consts::{SIGPIPE, SIGUSR1};
    use signal_hook::low_level::raise;

    use super::*;

    /// Like a SIGINT that reaches `run` while it unmounts.
    #[test]
    fn a_signal_after_the_receiver_is_dropped_is_handled_once() {
        // Leaked, because unregistering would wait for a handler that does not end.
        std::mem::forget(SignalReceiver::new([SIGPIPE, SIGUSR1].into_iter()).unwrap().handle());
        let (sender, receiver) = channel();
        thread::spawn(move || sender.send(raise(SIGUSR1).is_ok()));
        assert_eq!(receiver.recv_timeout(Duration::from_secs(10)), Ok(true), "handled without end");
    }
}
