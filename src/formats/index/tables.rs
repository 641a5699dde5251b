//! Reads the tables of rare data in an index: maps of sparse files, and extended attributes.

use std::ops::ControlFlow;

use super::layout::{MAP_LEN, SEGMENT_LEN, Section, WITH_XATTRS_LEN};
use super::members::Segment;
use super::{Index, Node, NodeId, binary_search, wrong};
use crate::error::{Error, Result};
use crate::formats::bytes::{Reader, index, length};
use crate::formats::limits::{XATTR_LIST_MAX, XATTR_VALUE_MAX};

/// The map of a sparse file: a range of the segments of all files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Map {
    first: u64,
    end: u64,
    /// Bytes stored in the archive.
    pub(crate) stored: u64,
    /// Size of the file, bytes.
    size: u64,
}

impl Index {
    /// The map with `number`, which belongs to the sparse file `id` with record `node`.
    ///
    /// Fails with `Corrupt` if there is no such map, or if it belongs to another file. `Io`.
    pub(crate) fn map(&self, id: NodeId, node: &Node, number: u64) -> Result<Map> {
        let wrong = || wrong(id, "its sparse map is not valid");
        if number >= self.section_lens.count(Section::Maps) {
            return Err(wrong());
        }
        let read = |number| {
            let bytes: [u8; MAP_LEN] = self.record(Section::Maps, number)?;
            let mut reader = Reader::new("map", &bytes);
            Ok::<_, Error>((reader.u64()?, reader.u32()?, reader.u64()?))
        };
        let first = match number.checked_sub(1) {
            Some(previous) => read(previous)?.0,
            None => 0,
        };
        let (end, map_node, stored) = read(number)?;
        // Each file has its own map, so all files together have at most as many segments as the
        // index.
        let is_own = map_node == id && stored <= node.size;
        match is_own && first <= end && end <= self.section_lens.count(Section::Segments) {
            true => Ok(Map { first, end, stored, size: node.size }),
            false => Err(wrong()),
        }
    }

    fn segment(&self, map: &Map, number: u64) -> Result<Segment> {
        let bytes: [u8; SEGMENT_LEN] = self.record(Section::Segments, number)?;
        let mut reader = Reader::new("segment", &bytes);
        let (offset, len, archive_offset) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let is_within =
            |start: u64, limit: u64| start.checked_add(len).is_some_and(|end| end <= limit);
        let fault = match (is_within(offset, map.size), is_within(archive_offset, self.archive_len))
        {
            (true, true) if len > 0 => return Ok(Segment { offset, len, archive_offset }),
            (true, true) => "it is empty",
            (false, _) => "it lies outside its file",
            (_, false) => "its bytes lie outside the archive",
        };
        Err(Error::corrupt(format!("segment {number}: {fault}")))
    }

    /// Visits the segments of `map` that end after `offset`, in ascending order.
    ///
    /// Fails with `Corrupt` if a segment is out of order, outside the file, or outside the archive.
    /// `Io`.
    pub(crate) fn segments(
        &self,
        map: &Map,
        offset: u64,
        visit: &mut dyn FnMut(Segment) -> ControlFlow<()>,
    ) -> Result<()> {
        let (mut low, mut high) = (map.first, map.end);
        while low < high {
            let middle = low.midpoint(high);
            match self.segment(map, middle)?.end() <= offset {
                true => low = middle.saturating_add(1),
                false => high = middle,
            }
        }
        let mut previous_end = 0;
        for number in low..map.end {
            let segment = self.segment(map, number)?;
            if segment.offset < previous_end {
                return Err(Error::corrupt(format!("segment {number}: it is out of order")));
            }
            previous_end = segment.end();
            if visit(segment).is_break() {
                break;
            }
        }
        Ok(())
    }
}

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
        let count = self.section_lens.count(Section::WithXattrs);
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
