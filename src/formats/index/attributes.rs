//! Reads extended attributes from an index. `build::xattrs` describes the encoding.

use std::ops::ControlFlow;

use super::sections::Section;
use super::{Index, NodeId, WITH_XATTRS_LEN, binary_search};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::{XATTR_LIST_MAX, XATTR_VALUE_MAX};

/// The offset and the length of an attribute's value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    offset: u64,
    len: u32,
}

/// A callback for each attribute, with its name and its value.
pub(crate) type Visit<'v> = dyn FnMut(&[u8], Value) -> Result<ControlFlow<()>> + 'v;

impl Index {
    pub(crate) fn has_xattrs(&self) -> bool {
        self.section_lens.len_of(Section::WithXattrs) > 0
    }

    /// Visits the attributes of a node.
    ///
    /// Fails with `Corrupt` if Linux cannot show them. `Io`. The errors of `visit`.
    pub(crate) fn xattrs_of(&self, id: NodeId, visit: &mut Visit<'_>) -> Result<()> {
        let read = |nth| {
            let bytes: [u8; WITH_XATTRS_LEN] = self.record(Section::WithXattrs, nth)?;
            let mut reader = Reader::new("node with attributes", &bytes);
            Ok((reader.u32()?, reader.u64()?))
        };
        let count = self.section_lens.count(Section::WithXattrs, WITH_XATTRS_LEN);
        let Some(offset) = binary_search(count, id, read)? else {
            return Ok(());
        };
        self.visit_set(offset, visit).map(drop)
    }

    /// Visits the set of attributes at `offset`. Returns the end of the set, unless `visit` breaks.
    pub(super) fn visit_set(&self, mut offset: u64, visit: &mut Visit<'_>) -> Result<Option<u64>> {
        let wrong = || Error::corrupt("attributes in the index are not valid");
        let read_number = |offset: &mut u64| {
            let mut bytes = [0; 4];
            self.read_section(Section::Xattrs, *offset, &mut bytes)?;
            *offset = offset.saturating_add(4);
            Ok::<_, Error>(u32::from_le_bytes(bytes))
        };
        let count = read_number(&mut offset)?;
        let (mut list_len, mut buffer) = (0_usize, [0; 255]);
        for _ in 0..count {
            let len = index(read_number(&mut offset)?);
            let name = buffer.get_mut(..len).ok_or_else(wrong)?;
            self.read_section(Section::Xattrs, offset, name)?;
            offset = offset.saturating_add(length(len));
            let value_len = read_number(&mut offset)?;
            let value = Value { offset, len: value_len };
            offset = offset.saturating_add(value_len.into());
            list_len = list_len.saturating_add(len).saturating_add(1);
            let is_sound = !name.is_empty()
                && !name.contains(&0)
                && value_len <= XATTR_VALUE_MAX
                && list_len <= XATTR_LIST_MAX;
            if !is_sound {
                return Err(wrong());
            }
            if visit(name, value)?.is_break() {
                return Ok(None);
            }
        }
        match count > 0 && offset <= self.section_lens.len_of(Section::Xattrs) {
            true => Ok(Some(offset)),
            false => Err(wrong()),
        }
    }

    /// Reads the value of an attribute.
    pub(crate) fn value(&self, value: Value) -> Result<Vec<u8>> {
        let mut bytes = vec![0; index(value.len.min(XATTR_VALUE_MAX))];
        self.read_section(Section::Xattrs, value.offset, &mut bytes)?;
        Ok(bytes)
    }
}
