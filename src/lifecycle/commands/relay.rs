//! Signals to `run`: which ones it passes on to the command, and which ones end the mount.
//!
//! SIGTERM and SIGHUP are passed on and start the grace period: SIGKILL usually follows, and leaves
//! a stale mount if the command has not ended by that time. SIGINT or a second signal during the
//! grace period ends it. SIGINT outside of the grace period is only passed on: a notebook kernel or
//! a shell stops the work at hand on SIGINT and continues.
//!
//! A terminal sends Ctrl-C and its hangup to all of its processes. So the command already has that
//! signal, and no SIGKILL follows.

use std::time::{Duration, Instant};

use rustix::event::poll;
use rustix::process::{Pid, getpid};
use signal_hook::consts::{SIGALRM, SIGCONT, SIGINT, SIGPIPE, SIGPROF, SIGVTALRM};
use signal_hook::iterator::backend::Handle;

use crate::error::{Error, Result};
use crate::lifecycle::daemon::end_policy::{EndPolicy, Lifetime};
use crate::lifecycle::daemon::signals::{self, ENDING, IgnoredNow};
use crate::lifecycle::daemon::slurm_end::KillWait;
use crate::lifecycle::daemon::slurm_end::{Script, SlurmEnd};
use crate::os::process::timespec;
use crate::os::signal;
use crate::os::signal::{Arrival, SignalReceiver};
use crate::sync::{AtomicBool, Ordering};

/// How often to check whether Slurm's KillWait is known, once the grace period has begun.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The signals that `run` receives.
#[derive(Debug)]
pub(crate) struct Relay {
    received: SignalReceiver,
    slurm: Option<SlurmEnd>,
}

/// Ends `Relay::pass_on` when it is dropped, also by a panic, which would otherwise wait for the
/// thread forever.
pub(crate) struct PassingOn(Handle);

impl Drop for PassingOn {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// What the threads of `run` share about the command.
#[derive(Debug, Default)]
pub(crate) struct CommandState {
    /// Whether the command has ended. Its process id may then belong to another process.
    pub(crate) has_ended: AtomicBool,
    /// Whether a signal asked for the end.
    pub(crate) end_requested: AtomicBool,
}

impl Relay {
    /// Receives the signals that do not ask archfs to end, and keeps them for the command. A signal
    /// that this process was started to ignore, for example by nohup, stays ignored here and by the
    /// command.
    pub(crate) fn new() -> Result<Self> {
        let slurm = SlurmEnd::watch();
        // The standard library ignores SIGPIPE in every program, but not in the programs it starts.
        let ignored = IgnoredNow::read();
        let is_handled = |signal: &i32| *signal == SIGPIPE || !ignored.has(*signal);
        let sigcont = slurm.iter().map(|_| SIGCONT);
        let received = SignalReceiver::new(signals::others().filter(is_handled).chain(sigcont))?;
        Ok(Self { received, slurm })
    }

    /// Also receives the signals that ask archfs to end, so that they no longer end this process.
    pub(crate) fn catch_ending_signals(&self) -> Result<()> {
        let handle = self.received.handle();
        ENDING
            .into_iter()
            .filter(|signal| !signals::is_ignored(*signal))
            .try_for_each(|signal| handle.add_signal(signal))
            .map_err(|error| Error::io("signal handlers: cannot be installed", error))
    }

    /// A guard that ends `pass_on` when it is dropped.
    pub(crate) fn passing_on(&self) -> PassingOn {
        PassingOn(self.received.handle())
    }

    /// Passes signals on to `command`. Calls `detach` if the grace period ends before the command.
    pub(crate) fn pass_on(
        mut self,
        command: Pid,
        lifetime: Lifetime,
        state: &CommandState,
        detach: impl FnOnce(),
    ) {
        let lifetime = Lifetime { grace: lifetime.grace, ..Lifetime::default() };
        let mut policy = EndPolicy::new(lifetime, Instant::now());
        let kill_wait = match lifetime.grace {
            Some(_) => KillWait::default(),
            None => KillWait::look_up(|| {}),
        };
        let mut detach = Some(detach);
        let handle = self.received.handle();
        loop {
            for arrival in self.received.take() {
                if is_for_command(arrival) && !state.has_ended.load(Ordering::Relaxed) {
                    signal::send(command, arrival.signal);
                }
                self.handle_signal(arrival, &mut policy, state);
            }
            if let Some(kill_wait) = kill_wait.get() {
                policy.limit_default_grace(kill_wait);
            }
            if policy.is_over(Instant::now())
                && !state.has_ended.load(Ordering::Relaxed)
                && let Some(detach) = detach.take()
            {
                detach();
            }
            let limit = detach.as_ref().and(policy.end_by()).map(|end| {
                let left = end.saturating_duration_since(Instant::now());
                timespec(if kill_wait.get().is_none() { left.min(CHECK_INTERVAL) } else { left })
            });
            // After `take`, which also takes what `Handle::close` has written to end the wait.
            if handle.is_closed() {
                return;
            }
            // A signal interrupts the wait, which counts as its end.
            let _ = poll(&mut [self.received.watched()], limit.as_ref());
        }
    }

