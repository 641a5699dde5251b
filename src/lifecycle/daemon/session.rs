//! The threads that answer the kernel.
//!
//! Owns the fuser session over a connection that `attach` made; leaves the answers to `fuse`.
//! Invariant: fuser neither mounts nor unmounts here; its own code for that is never reached.

use std::fs;
use std::io;
use std::thread::{self, JoinHandle};

use fuser::{Config, Session, SessionACL};
use rustix::fd::OwnedFd;
use rustix::process::{Resource, getrlimit};

use crate::error::{Error, Kind, Result};
use crate::fuse::{ArchiveFilesystem, SessionShape};
use crate::lifecycle::daemon::signals::SessionEnd;
use crate::lifecycle::daemon::{address_space, clone_fd};
use crate::sync::Mutex;

/// Descriptors that are left to holders of the mount, archives and the end of the mount.
const SPARE: usize = 32;

/// Starts to serve `filesystem` over `connection`; when the last use of the mount has ended, tells
/// `end`, and the thread returns how it ended. The cache may grow to `cache_bytes` meanwhile.
///
/// # Errors
/// `Io` where the kernel and fuser do not come to lifetime, or too few threads can be had.
pub(in crate::lifecycle) fn start(
    filesystem: ArchiveFilesystem,
    connection: OwnedFd,
    shape: SessionShape,
    cache_bytes: u64,
    end: SessionEnd,
) -> Result<JoinHandle<io::Result<()>>> {
    let failed = |error: io::Error| Error::io("can not start to serve the mount", error);
    let threads = threads(address_space::threads(shape.threads, cache_bytes)?)?;
    let mut config = Config::default();
    config.n_threads = Some(threads);
    config.clone_fd = has_descriptors_for(threads) && clone_fd::is_possible(&connection);
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

/// How many threads shall answer, where `wanted` are.
///
/// fuser fails as a whole where one of its threads can not be started, after the kernel was told
/// that the mount is served. So it is tried before, and where there are too few the mount takes
/// half of what there is: the job has to start something, too.
///
/// # Errors
/// `Io` where there is none.
fn threads(wanted: usize) -> Result<usize> {
    let gate = Mutex::new(());
    // One more, since the session has a thread besides those that answer.
    let most = wanted.saturating_add(1);
    let found = thread::scope(|scope| {
        let closed = gate.lock();
        let start =
            |_: &usize| thread::Builder::new().spawn_scoped(scope, || drop(gate.lock())).is_ok();
        let found = (0..most).take_while(start).count();
        drop(closed);
        found
    });
    match found {
        found if found == most => Ok(wanted),
        0..4 => {
            let context = format!("only {found} more threads can be started here");
            Err(Error::new(Kind::Io, context).with_hint(
                "raise the limit of processes (ulimit -u, or pids.max of the control group)",
            ))
        }
        found => {
            let threads = found / 2;
            log::warn!(
                "{threads} threads answer instead of {wanted}: only {found} can be started here"
            );
            Ok(threads)
        }
    }
}

/// How many descriptors a mount takes whose `threads` each have one of their own.
pub(in crate::lifecycle) fn descriptors(threads: usize) -> usize {
    threads.saturating_add(SPARE)
}

/// Whether each of `threads` may have a descriptor of its own with enough left for all else. If
/// they share one instead they meet in the kernel, which only costs time.
fn has_descriptors_for(threads: usize) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open = fs::read_dir("/proc/self/fd").map_or(usize::MAX, Iterator::count);
    let needed = open.saturating_add(descriptors(threads));
    u64::try_from(needed).is_ok_and(|needed| needed <= limit)
}
