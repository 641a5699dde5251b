//! The threads that answer the kernel.
//!
//! Owns the fuser session over a connection that `attach` made; leaves the answers to `fuse`.
//! Invariant: fuser neither mounts nor unmounts here; its own code for that is never reached.

use std::io;
use std::thread::{self, JoinHandle};

use fuser::{Config, Session, SessionACL};
use rustix::fd::OwnedFd;

use super::clone;
use super::signals::SessionEnd;
use crate::error::{Error, Result};
use crate::fuse::{ArchiveFilesystem, SessionShape};

/// Starts to serve `filesystem` over `connection`; when the last use of the mount has ended, tells
/// `end`, and the thread returns how it ended.
///
/// # Errors
/// `Io` where the kernel and fuser do not come to terms.
pub(super) fn start(
    filesystem: ArchiveFilesystem,
    connection: OwnedFd,
    shape: SessionShape,
    end: SessionEnd,
) -> Result<JoinHandle<io::Result<()>>> {
    let failed = |error: io::Error| Error::io("can not start to serve the mount", error);
    let mut config = Config::default();
    config.n_threads = Some(shape.threads);
    config.clone_fd = clone::is_possible(&connection);
    // The kernel itself keeps others out unless allow_other is given; asking again would refuse
    // requests that it makes on behalf of nobody.
    let session =
        Session::from_fd(filesystem, connection, SessionACL::All, config).map_err(failed)?;
    thread::Builder::new()
        .name("session".into())
        .spawn(move || {
            let outcome = session.run();
            end.tell();
            outcome
        })
        .map_err(failed)
}
