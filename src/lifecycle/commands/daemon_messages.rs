//! Prints for the user of `run` what the daemon logs, if the daemon has closed its standard error.
//!
//! A program that reads a damaged file reports "Input/output error" and no cause. The daemon knows
//! the cause, but it closes its standard error unless that is a file. So `run` asks the daemon now
//! and then, and prints each message once.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::lifecycle::registry::{Client, Health, RecordSnapshot};
use crate::log::Message;
use crate::os::mountinfo;
use crate::units::counted;

/// How often the daemon is asked. A short command never asks.
const INTERVAL: Duration = Duration::from_secs(2);

/// How long the daemon may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Seconds that a request waits before `run` prints a warning, and the factor for each further one.
const BLOCKED_AFTER: f64 = 10.0;
const BLOCKED_FACTOR: f64 = 10.0;

pub(super) struct DaemonMessages {
    mount_point: PathBuf,
    /// The number of the next message.
    next: u64,
    /// Seconds that a request waits before the next warning.
    limit: f64,
}

impl DaemonMessages {
    pub(super) fn of(mount_point: &Path) -> Self {
        Self { mount_point: mount_point.to_owned(), next: 0, limit: BLOCKED_AFTER }
    }

    /// Prints what the daemon logs until `end` is closed, or the daemon does not answer.
    pub(super) fn follow(&mut self, end: Receiver<()>) {
        let mut client = None;
        while end.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            client = client.or_else(|| self.connect());
            let Some(connected) = client.as_mut() else { return };
            let Ok(Some(status)) = connected.status(ANSWER_TIMEOUT) else { return };
            self.show(&status.health);
        }
    }

    fn connect(&self) -> Option<Client> {
        let owner = mountinfo::topmost(&self.mount_point).ok()??.owner()?;
        RecordSnapshot::of(&self.mount_point, owner)?.connect()
    }

    fn show(&mut self, health: &Health) {
        let waited = health.blocked.longest_seconds;
        if waited < BLOCKED_AFTER {
            self.limit = BLOCKED_AFTER;
        } else if waited >= self.limit {
            self.limit = waited * BLOCKED_FACTOR;
            log::warn!("{}: {}", self.mount_point.display(), health.blocked);
        }
        if !health.are_printed {
            self.print(&health.messages);
        }
    }

    /// Prints those of `messages` that were not printed, and how many are not among them.
    pub(super) fn print(&mut self, messages: &[Message]) {
        for message in messages {
            let Some(missing) = message.number.checked_sub(self.next) else { continue };
            if missing > 0 {
                crate::log::note(format_args!(
                    "{}: {} not shown; --log-file keeps all",
                    self.mount_point.display(),
                    counted(missing, "message")
                ));
            }
            self.next = message.number + 1;
            crate::log::pass_on(message);
        }
    }
}
