//! Blocks of tables that a copy without room has read from its sources.
//!
//! Tables are read a few bytes at a time. If the source is far away, each read would take a
//! request.

use std::collections::VecDeque;

use crate::sync::{Arc, Mutex};

/// Blocks that are kept: one for each thread that scans an archive, and some more.
const BLOCKS: usize = 16;

/// The last blocks that were read.
#[derive(Debug, Default)]
pub(super) struct RecentTables {
    /// Offsets in the copy, and bytes. Held to find or add a block.
    blocks: Mutex<VecDeque<(u64, Arc<Vec<u8>>)>>,
}

impl RecentTables {
    /// Fills `buffer` with the bytes at `offset`. Returns whether a block has them all.
    pub(super) fn copy_to(&self, buffer: &mut [u8], offset: u64) -> bool {
        let inside = |start: u64, len: usize| {
            let from = usize::try_from(offset.checked_sub(start)?).ok()?;
            let end = from.checked_add(buffer.len())?;
            (end <= len).then_some(from..end)
        };
        let blocks = self.blocks.lock();
        let found = blocks
            .iter()
            .find_map(|(start, block)| Some((Arc::clone(block), inside(*start, block.len())?)));
        drop(blocks);
        found.is_some_and(|(block, range)| {
            buffer.copy_from_slice(&block[range]);
            true
        })
    }

    /// Adds the block that was read at `offset`; the oldest makes room for it.
    pub(super) fn add(&self, offset: u64, block: Vec<u8>) {
        let mut blocks = self.blocks.lock();
        if blocks.len() == BLOCKS {
            blocks.pop_front();
        }
        blocks.push_back((offset, Arc::new(block)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_block_with_all_bytes_is_used_and_old_ones_go() {
        let tables = RecentTables::default();
        tables.add(100, (0..50).collect());
        let read = |offset, len| {
            let mut buffer = vec![0; len];
            tables.copy_to(&mut buffer, offset).then_some(buffer)
        };
        assert_eq!(read(110, 3), Some(vec![10, 11, 12]));
        assert_eq!(read(100, 50).map(|found| found.len()), Some(50));
        for (offset, len) in [(99, 2), (149, 2), (150, 1), (u64::MAX, 1)] {
            assert_eq!(read(offset, len), None);
        }
        for number in 1..=BLOCKS as u64 {
            assert!(read(110, 3).is_some());
            tables.add(1000 * number, vec![0; 10]);
        }
        assert_eq!(read(110, 3), None);
    }
}
