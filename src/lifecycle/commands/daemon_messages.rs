//! Prints for the user of `run` what the daemon logs, if the daemon has closed its standard error.
//!
//! A program that reads a damaged file reports "Input/output error" and no cause. The daemon knows
//! the cause, but it closes its standard error unless that is a file. So `run` asks the daemon now
//! and then, and prints each message once. Of the tasks of a step on a node, only the first one
//! does.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::error::Kind;
use crate::lifecycle::registry::{Client, Health, RecordSnapshot};
use crate::log::Message;
use crate::os::mountinfo;
use crate::units::counted;

/// How often the daemon is asked. A short command asks only at its end.
const INTERVAL: Duration = Duration::from_secs(4);

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
    /// Whether this process prints them, and can ask for them.
    is_printing: bool,
    can_ask: bool,
}

impl DaemonMessages {
    /// The messages about a mount. If this process shares a mount that others have made, it prints
    /// only those from now on. The daemon of a private mount cannot be asked.
    pub(super) fn of(mount_point: &Path, is_shared: bool, is_private: bool) -> Self {
        let other_task = std::env::var_os("SLURM_LOCALID").is_some_and(|number| number != "0");
        let mut messages = Self {
            mount_point: mount_point.to_owned(),
            next: 0,
            limit: BLOCKED_AFTER,
            is_printing: !other_task,
            can_ask: !is_private,
        };
        if is_shared && let Some(health) = messages.ask() {
            messages.next = health.messages.last().map_or(0, |message| message.number + 1);
        }
        messages
    }

    /// Prints what the daemon logs until `end` is closed, or the daemon has ended.
    pub(super) fn follow(&mut self, end: Receiver<()>) {
        while self.is_printing
            && self.can_ask
            && end.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout)
        {
            self.catch_up();
        }
    }

    /// Prints what the daemon has logged so far.
    pub(super) fn catch_up(&mut self) {
        if let Some(health) = self.ask() {
            self.show(&health);
        }
    }

    fn ask(&mut self) -> Option<Health> {
        if !(self.is_printing && self.can_ask) {
            return None;
        }
        // Not the connection of the lease: a daemon of an older version closes it.
        let mut client = self.connect()?;
        match client.health(ANSWER_TIMEOUT) {
            Ok(None) => {
                self.can_ask = false;
                None
            }
            Ok(health) => health,
            Err(error) => {
                self.can_ask = error.kind() == Kind::TimedOut;
                None
            }
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
        if !self.is_printing {
            return;
        }
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
