//! Giving freed memory back to the system.
//!
//! Owns one call of glibc, whose heaps else keep what was freed for its next use. Other libraries
//! have no such call; with them this does nothing.
#![cfg_attr(
    target_env = "gnu",
    expect(unsafe_code, reason = "no crate offers malloc_trim(3) as a safe call")
)]

/// Gives the whole pages of freed memory back, of all heaps. A thread that allocates meanwhile may
/// wait for its heap: a tenth of a second for a gigabyte.
pub(super) fn trim() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim takes a number, may be called by any thread at any time, takes the
        // locks of the heaps itself, and leaves alone what is allocated.
        unsafe { libc::malloc_trim(0) };
    }
}
