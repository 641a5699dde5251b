//! Signals: masks, actions, sending one by number, receiving each with the process that sent it.

#![expect(unsafe_code, reason = "no crate in use offers these as safe calls")]

use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Pid;
use signal_hook::consts::SIGCONT;
use signal_hook::iterator::backend::{Handle, SignalDelivery};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

use crate::error::{Error, Result};

/// Signals that ask archfs to end.
pub(crate) const ENDING: [i32; 3] = [libc::SIGTERM, libc::SIGHUP, libc::SIGINT];

/// A set of blocked signals.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

impl Mask {
    pub(crate) fn of(signals: &[i32]) -> Self {
        let mut set = MaybeUninit::uninit();
        // SAFETY: the pointer is to a set in this stack frame, which the first call initializes.
        // For a number that is not a signal, the other calls return an error.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), *signal);
            }
            Self(set.assume_init())
        }
    }

    pub(crate) fn none() -> Self {
        Self::of(&[])
    }

    /// All signals. Program faults, SIGKILL and SIGSTOP cannot be blocked.
    pub(crate) fn all() -> Self {
        let mut set = MaybeUninit::uninit();
        // SAFETY: the pointer is to a set in this stack frame, which the call initializes.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            Self(set.assume_init())
        }
    }

    /// Unblocks all signals in this thread and in those that it starts later; returns the previous
    /// mask.
    pub(crate) fn clear() -> Self {
        Self::none().replace()
    }

    /// Makes this the mask of this thread and of those that it starts later; returns the previous
    /// mask.
    fn replace(self) -> Self {
        let mut before = MaybeUninit::zeroed();
        // SAFETY: both pointers are to sets in this stack frame. If the call fails, zeros are a
        // valid set.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, before.as_mut_ptr());
            Self(before.assume_init())
        }
    }

    /// The signals that are pending for this thread: sent to it or to the process, and blocked.
    fn pending() -> Self {
        let mut set = MaybeUninit::zeroed();
        // SAFETY: the pointer is to a set in this stack frame. If the call fails, zeros are a valid
        // set.
        unsafe {
            libc::sigpending(set.as_mut_ptr());
            Self(set.assume_init())
        }
    }

    /// A descriptor that is readable while one of these signals is pending for the thread that
    /// polls it.
    fn pending_descriptor(self) -> io::Result<OwnedFd> {
        // SAFETY: the pointer is to a valid set, and a new descriptor belongs to this process.
        unsafe {
            match libc::signalfd(-1, &self.0, libc::SFD_CLOEXEC) {
                -1 => Err(io::Error::last_os_error()),
                descriptor => Ok(OwnedFd::from_raw_fd(descriptor)),
            }
        }
    }

    fn has(self, signal: i32) -> bool {
        // SAFETY: the pointer is to a valid set.
        unsafe { libc::sigismember(&self.0, signal) == 1 }
    }

    /// Handles `signal` once if it is pending for this thread. The thread has these signals
    /// blocked, and blocks the same ones again before the handler has returned.
    fn handle_once(mut self, signal: i32) {
        let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointers are to a valid set and to a value in this stack frame, and no
        // descriptor is polled.
        unsafe {
            libc::sigdelset(&mut self.0, signal);
            libc::ppoll(ptr::null_mut(), 0, &no_time, &self.0);
        }
    }

    /// Makes `command` start with this mask; by default it inherits that of the thread that starts
    /// it. That one is not changed, not even for a moment, because the thread could then receive a
    /// signal.
    pub(crate) fn pass_to(self, command: &mut Command) {
        let set_mask = move || {
            // SAFETY: the set is valid, and a null pointer for the old set is allowed.
            match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) } {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        };
        // SAFETY: between fork and exec the closure makes one call, which is async-signal-safe, and
        // allocates nothing.
        unsafe { command.pre_exec(set_mask) };
    }
}

/// Starts a thread that receives the `signals` to this process; this thread, and those that it
/// starts later, have them blocked. Programs inherit the mask (`Mask::pass_to`). Does nothing if
/// the system refuses.
///
/// If SIGCONT is sent before another signal, its handler returns before that of the other one
/// starts. Unblocked signals have no such order: the handler of a signal may run in another thread,
/// or interrupt that of SIGCONT before its first instruction. So this thread has them blocked as
/// well. It waits until some are pending, and then handles SIGCONT, and after it each of those that
/// were pending before.
pub(crate) fn receive_in_one_thread(signals: &'static [i32]) {
    let blocked = Mask::of(signals);
    let Ok(any_pending) = blocked.pending_descriptor() else {
        return;
    };
    let receive = move || {
        loop {
            let mut polled = [PollFd::new(&any_pending, PollFlags::IN)];
            // The handler of another signal interrupts the wait, which counts as its end.
            let _ = poll(&mut polled, None);
            let pending = Mask::pending();
            blocked.handle_once(SIGCONT);
            for &signal in signals {
                if pending.has(signal) {
                    blocked.handle_once(signal);
                }
            }
        }
    };
    let before = blocked.replace();
    if thread::Builder::new().name("signals".into()).spawn(receive).is_err() {
        before.replace();
    }
}

