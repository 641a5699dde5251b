//! Sparse maps in an index: which parts of a file the archive stores.

use std::ops::ControlFlow;

use super::members::Segment;
use super::sections::Section;
use super::{Index, MAP_LEN, Node, NodeId, SEGMENT_LEN, wrong};
use crate::error::{Error, Result};
use crate::formats::bytes::Reader;

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
        if number >= self.section_lens.count(Section::Maps, MAP_LEN) {
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
        match is_own
            && first <= end
            && end <= self.section_lens.count(Section::Segments, SEGMENT_LEN)
        {
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