    /// Starts or ends the grace period, if the signal asks for the end.
    fn handle_signal(&mut self, arrival: Arrival, policy: &mut EndPolicy, state: &CommandState) {
        let Arrival { signal, is_by_kernel, .. } = arrival;
        let asks_for_end = match &mut self.slurm {
            Some(slurm) => {
                (ENDING.contains(&signal) || signal == SIGCONT)
                    && slurm.means_end(arrival, Script::Unknown)
            }
            None => ENDING.contains(&signal),
        };
        if !asks_for_end {
            return;
        }
        state.end_requested.store(true, Ordering::Relaxed);
        if policy.is_end_requested() {
            policy.request_end_now();
        } else if signal != SIGINT && !is_by_kernel {
            policy.request_end(Instant::now());
        }
    }
}

/// Whether the command must get this signal and has not got it already.
fn is_for_command(arrival: Arrival) -> bool {
    let own = getpid().as_raw_nonzero().get();
    match arrival.signal {
        SIGCONT => false,
        // A terminal sends its signals to the command as well. A timer signal is meant for the
        // command: the timer was set before execve(2) of archfs.
        SIGALRM | SIGVTALRM | SIGPROF if arrival.is_by_kernel => true,
        _ if arrival.is_by_kernel => false,
        // This process sends itself SIGPIPE if the reader of its messages is gone.
        _ => arrival.sender.is_none_or(|sender| sender.pid != own),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::{hint, thread};

    use signal_hook::consts::{SIGHUP, SIGTERM, SIGUSR1, SIGXCPU};

    use super::*;
    use crate::os::signal::SenderId;

    fn sent(signal: i32, pid: i32) -> Arrival {
        Arrival { signal, sender: Some(SenderId { pid, uid: 0 }), is_by_kernel: false }
    }

    fn by_kernel(signal: i32) -> Arrival {
        Arrival { signal, sender: None, is_by_kernel: true }
    }

    #[test]
    fn the_command_gets_each_signal_once() {
        let own = getpid().as_raw_nonzero().get();
        assert!(is_for_command(sent(SIGUSR1, 1)) && is_for_command(sent(SIGPIPE, 1)));
        assert!(!is_for_command(sent(SIGPIPE, own)), "no reader of the output of this process");
        assert!(!is_for_command(by_kernel(SIGINT)), "Ctrl-C");
        assert!(!is_for_command(by_kernel(SIGXCPU)), "the time of this process");
        assert!(is_for_command(by_kernel(SIGALRM)), "alarm(2), then execve(2)");
        assert!(!is_for_command(sent(SIGCONT, 1)));
    }

    /// A command may end while the thread takes its first step. The delay moves the end across it.
    /// Each round leaves two descriptors open.
    #[test]
    fn no_end_of_a_command_is_missed() {
        for round in 0..200 {
            let received = SignalReceiver::new([].into_iter()).unwrap();
            let relay = Relay { received, slurm: None };
            let passing_on = relay.passing_on();
            let has_begun = Arc::new(AtomicBool::new(false));
            let begins = Arc::clone(&has_begun);
            let (sender, ended) = channel();
            thread::spawn(move || {
                let state = CommandState::default();
                begins.store(true, Ordering::Release);
                relay.pass_on(getpid(), Lifetime::default(), &state, || {});
                sender.send(()).unwrap();
            });
            while !has_begun.load(Ordering::Acquire) {
                hint::spin_loop();
            }
            (0..round * 4).for_each(|_| hint::spin_loop());
            drop(passing_on);
            let outcome = ended.recv_timeout(Duration::from_secs(60));
            assert_eq!(outcome, Ok(()), "round {round}");
        }
    }

    fn outcome_of(signals: &[Arrival]) -> (bool, bool, bool) {
        let mut relay =
            Relay { received: SignalReceiver::new([].into_iter()).unwrap(), slurm: None };
        let now = Instant::now();
        let mut policy = EndPolicy::new(Lifetime::default(), now);
        let state = CommandState::default();
        for arrival in signals {
            relay.handle_signal(*arrival, &mut policy, &state);
        }
        (
            state.end_requested.load(Ordering::Relaxed),
            policy.is_end_requested(),
            policy.is_over(now),
        )
    }

    #[test]
    fn sigterm_and_sighup_start_the_grace_period_and_a_second_signal_ends_it() {
        assert_eq!(outcome_of(&[sent(SIGUSR1, 1)]), (false, false, false));
        for first in [SIGTERM, SIGHUP] {
            assert_eq!(outcome_of(&[sent(first, 1)]), (true, true, false));
            for second in [SIGTERM, SIGHUP, SIGINT] {
                assert_eq!(outcome_of(&[sent(first, 1), sent(second, 1)]), (true, true, true));
            }
            assert_eq!(outcome_of(&[sent(first, 1), by_kernel(SIGINT)]), (true, true, true));
        }
    }

    #[test]
    fn sigint_and_a_terminal_hangup_start_no_grace_period() {
        for arrival in [sent(SIGINT, 1), by_kernel(SIGINT), by_kernel(SIGHUP)] {
            assert_eq!(outcome_of(&[arrival, arrival]), (true, false, false));
        }
    }
}
