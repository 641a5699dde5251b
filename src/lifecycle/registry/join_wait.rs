//! The waits of a process that joins a mount point, and what it logs about them.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::lease::Client;
use crate::error::{Error, Kind, Result};

/// How often to check a state again if no connection reports its changes.
pub(super) const STATE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How long a mount that is ending may take to free its mount point while no daemon answers. A
/// daemon that answers ends within its grace period, which the user may set to any length.
const SILENT_END_TIMEOUT: Duration = Duration::from_secs(30);

/// How long to wait before a message says why.
const EXPLAIN_AFTER: Duration = Duration::from_secs(1);

/// The wait of a process that joins a mount point, for other processes to mount or unmount there.
/// It adds up over several waits.
#[derive(Debug)]
pub(super) struct JoinWait<'a> {
    mount_point: &'a Path,
    /// When it first waited for another process to mount.
    starting_since: Option<Instant>,
    /// How long it has waited for the end of previous mounts.
    ending: Duration,
    /// The part of that since a daemon last answered.
    unanswered: Duration,
    has_explained: bool,
}

impl<'a> JoinWait<'a> {
    pub(super) fn new(mount_point: &'a Path) -> Self {
        Self {
            mount_point,
            starting_since: None,
            ending: Duration::ZERO,
            unanswered: Duration::ZERO,
            has_explained: false,
        }
    }

    /// Waits before a mount that is ending is checked again. `client` is the connection to its
    /// daemon, which has just refused a lease, and closes the connection when it has unmounted.
    pub(super) fn wait_for_end_of(&mut self, mut client: Client) -> Result<()> {
        let since = Instant::now();
        client.wait_until_closed(EXPLAIN_AFTER)?;
        self.note_ending(since.elapsed(), Daemon::Answers);
        self.wait_for_end()
    }

    /// Waits before a mount that is ending is checked again, if its daemon does not answer.
    pub(super) fn wait_for_end(&mut self) -> Result<()> {
        thread::sleep(STATE_POLL_INTERVAL);
        self.note_ending(STATE_POLL_INTERVAL, Daemon::IsSilent);
        if self.unanswered >= SILENT_END_TIMEOUT {
            let path = self.mount_point.display();
            let context = format!("{path}: the previous mount was not unmounted in time");
            return Err(Error::new(Kind::TimedOut, context)
                .with_hint("run `archfs list` to see its daemon"));
        }
        if self.ending >= EXPLAIN_AFTER {
            self.explain("waiting until the previous mount is unmounted");
        }
        Ok(())
    }

    fn note_ending(&mut self, time: Duration, daemon: Daemon) {
        self.ending += time;
        self.unanswered = match daemon {
            Daemon::Answers => Duration::ZERO,
            Daemon::IsSilent => self.unanswered + time,
        };
    }

    /// Waits before a mount that is starting is checked again.
    pub(super) fn wait_for_start(&mut self) {
        self.explain_start();
        thread::sleep(STATE_POLL_INTERVAL);
    }

    /// Explains the wait for a mount that is starting, once it has taken a while.
    pub(super) fn explain_start(&mut self) {
        let since = *self.starting_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= EXPLAIN_AFTER {
            self.explain("waiting for another process to mount here");
        }
    }

    fn explain(&mut self, text: &str) {
        if !self.has_explained {
            self.has_explained = true;
            log::warn!("{}: {text}", self.mount_point.display());
        }
    }
}

/// Whether the daemon of a mount that is ending answered during a wait.
#[derive(Clone, Copy)]
enum Daemon {
    Answers,
    IsSilent,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_daemon_that_does_not_answer_is_given_up() {
        let mut waiting = JoinWait::new(Path::new("/mnt"));
        for _ in 0..100 {
            waiting.note_ending(Duration::from_secs(1), Daemon::Answers);
            waiting.note_ending(STATE_POLL_INTERVAL, Daemon::IsSilent);
        }
        assert!(waiting.unanswered < SILENT_END_TIMEOUT && waiting.ending > SILENT_END_TIMEOUT);
        waiting.note_ending(SILENT_END_TIMEOUT, Daemon::IsSilent);
        assert!(waiting.unanswered >= SILENT_END_TIMEOUT);
    }
}
