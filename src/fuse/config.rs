//! What is asked of the kernel, and why.
//!
//! Owns capabilities, time-outs and the number of event loops; leaves mounting to `lifecycle`.
//! Invariant: each capability is asked for on its own, so an old kernel lacks only what it lacks.

use std::time::Duration;

use fuser::{Errno, FileHandle, FopenFlags, InitFlags, KernelConfig, ReplyOpen};

/// How long the kernel may keep names, attributes and the absence of names: for ever, since an
/// archive never changes. Seconds; the kernel caps it far below overflow.
const TTL: Duration = Duration::from_secs(u32::MAX as u64);

/// The same for a mount that shall go when nothing was asked for `idle`: half of that, so that
/// whoever opens a file by its path, also one that the kernel has whole, is heard of in time.
pub(super) fn ttl(idle: Option<Duration>) -> Duration {
    idle.map_or(TTL, |idle| idle / 2)
}

/// Requests that the kernel may have under way for readahead. fuser's 16 leaves a 64-core node
/// idle.
const MAX_BACKGROUND: u16 = 128;

/// Capabilities, each with what is lost without it.
const WANTED: [(InitFlags, &str); 10] = [
    // Lookups and listings of one directory run side by side; without it they queue on its lock.
    (InitFlags::FUSE_PARALLEL_DIROPS, "parallel directory operations"),
    // A listing brings the attributes along, so a walk needs no LOOKUP and no GETATTR...
    (InitFlags::FUSE_DO_READDIRPLUS, "readdirplus"),
    // ...but only where somebody stats what was listed: a bare `ls` stays cheap in kernel memory.
    (InitFlags::FUSE_READDIRPLUS_AUTO, "adaptive readdirplus"),
    // A link is read once.
    (InitFlags::FUSE_CACHE_SYMLINKS, "symlink cache"),
    // No OPEN and no OPENDIR after the first of each; see `Opening`.
    (NO_OPEN, "open without a request"),
    (NO_OPENDIR, "opendir without a request"),
    // Several readahead requests of one file may be under way.
    (InitFlags::FUSE_ASYNC_READ, "asynchronous reads"),
    // Reads of direct I/O are sent side by side too.
    (InitFlags::FUSE_ASYNC_DIO, "asynchronous direct I/O"),
    // Requests of more than 128 KiB.
    (InitFlags::FUSE_MAX_PAGES, "large requests"),
    // A handle can be opened when the kernel has forgotten its inode: LOOKUP of "." and "..".
    (InitFlags::FUSE_EXPORT_SUPPORT, "handles of forgotten inodes"),
];

const NO_OPEN: InitFlags = InitFlags::FUSE_NO_OPEN_SUPPORT;
const NO_OPENDIR: InitFlags = InitFlags::FUSE_NO_OPENDIR_SUPPORT;

/// How OPEN or OPENDIR is answered.
///
/// ENOSYS saves a request for each open(2), but only a kernel that offers it in INIT takes it for
/// success. Linux does so for OPEN since 3.15 and for OPENDIR since 5.1; before that the error goes
/// to the caller, and no directory can be listed. The other answer works on every kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// ENOSYS: the kernel sends no more of these requests, and no RELEASE or RELEASEDIR.
    WithoutRequest,
    /// Success with file handle 0 and these flags. A RELEASE or RELEASEDIR follows.
    WithRequest(FopenFlags),
}

impl Opening {
    pub(super) fn answer(self, reply: ReplyOpen) {
        match self {
            Self::WithoutRequest => reply.error(Errno::ENOSYS),
            Self::WithRequest(flags) => reply.opened(FileHandle(0), flags),
        }
    }
}

/// What archfs and the kernel agreed on in INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    pub(super) files: Opening,
    pub(super) directories: Opening,
}

impl Agreement {
    /// The agreement with a kernel that offers `offered`. The flags are those that the kernel sets
    /// itself where it sends no request: without KEEP_CACHE each open drops the cached pages, and
    /// without CACHE_DIR (Linux 4.20; older kernels ignore it) no listing is cached.
    pub(super) fn with(offered: InitFlags) -> Self {
        let opening = |flag, flags| match offered.contains(flag) {
            true => Opening::WithoutRequest,
            false => Opening::WithRequest(flags),
        };
        let keep = FopenFlags::FOPEN_KEEP_CACHE;
        Self {
            files: opening(NO_OPEN, keep),
            directories: opening(NO_OPENDIR, keep | FopenFlags::FOPEN_CACHE_DIR),
        }
    }
}

/// Asks the kernel for what this file lists, at the start of a session.
pub(super) fn negotiate(config: &mut KernelConfig) -> Agreement {
    for (flag, what) in WANTED {
        if config.add_capabilities(flag).is_err() {
            log::info!("this kernel has no {what}; going on without");
        }
    }
    // A kernel that takes less says so by what it would take; that is then used.
    if let Err(most) = config.set_max_background(MAX_BACKGROUND) {
        let _ = config.set_max_background(most);
    }
    let _ = config.set_congestion_threshold(MAX_BACKGROUND);
    // 1 MiB is what a request may carry by default (fs.fuse.max_pages_limit); readahead is capped
    // by the kernel itself at what the administrator allows, 128 KiB unless raised.
    if let Err(most) = config.set_max_readahead(1 << 20) {
        let _ = config.set_max_readahead(most);
    }
    let _ = config.set_max_write(1 << 20);
    Agreement::with(config.capabilities())
}

/// How many event loops serve a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionShape {
    /// Threads that take requests.
    pub threads: usize,
}

/// The shape for `processors`, or `threads` if a person chose.
///
/// More threads than processors, because a thread waits while a slow parallel file system answers;
/// at least 32, so that the readers of a small node wait side by side and not for each other (a
/// thread that waits costs next to nothing: docs/bench); at most 256, since each costs a stack and
/// a request buffer. Each keeps the memory of its largest answer and of a decoder, some 2 MiB, so
/// in a job that may take little `memory` (bytes) there are fewer: they take a quarter of it.
pub fn session_shape(
    processors: usize,
    memory: Option<u64>,
    threads: Option<usize>,
) -> SessionShape {
    let affordable = usize::try_from(memory.unwrap_or(u64::MAX) / (8 << 20)).unwrap_or(usize::MAX);
    let usual = (processors.saturating_mul(2)).clamp(32, 256).min(affordable.max(4));
    SessionShape { threads: threads.unwrap_or(usual).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// > **Memory**: the cache and the number of threads follow the memory of the job, so a daemon
    /// > survives full load in a control group of 128 MiB.
    #[test]
    fn threads_are_many_unless_memory_is_short_or_a_person_chose() {
        let threads =
            |processors, memory, chosen| session_shape(processors, memory, chosen).threads;
        assert_eq!(threads(2, None, None), 32);
        assert_eq!(threads(64, Some(256 << 30), None), 128);
        assert_eq!(threads(64, Some(256 << 20), None), 32);
        assert_eq!(threads(2, Some(64 << 20), None), 8);
        assert_eq!(threads(2, Some(1 << 20), None), 4);
        assert_eq!(threads(2, Some(1 << 20), Some(50)), 50);
    }
}
