//! A buffer that starts on a page boundary.
//!
//! The kernel copies a reply into its page cache page by page, and looks up each page of the reply
//! that it copies from. A reply that starts on a boundary takes one lookup per page, any other one
//! takes two (`fuse_copy_fill` in fs/fuse/dev.c). The allocator puts large buffers 16 bytes behind
//! a boundary.

use std::ops::{Deref, DerefMut, Range};

/// Size of a page in bytes. Where pages are larger, some lookups are not saved.
const PAGE: usize = 4096;

/// Bytes that start on a page boundary, if there are at least `PAGE` of them.
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
