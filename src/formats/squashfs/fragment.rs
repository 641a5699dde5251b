//! The fragment table: where the blocks are that hold the tails of several files.

use super::blocklist::Extent;
use super::inode::Tail;
use super::metadata::Metadata;
use super::superblock::Superblock;
use super::table::Table;
use crate::error::{Error, Result};
use crate::formats::bytes::Reader;
use crate::storage::Storage;
use crate::sync::Arc;

/// Size of a record, bytes: start (8), word (4), unused (4).
const RECORD: usize = 16;

/// The fragment blocks of an image.
pub(super) struct FragmentTable(Option<Table<RECORD>>);

impl FragmentTable {
    /// Reads the list of the table's blocks.
    pub(super) fn read(
        metadata: &Arc<Metadata>,
        storage: &dyn Storage,
        superblock: &Superblock,
    ) -> Result<Self> {
        let (count, end) = (superblock.fragment_count, superblock.bytes_used);
        let read = |start| Table::read(metadata, storage, "fragment", start, count, end);
        superblock.fragment_table.map(read).transpose().map(Self)
    }

    /// Where the fragment block of a tail is.
    pub(super) fn block(&self, tail: Tail) -> Result<Extent> {
        match self.entry(tail.fragment)? {
            Extent::Hole => {
                let fragment = tail.fragment;
                Err(Error::corrupt(format!("fragment {fragment} is a block of 0 bytes")))
            }
            extent => Ok(extent),
        }
    }

    /// An entry of the fragment table. The crate backhand writes one of 0 bytes to images without
    /// tails.
    pub(super) fn entry(&self, fragment: u32) -> Result<Extent> {
        let Some(table) = &self.0 else {
            return Err(Error::corrupt(format!(
                "fragment {fragment} referenced, but there are none"
            )));
        };
        let record = table.record(fragment)?;
        let mut reader = Reader::new("fragment", &record);
        let start = reader.u64()?;
        let word = reader.u32()?;
        Ok(Extent::parse(word, start))
    }
}
