//! How the daemon's allocator treats large buffers.
//!
//! Owns that one setting. Left alone, glibc learns from each large buffer that is freed to serve the
//! next from a heap, of which there is one a thread, and hardly any of that memory goes back: a
//! mount with a cache of 64 MiB and chunks of 8 MiB came to 380 MB. Buffers of this size or more now
//! always have a mapping of their own, which ends with them. It costs the kernel's zeroing of the
//! pages, a hundredth of the time to decode them. Smaller ones, such as all blocks of SquashFS,
//! are served as before.
#![expect(unsafe_code, reason = "no crate offers mallopt as a safe call")]

/// From this size on a buffer has a mapping of its own, bytes.
#[cfg(target_env = "gnu")]
const MAPPED_FROM: libc::c_int = 4 << 20;

/// Lets large buffers go back to the system when they are freed.
pub(super) fn give_large_buffers_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets one number of the allocator, under its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
    }
}
