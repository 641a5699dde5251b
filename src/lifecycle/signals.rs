//! The exit handler of the daemon.
//!
//! Owns turning SIGTERM, SIGINT and SIGHUP into events; all three mean the same to a daemon, so
//! ctrlc, which does not say which one came, is enough. `child` passes signals on and needs more.
//! Invariant: a handler only sends; whatever has to be done is done by the daemon's own loop.

use std::io;
use std::sync::mpsc::Sender;

use super::daemon::Event;
use crate::error::{Error, Result};

/// Sends an event for each signal that asks the daemon to end.
///
/// # Errors
/// `Io` where the system refuses.
pub(super) fn watch(events: Sender<Event>) -> Result<()> {
    let send = move || {
        let _ = events.send(Event::Signal);
    };
    ctrlc::set_handler(send)
        .map_err(|error| Error::io("can not watch for signals", io::Error::other(error)))
}
