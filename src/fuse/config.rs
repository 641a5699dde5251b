//! What archfs negotiates with the kernel, and why.
//!
//! Invariant: each capability is requested on its own, so an old kernel lacks only those it does
//! not support.

use std::time::Duration;

use fuser::{Errno, FileHandle, FopenFlags, InitFlags, KernelConfig, ReplyOpen};

/// How long the kernel may cache names, attributes and the absence of names: forever, because an
/// archive never changes. The kernel caps the seconds far below overflow.
const TTL: Duration = Duration::from_secs(u32::MAX as u64);

/// The cache time. For a mount that unmounts after `idle` it is half of that, so that opening a
/// file by path is noticed in time, even if the kernel has it fully cached.
pub(super) fn ttl(idle: Option<Duration>) -> Duration {
    idle.map_or(TTL, |idle| idle / 2)
}

/// Readahead requests that the kernel may have in flight. fuser's default of 16 leaves a 64-core
/// node idle.
const MAX_BACKGROUND: u16 = 128;

/// Capabilities to request. The comments say what each gains.
const WANTED: [(InitFlags, &str); 10] = [
    // Lookups and listings of one directory run in parallel; otherwise they queue on its lock.
    (InitFlags::FUSE_PARALLEL_DIROPS, "parallel directory operations"),
    // A listing includes the attributes, so a walk needs no LOOKUP and no GETATTR...
    (InitFlags::FUSE_DO_READDIRPLUS, "readdirplus"),
    // ...but only if the caller stats the entries: a bare `ls` uses little kernel memory.
    (InitFlags::FUSE_READDIRPLUS_AUTO, "adaptive readdirplus"),
    // Link targets are cached.
    (InitFlags::FUSE_CACHE_SYMLINKS, "symlink cache"),
    // No OPEN and OPENDIR after the first of each; see `Opening`.
    (NO_OPEN, "open without a request"),
    (NO_OPENDIR, "opendir without a request"),
    // Several readahead requests of one file may be in flight.
    (InitFlags::FUSE_ASYNC_READ, "asynchronous reads"),
    // Direct I/O reads are also sent in parallel.
    (InitFlags::FUSE_ASYNC_DIO, "asynchronous direct I/O"),
    // Requests of more than 128 KiB.
    (InitFlags::FUSE_MAX_PAGES, "large requests"),
    // File handles work after the kernel forgot the inode: LOOKUP of "." and "..".
    (InitFlags::FUSE_EXPORT_SUPPORT, "handles of forgotten inodes"),
];

const NO_OPEN: InitFlags = InitFlags::FUSE_NO_OPEN_SUPPORT;
const NO_OPENDIR: InitFlags = InitFlags::FUSE_NO_OPENDIR_SUPPORT;

/// How OPEN or OPENDIR is answered.
///
/// ENOSYS saves a request for each open(2), but only a kernel that offers it in INIT treats it as
/// success. Linux does so for OPEN since 3.15 and for OPENDIR since 5.1. Older kernels return the
/// error to the caller, and no directory can be listed. The other answer works on every kernel.
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
    /// The agreement with a kernel that offers `offered`. The flags are those the kernel sets
    /// itself if it sends no request. Without KEEP_CACHE each open drops the cached pages; without
    /// CACHE_DIR (Linux 4.20; older kernels ignore it) listings are not cached.
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

/// Requests everything in this file, at the start of a session.
pub(super) fn negotiate(config: &mut KernelConfig) -> Agreement {
    for (flag, name) in WANTED {
        if config.add_capabilities(flag).is_err() {
            log::info!("kernel feature not available: {name}");
        }
    }
    // If the kernel allows less, it returns its maximum, which is then used.
    if let Err(most) = config.set_max_background(MAX_BACKGROUND) {
        let _ = config.set_max_background(most);
    }
    let _ = config.set_congestion_threshold(MAX_BACKGROUND);
    // By default a request may carry 1 MiB (fs.fuse.max_pages_limit). The kernel caps readahead at
    // the administrator's setting, which is 128 KiB by default.
    if let Err(most) = config.set_max_readahead(1 << 20) {
        let _ = config.set_max_readahead(most);
    }
    let _ = config.set_max_write(1 << 20);
    Agreement::with(config.capabilities())
}

/// The number of event loops of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionShape {
    /// Threads that receive requests.
    pub threads: usize,
}

/// The shape for `processors` CPU cores, or `threads` if the user chose.
///
/// There are more threads than cores, because a thread waits while a slow parallel file system
/// answers. There are at least 32, so that readers on a small node wait in parallel; `event_loops`
/// parks them while nothing waits. There are at most 256, because each needs a stack and
/// a request buffer. Each also keeps its largest answer and a decoder, about 2 MiB, so a job with
/// little `memory` (bytes) gets fewer: they take a quarter of it.
pub fn session_shape(
    processors: usize,
    memory: Option<u64>,
    threads: Option<usize>,
) -> SessionShape {
    let affordable = usize::try_from(memory.unwrap_or(u64::MAX) / (8 << 20)).unwrap_or(usize::MAX);
    let default = (processors.saturating_mul(2)).clamp(32, 256).min(affordable.max(4));
    SessionShape { threads: threads.unwrap_or(default).max(1) }
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