/// Ignores `signal` in this process and in the programs that it starts.
pub(crate) fn ignore(signal: i32) {
    // SAFETY: no handler is installed. For a signal that cannot be ignored, the call returns an
    // error.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Gives `signal` its default action, whatever the program that started this one chose.
pub(crate) fn restore_default(signal: i32) {
    // SAFETY: no handler is installed. For a signal whose action cannot change, the call returns an
    // error.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Makes `handler` handle those of `signals` whose action is the default one. While it runs, all of
/// them are blocked. System calls that they interrupt continue.
pub(crate) fn replace_default(signals: &[i32], handler: extern "C" fn(i32)) {
    let action = libc::sigaction {
        sa_sigaction: handler as *const () as libc::sighandler_t,
        sa_flags: libc::SA_RESTART,
        sa_mask: Mask::of(signals).0,
        sa_restorer: None,
    };
    for &signal in signals {
        if has_default_action(signal) {
            // SAFETY: the handler takes the number of the signal, as the flags promise.
            unsafe { libc::sigaction(signal, &action, ptr::null_mut()) };
        }
    }
}

/// Gives those of `signals` that `handler` handles their default action again.
pub(crate) fn restore_default_of(signals: &[i32], handler: extern "C" fn(i32)) {
    for &signal in signals {
        if action_of(signal) == Some(handler as *const () as libc::sighandler_t) {
            restore_default(signal);
        }
    }
}

/// Whether the action of `signal` is the default one. Can be called in a handler.
pub(crate) fn has_default_action(signal: i32) -> bool {
    action_of(signal) == Some(libc::SIG_DFL)
}

fn action_of(signal: i32) -> Option<libc::sighandler_t> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the pointer is to an action in this stack frame, which a call that succeeds
    // initializes.
    unsafe {
        match libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) {
            0 => Some(action.assume_init().sa_sigaction),
            _ => None,
        }
    }
}

/// Ends this process as `signal` does by default, or with that exit status if it is the first
/// process of a pid namespace, which the kernel spares. Can be called in a handler.
pub(crate) fn end_process(signal: i32) {
    restore_default(signal);
    // SAFETY: the pointer is to a set in this stack frame, and the calls are async-signal-safe.
    unsafe {
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &Mask::of(&[signal]).0, ptr::null_mut());
        libc::raise(signal);
        libc::_exit(128 + signal);
    }
}

/// Sends `signal` to `process`, which may have ended.
pub(crate) fn send(process: Pid, signal: i32) {
    // SAFETY: the call accesses no memory of this process.
    unsafe { libc::kill(process.as_raw_nonzero().get(), signal) };
}

/// Receives signals, each with the process that sent it.
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
    use std::fs;
    use std::hint;
    use std::sync::Arc;
    use std::sync::atomic::AtomicI32;
    use std::sync::atomic::Ordering::SeqCst;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use signal_hook::consts::{SIGPIPE, SIGUSR1, SIGUSR2};
    use signal_hook::low_level::{raise, register};

    use super::*;

    /// The thread that receives signals.
    fn receiving_thread() -> i32 {
        let is_it = |id: &i32| {
            let name = fs::read_to_string(format!("/proc/self/task/{id}/comm"));
            name.is_ok_and(|name| name.trim() == "signals")
        };
        loop {
            let threads = fs::read_dir("/proc/self/task").unwrap();
            let mut ids = threads.map(|thread| thread.unwrap().file_name().into_string().unwrap());
            if let Some(id) = ids.find_map(|id| id.parse().ok().filter(is_it)) {
                return id;
            }
        }
    }

    /// Like Slurm's SIGCONT and SIGTERM at the end of a job. The delays between the two let the
    /// second arrive at each point of the handling of the first.
    #[test]
    fn sigcont_is_handled_before_a_signal_sent_after_it() {
        // The handled signals, as pairs of decimal digits.
        let handled = Arc::new(AtomicI32::new(0));
        for signal in [SIGCONT, SIGUSR2] {
            let handled = Arc::clone(&handled);
            let add = move || handled.store(handled.load(SeqCst) * 100 + signal, SeqCst);
            // SAFETY: the handler only accesses an atomic integer.
            unsafe { register(signal, add) }.unwrap();
        }
        receive_in_one_thread(&[SIGUSR2, SIGCONT]);
        let thread = receiving_thread();
        // To the thread, because the process has other threads, of other tests.
        let send = |signal| {
            // SAFETY: the call accesses no memory of this process.
            let sent = unsafe { libc::tgkill(libc::getpid(), thread, signal) };
            assert_eq!(sent, 0);
        };
        for round in 0..20_000 {
            handled.store(0, SeqCst);
            send(SIGCONT);
            for _ in 0..round % 1_000 {
                hint::spin_loop();
            }
            send(SIGUSR2);
            let start = Instant::now();
            while handled.load(SeqCst) < 100 && start.elapsed() < Duration::from_secs(5) {
                hint::spin_loop();
            }
            assert_eq!(handled.load(SeqCst), SIGCONT * 100 + SIGUSR2, "round {round}");
        }
    }

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
