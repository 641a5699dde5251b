//! Extended attributes: names and values.
//!
//! Only the prefixes user, trusted and security exist in the format. The kernel checks the
//! permission to read an attribute.
//!
//! An inode holds an index into the xattr id table. Its record there holds the position and number
//! of its pairs, and their size for listxattr(2). A value shared by several inodes is stored once;
//! the others store a reference to it ("out of line").

use super::metadata::{Cursor, Metadata, Position, Table};
use crate::error::{Error, Kind, Result};
use crate::formats::bytes::{Reader, index};
use crate::formats::limits::{XATTR_LIST_MAX, XATTR_VALUE_MAX};
use crate::storage::Storage;
use crate::sync::Arc;

/// Size of a record of the id table, bytes: reference (8), count (4), size (4).
const ID_RECORD: usize = 16;

/// Set in the type of a pair whose value is stored elsewhere.
const OUT_OF_LINE: u16 = 0x100;

/// The extended attributes of an image.
pub(super) struct Xattrs {
    metadata: Arc<Metadata>,
    ids: Table<ID_RECORD>,
    /// Offset of the pairs in the image.
    start: u64,
}

impl Xattrs {
    /// Reads the header of the table at `table`.
    pub(super) fn read(
        metadata: &Arc<Metadata>,
        storage: &dyn Storage,
        table: u64,
        end: u64,
    ) -> Result<Self> {
        let mut header = [0; 16];
        storage.read_exact_at(&mut header, table)?;
        let mut reader = Reader::new("xattr table", &header);
        let start = reader.u64()?;
        let count = reader.u32()?;
        // An empty table has no pairs, so their position does not matter.
        if count > 0 && start >= end {
            return Err(Error::corrupt("xattr table: past the end of the image")
                .with_detail(format_args!("pairs at {start:#x}, image ends at {end:#x}")));
        }
        let list = table.saturating_add(16);
        let ids = Table::read(metadata, storage, "xattr id", list, count, end)?;
        Ok(Self { metadata: Arc::clone(metadata), ids, start })
    }

    /// Number of xattr indices.
    pub(super) fn count(&self) -> u32 {
        self.ids.count()
    }

    /// The names of the attributes of xattr index `id`, each followed by a NUL.
    pub(super) fn list(&self, id: u32) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        self.visit(id, |name, _| {
            names.extend_from_slice(name);
            names.push(0);
            match names.len() > XATTR_LIST_MAX {
                true => Err(Error::corrupt(format!(
                    "xattr id {id}: names of more than {XATTR_LIST_MAX} bytes"
                ))),
                false => Ok(None::<()>),
            }
        })?;
        Ok(names)
    }

    /// The value of attribute `wanted` of xattr index `id`.
    pub(super) fn value(&self, id: u32, wanted: &[u8]) -> Result<Vec<u8>> {
        let value = self.visit(id, |name, value| match name == wanted {
            true => value.read().map(Some),
            false => Ok(None),
        })?;
        value.ok_or_else(|| Error::new(Kind::NoAttribute, "no such attribute"))
    }

    /// Visits the pairs of `id` until `visit` returns `Some`.
    fn visit<T>(
        &self,
        id: u32,
        mut visit: impl FnMut(&[u8], Value<'_>) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let record = self.ids.record(id)?;
        let mut reader = Reader::new("xattr id", &record);
        let reference = reader.u64()?;
        let count = reader.u32()?;
        let mut cursor = self.metadata.cursor(self.position(reference))?;
        let mut name = Vec::new();
        for _ in 0..count {
            let kind = u16::from_le_bytes(cursor.array()?);
            let name_len = u16::from_le_bytes(cursor.array()?);
            name.clear();
            name.extend_from_slice(prefix(kind)?);
            let before = name.len();
            name.resize(before.saturating_add(usize::from(name_len)), 0);
            cursor.fill(name.get_mut(before..).unwrap_or_default())?;
            // Names in the list end with a NUL. One inside a name would split it in two.
            if name.contains(&0) {
                return Err(Error::corrupt(format!("xattr id {id}: a NUL in a name")));
            }
            let value = Value { xattrs: self, kind, cursor: cursor.clone() };
            if let Some(found) = visit(&name, value)? {
                return Ok(Some(found));
            }
            let stored = u32::from_le_bytes(cursor.array()?);
            cursor.skip(u64::from(checked_len(stored)?))?;
        }
        Ok(None)
    }

    fn position(&self, reference: u64) -> Position {
        let [low, high, ..] = reference.to_le_bytes();
        let block = self.start.saturating_add(reference >> 16);
        Position { block, offset: u16::from_le_bytes([low, high]) }
    }
}

/// A value that was not read yet. The cursor is at its length.
struct Value<'m> {
    xattrs: &'m Xattrs,
    kind: u16,
    cursor: Cursor<'m>,
}

impl Value<'_> {
    fn read(mut self) -> Result<Vec<u8>> {
        if self.kind & OUT_OF_LINE != 0 {
            let size = u32::from_le_bytes(self.cursor.array()?);
            if size != 8 {
                return Err(Error::corrupt(format!(
                    "squashfs xattr: a reference to a value has {size} bytes, must have 8"
                )));
            }
            let reference = u64::from_le_bytes(self.cursor.array()?);
            self.cursor = self.xattrs.metadata.cursor(self.xattrs.position(reference))?;
        }
        let len = checked_len(u32::from_le_bytes(self.cursor.array()?))?;
        let mut value = vec![0; index(len)];
        self.cursor.fill(&mut value)?;
        Ok(value)
    }
}

fn checked_len(len: u32) -> Result<u32> {
    if len > XATTR_VALUE_MAX {
        return Err(Error::corrupt(format!(
            "squashfs xattr: value of {len} bytes, limit {XATTR_VALUE_MAX}"
        )));
    }
    Ok(len)
}

fn prefix(kind: u16) -> Result<&'static [u8]> {
    match kind & !OUT_OF_LINE {
        0 => Ok(b"user."),
        1 => Ok(b"trusted."),
        2 => Ok(b"security."),
        other => Err(Error::corrupt(format!("xattr of type {other}, valid are 0 to 2"))),
    }
}
