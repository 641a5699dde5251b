//! Heap settings of this process, returning freed memory to the system, and buffers that start on a
//! page boundary.
//!
//! glibc's heaps keep freed memory for reuse unless configured otherwise. Other C libraries have no
//! such calls; with them these functions do nothing.
#![cfg_attr(
    target_env = "gnu",
    expect(unsafe_code, reason = "no crate offers malloc_trim(3) and mallopt(3) as safe calls")
)]

use std::ops::{Deref, DerefMut, Range};

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

/// Size of a page in bytes. Where pages are larger, some lookups are not saved.
const PAGE: usize = 4096;

/// Bytes that start on a page boundary, if there are at least `PAGE` of them.
///
/// The kernel copies a reply into its page cache page by page, and looks up each page of the reply
/// that it copies from. A reply that starts on a boundary takes one lookup per page, any other one
/// takes two (`fuse_copy_fill` in fs/fuse/dev.c). The allocator puts large buffers 16 bytes behind
/// a boundary.
#[derive(Debug, Default)]
pub struct PageAligned {
    /// The bytes and what lies around them. Never moves, so that the boundary stays where it is.
    memory: Box<[u8]>,
    /// Where the bytes are in `memory`.
    bytes: Range<usize>,
}

impl PageAligned {
    /// `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        let spare = if len < PAGE { 0 } else { PAGE };
        // Zeroed memory is not resident before it is used.
        let memory = vec![0; len.saturating_add(spare)].into_boxed_slice();
        let start = memory.as_ptr().align_offset(PAGE).min(spare);
        Self { memory, bytes: start..start.saturating_add(len) }
    }
}

impl Deref for PageAligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.get(self.bytes.clone()).unwrap_or_default()
    }
}

impl DerefMut for PageAligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.bytes.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_wanted_length_and_starts_on_a_boundary() {
        for len in [0, 1, PAGE - 1, PAGE, PAGE + 1, 1 << 20] {
            let mut buffers: Vec<_> = (0..4).map(|_| PageAligned::zeroed(len)).collect();
            for buffer in &mut buffers {
                assert_eq!(**buffer, vec![0; len]);
                buffer.fill(1);
                assert!(len < PAGE || buffer.as_ptr().addr() % PAGE == 0);
            }
        }
    }
}
