//! Starts the threads that answer the kernel, and ends what they wait for.
//!
//! This is a fuser session over a connection that `attach` made. The answers come from `fuse`.
//! Invariant: fuser neither mounts nor unmounts here; its own code for that is never reached.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fuser::{Config, Session, SessionACL};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};
use rustix::process::{Pid, Resource, getrlimit};
use rustix::thread::gettid;

use crate::error::{Error, Kind, Result};
use crate::fuse::{ArchiveFilesystem, SessionShape};
use crate::lifecycle::daemon::signals::SessionEnd;
use crate::os::kernel_file;
use crate::remote;
use crate::sync::Mutex;
use crate::units::{Size, format_size};

/// How long the kernel may take to release threads that have ended; without other load, it takes
/// less than a millisecond.
const MOST_RELEASE: Duration = Duration::from_secs(5);

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
    let threads = match AddressSpace::limit() {
        Some(limit) => limit.threads(shape.threads, cache_bytes)?,
        None => shape.threads,
    };
    let threads = startable_threads(threads)?;
    log::info!("{threads} threads answer requests, cache of {}", format_size(cache_bytes));
    let mut config = Config::default();
    config.n_threads = Some(threads);
    config.clone_fd = has_descriptors_for(threads) && can_clone(&connection);
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
fn startable_threads(wanted: usize) -> Result<usize> {
    let gate = Mutex::new(());
    // One more for the thread of the session itself.
    let needed = wanted.saturating_add(1);
    let started: Vec<_> = thread::scope(|scope| {
        let closed = gate.lock();
        let wait = || {
            drop(gate.lock());
            gettid()
        };
        let start = |_| thread::Builder::new().spawn_scoped(scope, wait).ok();
        let trials: Vec<_> = (0..needed).map_while(start).collect();
        drop(closed);
        trials.into_iter().filter_map(|trial| trial.join().ok()).collect()
    });
    wait_until_released(&started);
    let found = started.len();
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

/// Waits until the kernel has released `threads`, which have ended: until then, they count against
/// the limits, and threads that are started in their place may find too little room.
fn wait_until_released(threads: &[Pid]) {
    let deadline = Instant::now() + MOST_RELEASE;
    let is_left = |thread: &Pid| Path::new(&format!("/proc/self/task/{thread}")).exists();
    while threads.iter().any(is_left) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
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

/// FUSE_DEV_IOC_CLONE of linux/fuse.h: `_IOR(229, 0, uint32_t)`.
const CLONE: u32 = opcode::read::<u32>(229, 0) as u32;

/// Whether the kernel can clone the descriptor `connection`, so that each event loop has its own.
/// fuser fails completely if it refuses.
#[expect(unsafe_code, reason = "no crate offers FUSE_DEV_IOC_CLONE as a safe call")]
fn can_clone(connection: impl AsFd) -> bool {
    let Ok(device) = File::options().read(true).write(true).open("/dev/fuse") else {
        return false;
    };
    let Ok(number) = u32::try_from(connection.as_fd().as_raw_fd()) else {
        return false;
    };
    // SAFETY: the kernel reads one u32, the number of an open descriptor, through the pointer that
    // Setter makes of `number`; it writes nothing, and `device` is an open FUSE device.
    unsafe { ioctl(&device, Setter::<{ CLONE }, u32>::new(number)) }.is_ok()
}

/// fuser's request buffer (`BUFFER_SIZE` in its read_buf.rs, 16 MiB and 4 KiB), a stack of 2 MiB,
/// and what a thread keeps for answers and decompression; bytes.
const PER_THREAD: u64 = (16 << 20) + (4 << 10) + (8 << 20);

/// Threads that decompress ahead (`cache::Workers`), each with its stack and its buffers, and
/// everything else that grows while the mount is served; bytes.
const REST: u64 = 96 << 20;

/// Threads below which a mount is refused, unless the user asked for fewer.
const LEAST_THREADS: usize = 4;

/// A limit of the address space (ulimit -v or -d).
///
/// fuser allocates a request buffer of 16 MiB for each thread that answers, sized for the largest
/// write a kernel may send. The size is a constant of fuser. The kernel never fills the buffer of a
/// read-only mount, so it takes no memory, but it does take address space. A thread that cannot
/// allocate its buffer ends the process after the mount was reported. So the threads are counted
/// against the limit first, together with everything that grows later.
#[derive(Clone, Copy, Debug)]
struct AddressSpace {
    /// The command that sets it.
    option: &'static str,
    total: u64,
    /// Bytes that are not used yet.
    left: u64,
}

/// Whether the address space of this process is limited.
pub(crate) fn has_limited_address_space() -> bool {
    AddressSpace::limit().is_some()
}

impl AddressSpace {
    /// The limit with the fewest bytes left.
    fn limit() -> Option<Self> {
        let used = |name| kernel_file::own_memory(name).unwrap_or(0);
        let limits =
            [(Resource::As, "ulimit -v", "VmSize"), (Resource::Data, "ulimit -d", "VmData")];
        let limits = limits.into_iter().filter_map(|(resource, option, name)| {
            let total = getrlimit(resource).current?;
            Some(Self { option, total, left: total.saturating_sub(used(name)) })
        });
        limits.min_by_key(|limit| limit.left)
    }

    /// How many threads can answer, at most `wanted`, next to a cache of `cache_bytes`.
    ///
    /// Fails with `Io` if it is too small for the fewest threads that are accepted.
    fn threads(self, wanted: usize, cache_bytes: u64) -> Result<usize> {
        let Self { option, total, left } = self;
        let rest = cache_bytes.saturating_add(REST);
        let most = usize::try_from(left.saturating_sub(rest) / PER_THREAD).unwrap_or(usize::MAX);
        if most >= wanted {
            return Ok(wanted);
        }
        let least = wanted.min(LEAST_THREADS);
        if most >= least {
            log::warn!(
                "--threads: using {most} of {wanted}, because {option} limits the address space to {}",
                Size(total)
            );
            return Ok(most);
        }
        let needed = rest.saturating_add(PER_THREAD.saturating_mul(least as u64));
        let context = format!(
            "{option}: {} is too little: {} left, a mount needs {}",
            Size(total),
            Size(left),
            Size(needed)
        );
        Err(Error::new(Kind::Io, context).with_hint(format!("raise {option}, or lower --cache")))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_as_many_threads_as_fit_and_refuses_below_four() {
        let cache = 64 << 20;
        let with_room_for = |threads: u64, wanted| {
            let left = cache + REST + threads * PER_THREAD;
            AddressSpace { option: "ulimit -v", total: left, left }.threads(wanted, cache)
        };
        assert_eq!(with_room_for(32, 32).unwrap(), 32);
        assert_eq!(with_room_for(1000, 32).unwrap(), 32);
        assert_eq!(with_room_for(31, 32).unwrap(), 31);
        assert_eq!(with_room_for(4, 32).unwrap(), 4);
        assert_eq!(with_room_for(2, 2).unwrap(), 2);
        for error in [with_room_for(3, 32), with_room_for(1, 2), with_room_for(0, 1)] {
            let error = error.unwrap_err();
            assert_eq!(error.kind(), Kind::Io);
            assert!(error.to_string().contains("ulimit -v"), "{error}");
        }
    }
}
