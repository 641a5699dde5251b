//! Extended attributes of members, as an index has them: sets of names and values (`xattrs`).

use std::ops::ControlFlow;

use super::file::Section;
use super::{Index, NodeId, WITH_XATTRS, searched};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::{XATTR_LIST_MAX, XATTR_VALUE_MAX};

/// Where the value of an attribute is, and its length.
#[derive(Clone, Copy, Debug)]
pub(in crate::formats::tar) struct Value {
    at: u64,
    len: u32,
}

/// What is done with each attribute: its name, and where its value is.
pub(in crate::formats::tar) type Visit<'v> =
    dyn FnMut(&[u8], Value) -> Result<ControlFlow<()>> + 'v;

impl Index {
    pub(in crate::formats::tar) fn has_xattrs(&self) -> bool {
        self.layout.len_of(Section::WithXattrs) > 0
    }

    /// Visits the attributes of a node.
    ///
    /// # Errors
    /// `Corrupt` where Linux could not show them; `Io`; those of `visit`.
    pub(in crate::formats::tar) fn xattrs_of(
        &self,
        id: NodeId,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        let read = |nth| {
            let bytes: [u8; WITH_XATTRS] = self.record(Section::WithXattrs, nth)?;
            let mut reader = Reader::new("node with attributes", &bytes);
            Ok((reader.u32()?, reader.u64()?))
        };
        let count = self.layout.count(Section::WithXattrs, WITH_XATTRS);
        let Some(at) = searched(count, id, read)? else {
            return Ok(());
        };
        self.set(at, visit).map(drop)
    }

    /// Visits the set of attributes at `at`; returns where it ends, unless `visit` breaks.
    pub(super) fn set(&self, mut at: u64, visit: &mut Visit<'_>) -> Result<Option<u64>> {
        let wrong = || Error::corrupt("attributes in the index are none");
        let number = |at: &mut u64| {
            let mut bytes = [0; 4];
            self.bytes(Section::Xattrs, *at, &mut bytes)?;
            *at = at.saturating_add(4);
            Ok::<_, Error>(u32::from_le_bytes(bytes))
        };
        let count = number(&mut at)?;
        let (mut listed, mut buffer) = (0_usize, [0; 255]);
        for _ in 0..count {
            let len = index(number(&mut at)?);
            let name = buffer.get_mut(..len).ok_or_else(wrong)?;
            self.bytes(Section::Xattrs, at, name)?;
            at = at.saturating_add(length(len));
            let value_len = number(&mut at)?;
            let value = Value { at, len: value_len };
            at = at.saturating_add(value_len.into());
            listed = listed.saturating_add(len).saturating_add(1);
            let is_sound = !name.is_empty()
                && !name.contains(&0)
                && value_len <= XATTR_VALUE_MAX
                && listed <= XATTR_LIST_MAX;
            if !is_sound {
                return Err(wrong());
            }
            if visit(name, value)?.is_break() {
                return Ok(None);
            }
        }
        match count > 0 && at <= self.layout.len_of(Section::Xattrs) {
            true => Ok(Some(at)),
            false => Err(wrong()),
        }
    }

    /// The bytes of an attribute.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(in crate::formats::tar) fn value(&self, value: Value) -> Result<Vec<u8>> {
        let mut bytes = vec![0; index(value.len.min(XATTR_VALUE_MAX))];
        self.bytes(Section::Xattrs, value.at, &mut bytes)?;
        Ok(bytes)
    }
}
