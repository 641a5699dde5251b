//! The threads that answer the kernel.
//!
//! Owns the fuser session over a connection that `attach` made; leaves the answers to `fuse`.
//! Invariant: fuser neither mounts nor unmounts here; its own code for that is never reached.

use std::io;
use std::sync::mpsc::Sender;
use std::thread;

use fuser::{Config, Session, SessionACL};
use rustix::fd::OwnedFd;

use super::clone;
use super::daemon::Event;
use crate::error::{Error, Result};
use crate::fuse::{ArchiveFilesystem, SessionShape};
use crate::stats::Stats;
use crate::sync::Arc;
use crate::vfs::Tree;

/// Starts to serve `tree` over `connection`, counting in `stats`; when the last use of the mount
/// has ended, says so.
///
/// # Errors
/// `Io` where the kernel and fuser do not come to terms.
pub(super) fn start(
    tree: Arc<dyn Tree>,
    stats: Arc<Stats>,
    connection: OwnedFd,
    shape: SessionShape,
    events: Sender<Event>,
) -> Result<()> {
    let failed = |error: io::Error| Error::io("can not start to serve the mount", error);
    let mut config = Config::default();
    config.n_threads = Some(shape.threads);
    config.clone_fd = clone::is_possible(&connection);
    // The kernel itself keeps others out unless allow_other is given; asking again would refuse
    // requests that it makes on behalf of nobody.
    let filesystem = ArchiveFilesystem::new(tree, stats);
    let session =
        Session::from_fd(filesystem, connection, SessionACL::All, config).map_err(failed)?;
    thread::Builder::new()
        .name("session".into())
        .spawn(move || {
            // Nobody listens any more when the daemon is at its end.
            let _ = events.send(Event::SessionEnded(session.run()));
        })
        .map_err(failed)?;
    Ok(())
}
