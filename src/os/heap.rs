//! Heap settings of this process, and returning freed memory to the system.
//!
//! glibc's heaps keep freed memory for reuse unless configured otherwise. Other C libraries have no
//! such calls; with them these functions do nothing.
#![cfg_attr(
    target_env = "gnu",
    expect(unsafe_code, reason = "no crate offers malloc_trim(3) and mallopt(3) as safe calls")
)]

/// Buffers of this many bytes or more get their own mapping: chunks of compressed tars and the
/// larger blocks of images.
#[cfg(target_env = "gnu")]
const LARGE: i32 = 512 << 10;

/// Gives each large buffer its own mapping, which is unmapped with the buffer. By default glibc
/// raises its threshold whenever a large buffer is freed, and serves the next from a heap. There is
/// one heap per thread, and most of its memory is never returned: with 8 MiB chunks a budget of 64
/// MiB grew to 380 MB.
pub(crate) fn map_large_buffers() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallopt takes two numbers and may be called by any thread at any time.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
    }
}

/// Makes all threads share one heap. Call it before threads start. glibc reserves 64 MiB of address
/// space per heap, and memory that one thread allocates and another frees leaves gaps: building the
/// index of 14 million members took 66 MiB with many heaps, 30 MiB with one.
pub(crate) fn use_one_heap() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallopt takes two numbers and may be called by any thread at any time.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Returns whole free pages of all heaps to the system. A thread that allocates during the call may
/// wait for its heap: 0.1 s per gigabyte.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim takes a number, may be called by any thread at any time, takes the
        // locks of the heaps itself, and does not touch allocated memory.
        unsafe { libc::malloc_trim(0) };
    }
}
