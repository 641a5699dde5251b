//! The heaps of this process: how many there are, and giving freed memory back to the system.
//!
//! Three calls of glibc, whose heaps otherwise keep what was freed for its next use. Other
//! libraries have no such calls; with them this does nothing.
#![cfg_attr(
    target_env = "gnu",
    expect(unsafe_code, reason = "no crate offers malloc_trim(3) and mallopt(3) as safe calls")
)]

/// From this size on, in bytes, a buffer has a mapping of its own: chunks of compressed tars, and
/// the larger blocks of images.
#[cfg(target_env = "gnu")]
const LARGE: i32 = 512 << 10;

/// Lets each large buffer have a mapping of its own, which ends with the buffer. Left alone, glibc
/// learns from each large buffer that is freed to serve the next from a heap. There is one heap a
/// thread, and hardly any of it goes back: a budget of 64 MiB came to 380 MB with chunks of 8 MiB.
pub(crate) fn map_large_buffers() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallopt takes two numbers and may be called by any thread at any time.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
    }
}

/// Lets all threads share one heap. Call it before there are threads: glibc reserves 64 MiB of
/// address space for each heap that it makes, and what one thread allocates and another frees
/// leaves gaps: making the index of 14 million members took 66 MiB with many heaps, 30 with one.
pub(crate) fn use_one_heap() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallopt takes two numbers and may be called by any thread at any time.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Gives the whole pages of freed memory back, of all heaps. A thread that allocates meanwhile may
/// wait for its heap: a tenth of a second for a gigabyte.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim takes a number, may be called by any thread at any time, takes the
        // locks of the heaps itself, and leaves alone what is allocated.
        unsafe { libc::malloc_trim(0) };
    }
}
