//! Visits all inodes of an image in the order of the inode table.
//!
//! Invariant: no record is visited twice, and never more records than the superblock declares. A
//! scan therefore takes time proportional to the table.

use super::SquashFs;
use super::inode::{Body, Inode, InodeRef};
use super::metadata::{Cursor, Position};
use crate::error::{Error, Result};
use crate::formats::bytes::Reader;

impl SquashFs {
    /// Calls `visit` for each inode, with the cursor after the fixed part of its record. Returns
    /// the number of inodes.
    ///
    /// Fails with `Corrupt` if the table cannot be read to its end; `Io`; the errors of `visit`.
    pub(super) fn scan_inodes<'s>(
        &'s self,
        mut visit: impl FnMut(InodeRef, &Inode, &Cursor<'s>) -> Result<()>,
    ) -> Result<u64> {
        let super::Superblock { inode_table, directory_table, inode_count, .. } = self.superblock;
        let start = Position { block: inode_table, offset: 0 };
        let mut cursor = self.metadata.cursor(start)?;
        let mut count: u64 = 0;
        while let Some(Position { block, offset }) = cursor.position_before(directory_table)? {
            if count >= u64::from(inode_count) {
                return Err(Error::corrupt(format!("more than the {inode_count} announced")));
            }
            let block = u32::try_from(block.saturating_sub(inode_table));
            let block = block.map_err(|_| Error::corrupt("larger than 4 GiB"))?;
            let reference = InodeRef::new(block, offset);
            let (inode, after_header) = self.inode(reference)?;
            cursor = after_header;
            visit(reference, &inode, &cursor)?;
            self.skip_rest(&inode, &mut cursor)?;
            count = count.saturating_add(1);
        }
        Ok(count)
    }

    /// Skips what follows the fixed part of an inode.
    fn skip_rest(&self, inode: &Inode, cursor: &mut Cursor<'_>) -> Result<()> {
        match &inode.body {
            Body::Regular(body) => cursor.skip(self.lists.len(body)?),
            Body::Symlink { len } => {
                let xattr = if inode.is_extended { 4 } else { 0 };
                cursor.skip(u64::from(*len).saturating_add(xattr))
            }
            Body::Directory(body) => {
                for _ in 0..body.index_count {
                    let entry: [u8; 12] = cursor.array()?;
                    let mut reader = Reader::new("directory index", &entry);
                    let (_listing, _block, len) = (reader.u32()?, reader.u32()?, reader.u32()?);
                    cursor.skip(u64::from(len).saturating_add(1))?;
                }
                Ok(())
            }
            Body::Device { .. } | Body::Fifo | Body::Socket => Ok(()),
        }
    }
}
