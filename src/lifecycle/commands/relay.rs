//! Signals to `run`: which go on to the command, and which take the mount away from it.
//!
//! SIGTERM and SIGHUP are passed on and start the grace period: SIGKILL usually follows, and leaves
//! a stale mount if the command has not ended by then. During the grace period SIGINT, or a second
//! signal, ends it. SIGINT alone is passed on and nothing else: to a notebook's kernel or a shell
//! it means to stop the work at hand and to go on.
//!
//! A terminal sends Ctrl-C and its own end to all of its processes, so the command has that signal
//! already, and no SIGKILL follows.

use std::time::{Duration, Instant};

use rustix::event::poll;
use rustix::process::{Pid, getpid};
use signal_hook::consts::{SIGALRM, SIGCONT, SIGINT, SIGPIPE, SIGPROF, SIGVTALRM};
use signal_hook::iterator::backend::Handle;

use crate::error::{Error, Result};
use crate::lifecycle::daemon::end_policy::{EndPolicy, Lifetime};
use crate::lifecycle::daemon::kill_wait::KillWait;
use crate::lifecycle::daemon::signals::{self, Arrival, ENDING, IgnoredNow, Received};
use crate::lifecycle::daemon::slurm_end::{Script, SlurmEnd};
use crate::lifecycle::system::process::timespec;
use crate::lifecycle::system::raw_signals;
use crate::sync::{AtomicBool, Ordering};

/// How often it is looked whether Slurm's KillWait is known, once the grace period has begun.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// The signals that `run` receives.
#[derive(Debug)]
pub(in crate::lifecycle) struct Relay {
    received: Received,
    slurm: Option<SlurmEnd>,
}

/// What the threads of `run` tell each other about the command.
#[derive(Debug, Default)]
pub(in crate::lifecycle) struct Course {
    /// Whether the command has ended, and its number may be another process's.
    pub(in crate::lifecycle) has_ended: AtomicBool,
    /// Whether a signal asked for the end.
    pub(in crate::lifecycle) is_asked: AtomicBool,
}

impl Relay {
    /// From now on signals that do not ask for the end are kept for the command. One that this
    /// process was started to ignore, as by nohup, stays ignored, and the command's to ignore.
    ///
    /// # Errors
    /// `Io` where the system refuses.
    pub(in crate::lifecycle) fn new() -> Result<Self> {
        let slurm = SlurmEnd::watch();
        // The standard library ignores SIGPIPE in every program, and in none that it starts.
        let ignored = IgnoredNow::read();
        let heeded = |signal: &i32| *signal == SIGPIPE || !ignored.has(*signal);
        let continued = slurm.iter().map(|_| SIGCONT);
        let received = Received::new(signals::others().filter(heeded).chain(continued))?;
        Ok(Self { received, slurm })
    }

    /// From now on those that ask for the end do not end this process either.
    ///
    /// # Errors
    /// `Io` where the system refuses.
    pub(in crate::lifecycle) fn survive(&self) -> Result<()> {
        let handle = self.received.handle();
        ENDING
            .into_iter()
            .filter(|signal| !signals::is_ignored(*signal))
            .try_for_each(|signal| handle.add_signal(signal))
            .map_err(|error| Error::io("can not watch for signals", error))
    }

    /// What ends `pass_on` when it is closed.
    pub(in crate::lifecycle) fn handle(&self) -> Handle {
        self.received.handle()
    }

    /// Passes signals on to `command`. Calls `detach` when the grace period has ended before the
    /// command.
    pub(in crate::lifecycle) fn pass_on(
        mut self,
        command: Pid,
        lifetime: Lifetime,
        course: &Course,
        detach: impl FnOnce(),
    ) {
        let lifetime = Lifetime { grace: lifetime.grace, ..Lifetime::default() };
        let mut hold = EndPolicy::new(lifetime, Instant::now());
        let kill_wait = match lifetime.grace {
            Some(_) => KillWait::default(),
            None => KillWait::ask(|| {}),
        };
        let mut detach = Some(detach);
        let handle = self.received.handle();
        while !handle.is_closed() {
            for arrival in self.received.take() {
                if is_for_command(arrival) && !course.has_ended.load(Ordering::Relaxed) {
                    raw_signals::send(command, arrival.signal);
                }
                self.heed(arrival, &mut hold, course);
            }
            if let Some(kill_wait) = kill_wait.get() {
                hold.stay_below(kill_wait);
            }
            if hold.is_over(Instant::now())
                && !course.has_ended.load(Ordering::Relaxed)
                && let Some(detach) = detach.take()
            {
                detach();
            }
            let limit = detach.as_ref().and(hold.end_by()).map(|end| {
                let left = end.saturating_duration_since(Instant::now());
                timespec(if kill_wait.get().is_none() { left.min(LOOK_AGAIN) } else { left })
            });
            // An interrupted wait, as by each signal, is one that has ended.
            let _ = poll(&mut [self.received.watched()], limit.as_ref());
        }
    }

