//! Starts the threads that answer the kernel, and ends what they wait for.
//!
//! This is a fuser session over a connection that `attach` made. The answers come from `fuse`.
//! Invariant: fuser neither mounts nor unmounts here; its own code for that is never reached.

use std::fs;
use std::io;
use std::thread::{self, JoinHandle};

use fuser::{Config, Session, SessionACL};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::error::{Error, Kind, Result};
use crate::fuse::{ArchiveFilesystem, SessionShape};
use crate::lifecycle::daemon::signals::SessionEnd;
use crate::lifecycle::daemon::{address_space, clone_fd};
use crate::remote;
use crate::sync::Mutex;
use crate::units::format_size;

/// Descriptors left for holders of the mount, archives and unmounting.
const SPARE: usize = 32;

/// Starts to serve `filesystem` over `connection`. When the mount is no longer used, notifies
/// `end`, and the thread returns the result. The cache may grow to `cache_bytes`.
///
/// Fails with `Io` if the kernel and fuser do not agree on the protocol, or too few threads can be
/// started.
pub(crate) fn start(
    filesystem: ArchiveFilesystem,
    connection: OwnedFd,
    shape: SessionShape,
    cache_bytes: u64,
    end: SessionEnd,
) -> Result<JoinHandle<io::Result<()>>> {
    let failed = |error: io::Error| Error::io("cannot start to serve the mount", error);
    let threads = threads(address_space::threads(shape.threads, cache_bytes)?)?;
    log::info!("{threads} threads answer requests, cache of {}", format_size(cache_bytes));
    let mut config = Config::default();
    config.n_threads = Some(threads);
    config.clone_fd = has_descriptors_for(threads) && clone_fd::is_possible(&connection);
    // The kernel keeps other users out unless allow_other is set. A second check would refuse
    // requests that the kernel makes on behalf of no process.
    let session =
        Session::from_fd(filesystem, connection, SessionACL::All, config).map_err(failed)?;
    thread::Builder::new()
        .name("session".into())
        .spawn(move || {
            let outcome = session.run();
            end.notify();
            outcome
        })
        .map_err(failed)
}

/// How many threads answer, at most `wanted`.
///
/// fuser fails completely if one of its threads cannot be started. At that point the kernel already
/// regards the mount as served. So this starts them once as a trial. If there are too few, the
/// mount takes half of them, because the job must start processes as well.
fn threads(wanted: usize) -> Result<usize> {
    let gate = Mutex::new(());
    // One more for the thread of the session itself.
    let needed = wanted.saturating_add(1);
    let found = thread::scope(|scope| {
        let closed = gate.lock();
        let start =
            |_: &usize| thread::Builder::new().spawn_scoped(scope, || drop(gate.lock())).is_ok();
        let found = (0..needed).take_while(start).count();
        drop(closed);
        found
    });
    match found {
        found if found == needed => Ok(wanted),
        0..4 => {
            let context =
                format!("ulimit -u: the process limit leaves {found}, a mount needs 4 threads");
            Err(Error::new(Kind::Io, context)
                .with_hint("raise the process limit (ulimit -u, or pids.max of the control group)"))
        }
        found => {
            let threads = found / 2;
            log::warn!(
                "--threads: using {threads} of {wanted}, because the process limit leaves {found}"
            );
            Ok(threads)
        }
    }
}

/// How many descriptors a mount needs if each of `threads` has its own.
pub(crate) fn descriptors(threads: usize) -> usize {
    threads.saturating_add(SPARE)
}

/// Whether each of `threads` can have its own descriptor, with enough left for everything else. If
/// they share one, they contend for it in the kernel, which only costs time.
fn has_descriptors_for(threads: usize) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open = fs::read_dir("/proc/self/fd").map_or(usize::MAX, Iterator::count);
    let needed = open.saturating_add(descriptors(threads));
    u64::try_from(needed).is_ok_and(|needed| needed <= limit)
}

/// Ends all requests to servers when the kernel ends `connection`, a duplicate of the FUSE
/// connection: when the mount is unmounted and its last file is closed. A thread that reads from a
/// server that is down would notice that only after a minute, and the daemon would stay as long.
///
/// Call it when the mount is unmounted: each request of the kernel wakes the thread.
pub(super) fn end_server_requests_after(connection: OwnedFd) {
    let watch = move || {
        // Without a request, poll(2) reports only that the connection has ended (EPOLLERR).
        let mut watched = [PollFd::new(&connection, PollFlags::empty())];
        while let Err(Errno::INTR) = poll(&mut watched, None) {}
        remote::end();
    };
    if let Err(error) = thread::Builder::new().name("connection".into()).spawn(watch) {
        log::warn!("cannot watch the connection to the kernel: {error}");
    }
}
