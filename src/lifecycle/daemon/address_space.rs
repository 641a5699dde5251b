//! Fits the threads of a mount into a limited address space (ulimit -v or -d).
//!
//! fuser allocates a request buffer of 16 MiB for each thread that answers, sized for the largest
//! write a kernel may send. The size is a constant of fuser. The kernel never fills the buffer of a
//! read-only mount, so it takes no memory, but it does take address space. A thread that cannot
//! allocate its buffer ends the process after the mount was reported. So the threads are counted
//! against the limit first, together with everything that grows later.

use rustix::process::{Resource, getrlimit};

use crate::error::{Error, Kind, Result};
use crate::os::kernel_file;
use crate::units::Size;

/// fuser's request buffer (`BUFFER_SIZE` in its read_buf.rs, 16 MiB and 4 KiB), a stack of 2 MiB,
/// and what a thread keeps for answers and decompression; bytes.
const PER_THREAD: u64 = (16 << 20) + (4 << 10) + (8 << 20);

/// Threads that decompress ahead (`cache::Workers`), each with its stack and its buffers, and
/// everything else that grows while the mount is served; bytes.
const REST: u64 = 96 << 20;

/// Threads below which a mount is refused, unless the user asked for fewer.
const LEAST_THREADS: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Limit {
    /// The command that sets it.
    option: &'static str,
    total: u64,
    /// Bytes that are not used yet.
    left: u64,
}

pub(crate) fn is_limited() -> bool {
    limit().is_some()
}

/// How many threads can answer, at most `wanted`, next to a cache of `cache_bytes`.
///
/// Fails with `Io` if the address space is too small for the fewest threads that are accepted.
pub(crate) fn threads(wanted: usize, cache_bytes: u64) -> Result<usize> {
    match limit() {
        Some(limit) => within(limit, wanted, cache_bytes),
        None => Ok(wanted),
    }
}

fn within(limit: Limit, wanted: usize, cache_bytes: u64) -> Result<usize> {
    let Limit { option, total, left } = limit;
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

/// The limit with the fewest bytes left.
fn limit() -> Option<Limit> {
    let used = |name| kernel_file::own_memory(name).unwrap_or(0);
    let limits = [(Resource::As, "ulimit -v", "VmSize"), (Resource::Data, "ulimit -d", "VmData")];
    let limits = limits.into_iter().filter_map(|(resource, option, name)| {
        let total = getrlimit(resource).current?;
        Some(Limit { option, total, left: total.saturating_sub(used(name)) })
    });
    limits.min_by_key(|limit| limit.left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_as_many_threads_as_fit_and_refuses_below_four() {
        let cache = 64 << 20;
        let with_room_for = |threads: u64, wanted| {
            let left = cache + REST + threads * PER_THREAD;
            within(Limit { option: "ulimit -v", total: left, left }, wanted, cache)
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