    /// What the signal means for the mount.
    fn heed(&mut self, arrival: Arrival, hold: &mut EndPolicy, course: &Course) {
        let Arrival { signal, is_by_kernel, .. } = arrival;
        let is_the_end = match &mut self.slurm {
            Some(slurm) => {
                (ENDING.contains(&signal) || signal == SIGCONT)
                    && slurm.is_the_end(arrival, Script::Unknown)
            }
            None => ENDING.contains(&signal),
        };
        if !is_the_end {
            return;
        }
        course.is_asked.store(true, Ordering::Relaxed);
        if hold.is_asked() {
            hold.ask_at_once();
        } else if signal != SIGINT && !is_by_kernel {
            hold.ask(Instant::now());
        }
    }
}

/// Whether a signal is one that the command has not got, and shall.
fn is_for_command(arrival: Arrival) -> bool {
    let own = getpid().as_raw_nonzero().get();
    match arrival.signal {
        SIGCONT => false,
        // A terminal's went to the command as well. A timer was set before this program was
        // started in the place of another, for the command then.
        SIGALRM | SIGVTALRM | SIGPROF if arrival.is_by_kernel => true,
        _ if arrival.is_by_kernel => false,
        // Of this process itself: SIGPIPE, where nobody reads its messages.
        _ => arrival.sender.is_none_or(|sender| sender.pid != own),
    }
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::{SIGHUP, SIGTERM, SIGUSR1, SIGXCPU};

    use super::*;
    use crate::lifecycle::daemon::signals::SenderId;

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
        assert!(!is_for_command(sent(SIGPIPE, own)), "nobody reads what this process says");
        assert!(!is_for_command(by_kernel(SIGINT)), "Ctrl-C");
        assert!(!is_for_command(by_kernel(SIGXCPU)), "the time of this process");
        assert!(is_for_command(by_kernel(SIGALRM)), "alarm(2), then execve(2)");
        assert!(!is_for_command(sent(SIGCONT, 1)));
    }

    fn heeds(signals: &[Arrival]) -> (bool, bool, bool) {
        let mut relay = Relay { received: Received::new([].into_iter()).unwrap(), slurm: None };
        let now = Instant::now();
        let mut hold = EndPolicy::new(Lifetime::default(), now);
        let course = Course::default();
        for arrival in signals {
            relay.heed(*arrival, &mut hold, &course);
        }
        (course.is_asked.load(Ordering::Relaxed), hold.is_asked(), hold.is_over(now))
    }

    #[test]
    fn sigterm_and_sighup_start_the_grace_period_and_a_second_signal_ends_it() {
        assert_eq!(heeds(&[sent(SIGUSR1, 1)]), (false, false, false));
        for first in [SIGTERM, SIGHUP] {
            assert_eq!(heeds(&[sent(first, 1)]), (true, true, false));
            for second in [SIGTERM, SIGHUP, SIGINT] {
                assert_eq!(heeds(&[sent(first, 1), sent(second, 1)]), (true, true, true));
            }
            assert_eq!(heeds(&[sent(first, 1), by_kernel(SIGINT)]), (true, true, true));
        }
    }

    #[test]
    fn an_interrupt_or_a_terminal_that_ends_starts_none() {
        for arrival in [sent(SIGINT, 1), by_kernel(SIGINT), by_kernel(SIGHUP)] {
            assert_eq!(heeds(&[arrival, arrival]), (true, false, false));
        }
    }
}
